//! The connections of an export: one, or several if the server permits that.
//!
//! Each of them has to flush what was acknowledged on it. The server's promise that a flush on one covers all
//! ends with the server, and when it has ended is noticed on each of them at another time. So one that was lost
//! is not opened beside older ones: these may still be to the former process of a server, which has a cache of
//! its own.

use super::Options;
use super::common::Common;
use super::connection::{Connection, Watched};
use super::stream::Stream;
use crate::calls::{self, Call, Mailbox, Work};
use config::NbdUrl;
use proto::nbd::Export;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// How many an export has at most, unless its URL says otherwise.
const USUAL: usize = 4;

/// A set of connections, by number.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Set(pub(super) u32);

impl Set {
    pub(super) fn add(&mut self, number: usize) {
        self.0 |= 1 << number;
    }

    pub(super) fn has_several(self) -> bool {
        self.0.count_ones() > 1
    }

    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let number = rest.trailing_zeros();
            rest &= rest.wrapping_sub(1);
            (number < u32::BITS).then_some(number as usize)
        })
    }
}

pub(super) struct Connections {
    pub(super) common: Arc<Common>,
    all: Box<[Arc<Connection>]>,
    /// How many lanes have each of them as their home.
    lanes: Mutex<Box<[usize]>>,
}

impl Connections {
    /// Those to an export that is open.
    ///
    /// # Errors
    /// When there is no memory for locks.
    pub(super) fn new(
        url: NbdUrl,
        options: Options,
        stream: Stream,
        export: Export,
    ) -> io::Result<Connections> {
        let count = url.connections.map_or(USUAL, usize::from);
        let common = Common::new(url, options, export, count)?;
        let mut opened = Some((stream, export));
        let all = (0..count).map(|number| Connection::new(&common, number, opened.take())).collect();
        Ok(Connections { common, all, lanes: Mutex::new(vec![0; count].into()) })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Connection>> {
        self.all.iter()
    }

    /// A home for one more lane.
    pub(super) fn take_home(&self) -> usize {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let home = (0..lanes.len()).min_by_key(|number| lanes[*number]).unwrap_or(0);
        lanes[home] += 1;
        home
    }

    /// Its lane has ended.
    pub(super) fn give_home(&self, home: usize) {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)[home] -= 1;
    }

    /// The connection for the next call of a lane with this home.
    pub(super) fn of(&self, home: usize) -> usize {
        if self.all[home].is_open() {
            return home;
        }
        self.all[home].want();
        // Not the same one for all of these lanes.
        let open = || (0..self.all.len()).filter(|number| self.all[*number].is_open());
        match open().count() {
            0 => home,
            count => open().nth(home % count).unwrap_or(home),
        }
    }

    fn first_open(&self) -> Option<usize> {
        self.all.iter().position(|connection| connection.is_open())
    }

    /// Takes a call, which is sent by [`Connections::send`]. Returns which connections have it.
    pub(super) fn start(&self, call: Box<Call>, at: usize) -> Set {
        let mut used = Set::default();
        if call.work == Work::Flush {
            let dirty = |number: &usize| self.common.writes(*number).is_dirty();
            (0..self.all.len()).filter(dirty).for_each(|number| used.add(number));
        }
        if used == Set::default() {
            used.add(at);
        }
        if used.has_several() {
            let parts = calls::split(call, used.iter().count());
            parts.zip(used.iter()).for_each(|(part, number)| self.start_at(part, number));
        } else {
            self.start_at(call, used.iter().next().unwrap_or(at));
        }
        used
    }

    fn start_at(&self, call: Box<Call>, at: usize) {
        if let Err(call) = self.all[at].start(call) {
            self.common.strand(&mut VecDeque::from([call]));
            self.rescue();
        }
    }

    /// This call is no longer waited for, nor are its parts.
    pub(super) fn withdraw(&self, number: u64) {
        loop {
            let moves = self.common.moves();
            self.all.iter().for_each(|connection| connection.withdraw(number));
            while let Some(mut call) = self.common.take_stranded(number) {
                call.answer = -i64::from(Errno::CANCELED.raw_os_error());
                Call::answered(call);
            }
            // Otherwise one may have moved from there to a connection that had already been searched.
            if self.common.moves() == moves {
                return;
            }
        }
    }

    /// Receives what has arrived on a connection, and sends what is owed.
    pub(super) fn pump(&self, number: usize) {
        self.all[number].pump();
        self.rescue();
    }

    /// Sends what is owed.
    pub(super) fn send(&self, number: usize) -> Option<Watched> {
        let watched = self.all[number].send();
        self.rescue();
        watched
    }

    /// Has calls without a connection carried by any that is open.
    fn rescue(&self) {
        while self.common.has_stranded() {
            let Some(number) = self.first_open() else { return };
            self.all[number].adopt();
        }
    }

    /// Those that have calls of a lane.
    pub(super) fn with_calls_of(&self, lane: &Arc<Mailbox>) -> Set {
        let mut found = Set::default();
        let has_calls = |number: &usize| self.all[*number].has_calls_of(lane);
        (0..self.all.len()).filter(has_calls).for_each(|number| found.add(number));
        found
    }

    /// Checks deadlines, and opens what is closed; to be called several times a second.
    pub(super) fn tick(&self) {
        self.all.iter().for_each(Connection::tick);
        self.common.tick(Instant::now());
        self.rescue();
    }

    /// Whether its connections change by ticks alone.
    pub(super) fn needs_ticks(&self) -> bool {
        self.common.open() == 0 || self.common.is_retiring()
    }

    /// Why the export is unreachable, if it has been for long.
    pub(super) fn problem(&self) -> Option<String> {
        if self.common.is_down() {
            return Some(self.all[0].problem());
        }
        self.common.shared.has_abandoned().then(|| "the server does not answer".to_owned())
    }
}
