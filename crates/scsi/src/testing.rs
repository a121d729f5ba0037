//! A unit in memory that runs one command at a time, for tests.

use crate::commands::step::{Env, Event, Step, Units};
use crate::server::exec::Exec;
use crate::state::home::{Home, HomeReply, HomeRequest, Publish};
use crate::state::nexus::{NexusId, NexusUnit, Reach};
use crate::state::port_groups::PortGroup;
use crate::state::unit::{Incarnation, Port, Protocol, Unit, View};
use crate::vocabulary::command::{Attribute, Ending, Request, Status};
use crate::vocabulary::storage::CHUNK_BYTES;
use crate::vocabulary::storage::{Found, MediaOp, StoreError, Traits};
use std::sync::Arc;
use wire::Cdb;
use wire::aoe::{Mac, Order, OrderKind};
use wire::ata::{PassThrough, Registers, SECTOR_BYTES, StatusReturn, Transfer};

/// Contiguous bytes of the task's buffer.
const WINDOW_BYTES: usize = 64 * 1024;

/// A CDB with any bytes.
pub(crate) fn raw(cdb: &[u8]) -> Cdb {
    Cdb::from_bytes(cdb).expect("no longer than a CDB may be")
}

/// Logical block size of the units here.
pub(crate) const BLOCK: usize = 512;

/// Initiators that use ATA.
pub(crate) const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 3]), Mac([2, 0, 0, 0, 0, 4])];

/// A thin unit that may be changed before a [`Bench`] is created from it.
pub(crate) fn unit() -> Unit {
    Unit {
        index: 0,
        block_bytes: 512,
        physical_block_bytes: 4096,
        serial: "L0001".into(),
        product: "RAM".into(),
        naa: [0x33, 1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0, 0, 0, 0, 0],
        eui: [2, 0, 0, 0, 0, 0, 0, 1],
        incarnation: Incarnation { name: [9; 16], ..Incarnation::default() },
        thin: true,
        warn_at: None,
        space: None,
        read_only: false,
        removable: false,
        write_cache: true,
        exported: false,
        remote: false,
        ptpl_capable: true,
        sharing: None,
        copies: Arc::default(),
        ports: vec![port(1, 1), port(2, 2)],
        groups: vec![PortGroup::new(1), PortGroup::new(2)],
    }
}

fn port(relative_id: u16, group: u16) -> Port {
    let device = String::from("iqn.2026-11.io.lunette:disk");
    Port { relative_id, group, name: format!("{device},t,0x{group:04x}"), device, protocol: Protocol::Iscsi }
}

/// A unit, its home, two nexuses and a medium.
pub(crate) struct Bench {
    pub(crate) view: View,
    pub(crate) home: Home,
    pub(crate) nexuses: Vec<NexusUnit>,
    pub(crate) medium: Vec<u8>,
    /// Blocks that are allocated.
    pub(crate) mapped: Vec<bool>,
    /// Operations so far.
    pub(crate) operations: Vec<MediaOp>,
    /// The error of the next operation.
    pub(crate) failure: Option<StoreError>,
    /// What was published last.
    pub(crate) published: Option<Publish>,
    /// A second unit with its medium, which must be as large as the first.
    pub(crate) second: Option<(View, Vec<u8>)>,
    /// How the nexuses reach the units.
    pub(crate) reach: [Reach; 2],
    /// After this many operations the unit changes like this.
    pub(crate) after: Option<(usize, Change)>,
}

/// Something that happens to the unit.
pub(crate) type Change = fn(&mut View);

/// The outcome of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) ending: Ending,
    pub(crate) data: Vec<u8>,
}

impl Outcome {
    /// Sense key and additional sense code with qualifier.
    pub(crate) fn sense(&self) -> (u8, u16) {
        let sense = self.ending.sense.expect("sense data");
        let bytes = sense.as_bytes();
        match bytes[0] & 0x7f {
            0x70 => (bytes[2] & 0x0f, u16::from_be_bytes([bytes[12], bytes[13]])),
            _ => (bytes[1] & 0x0f, u16::from_be_bytes([bytes[2], bytes[3]])),
        }
    }

