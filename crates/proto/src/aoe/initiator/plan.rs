//! What is done for a command: the outcome of its translation.

use super::failure::Failure;
use super::order::Asked;
use wire::ata::PassThrough;

/// Bytes of a sector.
pub(super) const SECTOR_BYTES: u32 = wire::ata::SECTOR_BYTES;

/// What is done for a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plan {
    /// IDENTIFY DEVICE, whose answer the command is planned with once more.
    Ask,
    /// So much of its data-out is looked at, and the command is planned with it; `is_fresh`, after it was asked.
    Look { bytes: u32, is_fresh: bool },
    /// Sectors are read, written or verified; with `flush`, FLUSH CACHE follows.
    Move { way: AtaTransfer, lba: u64, sectors: u32, flush: bool },
    /// FLUSH CACHE.
    Flush,
    /// DATA SET MANAGEMENT with TRIM, of so many ranges; so many of them in a command.
    Trim { ranges: u32, most: u32 },
    /// SET FEATURES, of this one.
    Feature(u8),
    /// An ATA command, as it is.
    Ata(PassThrough),
    /// A command of AoE that is not ATA.
    Order(Asked),
    /// It has ended well, with what was made as its data-in.
    Made,
    /// It has failed.
    Fail(Failure),
}

/// What happens to sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AtaTransfer {
    Read,
    Write,
    Verify,
}
