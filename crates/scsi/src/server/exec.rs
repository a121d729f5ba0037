//! A command as a program of steps: all families are driven in the same way.

use crate::commands::answer::Answer;
use crate::commands::ata::features::WriteCache;
use crate::commands::ata::with_registers;
use crate::commands::copy::ExtendedCopy;
use crate::commands::erase::Erase;
use crate::commands::export::OrderProgram;
use crate::commands::lba_status::LbaStatus;
use crate::commands::media::{Chunk, atomic, compare, same, sync, transfer, unmap};
use crate::commands::mode::ModeSelect;
use crate::commands::ports::SetPortGroups;
use crate::commands::power::{Prevent, StartStop};
use crate::commands::reservation::{PersistentReserveOut, ReserveRelease};
use crate::commands::step::Env;
use crate::commands::step::Event;
use crate::commands::step::Step;
use crate::server::ata::pass_through::PassThrough;
use crate::vocabulary::command::{Ending, Request, Status};
use crate::vocabulary::storage::MediaOp;
use wire::ata::Registers;

/// An admitted command.
#[derive(Debug)]
pub struct Exec {
    program: Program,
    /// It wrote data that is not durable yet.
    is_cached: bool,
}

/// The programs that commands consist of. Only those off the path of READ and WRITE may be boxed.
#[derive(Debug)]
pub(crate) enum Program {
    /// Ends at once.
    End(Ending),
    /// READ.
    Read(transfer::Read),
    /// WRITE, WRITE ATOMIC, WRITE AND VERIFY.
    Write(transfer::Write),
    /// COMPARE AND WRITE.
    CompareAndWrite(atomic::CompareAndWrite),
    /// ORWRITE.
    OrWrite(atomic::OrWrite),
    /// VERIFY.
    Verify(compare::Verify),
    /// WRITE SAME.
    WriteSame(same::WriteSame),
    /// UNMAP.
    Unmap(unmap::Unmap),
    /// SYNCHRONIZE CACHE.
    Flush(sync::Flush),
    /// GET LBA STATUS.
    LbaStatus(LbaStatus),
    /// Builds its data-in from the view.
    Answer(Answer),
    /// MODE SELECT.
    ModeSelect(ModeSelect),
    /// START STOP UNIT.
    StartStop(StartStop),
    /// PREVENT ALLOW MEDIUM REMOVAL.
    Prevent(Prevent),
    /// SET TARGET PORT GROUPS.
    SetPortGroups(SetPortGroups),
    /// PERSISTENT RESERVE OUT.
    PersistentReserveOut(PersistentReserveOut),
    /// RESERVE and RELEASE.
    ReserveRelease(ReserveRelease),
    /// SANITIZE, FORMAT UNIT.
    Erase(Box<Erase>),
    /// EXTENDED COPY.
    ExtendedCopy(Box<ExtendedCopy>),
    /// SET FEATURES of ATA that switches the write cache.
    WriteCache(WriteCache),
    /// A command of ATA over Ethernet that is not ATA.
    Order(OrderProgram),
    /// ATA PASS-THROUGH of a SCSI initiator.
    PassThrough(Box<PassThrough>),
}

/// Lists the programs that a command may become.
macro_rules! made_of {
    ($( $program:ident: $type:ty, )*) => { $(
        impl From<$type> for Program {
            fn from(program: $type) -> Program {
                Program::$program(program)
            }
        }
    )* };
}

made_of! {
    End: Ending,
    Read: transfer::Read,
    Write: transfer::Write,
    CompareAndWrite: atomic::CompareAndWrite,
    OrWrite: atomic::OrWrite,
    Verify: compare::Verify,
    WriteSame: same::WriteSame,
    Unmap: unmap::Unmap,
    Flush: sync::Flush,
    LbaStatus: LbaStatus,
    Answer: Answer,
    ModeSelect: ModeSelect,
    StartStop: StartStop,
    Prevent: Prevent,
    SetPortGroups: SetPortGroups,
    PersistentReserveOut: PersistentReserveOut,
    ReserveRelease: ReserveRelease,
    Erase: Box<Erase>,
    ExtendedCopy: Box<ExtendedCopy>,
    WriteCache: WriteCache,
    Order: OrderProgram,
}

