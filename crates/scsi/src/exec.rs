//! A command as a program of steps.

use crate::answer::Answer;
use crate::ata::pass_through::PassThrough;
use crate::ata::{self, WriteCache};
use crate::command::{Ending, Status};
use crate::copy::ExtendedCopy;
use crate::erase::Erase;
use crate::export::Ordered;
use crate::home::{HomeReply, HomeRequest};
use crate::lba_status::LbaStatus;
use crate::media::{atomic, compare, same, sync, transfer, unmap};
use crate::mode::ModeSelect;
use crate::nexus::{NexusUnit, Reach};
use crate::power::{Prevent, StartStop};
use crate::reservation::{PersistentReserveOut, ReserveRelease};
use crate::storage::{Found, MediaOp, StoreError};
use crate::unit::{Unit, View};
use wire::ata::Registers;

/// Longest piece of a task's data that is buffered at a time, in bytes: the size of the task's buffer.
pub const CHUNK_BYTES: u32 = 256 * 1024;

/// What the core is to do next for a task.
#[derive(Debug)]
pub enum Step {
    /// Bring `len` bytes (at most [`CHUNK_BYTES`]) from offset `at` of the data-out to the start of the task's
    /// buffer. Then [`Event::Fetched`].
    Fetch {
        /// Offset in the data-out.
        at: u32,
        /// Bytes.
        len: u32,
    },
    /// Read `len` bytes of the medium and send them as data-in at offset `at`, from the store's own memory where it
    /// has any. `end`: with GOOD status behind it, if all went well; the task is then gone. Otherwise
    /// [`Event::Stored`] with the error, or [`Event::Pushed`].
    ReadPush {
        /// First byte on the medium.
        offset: u64,
        /// Bytes, at most [`CHUNK_BYTES`].
        len: u32,
        /// Offset in the data-in.
        at: u32,
        /// The ending, when this is the last data.
        end: Option<Ending>,
    },
    /// Run an operation on the medium of the unit with this index in [`Env::units`]; `None`: the task's own unit.
    /// Then [`Event::Stored`].
    Media {
        /// Which unit.
        unit: Option<u32>,
        /// What to do.
        op: MediaOp,
    },
    /// Send `len` bytes of the task's buffer from `buffer` on as data-in at offset `at`, with the ending behind it if
    /// there is one (the task is then gone). Cut to what the initiator is ready to receive by whoever runs the step.
    /// Then [`Event::Pushed`].
    Push {
        /// Offset in the buffer.
        buffer: u32,
        /// Bytes.
        len: u32,
        /// Offset in the data-in.
        at: u32,
        /// The ending, when this is the last data.
        end: Option<Ending>,
    },
    /// Ask the unit's home; when every core has applied what it published: [`Event::Home`].
    Home(Box<HomeRequest>),
    /// Send the ending now but go on with the program, which nothing can abort from here on (SANITIZE, FORMAT UNIT). Its later
    /// `End` is not sent. Without an ending nothing is sent yet. Then [`Event::Detached`].
    Detach(Option<Ending>),
    /// The command is over.
    End(Ending),
}

/// An admitted command.
#[derive(Debug)]
pub struct Exec {
    program: Program,
    /// It wrote what is not durable yet.
    is_cached: bool,
}

/// The programs that commands are made of. Only what is not on the path of READ and WRITE may be boxed.
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
    /// Builds its data-in from what the view shows.
    Answer(Answer),
    /// MODE SELECT.
    ModeSelect(ModeSelect),
    /// START STOP UNIT.
    StartStop(StartStop),
    /// PREVENT ALLOW MEDIUM REMOVAL.
    Prevent(Prevent),
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
    Ordered(Ordered),
    /// ATA PASS-THROUGH of a SCSI initiator.
    PassThrough(Box<PassThrough>),
}

impl Exec {
    pub(crate) fn new(program: Program) -> Exec {
        Exec { program, is_cached: false }
    }

