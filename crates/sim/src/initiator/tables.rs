//! SRP's indirect tables, as used by initiators whose memory is fragmented: the target fetches them before it
//! knows where data goes (SRP-r16a section 5.4.2.4). Our own initiator needs none.

use crate::kernel::Kernel;
use proto::message::{Access, Advertised, Answer, Full, Message, MessageMachine, Post, Receives, WorkId};
use proto::srp::initiator::{Event, Initiator};
use proto::time::Time;
use reactor::io::Io as _;
use wire::srp::{Command, Descriptor, Direct, IndirectHead, Opcode};
use wire::{Places, Span};
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

/// Descriptors of a table: half of the data each.
const DESCRIPTORS: u32 = 2;
const DESCRIPTOR_BYTES: u32 = size_of::<Direct>() as u32;
const TABLE_BYTES: u32 = DESCRIPTORS * DESCRIPTOR_BYTES;
/// Tables per connection.
const TABLES_MAX: u32 = 64;
/// One command in this many has none.
const PLAIN: u32 = 3;

/// An initiator whose commands have tables, or plain descriptors if there is no memory for tables.
pub(crate) struct Tabled {
    pub(crate) machine: Initiator,
    tables: Tables,
}

#[derive(Default)]
struct Tables {
    memory: Places,
    free: Vec<Span>,
    used: Vec<Table>,
    /// The content to write to them before the target may read it.
    unwritten: Vec<(Span, [Direct; DESCRIPTORS as usize])>,
    commands: u32,
}

struct Table {
    place: Span,
    /// The STag with which the target reads it.
    stag: u32,
    /// The buffer that it describes.
    of: u32,
}

impl Tabled {
    /// With or without tables.
    pub(super) fn new(machine: Initiator, makes: bool, kernel: &mut Kernel) -> Tabled {
        let memory = if makes { kernel.arena().take(TABLES_MAX * TABLE_BYTES) } else { None };
        let memory = memory.unwrap_or(Places::EMPTY);
        let table = |at: u32| memory.slice(at * TABLE_BYTES, TABLE_BYTES).iter().next();
        let free = (0..memory.len() / TABLE_BYTES).filter_map(table).collect();
        Tabled { machine, tables: Tables { memory, free, ..Tables::default() } }
    }

    /// Writes the tables of commands about to be sent.
    pub(super) fn write(&mut self, kernel: &mut Kernel) {
        for (place, table) in self.tables.unwritten.drain(..) {
            kernel.arena().copy_in(table.as_bytes(), &Places::one(place));
        }
    }

    /// Its memory, once its connection has ended, and nothing of it is in flight.
    pub(super) fn memory(&self) -> Places {
        self.tables.memory
    }
}

impl Tables {
    fn free(&mut self, stag: u32) {
        if let Some(at) = self.used.iter().position(|table| table.stag == stag) {
            self.free.push(self.used.swap_remove(at).place);
        }
    }

    /// A table descriptor to replace this one, if there is room.
    fn describe(&mut self, buffer: &Direct, to: &mut dyn Post) -> Result<Option<IndirectHead>, Full> {
        let (at, key, len) = (buffer.address.get(), buffer.key.get(), buffer.len.get());
        let Some(place) = self.free.last().copied().filter(|_| len > 1) else { return Ok(None) };
        let Advertised { stag, offset } = to.advertise(Places::one(place), Access::Read)?;
        let half = len / 2;
        let second = Direct::new(at + u64::from(half), key, len - half);
        self.free.pop();
        self.used.push(Table { place, stag, of: key });
        self.unwritten.push((place, [Direct::new(at, key, half), second]));
        Ok(Some(IndirectHead { table: Direct::new(offset, stag, TABLE_BYTES), len: U32::new(len) }))
    }

