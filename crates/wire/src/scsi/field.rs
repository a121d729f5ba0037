//! Fields at fixed offsets of a layout, big-endian as everywhere in SCSI.

use std::marker::PhantomData;

/// A field: its position, for reading it, setting it, and pointing sense data at it.
#[derive(Debug)]
pub struct Field<T> {
    byte: u16,
    /// Its bits, for a field that shares its byte with others.
    mask: u8,
    value: PhantomData<T>,
}

impl<T> Clone for Field<T> {
    fn clone(&self) -> Field<T> {
        *self
    }
}

impl<T> Copy for Field<T> {}

impl<T> Field<T> {
    /// A field of whole bytes, starting at `byte`.
    pub const fn at(byte: u16) -> Field<T> {
        Field::bits(byte, 0xff)
    }

    /// The bits of `mask`, which must be contiguous, in `byte`.
    pub const fn bits(byte: u16, mask: u8) -> Field<T> {
        Field { byte, mask, value: PhantomData }
    }

    /// Its first byte.
    pub const fn byte(self) -> u16 {
        self.byte
    }

    /// Its most significant bit, for a field that shares its byte with others.
    pub fn bit(self) -> Option<u8> {
        let bit = u8::BITS.saturating_sub(self.mask.leading_zeros()).saturating_sub(1);
        if self.mask == 0xff { None } else { u8::try_from(bit).ok() }
    }

    fn offset(self) -> usize {
        usize::from(self.byte)
    }
}

impl<T: Value> Field<T> {
    /// Its value; `None` when the bytes end before the field does.
    #[inline]
    pub fn get(self, bytes: &[u8]) -> Option<T> {
        T::get(bytes, self.offset(), self.mask)
    }

    /// Sets it, as far as there are bytes; the bits of other fields are kept.
    #[inline]
    pub fn set(self, bytes: &mut [u8], value: T) {
        value.set(bytes, self.offset(), self.mask);
    }
}

/// A type of field.
pub trait Value: Copy + Default {
    /// All zeros.
    const ZERO: Self;

    /// The value at `at`, from the bits of `mask`.
    fn get(bytes: &[u8], at: usize, mask: u8) -> Option<Self>;
    /// Sets it.
    fn set(self, bytes: &mut [u8], at: usize, mask: u8);
}

impl Value for bool {
    const ZERO: bool = false;

    #[inline]
    fn get(bytes: &[u8], at: usize, mask: u8) -> Option<bool> {
        bytes.get(at).map(|byte| byte & mask != 0)
    }

    #[inline]
    fn set(self, bytes: &mut [u8], at: usize, mask: u8) {
        if let Some(byte) = bytes.get_mut(at) {
            *byte = if self { *byte | mask } else { *byte & !mask };
        }
    }
}

impl Value for u8 {
    const ZERO: u8 = 0;

    #[inline]
    fn get(bytes: &[u8], at: usize, mask: u8) -> Option<u8> {
        bytes.get(at).map(|byte| (byte & mask).wrapping_shr(mask.trailing_zeros()))
    }

    #[inline]
    fn set(self, bytes: &mut [u8], at: usize, mask: u8) {
        if let Some(byte) = bytes.get_mut(at) {
            *byte = *byte & !mask | self.wrapping_shl(mask.trailing_zeros()) & mask;
        }
    }
}

macro_rules! whole {
    ($($type:ty),*) => { $(
        impl Value for $type {
            const ZERO: $type = 0;

            #[inline]
            fn get(bytes: &[u8], at: usize, _: u8) -> Option<$type> {
                bytes.get(at..)?.first_chunk().map(|bytes| <$type>::from_be_bytes(*bytes))
            }

            #[inline]
            fn set(self, bytes: &mut [u8], at: usize, _: u8) {
                let field = bytes.iter_mut().skip(at).zip(self.to_be_bytes());
                field.for_each(|(slot, byte)| *slot = byte);
            }
        }
    )* };
}
whole!(u16, u32, u64);

