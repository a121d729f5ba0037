//! Commands, one after the other, on two small units: each a CDB of 16 or 32 bytes, some flags, the lengths
//! that the initiator expects, and the data-out. Some come from an initiator that speaks ATA.

use crate::Input;
use scsi::home::{HomeReply, HomeRequest};
use scsi::storage::{Found, MediaOp, StoreError, Traits};
use scsi::unit::{Port, Protocol};
use scsi::{
    Attribute, Ending, Env, Event, Exec, Home, NexusId, NexusUnit, PortGroup, Reach, Request, Status, Step,
    Unit, Units, View,
};
use std::sync::Arc;
use wire::aoe::{Mac, Order, Refusal};
use wire::ata::{PassThrough, StatusReturn};
use wire::{Cdb, Sense};

/// Size of a unit's medium.
const MEDIUM_BYTES: usize = 64 * 1024;
/// A program that takes more steps than this never ends: a byte-wise sanitize would.
const STEPS_MAX: usize = 4096;
const COMMANDS_MAX: usize = 32;
/// The nexus that speaks ATA.
const ATA: usize = 2;
/// The part of its buffer that a program sees at a time.
const WINDOW_BYTES: usize = 64 * 1024;

/// Feeds one input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let options = input.byte();
    let mut world = World::new(options);
    for _ in 0..COMMANDS_MAX {
        if input.is_empty() {
            break;
        }
        world.command(&mut input);
    }
}

/// Two units, and three initiators of the first, the last of which speaks ATA.
struct World {
    homes: Vec<Home>,
    views: Views,
    media: Vec<Vec<u8>>,
    nexuses: Vec<NexusUnit>,
    buffer: Vec<u8>,
}

/// The units as a core sees them, by number.
struct Views(Vec<View>);

impl Units for Views {
    fn view(&self, number: u32) -> Option<&View> {
        self.0.get(number as usize)
    }

    fn find(&self, is_it: &dyn Fn(&View) -> bool) -> Option<&View> {
        self.0.iter().find(|view| is_it(view))
    }
}

/// An outstanding command.
struct Running<'a> {
    nexus: usize,
    speech: Speech,
    out: &'a [u8],
    buffer_bytes: u32,
    detached: bool,
}

/// Whether errors include ATA registers.
#[derive(Clone, Copy)]
enum Speech {
    /// All do.
    Ata,
    /// Those of the device do, those of the translation do not.
    Translated,
    /// None does.
    Scsi,
}

impl World {
    fn new(options: u8) -> Self {
        let homes: Vec<Home> = (0..2).map(|index| home(index, options)).collect();
        let units = (0..2).map(|index| unit(index, options));
        let views =
            units.zip(&homes).map(|(unit, home)| View { unit: Arc::new(unit), policy: home.policy() });
        let mut nexuses: Vec<NexusUnit> =
            (1..=2).map(|id| NexusUnit::new(NexusId(id), vec![5, 0, 0, id as u8], 1, false)).collect();
        nexuses.iter_mut().for_each(|nexus| nexus.attentions.clear());
        let mac = Mac([2, 0, 0, 0, 0, 3]);
        nexuses.push(NexusUnit::new(NexusId(3), wire::scsi::transport_id::aoe_port(mac).to_vec(), 1, false));
        Self {
            views: Views(views.collect()),
            homes,
            media: vec![vec![0; MEDIUM_BYTES]; 2],
            nexuses,
            buffer: Vec::new(),
        }
    }