    /// The ERROR and STATUS registers of a failed ATA command.
    pub(crate) fn registers(&self) -> (u8, u8) {
        assert_eq!(self.ending.status, Status::CheckCondition, "{:?}", self.ending);
        let end = StatusReturn::from_sense(&self.ending.sense.unwrap()).expect("registers");
        (end.error, end.status)
    }

    pub(crate) fn assert_good(&self) -> &Outcome {
        assert_eq!(self.ending.status, Status::Good, "{:?}", self.ending);
        self
    }

    pub(crate) fn assert_check(&self, key: u8, code: u16) {
        assert_eq!(self.ending.status, Status::CheckCondition);
        assert_eq!(self.sense(), (key, code));
        assert!(self.data.is_empty());
    }

    /// ILLEGAL REQUEST, INVALID FIELD IN CDB with the field pointer at this byte.
    pub(crate) fn assert_invalid_field(&self, byte: u8) {
        self.assert_check(0x5, 0x2400);
        let sense = self.ending.sense.unwrap();
        assert_eq!(sense.as_bytes()[15] & 0xc0, 0xc0);
        assert_eq!(sense.as_bytes()[16..18], [0, byte]);
    }
}

/// The number of a unit is its index.
impl Units for Vec<View> {
    fn view(&self, number: u32) -> Option<&View> {
        self.get(number as usize)
    }

    fn find(&self, is_it: &dyn Fn(&View) -> bool) -> Option<&View> {
        self.iter().find(|view| is_it(view))
    }
}

impl Bench {
    /// 64 MiB of thin medium; pending unit attentions are cleared.
    pub(crate) fn new() -> Bench {
        Bench::of(unit(), 64 * 1024 * 1024)
    }

    pub(crate) fn of(unit: Unit, bytes: usize) -> Bench {
        let unit = Arc::new(unit);
        let traits = Traits {
            size_bytes: bytes as u64,
            discards: true,
            discard_granularity_bytes: 4096,
            atomic_write_bytes_max: 128 * 1024,
            volatile_cache: true,
            solid_state: true,
            ..Traits::NONE
        };
        let home = Home::new(unit.clone(), traits);
        let nexus = |id: u64| {
            let mut nexus = NexusUnit::new(NexusId(id), vec![5, id as u8], 1, false);
            nexus.attentions.clear();
            nexus
        };
        Bench {
            view: View { unit, policy: home.policy() },
            home,
            nexuses: vec![nexus(1), nexus(2)],
            medium: vec![0; bytes],
            mapped: vec![false; bytes / BLOCK],
            operations: Vec::new(),
            failure: None,
            published: None,
            second: None,
            reach: [Reach::Full; 2],
            after: None,
        }
    }

    /// The same with two more nexuses, the third and the fourth, which use ATA.
    pub(crate) fn with_ata() -> Bench {
        let mut bench = Bench::new();
        bench.add_ata();
        bench
    }

    /// Two more nexuses, which use ATA: the unit is exported.
    pub(crate) fn add_ata(&mut self) {
        Arc::make_mut(&mut self.view.unit).exported = true;
        for (id, mac) in (3..).zip(MACS) {
            self.nexuses.push(NexusUnit::new(
                NexusId(id),
                wire::scsi::transport_id::aoe_port(mac).to_vec(),
                1,
                false,
            ));
        }
    }

    /// An ATA command of a nexus, with all its data.
    pub(crate) fn ata(&mut self, nexus: usize, registers: Registers, out: &[u8]) -> Outcome {
        let cdb = PassThrough::new(registers).to_cdb().unwrap();
        let ready = match registers.transfer() {
            Transfer::In(sectors) => sectors * SECTOR_BYTES,
            Transfer::Out(_) | Transfer::Nothing => 0,
        };
        self.run(nexus, cdb, out, ready)
    }

