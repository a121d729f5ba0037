//! iWARP: MPA start-up frames and FPDUs (RFC 5044, RFC 6581), DDP segments (RFC 5041), RDMAP messages (RFC 5040).
//!
//! A DDP header always follows the ULPDU length of its FPDU, so the header structs begin with that length.
//! All are big-endian in memory as on the wire. Codes are newtypes over the raw value: what a peer sent is
//! kept as is, for the machine to validate.

pub mod ddp;
pub mod mpa;
pub mod rdmap;

pub use ddp::{Head, Queue, Tagged, Untagged};
pub use mpa::{Marker, ReadDepths, StartFrame};
pub use rdmap::{Opcode, ReadRequest, TerminateControl};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A layout that can be viewed in place.
pub trait Layout: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Copy {
    /// Its length in bytes.
    const BYTES: usize = size_of::<Self>();

    /// Views the beginning of `bytes`; `None` when they are too few.
    fn view(bytes: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(bytes).ok().map(|(layout, _)| layout)
    }
}

/// Defines a layout of this many bytes; its default is all zeros.
macro_rules! layout {
    ($(#[$doc:meta])* $name:ident, $bytes:expr, { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, zerocopy::FromBytes, zerocopy::IntoBytes,
            zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned)]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        const _: () = assert!(size_of::<$name>() == $bytes);

        impl crate::iwarp::Layout for $name {}
    };
}
pub(crate) use layout;

/// Decodes, encodes to the same bytes; anything shorter does not decode.
#[cfg(test)]
pub(crate) fn decoded<L: Layout>(bytes: &[u8]) -> L {
    assert_eq!(bytes.len(), L::BYTES);
    for len in 0..bytes.len() {
        assert!(L::view(&bytes[..len]).is_none());
    }
    let layout = *L::view(bytes).unwrap();
    assert_eq!(layout.as_bytes(), bytes);
    layout
}