impl<const N: usize> Value for [u8; N]
where
    [u8; N]: Default,
{
    const ZERO: [u8; N] = [0; N];

    fn get(bytes: &[u8], at: usize, _: u8) -> Option<[u8; N]> {
        bytes.get(at..)?.first_chunk().copied()
    }

    fn set(self, bytes: &mut [u8], at: usize, _: u8) {
        bytes.iter_mut().skip(at).zip(self).for_each(|(slot, byte)| *slot = byte);
    }
}

/// Declares a layout: a value with a constant for each field. `name NAME: type = byte`, and `& mask` for
/// fields that share their byte with others.
macro_rules! layout {
    (
        $(#[$doc:meta])*
        $name:ident [$len:expr] {
            $( $(#[$field_doc:meta])* $field:ident $place:ident: $type:ty = $byte:literal $(& $mask:literal)? ),*
            $(,)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name {
            $( $(#[$field_doc])* pub $field: $type, )*
        }

        impl $name {
            /// Length in bytes.
            pub const BYTES: usize = $len;
            /// All zeros.
            pub const ZERO: $name = $name { $( $field: <$type as $crate::scsi::field::Value>::ZERO, )* };
            $(
                $(#[$field_doc])*
                pub const $place: $crate::scsi::Field<$type> = $crate::scsi::field::field!($byte $(& $mask)?);
            )*

            /// Reads the fields from these bytes; missing bytes read as zero.
            #[inline]
            pub fn read(bytes: &[u8]) -> $name {
                let _ = bytes;
                $name { $( $field: $name::$place.get(bytes).unwrap_or_default(), )* }
            }

            /// Sets the fields in these bytes; other bits are kept.
            pub fn write(&self, bytes: &mut [u8]) {
                let _ = &bytes;
                $( $name::$place.set(bytes, self.$field); )*
            }

            /// All bytes, zero where there is no field.
            pub fn to_bytes(self) -> [u8; $len] {
                let mut bytes = [0; $len];
                self.write(&mut bytes);
                bytes
            }
        }
    };
}

macro_rules! field {
    ($byte:literal) => {
        $crate::scsi::Field::at($byte)
    };
    ($byte:literal & $mask:literal) => {
        $crate::scsi::Field::bits($byte, $mask)
    };
}

pub(crate) use {field, layout};

#[cfg(test)]
mod tests {
    layout! {
        /// All kinds of fields.
        Sample [16] {
            /// A bit.
            flag FLAG: bool = 1 & 0x08,
            /// Bits that share the byte.
            kind KIND: u8 = 1 & 0xe0,
            /// A number.
            number NUMBER: u32 = 2,
            /// Characters.
            name NAME: [u8; 4] = 8,
        }
    }

    #[test]
    fn a_layout_is_read_as_it_was_written_and_cut_off_anywhere() {
        let sample = Sample { flag: true, kind: 5, number: 0x0102_0304, name: *b"abcd" };
        let bytes = sample.to_bytes();
        assert_eq!(bytes[..8], [0, 0xa8, 1, 2, 3, 4, 0, 0]);
        assert_eq!(Sample::read(&bytes), sample);
        for len in 0..bytes.len() {
            let read = Sample::read(&bytes[..len]);
            assert_eq!((read.flag, read.number != 0), (len > 1, len > 5));
        }
        assert_eq!((Sample::NUMBER.get(&bytes[..5]), Sample::NUMBER.get(&bytes)), (None, Some(0x0102_0304)));
        let mut other = [0xff; 16];
        Sample::default().write(&mut other);
        assert_eq!(other[1], 0x17, "bits of no field stay");
    }

    #[test]
    fn a_field_says_where_it_is() {
        assert_eq!((Sample::KIND.byte(), Sample::KIND.bit()), (1, Some(7)));
        assert_eq!((Sample::FLAG.bit(), Sample::NUMBER.bit()), (Some(3), None));
        assert_eq!((Sample::BYTES, Sample::ZERO), (16, Sample::default()));
    }
}