    /// A command of AoE that is not ATA, with enough space for any answer.
    pub(crate) fn order(&mut self, nexus: usize, kind: OrderKind, argument: &[u8]) -> Outcome {
        let order = Order { kind, argument_bytes: argument.len() as u32 };
        self.run(nexus, order.cdb(), argument, 2048)
    }

    /// A command without data-out from the first nexus, which accepts a mebibyte of data-in.
    pub(crate) fn read(&mut self, cdb: impl Into<Cdb>) -> Outcome {
        self.run(0, cdb, &[], 1024 * 1024)
    }

    /// A command with this data-out.
    pub(crate) fn write(&mut self, cdb: impl Into<Cdb>, out: &[u8]) -> Outcome {
        self.run(0, cdb, out, 0)
    }

    /// A request to the home, with what it publishes applied.
    pub(crate) fn ask(&mut self, request: HomeRequest) -> HomeReply {
        let (reply, publish) = self.home.handle(request);
        if let Some(publish) = publish {
            self.view.policy = publish.policy.clone();
            if let Some(unit) = &publish.unit {
                self.view.unit = unit.clone();
            }
            for nexus in &mut self.nexuses {
                for (who, attention) in &publish.attentions {
                    if who.includes(nexus) {
                        nexus.establish(*attention);
                    }
                }
            }
            self.published = Some(publish);
        }
        reply
    }

    pub(crate) fn run(&mut self, nexus: usize, cdb: impl Into<Cdb>, out: &[u8], read_bytes: u32) -> Outcome {
        let cdb = cdb.into();
        let request =
            Request { cdb: &cdb, attribute: Attribute::Simple, read_bytes, write_bytes: out.len() as u32 };
        let mut exec = match self.view.admit(&mut self.nexuses[nexus], &request) {
            Ok(exec) => exec,
            Err(ending) => return Outcome { ending, data: Vec::new() },
        };
        let mut buffer = vec![0xee; exec.buffer_bytes() as usize];
        assert!(buffer.len() <= CHUNK_BYTES as usize);
        let mut data = vec![];
        let mut event = Event::Start;
        loop {
            let window = buffer.len().min(WINDOW_BYTES);
            let mut units = vec![self.view.clone()];
            units.extend(self.second.as_ref().map(|(view, _)| view.clone()));
            let mut env = Env {
                view: &units[0],
                nexus: &mut self.nexuses[nexus],
                units: &units,
                reach: &[(0, self.reach[0]), (1, self.reach[1])],
                luns: &[0, 0x0001_0000_0000_0000],
                buffer: &mut buffer[..window],
            };
            let step = exec.next(&mut env, event);
            self.assert_is_named(&exec, &step);
            event = match step {
                Step::Fetch { at, len } => {
                    buffer[..len as usize].copy_from_slice(&out[at as usize..(at + len) as usize]);
                    Event::Fetched
                }
                Step::ReadPush { offset, len, at, end } => {
                    assert!(len <= CHUNK_BYTES);
                    match self.failure.take() {
                        Some(error) => Event::Stored(Err(error)),
                        None => {
                            assert_eq!(at as usize, data.len());
                            data.extend_from_slice(&self.medium[offset as usize..][..len as usize]);
                            data.truncate(read_bytes as usize);
                            match end {
                                Some(ending) => return Outcome { ending, data },
                                None => Event::Pushed,
                            }
                        }
                    }
                }
                Step::Media { unit: Some(1), op } => {
                    let (view, mut medium) = self.second.take().expect("a second unit");
                    std::mem::swap(&mut self.medium, &mut medium);
                    let outcome = self.media(op, &mut buffer);
                    std::mem::swap(&mut self.medium, &mut medium);
                    self.second = Some((view, medium));
                    Event::Stored(outcome)
                }
                Step::Media { unit: _, op } => Event::Stored(self.media(op, &mut buffer)),
                Step::Push { buffer: from, len, at, end } => {
                    assert_eq!(at as usize, data.len());
                    data.extend_from_slice(&buffer[from as usize..][..len as usize]);
                    data.truncate(read_bytes as usize);
                    match end {
                        Some(ending) => return Outcome { ending, data },
                        None => Event::Pushed,
                    }
                }
                Step::Home(request) => Event::Home(self.ask(*request)),
                Step::Detach(_) => Event::Detached,
                Step::End(ending) => return Outcome { ending, data },
            };
        }
    }

