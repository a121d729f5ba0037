//! Commands by name: each is a value that encodes to a CDB, and fields that can be read from one.

pub mod block;
pub mod primary;

pub use block::*;
pub use primary::*;

use super::Cdb;
use super::field::Field;

/// A command with a CDB of its own.
pub trait Command: Copy {
    /// Operation code.
    const OPCODE: u8;
    /// Service action, for operation codes that have them.
    const SERVICE_ACTION: Option<u8>;

    /// Its CDB.
    fn to_cdb(self) -> Cdb;

    /// Parses a CDB, if it is this command.
    fn from_cdb(cdb: &Cdb) -> Option<Self>;
}

/// Declares commands: `Name = OPCODE / service_action::ACTION [bytes of the CDB] new(mandatory fields) {
/// fields }`.
macro_rules! commands {
    ($(
        $(#[$doc:meta])*
        $name:ident = $opcode:ident $(/ $module:ident::$action:ident)? [$len:literal]
        $(new($($given:ident: $given_type:ty),*))?
        { $($fields:tt)* }
    )*) => { $(
        $crate::scsi::field::layout! {
            $(#[$doc])*
            $name [$len] { $($fields)* }
        }

        impl $name {
            $(
                /// The command with these fields, all others zero.
                #[allow(clippy::needless_update, reason = "of some commands all fields are given")]
                pub const fn new($($given: $given_type),*) -> $name {
                    $name { $($given,)* ..$name::ZERO }
                }
            )?
        }

        impl $crate::scsi::Command for $name {
            const OPCODE: u8 = $crate::scsi::opcode::$opcode;
            const SERVICE_ACTION: Option<u8> = $crate::scsi::command::action!($($module::$action)?);

            fn to_cdb(self) -> $crate::scsi::Cdb {
                $crate::scsi::Cdb::of(Self::OPCODE, Self::SERVICE_ACTION, &self.to_bytes())
            }

            fn from_cdb(cdb: &$crate::scsi::Cdb) -> Option<$name> {
                let is = cdb.opcode() == Self::OPCODE
                    && Self::SERVICE_ACTION.is_none_or(|action| action == cdb.service_action());
                is.then(|| $name::read(cdb.as_bytes()))
            }
        }
    )* };
}

macro_rules! action {
    () => {
        None
    };
    ($module:ident::$action:ident) => {
        Some($crate::scsi::opcode::service_action::$module::$action)
    };
}

pub(crate) use {action, commands};

/// NACA, in CONTROL: the last byte of a CDB of this fixed length (SAM-5 section 5.2).
pub fn naca(cdb_bytes: usize) -> Field<bool> {
    Field::bits(u16::try_from(cdb_bytes.saturating_sub(1)).unwrap_or(0), 0x04)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::{opcode, status};

    #[test]
    fn commands_are_laid_out_as_the_standard_has_them() {
        let cdb = Write16 { fua: true, ..Write16::new(0x0102_0304_0506_0708, 0x090a_0b0c) }.to_cdb();
        assert_eq!(cdb.as_bytes(), [0x8a, 8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0]);
        assert_eq!(Read10::new(0x0102_0304, 0x0506).to_cdb().as_bytes(), [0x28, 0, 1, 2, 3, 4, 0, 5, 6, 0]);
        assert_eq!(Read6::new(0x1f_0203, 4).to_cdb().as_bytes(), [0x08, 0x1f, 2, 3, 4, 0]);
        let capacity = [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0];
        assert_eq!(ReadCapacity16::new(32).to_cdb().as_bytes(), capacity);
        assert_eq!(Inquiry::page(0x83, 252).to_cdb().as_bytes(), [0x12, 1, 0x83, 0, 252, 0]);
        assert_eq!(Unmap::new(24).to_cdb().as_bytes(), [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0]);
        assert_eq!(TestUnitReady {}.to_cdb().as_bytes(), [0; 6]);
        assert_eq!(status::GOOD, 0);
    }

    #[test]
    fn a_command_is_read_back_and_no_other_one() {
        let capacity = ReadCapacity16::new(32);
        assert_eq!(ReadCapacity16::from_cdb(&capacity.to_cdb()), Some(capacity));
        assert_eq!(GetLbaStatus::from_cdb(&capacity.to_cdb()), None);
        let read = Read6::new(0x1f_0203, 0);
        assert_eq!(Read6::from_cdb(&read.to_cdb()), Some(read));
        assert_eq!(read.to_cdb().opcode(), opcode::READ_6);
    }
}