    fn command(&mut self, input: &mut Input<'_>) {
        let flags = input.byte();
        let nexus = if flags & 32 == 0 { usize::from(flags >> 3 & 1) } else { ATA };
        let cdb = if nexus == ATA {
            let [_, rest @ ..] = input.filled::<16>();
            let opcode = if flags & 1 == 0 { PassThrough::OPCODE } else { Order::OPCODE };
            Cdb::from_bytes(&[&[opcode][..], &rest].concat())
        } else if flags & 1 == 0 {
            Cdb::from_bytes(&input.filled::<16>())
        } else {
            Cdb::from_bytes(&input.filled::<32>())
        };
        let cdb = cdb.expect("a short CDB");
        let (read_bytes, write_bytes) = (u32::from(input.short()), input.short());
        let write_bytes = usize::from(write_bytes).min(input.0.len());
        let out = input.take(write_bytes).unwrap_or_default();
        let attribute = match flags >> 1 & 3 {
            0 => Attribute::Simple,
            1 => Attribute::Ordered,
            2 => Attribute::HeadOfQueue,
            _ => Attribute::Aca,
        };
        let request = Request { cdb: &cdb, attribute, read_bytes, write_bytes: out.len() as u32 };
        let speech = match cdb.opcode() {
            _ if nexus == ATA => Speech::Ata,
            0x85 | 0xa1 => Speech::Translated,
            _ => Speech::Scsi,
        };
        match self.views.0[0].admit(&mut self.nexuses[nexus], &request) {
            Ok(exec) => {
                let buffer_bytes = exec.buffer_bytes();
                assert!(buffer_bytes <= scsi::storage::CHUNK_BYTES);
                self.buffer.clear();
                self.buffer.resize(buffer_bytes as usize, 0xa5);
                self.run(exec, Running { nexus, speech, out, buffer_bytes, detached: false });
            }
            Err(ending) => check(speech, &ending),
        }
    }

    /// Runs a program until it ends.
    fn run(&mut self, mut exec: Exec, mut running: Running<'_>) {
        let mut event = Event::Start;
        for _ in 0..STEPS_MAX {
            let window = self.buffer.len().min(WINDOW_BYTES);
            let mut env = Env {
                view: &self.views.0[0],
                nexus: &mut self.nexuses[running.nexus],
                units: &self.views,
                reach: &[(0, Reach::Full), (1, Reach::ReadOnly)],
                luns: &[0, 1 << 48],
                buffer: &mut self.buffer[..window],
            };
            let step = exec.next(&mut env, event);
            match self.step(step, &mut running) {
                Some(next) => event = next,
                None => return,
            }
        }
        panic!("the program does not end: {exec:?}");
    }

    /// Executes one step; nothing follows the last one.
    fn step(&mut self, step: Step, running: &mut Running<'_>) -> Option<Event> {
        match step {
            Step::Fetch { at, len } => {
                assert!(len <= running.buffer_bytes, "what is fetched fits into the buffer");
                let data = running.out.get(at as usize..at as usize + len as usize);
                self.buffer[..len as usize].copy_from_slice(data.expect("no more is fetched than is sent"));
                Some(Event::Fetched)
            }
            Step::ReadPush { offset, len, at, end } => {
                let end_offset = offset.checked_add(u64::from(len)).expect("offsets do not overflow");
                assert!(end_offset <= MEDIUM_BYTES as u64, "reads stay on the medium");
                assert!(len <= scsi::storage::CHUNK_BYTES && at.checked_add(len).is_some());
                end.map_or(Some(Event::Pushed), |ending| ended(running.speech, &ending))
            }
            Step::Media { unit, op } => {
                let unit = unit.map_or(0, |index| index as usize);
                Some(Event::Stored(media(&mut self.media[unit], &mut self.buffer, op)))
            }
            Step::Push { buffer, len, end, .. } => {
                assert!(buffer.checked_add(len).is_some_and(|end| end <= running.buffer_bytes));
                end.map_or(Some(Event::Pushed), |ending| ended(running.speech, &ending))
            }
            Step::Home(request) => Some(Event::Home(self.ask_home(*request))),
            Step::Detach(ending) => {
                assert!(!std::mem::replace(&mut running.detached, true), "a program detaches once");
                ending.iter().for_each(|ending| check(running.speech, ending));
                Some(Event::Detached)
            }
            Step::End(ending) => ended(running.speech, &ending),
        }
    }

    /// Sends a request to the first unit's home, and applies what it publishes.
    fn ask_home(&mut self, request: HomeRequest) -> HomeReply {
        let (reply, publish) = self.homes[0].handle(request);
        if let Some(publish) = publish {
            self.views.0[0].policy = publish.policy;
            for (who, attention) in publish.attentions {
                self.nexuses.iter_mut().filter(|nexus| who.includes(nexus)).for_each(|nexus| {
                    nexus.establish(attention);
                });
            }
        }
        reply
    }
}

fn ended(speech: Speech, ending: &Ending) -> Option<Event> {
    check(speech, ending);
    None
}

