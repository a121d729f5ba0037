//! What was acknowledged as durable survives killing the daemon in the middle of writing.

use crate::support::Noise;
use crate::support::daemon::{Daemon, Url};
use crate::support::initiator::{Initiator, Login, write_cdb};
use std::io::Result;
use std::sync::{Mutex, mpsc};
use std::time::{SystemTime, UNIX_EPOCH};

const BLOCK_BYTES: u32 = 512;
const UNIT_BYTES: u64 = 16 << 20;
/// The unit is divided into slots; a write covers one.
const SLOT_BLOCKS: u32 = 48;
const SLOTS: usize = 600;
const WRITERS: usize = 2;
/// Writes in flight per writer.
const DEPTH: usize = 8;

/// What makes a write durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Promise {
    /// Force unit access.
    Forced,
    /// The write cache is off.
    NoCache,
    /// SYNCHRONIZE CACHE after every few writes.
    Synchronized,
}

#[test]
fn forced_writes_survive_a_kill() {
    seeds(1).for_each(|seed| survives(seed, Promise::Forced));
}

#[test]
fn writes_without_a_write_cache_survive_a_kill() {
    seeds(5).for_each(|seed| survives(seed, Promise::NoCache));
}

#[test]
fn synchronized_writes_survive_a_kill() {
    seeds(9).for_each(|seed| survives(seed, Promise::Synchronized));
}

/// Four fixed seeds, and one from the clock, so that every run covers something new.
fn seeds(first: u64) -> impl Iterator<Item = u64> {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    (first..first + 4).chain([clock.as_micros() as u64])
}

/// Writers fill slots with ever newer versions; the daemon is killed and restarted; every block must then
/// have a version no older than what was acknowledged as durable, and no newer than what was sent.
fn survives(seed: u64, promise: Promise) {
    // Shown when the test fails, wherever that is.
    println!("seed {seed}");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let cache = if promise == Promise::NoCache { "off" } else { "on" };
    let spec = format!("file:{},size={UNIT_BYTES},wcache={cache}", directory.path().join("disk").display());
    let ledger = Ledger { slots: Mutex::new(vec![Slot::default(); SLOTS]) };
    let daemon = Daemon::serve(["--lun", &spec]);
    let url = daemon.lun(0);
    let enough = 100 + Noise(seed).below(400);

    std::thread::scope(|scope| {
        let (sender, acknowledged) = mpsc::channel();
        for writer in 0..WRITERS {
            let (ledger, url, sender) = (&ledger, &url, sender.clone());
            scope.spawn(move || {
                let noise = Noise(seed << 8 | writer as u64);
                let Err(error) = write_until_killed(writer, noise, url, promise, ledger, &sender);
                // Nobody listens any more once the daemon was killed; until then, an error is a failure.
                let _ = sender.send(Err(error));
            });
        }
        for _ in 0..enough {
            acknowledged.recv().expect("writers write").expect("no write fails");
        }
        daemon.kill9();
    });

    let daemon = Daemon::serve(["--lun", &spec]);
    check(seed, &daemon.lun(0), &ledger);
    daemon.stop();
}

/// Writes to this writer's slots in batches, until the connection breaks.
fn write_until_killed(
    writer: usize,
    mut noise: Noise,
    url: &Url,
    promise: Promise,
    ledger: &Ledger,
    acknowledged: &mpsc::Sender<Result<()>>,
) -> Result<std::convert::Infallible> {
    let mut initiator = Initiator::login(url, &Login::named(&format!("writer{writer}")))?;
    initiator.ready(url.lun)?;
    loop {
        let mut batch = std::collections::BTreeMap::new();
        while batch.len() < DEPTH {
            let slot = noise.below((SLOTS / WRITERS) as u64) as usize * WRITERS + writer;
            if batch.values().any(|&(other, _)| other == slot) {
                continue;
            }
            let version = ledger.send(slot);
            let data: Vec<u8> = (0..SLOT_BLOCKS).flat_map(|block| content(slot, block, version)).collect();
            let cdb = write_cdb(first_block(slot), data.len(), BLOCK_BYTES, promise == Promise::Forced);
            batch.insert(initiator.issue(url.lun, cdb, 0, data)?, (slot, version));
        }
        let mut promised = Vec::new();
        for _ in 0..DEPTH {
            let (tag, response) = initiator.complete_any()?;
            if response.status != 0 {
                return Err(std::io::Error::other(format!("WRITE: {response:02x?}")));
            }
            promised.push(batch[&tag]);
            if promise != Promise::Synchronized {
                ledger.acknowledge(promised.drain(..), acknowledged);
            }
        }
        if promise == Promise::Synchronized {
            initiator.synchronize(url.lun)?;
            ledger.acknowledge(promised.drain(..), acknowledged);
        }
    }
}

fn check(seed: u64, url: &Url, ledger: &Ledger) {
    let mut initiator = Initiator::login(url, &Login::named("checker")).expect("login");
    for (slot, expected) in ledger.slots.lock().expect("no writer panics").iter().enumerate() {
        let data = initiator.read_blocks(url.lun, first_block(slot), SLOT_BLOCKS, BLOCK_BYTES).expect("READ");
        for (block, found) in (0..).zip(data.chunks(BLOCK_BYTES as usize)) {
            let fits =
                (expected.durable..=expected.sent).any(|version| content(slot, block, version) == found);
            assert!(
                fits,
                "seed {seed}, slot {slot}, block {block}: {expected:?}, found {:02x?}",
                &found[..16]
            );
        }
    }
    initiator.logout().expect("logout");
}

/// The guarantee for each slot.
struct Ledger {
    slots: Mutex<Vec<Slot>>,
}

/// Versions of a slot; 0 is the empty unit.
#[derive(Clone, Copy, Default, Debug)]
struct Slot {
    sent: u32,
    durable: u32,
}

impl Ledger {
    /// The next version to send.
    fn send(&self, slot: usize) -> u32 {
        let mut slots = self.slots.lock().expect("no writer panics");
        slots[slot].sent += 1;
        slots[slot].sent
    }

    fn acknowledge(
        &self,
        writes: impl Iterator<Item = (usize, u32)>,
        acknowledged: &mpsc::Sender<Result<()>>,
    ) {
        for (slot, version) in writes {
            self.slots.lock().expect("no writer panics")[slot].durable = version;
            let _ = acknowledged.send(Ok(()));
        }
    }
}

fn first_block(slot: usize) -> u64 {
    slot as u64 * u64::from(SLOT_BLOCKS)
}

/// The bytes of one block of a slot's version.
fn content(slot: usize, block: u32, version: u32) -> Vec<u8> {
    if version == 0 {
        return vec![0; BLOCK_BYTES as usize];
    }
    Noise((slot as u64) << 40 | u64::from(block) << 32 | u64::from(version)).bytes(BLOCK_BYTES as usize)
}
