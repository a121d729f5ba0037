//! What a remote unit is: asked once, when it is opened.

use super::continuity::Incarnation;
use super::identity::{Identity, incarnation};
use crate::client::Reply;
use scsi::storage::{BlockSizes, Traits};
use std::fmt;
use wire::shown;

/// Block sizes that can be served.
const BLOCK_BYTES: std::ops::RangeInclusive<u32> = 512..=65536;
/// Bytes that are asked for of a page.
pub(super) const PAGE_BYTES: u8 = 252;

/// What a unit is, and what it can do at a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Logical block size in bytes.
    pub block_bytes: u32,
    /// Physical block size in bytes.
    pub physical_block_bytes: u32,
    /// Vendor, product and revision.
    pub name: String,
    /// Which unit it is.
    pub identity: Identity,
    /// The run of its cache, when it tells.
    pub(super) incarnation: Option<Incarnation>,
    /// What it can do, with its size.
    pub traits: Traits,
    /// Thin provisioned (LBPME).
    pub thin: bool,
    /// UNMAP is supported, and unmapped blocks read as zeros.
    pub unmap_zeros: bool,
    /// WRITE SAME may unmap.
    pub write_same_unmaps: bool,
    /// FUA is supported.
    pub fua: bool,
    /// ORDERED commands are supported.
    pub ordered: bool,
    /// The longest transfer in blocks; `None`: not said.
    pub transfer_blocks_max: Option<u32>,
    /// The longest UNMAP descriptor in blocks.
    pub unmap_blocks_max: u32,
    /// The longest WRITE SAME in blocks; `None`: not said.
    pub same_blocks_max: Option<u64>,
}

impl Geometry {
    /// Asks a unit: `command` sends it a CDB that reads so many bytes.
    ///
    /// # Errors
    /// When it does not answer, or is no disk that can be served.
    pub fn learn<E: fmt::Display>(
        mut command: impl FnMut(&[u8], u32) -> Result<Reply, E>,
    ) -> Result<Geometry, String> {
        let command = &mut command;
        let inquiry = must(command, &INQUIRY, PAGE_BYTES.into(), "INQUIRY")?;
        is_disk(&inquiry)?;
        let capacity = must(command, &read_capacity(), CAPACITY_BYTES, "READ CAPACITY(16)")?;
        let (blocks, block_bytes) = capacity_of(&capacity).ok_or("the capacity is cut short")?;
        if !BLOCK_BYTES.contains(&block_bytes) || !block_bytes.is_power_of_two() {
            return Err(format!("blocks of {block_bytes} bytes cannot be served"));
        }
        let pages = page(command, 0x00);
        let known = |code: u8| pages.iter().skip(4).any(|page| *page == code);
        let mut optional = |code: u8| if known(code) { page(command, code) } else { Vec::new() };
        let (limits, shape, provisioning) = (optional(0xb0), optional(0xb1), optional(0xb2));
        // ORDSUP; of a unit without that page, CMDQUE (SPC-4 sections 7.8.7 and 6.6.2).
        let ordered = if known(0x86) { byte(&optional(0x86), 5) & 0x02 } else { byte(&inquiry, 7) & 0x02 };
        let identity =
            Identity::learn(&inquiry, pages.get(4..).unwrap_or_default(), |code| page(command, code));
        let modes = Modes::of(&ask(command, &MODE_SENSE, PAGE_BYTES.into()).unwrap_or_default());
        let thin = byte(&capacity, 14) & 0x80 != 0;
        let zeros = byte(&capacity, 14) & 0x40 != 0 || byte(&provisioning, 5) & 0x1c == 0x04;
        let (unmap, same) = (byte(&provisioning, 5) & 0x80 != 0, byte(&provisioning, 5) & 0x40 != 0);
        let unmap_blocks_max = u32_at(&limits, 20);
        let unmap_zeros = thin && unmap && zeros && unmap_blocks_max > 0;
        let in_bytes = |blocks: u32| blocks.saturating_mul(block_bytes);
        let physical_block_bytes = in_bytes(1 << (byte(&capacity, 13) & 0x0f).min(7));
        Ok(Geometry {
            block_bytes,
            physical_block_bytes,
            name: name_of(&inquiry),
            identity,
            incarnation: incarnation(&inquiry),
            traits: Traits {
                size_bytes: blocks.saturating_mul(u64::from(block_bytes)),
                blocks: Some(BlockSizes { logical_bytes: block_bytes, physical_bytes: physical_block_bytes }),
                discards: unmap_zeros || (thin && same),
                discard_granularity_bytes: in_bytes(u32_at(&limits, 28).max(1)),
                atomic_write_bytes_max: in_bytes(u32_at(&limits, 44)),
                compare_write_bytes_max: in_bytes(byte(&limits, 5).into()),
                volatile_cache: modes.write_cache,
                read_only: modes.write_protected,
                solid_state: u16::from_be_bytes([byte(&shape, 4), byte(&shape, 5)]) == 1,
                cryptographic_erase: false,
            },
            thin,
            unmap_zeros,
            write_same_unmaps: thin && same,
            fua: modes.fua,
            ordered: ordered != 0,
            transfer_blocks_max: Some(u32_at(&limits, 8)).filter(|blocks| *blocks > 0),
            unmap_blocks_max,
            same_blocks_max: Some(u64_at(&limits, 36)).filter(|blocks| *blocks > 0),
        })
    }
}

