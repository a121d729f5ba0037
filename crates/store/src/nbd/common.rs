//! What the connections of an export have in common.

use super::Options;
use crate::calls::{Call, Shared};
use config::NbdUrl;
use proto::nbd::Export;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use wire::nbd::transmission::{CAN_MULTI_CONN, READ_ONLY, SEND_WRITE_ZEROES};

/// Of an export. Whoever locks a connection and this locks the connection first.
pub(super) struct Common {
    pub(super) url: NbdUrl,
    pub(super) options: Options,
    pub(super) shared: Arc<Shared>,
    pub(super) block_preferred: u32,
    pub(super) block_minimum: u32,
    /// The size of the export when it was last opened.
    size: AtomicU64,
    flags: AtomicU16,
    allocates: AtomicBool,
    /// There has been no connection for too long.
    is_down: AtomicBool,
    /// Those that are open are left, and then opened again.
    is_retiring: AtomicBool,
    since: Instant,
    /// Of each connection.
    writes: Box<[Writes]>,
    /// How often calls were moved from one connection to another.
    moves: AtomicU64,
    stranded_count: AtomicUsize,
    meeting: Mutex<Meeting>,
}

struct Meeting {
    /// Connections that are open.
    open: usize,
    /// One was lost meanwhile: the next one may reach another process of the server, which does not have what
    /// was written on these.
    has_lost: bool,
    /// What they have negotiated.
    export: Export,
    /// When the last one that had worked was lost.
    away_since: Instant,
    /// Calls that wait for any connection.
    stranded: VecDeque<Box<Call>>,
}

/// Acknowledged writes of a connection, how many of them a flush on it has made durable, and when something
/// was last received on it, in milliseconds since the export was opened. Changed under its lock.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct Writes {
    acknowledged: AtomicU64,
    durable: AtomicU64,
    heard: AtomicU64,
}

impl Writes {
    pub(super) fn acknowledge(&self) {
        self.acknowledged.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// So many are durable.
    pub(super) fn keep(&self, durable: u64) {
        self.durable.fetch_max(durable, Ordering::SeqCst);
    }

    fn durable(&self) -> u64 {
        self.durable.load(Ordering::SeqCst)
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.acknowledged() > self.durable()
    }
}

impl Common {
    /// For an export that is open on the first of so many connections. What an earlier process has written to
    /// it may not be durable.
    ///
    /// # Errors
    /// When there is no memory for locks.
    pub(super) fn new(
        url: NbdUrl,
        options: Options,
        export: Export,
        connections: usize,
    ) -> io::Result<Arc<Common>> {
        let writes: Box<[Writes]> = (0..connections).map(|_| Writes::default()).collect();
        if export.flushes() && !export.is_read_only() && !options.read_only {
            writes[0].acknowledge();
        }
        Ok(Arc::new(Common {
            url,
            options,
            shared: Shared::new()?,
            block_preferred: export.block_preferred,
            block_minimum: export.block_minimum,
            size: AtomicU64::new(export.size),
            flags: AtomicU16::new(export.flags),
            allocates: AtomicBool::new(export.allocation.is_some()),
            is_down: AtomicBool::new(false),
            is_retiring: AtomicBool::new(false),
            since: Instant::now(),
            writes,
            moves: AtomicU64::new(0),
            stranded_count: AtomicUsize::new(0),
            meeting: Mutex::new(Meeting {
                open: 1,
                has_lost: false,
                export,
                away_since: Instant::now(),
                stranded: VecDeque::new(),
            }),
        }))
    }

    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    pub(super) fn flags(&self) -> u16 {
        self.flags.load(Ordering::Relaxed)
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.options.read_only || self.flags() & READ_ONLY != 0
    }

    pub(super) fn clears(&self) -> bool {
        self.flags() & SEND_WRITE_ZEROES != 0
    }

    /// Whether the server reports allocation.
    pub(super) fn allocates(&self) -> bool {
        self.allocates.load(Ordering::Relaxed)
    }

    pub(super) fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.shared.has_abandoned() || self.is_down()
    }

    /// Whether those that are open are to be left.
    pub(super) fn is_retiring(&self) -> bool {
        self.is_retiring.load(Ordering::Relaxed)
    }

    pub(super) fn writes(&self, connection: usize) -> &Writes {
        &self.writes[connection]
    }

    /// Something was received on a connection.
    pub(super) fn hear(&self, connection: usize, now: Instant) {
        self.writes[connection].heard.store(self.millis(now), Ordering::Relaxed);
    }

    /// Whether something was received on another connection lately.
    pub(super) fn hears_others(&self, connection: usize, now: Instant) -> bool {
        let (now, patience) = (self.millis(now), self.options.give_up_after.as_millis() as u64);
        let mut others = self.writes.iter().enumerate().filter(|(number, _)| *number != connection);
        others.any(|(_, other)| match other.heard.load(Ordering::Relaxed) {
            0 => false,
            heard => now.saturating_sub(heard) < patience,
        })
    }

