//! How a command is carried out: the result of its translation.

use super::failure::Failure;
use super::order::Asked;
use wire::ata::PassThrough;

/// Bytes of a sector.
pub(super) const SECTOR_BYTES: u32 = wire::ata::SECTOR_BYTES;

/// How a command is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plan {
    /// Send IDENTIFY DEVICE, and plan the command again with the answer.
    Ask,
    /// Interpret this much of its data-out, and plan the command with it; `is_fresh`: after IDENTIFY DEVICE.
    Interpret { bytes: u32, is_fresh: bool },
    /// Read, write or verify sectors; with `flush`, FLUSH CACHE follows.
    Move { way: AtaTransfer, lba: u64, sectors: u32, flush: bool },
    /// FLUSH CACHE.
    Flush,
    /// DATA SET MANAGEMENT with TRIM, with this many ranges, at most `most` of them in a command.
    Trim { ranges: u32, most: u32 },
    /// SET FEATURES with this feature.
    Feature(u8),
    /// An ATA command, unchanged.
    Ata(PassThrough),
    /// A command of AoE that is not ATA.
    Order(Asked),
    /// It succeeds, with the data that was built as its data-in.
    Made,
    /// It fails.
    Fail(Failure),
}

/// How sectors are transferred.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AtaTransfer {
    Read,
    Write,
    Verify,
}