/// Bytes of the answer to READ CAPACITY(16).
pub(super) const CAPACITY_BYTES: u32 = 32;

/// READ CAPACITY(16) (SBC-4 section 5.20).
pub(super) fn read_capacity() -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x10, 32);
    cdb
}

/// Blocks and block size in an answer to READ CAPACITY(16).
pub(super) fn capacity_of(data: &[u8]) -> Option<(u64, u32)> {
    let blocks = u64::from_be_bytes(*data.first_chunk()?).checked_add(1)?;
    Some((blocks, u32::from_be_bytes(*data.get(8..)?.first_chunk()?)))
}

/// TEST UNIT READY (SPC-4 section 6.47).
pub(super) const TEST_UNIT_READY: [u8; 6] = [0; 6];

/// INQUIRY (SPC-4 section 6.6).
pub(super) const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, PAGE_BYTES, 0];

/// INQUIRY for a page of vital product data.
pub(super) fn inquiry_page(code: u8) -> [u8; 6] {
    [0x12, 1, code, 0, PAGE_BYTES, 0]
}

/// MODE SENSE(6) for the caching page (SBC-4 section 6.5.6), without block descriptors.
pub(super) const MODE_SENSE: [u8; 6] = [0x1a, 0x08, 0x08, 0, PAGE_BYTES, 0];

/// Whether INQUIRY data are those of a disk.
pub(super) fn is_disk(inquiry: &[u8]) -> Result<(), String> {
    match inquiry.first().map(|byte| (byte >> 5, byte & 0x1f)) {
        Some((0, 0x00)) => Ok(()),
        Some((0, kind)) => Err(format!("the unit is no disk (device type {kind:02x}h)")),
        Some(_) | None => Err("there is no such unit".into()),
    }
}

/// What mode pages tell.
pub(super) struct Modes {
    pub(super) write_cache: bool,
    pub(super) write_protected: bool,
    fua: bool,
}

impl Modes {
    /// Of an answer to MODE SENSE. A unit that does not tell is taken to have a volatile cache, and no FUA: that costs
    /// time, but no data.
    pub(super) fn of(data: &[u8]) -> Modes {
        let device = byte(data, 2);
        let page = 4 + usize::from(byte(data, 3));
        let told = byte(data, page) & 0x3f == 0x08;
        Modes {
            write_cache: !told || byte(data, page + 2) & 0x04 != 0,
            write_protected: device & 0x80 != 0,
            fua: device & 0x10 != 0,
        }
    }
}

fn must<E: fmt::Display>(
    command: &mut impl FnMut(&[u8], u32) -> Result<Reply, E>,
    cdb: &[u8],
    bytes: u32,
    name: &str,
) -> Result<Vec<u8>, String> {
    match command(cdb, bytes) {
        Ok(Reply { status: 0, data, .. }) => Ok(data),
        Ok(Reply { status, sense: None, .. }) => Err(format!("{name} ended with status {status:02x}h")),
        Ok(Reply { sense: Some(sense), .. }) => Err(format!("{name} failed: {sense}")),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

fn ask<E: fmt::Display>(
    command: &mut impl FnMut(&[u8], u32) -> Result<Reply, E>,
    cdb: &[u8],
    bytes: u32,
) -> Option<Vec<u8>> {
    must(command, cdb, bytes, "").ok()
}

/// A page of vital product data; empty when there is none.
fn page<E: fmt::Display>(command: &mut impl FnMut(&[u8], u32) -> Result<Reply, E>, code: u8) -> Vec<u8> {
    let data = ask(command, &inquiry_page(code), PAGE_BYTES.into()).unwrap_or_default();
    if byte(&data, 1) == code { data } else { Vec::new() }
}

fn name_of(inquiry: &[u8]) -> String {
    let fields = inquiry.get(8..36).unwrap_or_default();
    let words = fields.split(|byte| matches!(byte, b' ' | 0)).filter(|word| !word.is_empty());
    words.map(|word| shown(word).to_string()).collect::<Vec<_>>().join(" ")
}

/// Zero past the end.
fn byte(data: &[u8], at: usize) -> u8 {
    data.get(at).copied().unwrap_or(0)
}

fn u32_at(data: &[u8], at: usize) -> u32 {
    (0..4).fold(0, |value, n| (value << 8) | u32::from(byte(data, at + n)))
}

fn u64_at(data: &[u8], at: usize) -> u64 {
    (0..8).fold(0, |value, n| (value << 8) | u64::from(byte(data, at + n)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_unit_controls_no_terminal() {
        let inquiry = b"\0\0\x06\x12\x5b\0\0\x02AC\nE    Di\x1bk 1\0\0        1.00";
        assert_eq!(name_of(inquiry), "AC\\x0aE Di\\x1bk 1 1.00");
    }
}