/// What a command transfers that does nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// It reads.
    Read {
        /// From this offset on the medium.
        offset: u64,
        /// This many bytes.
        len: u32,
    },
    /// It writes; others may see it half done.
    Write {
        /// To this offset on the medium.
        offset: u64,
        /// This many bytes.
        len: u32,
    },
}

impl Program {
    /// See [`crate::View::transfer`].
    #[inline]
    pub(crate) fn transfer(&self, request: &Request<'_>) -> Option<Transfer> {
        match self {
            Program::Read(read) => {
                let Chunk { offset, len, .. } = read.whole()?;
                (len == read.total() && len == request.read_bytes).then_some(Transfer::Read { offset, len })
            }
            Program::Write(write) => {
                let Chunk { offset, len, .. } = write.whole()?;
                (len == request.write_bytes).then_some(Transfer::Write { offset, len })
            }
            _ => None,
        }
    }
}

impl Exec {
    pub(crate) fn new(program: Program) -> Exec {
        Exec { program, is_cached: false }
    }

    /// Returns the next step, given the result of the last. Whether a write must be durable is decided at
    /// each step, as MODE SELECT may switch the write cache off meanwhile; what the command has written so
    /// far is then flushed before it succeeds.
    pub fn next(&mut self, env: &mut Env<'_>, event: Event) -> Step {
        match self.step(env, event) {
            Step::Media { unit: None, op } => {
                let op = if env.view.policy.modes.write_cache { op } else { op.durable() };
                self.is_cached = op != MediaOp::Flush && (self.is_cached || op.is_cached());
                Step::Media { unit: None, op }
            }
            Step::End(ending)
                if self.is_cached && ending.status == Status::Good && !env.view.policy.modes.write_cache =>
            {
                self.is_cached = false;
                self.program = Program::Flush(sync::Flush { taken: ending.write_bytes });
                Step::Media { unit: None, op: MediaOp::Flush }
            }
            Step::End(ending) if env.nexus.mac.is_some() && ending.status == Status::CheckCondition => {
                Step::End(self.with_ata_registers(ending))
            }
            step => step,
        }
    }

    /// An ending as reported to a nexus that uses ATA.
    fn with_ata_registers(&self, ending: Ending) -> Ending {
        if matches!(self.program, Program::Order(_)) {
            return ending;
        }
        with_registers(ending, &Registers { extend: true, ..Registers::default() })
    }

    fn step(&mut self, env: &mut Env<'_>, event: Event) -> Step {
        match &mut self.program {
            Program::End(ending) => Step::End(*ending),
            Program::Read(program) => program.next(env, event),
            Program::Write(program) => program.next(env, event),
            Program::CompareAndWrite(program) => program.next(env, event),
            Program::OrWrite(program) => program.next(env, event),
            Program::Verify(program) => program.next(env, event),
            Program::WriteSame(program) => program.next(env, event),
            Program::Unmap(program) => program.next(env, event),
            Program::Flush(program) => program.next(env, event),
            Program::LbaStatus(program) => program.next(env, event),
            Program::Answer(program) => program.next(env, event),
            Program::ModeSelect(program) => program.next(env, event),
            Program::StartStop(program) => program.next(env, event),
            Program::Prevent(program) => program.next(env, event),
            Program::SetPortGroups(program) => program.next(env, event),
            Program::PersistentReserveOut(program) => program.next(env, event),
            Program::ReserveRelease(program) => program.next(env, event),
            Program::Erase(program) => program.next(env, event),
            Program::ExtendedCopy(program) => program.next(env, event),
            Program::WriteCache(program) => program.next(env, event),
            Program::Order(program) => program.next(env, event),
            Program::PassThrough(program) => program.next(env, event),
        }
    }

