//! A byte stream for the target machine. The first byte selects whether it begins after a login, and with
//! digests; the second how the layer above answers.

use crate::above::Above;
use crate::{Door, Input, address, login};
use proto::iscsi::login::Offers;
use proto::iscsi::target::{Target, TargetConfig};
use proto::stream::{HEADER_BYTES_MAX, StreamMachine, Transmit, Want};
use proto::time::Time;
use std::sync::Arc;
use std::time::Duration;

/// Feeds one input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (options, manners) = (input.byte(), input.byte());
    let mut driver = Driver::new(manners);
    if options & 1 == 1 {
        let digest = if options & 2 == 2 { "CRC32C" } else { "None" };
        driver.run(&mut Input(&login(&format!("HeaderDigest={digest}\0DataDigest={digest}\0"))));
        assert!(driver.above.ready, "the login succeeds");
    }
    driver.run(&mut input);
    driver.machine.closed(driver.now, None);
    driver.above.answer(&mut driver.machine, driver.now);
    assert!(driver.above.gone && driver.machine.finished(), "a closed connection has ended");
}

/// A driver without a socket, and a layer above without a unit.
struct Driver {
    machine: Target,
    now: Time,
    batch: Transmit,
    above: Above,
}

impl Driver {
    fn new(manners: u8) -> Self {
        let config = TargetConfig {
            offers: Offers::default(),
            queue_depth: 8,
            login_within: Duration::from_secs(15),
            idle: Duration::from_secs(30),
            // A constant, so that the fuzzer finds valid digests.
            crc32c: |_| 0,
        };
        let now = Time(1);
        Self {
            machine: Target::new(config, Arc::new(Door::default()), address(), address(), now),
            now,
            batch: Transmit::default(),
            above: Above::new(manners),
        }
    }

    /// Feeds the stream until it ends or the machine wants no more.
    fn run(&mut self, input: &mut Input<'_>) {
        while !self.machine.finished() {
            self.above.answer(&mut self.machine, self.now);
            self.send();
            match self.machine.want() {
                Want::Header { len } => {
                    assert!((1..=HEADER_BYTES_MAX).contains(&len));
                    let Some(bytes) = input.take(len as usize) else { return };
                    self.machine.header(self.now, bytes);
                }
                Want::Body { place, pad, digest } => {
                    let Some(digest_ok) = skip(input, place.len(), pad, digest) else { return };
                    self.machine.body(self.now, digest_ok);
                }
                Want::Skip { len, pad, digest } => {
                    let Some(digest_ok) = skip(input, len, pad, digest) else { return };
                    self.machine.body(self.now, digest_ok);
                }
                Want::Nothing if self.machine.owes() => {}
                // The layer above owes an answer, which it gives at its own pace.
                Want::Nothing if !self.above.commands.is_empty() => {
                    self.above.end_oldest(&mut self.machine, self.now);
                }
                Want::Nothing => return,
            }
            self.now = self.now.after(Duration::from_millis(u64::from(self.above.manners)));
            if self.machine.deadline().is_some_and(|deadline| deadline <= self.now) {
                self.machine.tick(self.now);
            }
        }
    }

    /// Sends everything pending at once.
    fn send(&mut self) {
        while self.machine.owes() {
            self.batch.clear();
            self.machine.transmit(self.now, &mut self.batch);
            assert!(self.batch.bytes.len() <= Transmit::BYTES_MAX, "a batch keeps its limits");
            assert!(self.batch.segments.len() <= Transmit::SEGMENTS_MAX, "a batch keeps its limits");
            for task in self.batch.done.drain(..) {
                self.above.commands.retain(|command| command.task != task);
            }
            self.above.answer(&mut self.machine, self.now);
        }
    }
}

/// Discards payload, with what follows it. Returns whether the digest is right.
fn skip(input: &mut Input<'_>, len: u32, pad: u32, digest: Option<u32>) -> Option<bool> {
    input.take(len as usize + pad as usize)?;
    if digest.is_some() { input.take(4).map(|sum| sum == [0; 4]) } else { Some(true) }
}
