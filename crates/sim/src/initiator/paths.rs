//! How it connects, and by which of several gateways: it changes over when the one that it uses is in standby or is gone.

use super::carrier::Carrier;
use super::link::Link;
use super::nexuses::Change;
use super::{Aim, CONNECT, Initiator, RETURN, State, orders};
use crate::register::Fate;
use proto::iscsi::initiator::{Completion, InitiatorConfig};
use proto::iscsi::login::Plan;
use proto::time::Time;
use reactor::crc::crc32c;
use reactor::io::{Handle, Io, Tag};
use std::time::Duration;
use wire::scsi::code;

/// Of 1000 times that it finds a gateway in standby, or gone, it changes over so often: else it stays, and its orders are for the one
/// that is active.
const LEAVES: u32 = 200;
const LEAVES_DEAD: u32 = 600;
/// Nanoseconds for which it leaves a gateway in standby alone, but for orders, at most.
const WAITS_FOR: u64 = 150_000_000;
/// Nanoseconds between two attempts to connect, at most.
const CONNECTS_EVERY: u64 = 200_000_000;

impl Initiator {
    /// One of so many, which uses this gateway at first.
    pub(crate) fn begins_at(mut self, gateway: usize, initiators: usize) -> Initiator {
        self.index += gateway * initiators;
        (self.paths.at, self.paths.initiators) = (gateway, initiators);
        self
    }

    /// If this is not zero, it pauses for so long at most after commands that it has begun, and leaves no path before it knows that
    /// these are over.
    pub(crate) fn thinks(mut self, time: Duration) -> Initiator {
        self.paths.thinks = time;
        self
    }

    /// The gateway that it uses.
    pub(crate) fn gateway(&self) -> usize {
        self.paths.at
    }

    /// It is this session of the initiator that another host is as well.
    pub(crate) fn session_of(mut self, host: usize, session: usize) -> Initiator {
        (self.paths.name, self.paths.session) = (Some(host), session as u8);
        self
    }

    /// Whether its gateway has been the active one since then: what another one says may be older.
    pub(super) fn is_served_since(&self, began: Time) -> bool {
        let truth = self.place.truth.as_ref();
        truth.is_none_or(|truth| truth.borrow().holds(self.paths.at, began))
    }

    /// Whether its gateway has been active since then.
    pub(super) fn knows_since(&self, began: Time) -> bool {
        let truth = self.place.truth.as_ref();
        truth.is_none_or(|truth| truth.borrow().knows(self.paths.at, began))
    }

    /// Whether its gateway may not have known since then that another one is active.
    pub(super) fn is_unaware_since(&self, began: Time) -> bool {
        let truth = self.place.truth.as_ref();
        truth.is_some_and(|truth| truth.borrow().was_unaware(self.paths.at, began))
    }

    pub(super) fn has_paths(&self) -> bool {
        self.place.portals.len() > 1
    }

    /// The gateway that it uses is in standby, or does not answer.
    pub(super) fn may_change_paths(&mut self, is_alive: bool) {
        if self.has_paths() {
            if is_alive && !self.waits_for_gateway() {
                let pause = self.net.borrow_mut().nanos(1_000_000, WAITS_FOR);
                self.paths.waits_until = self.kernel.now().after(pause);
            }
            let odds = if is_alive { LEAVES } else { LEAVES_DEAD };
            if self.paths.change == Change::No && self.net.borrow_mut().happens(odds) {
                self.paths.change = Change::Wanted;
            }
        }
    }

    /// It has begun commands.
    pub(super) fn pauses(&mut self) {
        if !self.paths.thinks.is_zero() {
            let pause = self.net.borrow_mut().nanos(0, self.paths.thinks.as_nanos() as u64);
            self.paths.waits_until = self.paths.waits_until.max(self.kernel.now().after(pause));
        }
    }

    /// Whether its gateway was in standby just now, or it does nothing for a while.
    pub(super) fn waits_for_gateway(&self) -> bool {
        self.kernel.now() < self.paths.waits_until
    }

    /// Whether it may leave its path: one that takes its time first finds out whether what it has sent there is over.
    pub(super) fn may_leave_path(&self) -> bool {
        self.paths.thinks.is_zero() || (self.tasks.is_empty() && self.unsettled.is_empty())
    }

    /// Where all gateways are active, one is in standby only when nothing that it has sent, or its earlier process, can take effect
    /// any more.
    pub(super) fn look_at_standby(&mut self, now: Time, completion: &Completion) -> Result<(), String> {
        let is_over = orders::additional_code(completion) == code::PORT_IN_STANDBY;
        if is_over && self.place.gives_up.is_some() { self.settle_writes(now) } else { Ok(()) }
    }

