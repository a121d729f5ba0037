//! READ, WRITE, WRITE ATOMIC, and WRITE AND VERIFY (SBC-3 sections 5.8 to 5.12, 5.32 to 5.38; SBC-4 section 5.48).

use super::{Chunks, failed, taken, unexpected};
use crate::admit::Admission;
use crate::command::Ending;
use crate::exec::{Env, Event, Program, Step};
use crate::sense::{Check, Failure};
use crate::storage::MediaOp;

/// READ(6): 21 bits of address; a length of 0 means 256 blocks.
pub(crate) fn read6(admission: &Admission<'_>) -> Result<Program, Failure> {
    let (lba, blocks) = short_range(admission);
    read(admission, lba, blocks, 4)
}

/// READ(10).
pub(crate) fn read10(admission: &Admission<'_>) -> Result<Program, Failure> {
    let cdb = admission.cdb();
    admission.check_protect()?;
    read(admission, u64::from(cdb.u32(2)), u32::from(cdb.u16(7)), 7)
}

/// READ(12).
pub(crate) fn read12(admission: &Admission<'_>) -> Result<Program, Failure> {
    let cdb = admission.cdb();
    admission.check_protect()?;
    read(admission, u64::from(cdb.u32(2)), cdb.u32(6), 6)
}

/// READ(16).
pub(crate) fn read16(admission: &Admission<'_>) -> Result<Program, Failure> {
    let cdb = admission.cdb();
    admission.check_protect()?;
    read(admission, cdb.u64(2), cdb.u32(10), 10)
}

/// WRITE(6).
pub(crate) fn write6(admission: &Admission<'_>) -> Result<Program, Failure> {
    let (lba, blocks) = short_range(admission);
    write(admission, lba, blocks, 4, Kind { durable: admission.is_durable(false), ..Kind::PLAIN })
}

/// WRITE(10).
pub(crate) fn write10(admission: &Admission<'_>) -> Result<Program, Failure> {
    let cdb = admission.cdb();
    admission.check_protect()?;
    write(admission, u64::from(cdb.u32(2)), u32::from(cdb.u16(7)), 7, plain(admission))
}

/// WRITE(12).
pub(crate) fn write12(admission: &Admission<'_>) -> Result<Program, Failure> {
    let cdb = admission.cdb();
    admission.check_protect()?;
    write(admission, u64::from(cdb.u32(2)), cdb.u32(6), 6, plain(admission))
}

/// WRITE(16).
pub(crate) fn write16(admission: &Admission<'_>) -> Result<Program, Failure> {
    let cdb = admission.cdb();
    admission.check_protect()?;
    write(admission, cdb.u64(2), cdb.u32(10), 10, plain(admission))
}

/// WRITE AND VERIFY(10).
pub(crate) fn write_verify10(admission: &Admission<'_>) -> Result<Program, Failure> {
    let cdb = admission.cdb();
    let kind = verified(admission)?;
    write(admission, u64::from(cdb.u32(2)), u32::from(cdb.u16(7)), 7, kind)
}

/// WRITE AND VERIFY(12).
pub(crate) fn write_verify12(admission: &Admission<'_>) -> Result<Program, Failure> {
    let cdb = admission.cdb();
    let kind = verified(admission)?;
    write(admission, u64::from(cdb.u32(2)), cdb.u32(6), 6, kind)
}

/// WRITE AND VERIFY(16).
pub(crate) fn write_verify16(admission: &Admission<'_>) -> Result<Program, Failure> {
    let cdb = admission.cdb();
    let kind = verified(admission)?;
    write(admission, cdb.u64(2), cdb.u32(10), 10, kind)
}

/// WRITE ATOMIC(16): all or nothing, so all of it must be in the buffer at once, and all of it must come.
pub(crate) fn write_atomic16(admission: &Admission<'_>) -> Result<Program, Failure> {
    let cdb = admission.cdb();
    admission.check_protect()?;
    let (lba, blocks) = (cdb.u64(2), u32::from(cdb.u16(12)));
    let (_, len) = admission.transfer(lba, blocks, 12)?;
    if cdb.u16(10) != 0 {
        return Err(Check::cdb_byte(10).into());
    }
    if blocks > admission.view.atomic_blocks_max() || admission.request.write_bytes < len {
        return Err(Check::cdb_byte(12).into());
    }
    write(admission, lba, blocks, 12, Kind { atomic: true, ..plain(admission) })
}