    /// Says the next step, given what came of the last. Whether a write must be durable is decided with each step,
    /// as MODE SELECT may switch the write cache off meanwhile; then what the command has written so far is flushed
    /// before it ends well.
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
                Step::End(self.told(ending))
            }
            step => step,
        }
    }

    /// An ending as it is reported to a nexus that speaks ATA.
    fn told(&self, ending: Ending) -> Ending {
        if matches!(self.program, Program::Ordered(_)) {
            return ending;
        }
        ata::with_registers(ending, &Registers { extend: true, ..Registers::default() })
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
            Program::PersistentReserveOut(program) => program.next(env, event),
            Program::ReserveRelease(program) => program.next(env, event),
            Program::Erase(program) => program.next(env, event),
            Program::ExtendedCopy(program) => program.next(env, event),
            Program::WriteCache(program) => program.next(env, event),
            Program::Ordered(program) => program.next(env, event),
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
            Program::PersistentReserveOut(program) => program.buffer_bytes(),
            Program::Erase(program) => program.buffer_bytes(),
            Program::ExtendedCopy(program) => program.buffer_bytes(),
            Program::Ordered(program) => program.buffer_bytes(),
            Program::PassThrough(program) => program.buffer_bytes(),
        }
    }

    /// Whether it works on the medium of another unit than its own, the one with this index (EXTENDED COPY): what
    /// ends that unit's commands ends it, too.
    pub fn touches(&self, unit: u32) -> bool {
        matches!(&self.program, Program::ExtendedCopy(copy) if copy.touches(unit))
    }

    /// Whether nothing can abort it once it is detached.
    pub fn erases(&self) -> bool {
        matches!(self.program, Program::Erase(_))
    }

    /// Whether its time goes by the size of the medium, not by that of its data.
    pub fn is_lengthy(&self) -> bool {
        matches!(self.program, Program::Erase(_) | Program::ExtendedCopy(_) | Program::WriteSame(_))
    }

    /// Whether it is a READ: fed by [`Step::ReadPush`] only.
    pub fn is_read(&self) -> bool {
        matches!(self.program, Program::Read(_))
    }

    /// Where on the medium a READ reads that has one chunk, how many bytes, and its ending: it is its only step, as long
    /// as nothing goes wrong.
    pub fn whole_read(&self) -> Option<(u64, u32, Ending)> {
        match &self.program {
            Program::Read(read) => read.whole(),
            _ => None,
        }
    }

    /// Where on the medium a WRITE writes that has one chunk and comes whole, how many bytes, and its ending: it is its only
    /// step, as long as nothing goes wrong. Others may see half of it.
    pub fn whole_write(&self) -> Option<(u64, u32, Ending)> {
        match &self.program {
            Program::Write(write) => write.whole(),
            _ => None,
        }
    }

    /// Whether it is a WRITE of any kind.
    pub fn is_write(&self) -> bool {
        matches!(self.program, Program::Write(_))
    }
}

/// What came of the last step.
#[derive(Debug)]
pub enum Event {
    /// The first call.
    Start,
    /// The data-out is in the buffer.
    Fetched,
    /// A storage operation finished.
    Stored(Result<Found, StoreError>),
    /// The data-in has left; the buffer is free again.
    Pushed,
    /// The home's answer.
    Home(HomeReply),
    /// After [`Step::Detach`].
    Detached,
}

/// All units of the daemon as this core sees them.
pub trait Units {
    /// The one with this number ([`Unit::index`]).
    fn view(&self, number: u32) -> Option<&View>;

    /// One that this holds for.
    fn find(&self, is_it: &dyn Fn(&Unit) -> bool) -> Option<&View>;
}

/// What a program may look at and write while it decides the next step.
pub struct Env<'a> {
    /// The unit as this core sees it.
    pub view: &'a View,
    /// The nexus's own state on this unit.
    pub nexus: &'a mut NexusUnit,
    /// Every unit of the daemon, for EXTENDED COPY; unit `n` of [`Step::Media`].
    pub units: &'a dyn Units,
    /// How this nexus reaches units, by their numbers: nothing is copied past the access rules. Missing ones: not at all.
    pub reach: &'a [(u32, Reach)],
    /// LUNs that this nexus sees, for REPORT LUNS: the eight LUN bytes each, ascending.
    pub luns: &'a [u64],
    /// The task's buffer: up to 64 KiB of it, contiguous. Empty when [`Exec::buffer_bytes`] asked for none.
    pub buffer: &'a mut [u8],
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every task in flight holds one: more goes into a box.
    #[test]
    fn a_program_is_small() {
        assert!(size_of::<Exec>() <= 104, "{}", size_of::<Exec>());
    }
}