    /// It changes over: as it is, or logs out before.
    pub(super) fn leave_path(&mut self) -> Result<(), String> {
        if self.net.borrow_mut().rng.bool() {
            self.logout();
            self.paths.change = Change::Begun;
            return Ok(());
        }
        self.lost(RETURN)?;
        if self.net.borrow_mut().rng.bool() {
            self.cut();
        }
        Ok(())
    }

    /// Continues at the next gateway.
    fn change_paths(&mut self) {
        let (count, initiators) = (self.place.portals.len(), self.paths.initiators);
        let next = (self.paths.at + 1) % count;
        let left = std::mem::take(&mut self.paths.left[next]);
        let here = &mut self.paths.left[self.paths.at];
        here.unsettled = std::mem::replace(&mut self.unsettled, left.unsettled);
        here.unsettled_orders = std::mem::replace(&mut self.unsettled_orders, left.unsettled_orders);
        here.loses = std::mem::replace(&mut self.loses, left.loses);
        self.index = self.index % initiators + next * initiators;
        (self.paths.at, self.paths.change) = (next, Change::No);
        self.note(&[10, next as u64], || format!("changes over to gateway {next}"));
    }

    /// Whether what it has sent by its path may yet be done, while another path exists by which it could be overtaken.
    fn must_wait(&self) -> bool {
        let (Some(within), Some(truth)) = (self.place.gives_up, &self.place.truth) else { return false };
        let now = self.kernel.now();
        !self.unsettled.is_empty() && !truth.borrow().is_over(self.paths.at, self.paths.left_at, now, within)
    }

    /// It does not try its path any more, but waits until it may use another one.
    fn has_lost_hope(&self) -> bool {
        let hopes = |within: Duration| self.kernel.now() < self.paths.left_at.after(within / 2);
        if self.paths.thinks.is_zero() {
            self.host.is_multiple_of(2)
        } else {
            !self.place.gives_up.is_some_and(hopes)
        }
    }

    /// What it has sent in earlier sessions is over.
    pub(super) fn settle_writes(&mut self, now: Time) -> Result<(), String> {
        for (range, id) in std::mem::take(&mut self.unsettled) {
            self.registers.borrow_mut().end_write(now, range, id, Fate::Unsure)?;
        }
        Ok(())
    }

    /// What it has sent by its path is over.
    fn give_up(&mut self) -> Result<(), String> {
        if self.place.gives_up.is_some() {
            let (now, writes) = (self.kernel.now(), self.unsettled.len());
            self.note(&[14, writes as u64], || format!("gives up its path and {writes} writes"));
            self.settle_writes(now)?;
        }
        Ok(())
    }

    /// Connects.
    ///
    /// # Errors
    /// When what it had sent by a path that it leaves was refused, and done.
    pub(super) fn connect(&mut self) -> Result<(), String> {
        if self.kernel.now() < self.paths.connects_at {
            return Ok(());
        }
        if self.has_paths() {
            let pause = self.net.borrow_mut().nanos(1_000_000, CONNECTS_EVERY);
            self.paths.connects_at = self.kernel.now().after(pause);
        }
        if self.paths.change != Change::No {
            if !self.must_wait() {
                self.give_up()?;
                self.change_paths();
            } else if self.has_lost_hope() && self.aim == Aim::Work {
                return Ok(());
            }
        }
        self.links += 1;
        self.connecting = self.kernel.now();
        self.state = State::Connecting;
        self.kernel.connect(self.place.portals[self.paths.at], Tag(self.links << 2 | CONNECT));
        Ok(())
    }

    pub(super) fn connected(&mut self, socket: Handle) {
        let plan = Plan {
            initiator: format!("iqn.2026-11.io.lunette:initiator-{}", self.paths.name.unwrap_or(self.host)),
            alias: None,
            target: Some(self.place.target.clone()),
            isid: [0x80, 0, 0, 0, 0, 1 + self.paths.session],
            chap: None,
            offers: self.offers,
            text_bytes: 8192,
        };
        let config = InitiatorConfig {
            plan,
            queue_depth: self.habits.depth,
            login_within: Duration::from_secs(6),
            idle: Duration::from_secs(5),
            crc32c,
        };
        self.state = State::Connected;
        let machine = Carrier::new(self.protocol, config, self.host, socket, &mut self.kernel);
        self.link = Some(Link::new(machine, self.links, socket));
    }
}