    /// Bytes of task buffer that the program needs, at most [`CHUNK_BYTES`].
    pub fn buffer_bytes(&self) -> u32 {
        match &self.program {
            Program::End(_)
            | Program::Read(_)
            | Program::Flush(_)
            | Program::StartStop(_)
            | Program::Prevent(_)
            | Program::WriteCache(_)
            | Program::ReserveRelease(_) => 0,
            Program::Write(program) => program.buffer_bytes(),
            Program::CompareAndWrite(program) => program.buffer_bytes(),
            Program::OrWrite(program) => program.buffer_bytes(),
            Program::Verify(program) => program.buffer_bytes(),
            Program::WriteSame(program) => program.buffer_bytes(),
            Program::Unmap(program) => program.buffer_bytes(),
            Program::LbaStatus(program) => program.buffer_bytes(),
            Program::Answer(program) => program.buffer_bytes(),
            Program::ModeSelect(program) => program.buffer_bytes(),
            Program::SetPortGroups(program) => program.buffer_bytes(),
            Program::PersistentReserveOut(program) => program.buffer_bytes(),
            Program::Erase(program) => program.buffer_bytes(),
            Program::ExtendedCopy(program) => program.buffer_bytes(),
            Program::Order(program) => program.buffer_bytes(),
            Program::PassThrough(program) => program.buffer_bytes(),
        }
    }

    /// Whether it accesses the medium of another unit than its own, the one with this number (EXTENDED COPY):
    /// what ends that unit's commands ends it, too.
    pub fn touches(&self, unit: u32) -> bool {
        matches!(&self.program, Program::ExtendedCopy(copy) if copy.touches(unit))
    }

    /// Whether it may change the medium of one of these units. `own` is the unit that it is addressed to.
    pub fn writes(&self, own: u32, is_one: &dyn Fn(u32) -> bool) -> bool {
        match &self.program {
            Program::Write(_)
            | Program::CompareAndWrite(_)
            | Program::OrWrite(_)
            | Program::WriteSame(_)
            | Program::Unmap(_)
            | Program::Erase(_) => is_one(own),
            Program::ExtendedCopy(copy) => copy.destinations().any(is_one),
            Program::PassThrough(passed) => passed.exec().writes(own, is_one),
            Program::End(_)
            | Program::Read(_)
            | Program::Verify(_)
            | Program::Flush(_)
            | Program::LbaStatus(_)
            | Program::Answer(_)
            | Program::ModeSelect(_)
            | Program::StartStop(_)
            | Program::Prevent(_)
            | Program::SetPortGroups(_)
            | Program::PersistentReserveOut(_)
            | Program::ReserveRelease(_)
            | Program::WriteCache(_)
            | Program::Order(_) => false,
        }
    }

    /// Whether it may change the medium, or the state that others see, of one of these units.
    pub fn changes(&self, own: u32, is_one: &dyn Fn(u32) -> bool) -> bool {
        match &self.program {
            Program::End(_)
            | Program::Read(_)
            | Program::Verify(_)
            | Program::Flush(_)
            | Program::LbaStatus(_)
            | Program::Answer(_) => false,
            Program::ModeSelect(_)
            | Program::StartStop(_)
            | Program::Prevent(_)
            | Program::SetPortGroups(_)
            | Program::PersistentReserveOut(_)
            | Program::ReserveRelease(_)
            | Program::WriteCache(_)
            | Program::Order(_) => is_one(own),
            Program::PassThrough(passed) => passed.exec().changes(own, is_one),
            Program::Write(_)
            | Program::CompareAndWrite(_)
            | Program::OrWrite(_)
            | Program::WriteSame(_)
            | Program::Unmap(_)
            | Program::Erase(_)
            | Program::ExtendedCopy(_) => self.writes(own, is_one),
        }
    }

    /// The units that it copies from and to.
    pub fn copied_units(&self) -> impl Iterator<Item = u32> {
        let copy = match &self.program {
            Program::ExtendedCopy(copy) => Some(copy),
            _ => None,
        };
        copy.into_iter().flat_map(|copy| copy.sources().chain(copy.destinations()))
    }

    /// Whether nothing can abort it once it is detached.
    pub fn erases(&self) -> bool {
        matches!(self.program, Program::Erase(_))
    }

    /// Whether its duration depends on the size of the medium, not of its data.
    pub fn is_lengthy(&self) -> bool {
        matches!(self.program, Program::Erase(_) | Program::ExtendedCopy(_) | Program::WriteSame(_))
    }

    /// Whether it is a READ, which only uses [`Step::ReadPush`].
    pub fn is_read(&self) -> bool {
        matches!(self.program, Program::Read(_))
    }