    /// Checks that a program reports whatever it does that `read_only` prevents: a change that sets that
    /// waits for it.
    fn assert_is_named(&self, exec: &Exec, step: &Step) {
        match step {
            Step::Media { unit, op } if writes(op) => {
                let at = unit.unwrap_or(0);
                assert!(exec.writes(0, &|unit| unit == at) && exec.changes(0, &|unit| unit == at), "{op:?}");
            }
            Step::Home(request) if request.changer(&self.view.policy).is_some() => {
                assert!(exec.changes(0, &|unit| unit == 0), "{request:?}");
            }
            _ => {}
        }
    }

    fn media(&mut self, op: MediaOp, buffer: &mut [u8]) -> Result<Found, StoreError> {
        self.operations.push(op);
        if let Some((_, change)) = self.after.take_if(|(count, _)| *count == self.operations.len()) {
            change(&mut self.view);
        }
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        match op {
            MediaOp::Read { offset, len, buffer: at } => {
                buffer[at as usize..][..len as usize].copy_from_slice(self.bytes(offset, len.into()));
            }
            MediaOp::Write { offset, len, buffer: at, .. } => {
                self.bytes(offset, len.into()).copy_from_slice(&buffer[at as usize..][..len as usize]);
                self.map(offset, len.into(), true);
            }
            MediaOp::Flush => {}
            MediaOp::Zero { offset, len, unmap, .. } => {
                self.bytes(offset, len).fill(0);
                self.map(offset, len, !unmap);
            }
            MediaOp::Discard { offset, len } => {
                self.bytes(offset, len).fill(0);
                self.map(offset, len, false);
            }
            MediaOp::CompareAndWrite { offset, len, buffer: at, .. } => {
                let (compared, written) = buffer[at as usize..][..2 * len as usize].split_at(len as usize);
                compare(self.bytes(offset, len.into()), compared)?;
                self.bytes(offset, len.into()).copy_from_slice(written);
            }
            MediaOp::OrWrite { offset, len, buffer: at, .. } => {
                for (old, new) in self.bytes(offset, len.into()).iter_mut().zip(&buffer[at as usize..]) {
                    *old |= new;
                }
            }
            MediaOp::Compare { offset, len, buffer: at } => {
                compare(self.bytes(offset, len.into()), &buffer[at as usize..][..len as usize])?;
            }
            MediaOp::Extent { offset } => {
                let rest = &self.mapped[offset as usize / BLOCK..];
                let same = rest.iter().take_while(|mapped| **mapped == rest[0]).count();
                return Ok(Found::Extent { mapped: rest[0], len: (same * BLOCK) as u64 });
            }
        }
        Ok(Found::Nothing)
    }

    fn bytes(&mut self, offset: u64, len: u64) -> &mut [u8] {
        &mut self.medium[offset as usize..][..len as usize]
    }

    fn map(&mut self, offset: u64, len: u64, mapped: bool) {
        self.mapped[offset as usize / BLOCK..][..len as usize / BLOCK].fill(mapped);
    }
}

fn writes(op: &MediaOp) -> bool {
    match op {
        MediaOp::Write { .. }
        | MediaOp::Zero { .. }
        | MediaOp::Discard { .. }
        | MediaOp::CompareAndWrite { .. }
        | MediaOp::OrWrite { .. } => true,
        MediaOp::Read { .. } | MediaOp::Flush | MediaOp::Compare { .. } | MediaOp::Extent { .. } => false,
    }
}

fn compare(medium: &[u8], with: &[u8]) -> Result<(), StoreError> {
    match medium.iter().zip(with).position(|(old, new)| old != new) {
        Some(at) => Err(StoreError::Miscompare { at: at as u32 }),
        None => Ok(()),
    }
}