    /// A command with a table for each of its buffers, if possible.
    fn rewrite(&mut self, header: &[u8], to: &mut dyn Post) -> Result<Vec<u8>, Full> {
        let mut bytes = header.to_vec();
        let Ok((head, _)) = Command::mut_from_prefix(&mut bytes) else { return Ok(bytes) };
        if head.opcode != Opcode::COMMAND {
            return Ok(bytes);
        }
        self.commands += 1;
        if self.commands.is_multiple_of(PLAIN) {
            return Ok(bytes);
        }
        let formats = head.buf_fmt;
        let mut at = size_of::<Command>() + usize::from(head.add_cdb_len & Command::ADDITIONAL_CDB_MASK);
        for shift in [4, 0] {
            if formats >> shift & 0xf != Descriptor::DIRECT {
                continue;
            }
            let end = at + DESCRIPTOR_BYTES as usize;
            let buffer = Direct::read_from_bytes(&bytes[at..end]).expect("it is that long");
            match self.describe(&buffer, to)? {
                Some(table) => {
                    bytes[5] ^= (Descriptor::DIRECT ^ Descriptor::INDIRECT) << shift;
                    bytes.splice(at..end, table.as_bytes().iter().copied());
                    at += size_of::<IndirectHead>();
                }
                None => at = end,
            }
        }
        Ok(bytes)
    }
}

/// Posts for the machine, with tables.
struct Tabling<'a> {
    to: &'a mut dyn Post,
    tables: &'a mut Tables,
}

impl Tabling<'_> {
    fn drop_tables(&mut self, of: u32) {
        let stags: Vec<u32> =
            self.tables.used.iter().filter(|table| table.of == of).map(|table| table.stag).collect();
        for stag in stags {
            if self.to.invalidate(stag) {
                self.tables.free(stag);
            }
        }
    }
}

impl Post for Tabling<'_> {
    fn send(
        &mut self,
        work: WorkId,
        header: &[u8],
        payload: Places,
        solicited: bool,
        invalidate: Option<u32>,
    ) -> Result<(), Full> {
        let header = self.tables.rewrite(header, self.to)?;
        self.to.send(work, &header, payload, solicited, invalidate)
    }

    fn write(&mut self, work: WorkId, from: Places, to: Advertised) -> Result<(), Full> {
        self.to.write(work, from, to)
    }

    fn read(&mut self, work: WorkId, into: Places, from: Advertised) -> Result<(), Full> {
        self.to.read(work, into, from)
    }

    fn advertise(&mut self, places: Places, access: Access) -> Result<Advertised, Full> {
        self.to.advertise(places, access)
    }

    fn moved(&self, stag: u32) -> u32 {
        self.to.moved(stag)
    }

    fn invalidate(&mut self, stag: u32) -> bool {
        self.drop_tables(stag);
        self.to.invalidate(stag)
    }

    fn copy(&mut self, from: Span, to: Places) {
        self.to.copy(from, to);
    }

    fn bytes(&self, place: Span) -> &[u8] {
        self.to.bytes(place)
    }

    fn release(&mut self, place: Span) {
        self.to.release(place);
    }
}

impl MessageMachine for Tabled {
    type Event = Event;

    fn request(&mut self) -> Vec<u8> {
        self.machine.request()
    }

    fn asked(&mut self, now: Time, private_data: &[u8]) -> Answer {
        self.machine.asked(now, private_data)
    }

    fn established(&mut self, now: Time, private_data: &[u8]) {
        self.machine.established(now, private_data);
    }

    fn rejected(&mut self, now: Time, private_data: &[u8]) {
        self.machine.rejected(now, private_data);
    }

    fn receives(&self) -> Receives {
        self.machine.receives()
    }

    fn received(&mut self, now: Time, message: Message<'_>) {
        self.machine.received(now, message);
    }

    fn finished(&mut self, now: Time, work: WorkId) {
        self.machine.finished(now, work);
    }

    fn freed(&mut self, now: Time, stag: u32) {
        if self.tables.used.iter().any(|table| table.stag == stag) {
            return self.tables.free(stag);
        }
        self.machine.freed(now, stag);
    }

    fn closed(&mut self, now: Time, reason: &str) {
        self.machine.closed(now, reason);
    }

    fn poll(&mut self) -> Option<Event> {
        self.machine.poll()
    }

    fn owes(&self) -> bool {
        self.machine.owes()
    }

    fn post(&mut self, now: Time, to: &mut dyn Post) {
        self.machine.post(now, &mut Tabling { to, tables: &mut self.tables });
    }

    fn is_over(&self) -> bool {
        self.machine.is_over()
    }

    fn deadline(&self) -> Option<Time> {
        self.machine.deadline()
    }

    fn tick(&mut self, now: Time) {
        self.machine.tick(now);
    }
}