/// Address and length of READ(6) and WRITE(6).
fn short_range(admission: &Admission<'_>) -> (u64, u32) {
    let cdb = admission.cdb();
    let blocks = match cdb.u8(4) {
        0 => 256,
        blocks => u32::from(blocks),
    };
    (u64::from(cdb.u32(0) & 0x001f_ffff), blocks)
}

fn read(admission: &Admission<'_>, lba: u64, blocks: u32, length_byte: u16) -> Result<Program, Failure> {
    let (range, total) = admission.transfer(lba, blocks, length_byte)?;
    let block_bytes = admission.block_bytes();
    let wanted = total.min(admission.request.read_bytes);
    let whole = wanted.checked_next_multiple_of(block_bytes).unwrap_or(total);
    Ok(Program::Read(Read { chunks: Chunks::new(range.offset, whole), total }))
}

/// How a write is done.
#[derive(Clone, Copy, Debug)]
struct Kind {
    durable: bool,
    atomic: bool,
    verify: bool,
}

impl Kind {
    const PLAIN: Kind = Kind { durable: false, atomic: false, verify: false };
}

/// A write that may have FUA set.
fn plain(admission: &Admission<'_>) -> Kind {
    let force_unit_access = admission.cdb().u8(1) & 0x08 != 0;
    Kind { durable: admission.is_durable(force_unit_access), ..Kind::PLAIN }
}

/// WRITE AND VERIFY: what is verified must be on the medium, so the write is always durable. BYTCHK is 0 or 1; the
/// blocks are compared either way, which is more than BYTCHK = 0 asks.
fn verified(admission: &Admission<'_>) -> Result<Kind, Failure> {
    admission.check_protect()?;
    if admission.cdb().u8(1) & 0x04 != 0 {
        return Err(Check::cdb_bit(1, 2).into());
    }
    Ok(Kind { durable: true, atomic: false, verify: true })
}

fn write(
    admission: &Admission<'_>,
    lba: u64,
    blocks: u32,
    length_byte: u16,
    kind: Kind,
) -> Result<Program, Failure> {
    let (range, total) = admission.transfer(lba, blocks, length_byte)?;
    let coming = total.min(admission.request.write_bytes);
    let part = coming.checked_rem(admission.block_bytes()).unwrap_or(0);
    let whole = coming.saturating_sub(part);
    Ok(Program::Write(Write { chunks: Chunks::new(range.offset, whole), total, kind, verifying: false }))
}

/// READ: chunk after chunk, the ending with the last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    chunks: Chunks,
    total: u32,
}

impl Read {
    pub(crate) fn next(&mut self, env: &Env<'_>, event: Event) -> Step {
        match event {
            Event::Start => {}
            Event::Pushed => self.chunks.advance(),
            Event::Stored(Err(error)) => return failed(env, error),
            Event::Fetched | Event::Stored(Ok(_)) | Event::Home(_) | Event::Detached => {
                return unexpected(env);
            }
        }
        let ending = Ending::sent(u64::from(self.total));
        let Some(chunk) = self.chunks.current() else { return Step::End(ending) };
        let mut rest = self.chunks;
        rest.advance();
        let end = rest.current().is_none().then_some(ending);
        Step::ReadPush { offset: chunk.offset, len: chunk.len, at: chunk.at, end }
    }
}

/// WRITE and its kin: fetch a chunk, write it, compare it where asked; then the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    chunks: Chunks,
    total: u32,
    kind: Kind,
    verifying: bool,
}

impl Write {
    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.chunks.buffer_bytes()
    }

    pub(crate) fn next(&mut self, env: &Env<'_>, event: Event) -> Step {
        let Some(chunk) = self.chunks.current() else { return taken(self.total) };
        match event {
            Event::Start => Step::Fetch { at: chunk.at, len: chunk.len },
            Event::Fetched => Step::Media {
                unit: None,
                op: MediaOp::Write {
                    offset: chunk.offset,
                    len: chunk.len,
                    buffer: 0,
                    durable: self.kind.durable,
                    atomic: self.kind.atomic,
                },
            },
            Event::Stored(Err(error)) => failed(env, super::moved(error, chunk.at)),
            Event::Stored(Ok(_)) if self.kind.verify && !self.verifying => {
                self.verifying = true;
                Step::Media {
                    unit: None,
                    op: MediaOp::Compare { offset: chunk.offset, len: chunk.len, buffer: 0 },
                }
            }
            Event::Stored(Ok(_)) => {
                self.verifying = false;
                self.chunks.advance();
                self.next(env, Event::Start)
            }
            Event::Pushed | Event::Home(_) | Event::Detached => unexpected(env),
        }
    }
}