    fn millis(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.since).as_millis() as u64 + 1
    }

    /// Whether acknowledged writes are not durable yet.
    pub(super) fn is_dirty(&self) -> bool {
        self.writes.iter().any(Writes::is_dirty)
    }

    /// How many writes are durable, on all connections.
    pub(super) fn durable(&self) -> u64 {
        self.writes.iter().map(Writes::durable).sum()
    }

    /// How many are acknowledged.
    pub(super) fn acknowledged(&self) -> u64 {
        self.writes.iter().map(Writes::acknowledged).sum()
    }

    /// Whether a connection that is closed is to be opened: the first one, if none is open.
    pub(super) fn lacks(&self, connection: usize, is_wanted: bool) -> bool {
        match self.meeting().open {
            0 => connection == 0,
            _ => (connection == 0 || is_wanted) && !self.is_retiring() && self.flags() & CAN_MULTI_CONN != 0,
        }
    }

    /// A connection has been opened; returns how many are open.
    ///
    /// # Errors
    /// Why it cannot be used beside those that are open.
    pub(super) fn joins(&self, export: &Export) -> Result<usize, String> {
        let mut meeting = self.meeting();
        if meeting.open > 0 && meeting.has_lost {
            self.is_retiring.store(true, Ordering::Relaxed);
            return Err("the server may have been restarted: older connections are left first".to_owned());
        }
        if meeting.open > 0 {
            fits_beside(&meeting.export, export)?;
        }
        meeting.open += 1;
        meeting.export = *export;
        self.size.store(export.size, Ordering::Relaxed);
        self.flags.store(export.flags, Ordering::Relaxed);
        self.allocates.store(export.allocation.is_some(), Ordering::Relaxed);
        self.is_down.store(false, Ordering::Relaxed);
        Ok(meeting.open)
    }

    /// A connection is lost. `has_worked`: any outage begins now.
    pub(super) fn leaves(&self, has_worked: bool) {
        let mut meeting = self.meeting();
        meeting.open -= 1;
        meeting.has_lost = meeting.open > 0;
        if !meeting.has_lost {
            self.is_retiring.store(false, Ordering::Relaxed);
        }
        if has_worked {
            meeting.away_since = Instant::now();
        }
    }

    /// Connections that are open.
    pub(super) fn open(&self) -> usize {
        self.meeting().open
    }

    /// Checks how long there has been no connection.
    pub(super) fn tick(&self, now: Instant) {
        let meeting = self.meeting();
        let lasts = now.saturating_duration_since(meeting.away_since);
        self.is_down.store(meeting.open == 0 && lasts >= self.options.give_up_after, Ordering::Relaxed);
    }

    /// Counts moves of calls from one connection to another.
    pub(super) fn moves(&self) -> u64 {
        self.moves.load(Ordering::SeqCst)
    }

    pub(super) fn has_stranded(&self) -> bool {
        self.stranded_count.load(Ordering::SeqCst) > 0
    }

    /// These calls wait for any connection.
    pub(super) fn strand(&self, calls: &mut VecDeque<Box<Call>>) {
        if calls.is_empty() {
            return;
        }
        let mut meeting = self.meeting();
        meeting.stranded.append(calls);
        self.stranded_count.store(meeting.stranded.len(), Ordering::SeqCst);
    }

    /// Takes these calls, for a connection whose lock the caller holds.
    pub(super) fn adopt(&self, by: &mut VecDeque<Box<Call>>) {
        let mut meeting = self.meeting();
        // Before they can be found elsewhere: those who look for one look again.
        self.moves.fetch_add(1, Ordering::SeqCst);
        by.append(&mut meeting.stranded);
        self.stranded_count.store(0, Ordering::SeqCst);
    }

    /// Takes the stranded call with this guard.
    pub(super) fn take_stranded(&self, number: u64) -> Option<Box<Call>> {
        let mut meeting = self.meeting();
        let at = meeting.stranded.iter().position(|call| call.is_numbered(number))?;
        let call = meeting.stranded.remove(at);
        self.stranded_count.store(meeting.stranded.len(), Ordering::SeqCst);
        call
    }

    fn meeting(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a connection may be used beside others: all see the same export, and the server permits it.
fn fits_beside(others: &Export, export: &Export) -> Result<(), String> {
    if !export.shares_connections() || !others.shares_connections() {
        return Err("the server does not permit several connections any more".to_owned());
    }
    if export.size != others.size {
        return Err(format!(
            "the export has {} bytes on it, and {} on the connections that are open",
            export.size, others.size
        ));
    }
    // The number of a metadata context belongs to a connection.
    let comparable = |export: &Export| (Export { allocation: None, ..*export }, export.allocation.is_some());
    if comparable(export) != comparable(others) {
        return Err("the export has other properties on it than on the connections that are open".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::nbd::transmission::{HAS_FLAGS, SEND_FLUSH};

    #[test]
    fn one_more_connection_is_opened_only_while_the_server_permits_it() {
        let alone = Export {
            size: 1 << 20,
            flags: HAS_FLAGS | SEND_FLUSH,
            block_minimum: 1,
            block_preferred: 4096,
            payload_maximum: 1 << 25,
            structured: false,
            allocation: None,
        };
        let shared = Export { flags: alone.flags | CAN_MULTI_CONN, ..alone };
        let url = NbdUrl::parse("nbd+unix:///disk?socket=/nonexistent").unwrap();
        let common = Common::new(url, Options::new(Some(512), false), shared, 2).unwrap();
        assert!(common.lacks(1, true) && !common.lacks(1, false), "its lane has yet to want it");
        let why = common.joins(&alone).expect_err("the server has changed its mind");
        assert!(why.contains("does not permit several connections"), "{why}");
        assert_eq!(common.joins(&shared), Ok(2));
        // It is restarted.
        (0..2).for_each(|_| common.leaves(true));
        assert!(common.lacks(0, false) && !common.lacks(1, true), "one comes first");
        assert_eq!(common.joins(&alone), Ok(1));
        assert!(!common.lacks(1, true), "it does not permit another one");
    }
}