    /// The offset on the medium, length and ending of a READ with one chunk: that is its only step unless
    /// something fails.
    pub fn whole_read(&self) -> Option<(u64, u32, Ending)> {
        match &self.program {
            Program::Read(read) => {
                let Chunk { offset, len, .. } = read.whole()?;
                Some((offset, len, Ending::sent(u64::from(read.total()))))
            }
            _ => None,
        }
    }

    /// The offset on the medium, length and ending of a WRITE with one chunk that is sent in full: that is
    /// its only step unless something fails. Others may see it half done.
    pub fn whole_write(&self) -> Option<(u64, u32, Ending)> {
        match &self.program {
            Program::Write(write) => {
                let Chunk { offset, len, .. } = write.whole()?;
                Some((offset, len, Ending::taken(u64::from(len))))
            }
            _ => None,
        }
    }

    /// Whether it is a WRITE of any kind.
    pub fn is_write(&self) -> bool {
        matches!(self.program, Program::Write(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::table::{COMMANDS, Command};
    use crate::testing::{BLOCK, Bench, Outcome, raw, unit};
    use crate::vocabulary::command::Attribute;
    use std::sync::Arc;
    use wire::scsi::opcode;

    /// A unit that has every command.
    fn bench() -> Bench {
        let mut bench = Bench::of(unit(), 1 << 20);
        bench.add_ata();
        Arc::make_mut(&mut bench.view.policy).traits.cryptographic_erase = true;
        Arc::make_mut(&mut bench.view.unit).groups[0].explicit = true;
        bench.nexuses.iter_mut().for_each(|nexus| nexus.attentions.clear());
        bench
    }

    fn admit(bench: &mut Bench, cdb: &[u8]) -> Result<Exec, Ending> {
        let blocks = if cdb[0] == opcode::COMPARE_AND_WRITE { 2 } else { 1 };
        let write_bytes = blocks * BLOCK as u32;
        let cdb = raw(cdb);
        let request = Request { cdb: &cdb, attribute: Attribute::Simple, read_bytes: 0, write_bytes };
        bench.view.admit(&mut bench.nexuses[0], &request)
    }

    /// CDBs with these values in the last byte of the last field, which is mostly a length. Each command
    /// accepts one of them.
    fn cdbs(command: &Command) -> [Vec<u8>; 3] {
        let mut cdb = vec![0; command.usage.len()];
        (cdb[0], cdb[1]) = (command.opcode(), command.action.unwrap_or(0));
        let last = command.usage.iter().rposition(|mask| *mask != 0).unwrap_or(0);
        [1, 0, 16].map(|length| {
            let mut cdb = cdb.clone();
            cdb[last] |= if last > 1 { length } else { 0 };
            cdb
        })
    }

    #[test]
    fn a_change_to_read_only_waits_for_what_read_only_refuses() {
        let mut unread = Vec::new();
        for command in COMMANDS {
            let mut bench = bench();
            assert!(command.is_offered(&bench.view), "{command:?}");
            let taken = cdbs(command).into_iter().find_map(|cdb| Some((admit(&mut bench, &cdb).ok()?, cdb)));
            let Some((exec, cdb)) = taken else {
                unread.push(command.opcode());
                continue;
            };
            Arc::make_mut(&mut bench.view.unit).read_only = true;
            let refused = admit(&mut bench, &cdb).err().map(|ending| Outcome { ending, data: Vec::new() });
            let is_refused = refused.is_some_and(|refused| refused.sense() == (0x7, 0x2700));
            assert_eq!(exec.writes(0, &|unit| unit == 0), is_refused, "{cdb:02x?}: {exec:?}");
            assert!(!exec.writes(0, &|unit| unit == 1) && !exec.changes(0, &|unit| unit == 1), "{exec:?}");
            assert!(exec.changes(0, &|_| true) || !is_refused, "{exec:?}");
        }
        // There is no copy to abort; and the commands in ATA PASS-THROUGH are checked whenever they run on a
        // `Bench`.
        let others = [opcode::EXTENDED_COPY, opcode::ATA_PASS_THROUGH_12, opcode::ATA_PASS_THROUGH_16];
        assert_eq!(unread, others);
    }

    /// Every task in flight holds one: larger ones are boxed.
    #[test]
    fn a_program_is_small() {
        assert!(size_of::<Exec>() <= 104, "{}", size_of::<Exec>());
    }
}