fn check(speech: Speech, ending: &Ending) {
    assert_eq!(ending.status == Status::CheckCondition, ending.sense.is_some(), "{ending:?}");
    let is_ata =
        |sense: &Sense| StatusReturn::from_sense(sense).is_some() || Refusal::from_sense(sense).is_some();
    let has_registers = ending.sense.as_ref().is_some_and(is_ata);
    match speech {
        Speech::Ata => assert_eq!(has_registers, ending.sense.is_some(), "{ending:?}"),
        Speech::Translated => {}
        Speech::Scsi => assert!(!has_registers, "{ending:?}"),
    }
}

/// The medium and the buffer as plain memory: a range outside of them panics.
fn media(medium: &mut [u8], buffer: &mut [u8], op: MediaOp) -> Result<Found, StoreError> {
    let span = |from: u64, len: u64| from as usize..from as usize + len as usize;
    match op {
        MediaOp::Read { offset, len, buffer: at } => {
            buffer[span(at.into(), len.into())].copy_from_slice(&medium[span(offset, len.into())]);
        }
        MediaOp::Write { offset, len, buffer: at, .. } => {
            medium[span(offset, len.into())].copy_from_slice(&buffer[span(at.into(), len.into())]);
        }
        MediaOp::Flush => {}
        MediaOp::Zero { offset, len, .. } | MediaOp::Discard { offset, len } => {
            medium[span(offset, len)].fill(0)
        }
        MediaOp::CompareAndWrite { offset, len, buffer: at, .. } => {
            compare(&medium[span(offset, len.into())], &buffer[span(at.into(), len.into())])?;
            let new = span(u64::from(at) + u64::from(len), len.into());
            medium[span(offset, len.into())].copy_from_slice(&buffer[new]);
        }
        MediaOp::OrWrite { offset, len, buffer: at, .. } => {
            let new = &buffer[span(at.into(), len.into())];
            medium[span(offset, len.into())].iter_mut().zip(new).for_each(|(old, new)| *old |= new);
        }
        MediaOp::Compare { offset, len, buffer: at } => {
            compare(&medium[span(offset, len.into())], &buffer[span(at.into(), len.into())])?;
        }
        MediaOp::Extent { offset } => {
            let len =
                (medium.len() as u64).checked_sub(offset).filter(|len| *len > 0).expect("on the medium");
            return Ok(Found::Extent { mapped: medium[offset as usize] != 0, len });
        }
    }
    Ok(Found::Nothing)
}

fn compare(one: &[u8], other: &[u8]) -> Result<(), StoreError> {
    match one.iter().zip(other).position(|(a, b)| a != b) {
        Some(at) => Err(StoreError::Miscompare { at: at as u32 }),
        None => Ok(()),
    }
}

fn home(index: u32, options: u8) -> Home {
    let traits = Traits {
        size_bytes: MEDIUM_BYTES as u64,
        blocks: None,
        discards: true,
        discard_granularity_bytes: 4096,
        atomic_write_bytes_max: 4096,
        compare_write_bytes_max: u32::MAX,
        volatile_cache: true,
        read_only: false,
        solid_state: true,
        cryptographic_erase: options & 16 != 0,
        identity: None,
    };
    Home::new(Arc::new(unit(index, options)), traits)
}

fn unit(index: u32, options: u8) -> Unit {
    let block_bytes = if options & 1 == 0 { 512 } else { 4096 };
    Unit {
        index,
        block_bytes,
        groups: vec![PortGroup::new(1), PortGroup::new(2)],
        physical_block_bytes: 4096,
        serial: format!("fuzz{index}"),
        product: "disk".into(),
        naa: [0x60; 16],
        eui: [1; 8],
        incarnation: scsi::Incarnation { name: [1; 16], ..Default::default() },
        thin: options & 2 == 0,
        warn_at: (options & 8 == 0).then_some(80),
        space: (options & 16 == 0).then(Arc::default),
        read_only: options & 4 != 0,
        removable: options & 8 != 0,
        write_cache: true,
        exported: options & 32 == 0,
        remote: options & 64 != 0,
        ptpl_capable: options & 16 != 0,
        sharing: None,
        copies: Arc::default(),
        ports: vec![Port {
            relative_id: 1,
            group: 1,
            name: "iqn.2026-11.io.lunette:disk,t,0x0001".into(),
            device: "iqn.2026-11.io.lunette:disk".into(),
            protocol: Protocol::Iscsi,
        }],
    }
}
