//! Which session moves to another core when cores become unequally busy.
//!
//! Time is divided into windows, the same for all cores. Each core publishes how busy it was in a window and,
//! a little later, when all have published, compares itself with the cores that its sessions may move to.

use proto::time::Time;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Length of a window.
const WINDOW: Duration = Duration::from_secs(1);
/// By how much the load of two cores must differ to matter, in thousandths.
const MARGIN: u64 = 250;
/// For how many windows in a row.
const STREAK: u32 = 3;
/// The smallest share of its core, in thousandths, that makes a session worth moving.
const BUSY: u64 = 10;

/// Thousandths of a core's time; the maximum fits into [`LOAD_BITS`].
type Load = u64;
const LOAD_BITS: u32 = 16;

/// What all cores see of each other's load.
#[derive(Debug)]
pub(crate) struct Board {
    /// For each core, the last window that it reported and its load in it.
    loads: Vec<AtomicU64>,
    /// The window of the last move.
    moved_in: AtomicU64,
}

impl Board {
    /// A board for `cores` cores, none of which has published yet.
    pub(crate) fn new(cores: usize) -> Board {
        Board { loads: (0..cores).map(|_| AtomicU64::new(0)).collect(), moved_in: AtomicU64::new(0) }
    }

    fn publish(&self, core: usize, window: u64, load: Load) {
        self.loads[core].store(window << LOAD_BITS | load, Ordering::Relaxed);
    }

    /// The load of every core in a window, or in the one before for a core that is late. A core that has not
    /// published for longer is asleep.
    fn loads(&self, window: u64) -> impl Iterator<Item = Load> {
        self.loads.iter().map(move |entry| {
            let entry = entry.load(Ordering::Relaxed);
            let is_recent = entry >> LOAD_BITS >= window.saturating_sub(1);
            if is_recent { entry & ((1 << LOAD_BITS) - 1) } else { 0 }
        })
    }

    /// Whether some core was less loaded than this one in a window by a margin that matters.
    fn has_drifted(&self, me: usize, window: u64) -> bool {
        let mine = self.loads(window).nth(me).unwrap_or(0);
        self.loads(window).any(|load| mine > load + MARGIN)
    }

    /// Whether a session may move now. `window` is the last one that has ended; no session may have moved
    /// since it began, or its loads would be out of date.
    fn claim(&self, window: u64) -> bool {
        let claimed = self.moved_in.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |moved| {
            (moved < window).then_some(window.saturating_add(1))
        });
        claimed.is_ok()
    }
}

/// One core's measurement.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// The current window, when measuring began in it, and the core's working time at that point.
    window: u64,
    since: Time,
    worked: Duration,
    /// The previous window has not been evaluated yet.
    is_pending: bool,
    /// Consecutive windows in which a session should have moved.
    streak: u32,
}

/// What to do at a tick.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    /// Nothing.
    Nothing,
    /// A window has ended: restart the counts of what sessions do.
    Count,
    /// All cores have reported the last window, and some core was much less loaded: check whether a session
    /// should move.
    Decide,
}

impl Meter {
    /// Advances the time. `worked` is how long this core has worked since it started, including time in which
    /// it had work but others had its processor: a core that shares its processor is no less busy for it.
    pub(crate) fn tick(
        &mut self,
        now: Time,
        worked: impl FnOnce() -> Duration,
        board: &Board,
        me: usize,
    ) -> Due {
        let window = now.0 / WINDOW.as_nanos() as u64;
        if window == self.window {
            if !std::mem::take(&mut self.is_pending) {
                return Due::Nothing;
            }
            if board.has_drifted(me, window - 1) {
                return Due::Decide;
            }
            self.streak = 0;
            return Due::Nothing;
        }
        let (time, worked) = (now.since(self.since).as_nanos().max(1), worked());
        let load = worked.saturating_sub(self.worked).as_nanos() * 1000 / time;
        board.publish(me, window - 1, load.min(1000) as Load);
        *self = Meter { window, since: now, worked, is_pending: true, ..*self };
        Due::Count
    }

    /// The session to move now, by its index in `sessions`, and the core to move it to.
    pub(crate) fn choose_move(
        &mut self,
        board: &Board,
        me: usize,
        sessions: &[Session],
    ) -> Option<(usize, usize)> {
        let window = self.window - 1;
        let choice = choose(me, &board.loads(window).collect::<Vec<Load>>(), sessions);
        self.streak = if choice.is_some() { self.streak + 1 } else { 0 };
        choice.filter(|_| self.streak >= STREAK && board.claim(window))
    }
}

/// A session of the core that may be overloaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Session {
    /// Its work in the last window, in any unit.
    pub(crate) work: u64,
    /// Cores that it may move to now.
    pub(crate) cores: Vec<usize>,
}

/// The move that evens out the load best, if any is worthwhile: from a core that is the busiest of those that
/// the session may be on, by a clear margin over the least busy, and that has other sessions too. It must not
/// make the other core the overloaded one: a single session that fills its core stays.
fn choose(me: usize, loads: &[Load], sessions: &[Session]) -> Option<(usize, usize)> {
    let all: u64 = sessions.iter().map(|session| session.work).sum();
    let share = |session: &Session| {
        u64::try_from(u128::from(loads[me]) * u128::from(session.work) / u128::from(all.max(1))).unwrap_or(0)
    };
    let busy = || sessions.iter().enumerate().filter(|(_, session)| share(session) >= BUSY);
    if busy().count() < 2 {
        return None;
    }
    let choice = |(index, session): (usize, &Session)| {
        let to = session.cores.iter().copied().filter(|core| *core != me).min_by_key(|core| loads[*core])?;
        let gap = loads[me].checked_sub(loads[to]).filter(|gap| *gap > MARGIN)?;
        let is_busiest = session.cores.iter().all(|core| loads[*core] <= loads[me]);
        let moved = 2 * share(session);
        (is_busiest && moved <= gap + MARGIN).then_some((gap.abs_diff(moved), index, to))
    };
    busy().filter_map(choice).min().map(|(_, index, to)| (index, to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sessions(works: &[u64], cores: &[usize]) -> Vec<Session> {
        works.iter().map(|work| Session { work: *work, cores: cores.to_vec() }).collect()
    }

    #[test]
    fn the_session_moves_that_evens_out_best() {
        assert_eq!(choose(0, &[900, 0], &sessions(&[1, 1], &[0, 1])), Some((0, 1)));
        assert_eq!(choose(1, &[100, 800, 300], &sessions(&[10, 30, 60], &[0, 1, 2])), Some((1, 0)));
        // To the least busy of those that it may move to.
        assert_eq!(choose(1, &[100, 800, 300], &sessions(&[10, 30, 60], &[1, 2])), Some((1, 2)));
    }

    #[test]
    fn moves_that_improve_nothing_are_not_made() {
        // One session that fills its core, alone or with others of negligible load.
        assert_eq!(choose(0, &[1000, 0], &sessions(&[1], &[0, 1])), None);
        assert_eq!(choose(0, &[1000, 0], &sessions(&[1000, 1, 1], &[0, 1])), None);
        // The other of two is moved, leaving the core to the busy one.
        assert_eq!(choose(0, &[950, 0], &sessions(&[90, 5], &[0, 1])), Some((1, 1)));
        // No significant difference, or no other core.
        assert_eq!(choose(0, &[600, 350], &sessions(&[1, 1], &[0, 1])), None);
        assert_eq!(choose(0, &[1000, 0], &sessions(&[1, 1], &[0])), None);
        assert_eq!(choose(0, &[1000, 0], &sessions(&[1, 1], &[])), None);
        // Another one is busier.
        assert_eq!(choose(0, &[600, 0, 700], &sessions(&[1, 1], &[0, 1, 2])), None);
        assert_eq!(choose(0, &[0, 0], &sessions(&[0, 0], &[0, 1])), None);
    }

    proptest! {
        /// Whatever the load, moves come to an end and leave no core busier than the busiest was.
        #[test]
        fn moves_converge(works in prop::collection::vec((1u64..300, 0usize..3), 1..20)) {
            let mut works = works;
            let load_of = |works: &[(u64, usize)]| -> Vec<u64> {
                let on = |core: usize| works.iter().filter(move |(_, at)| *at == core).map(|(work, _)| work);
                (0..3).map(|core| on(core).sum::<u64>()).collect()
            };
            let first = load_of(&works).into_iter().max();
            for _ in 0..1000 {
                let loads = load_of(&works);
                prop_assert!(loads.iter().copied().max() <= first.map(|max| max + MARGIN));
                let moved = (0..3).find_map(|me| {
                    let mine: Vec<usize> = (0..works.len()).filter(|index| works[*index].1 == me).collect();
                    let has: Vec<u64> = mine.iter().map(|index| works[*index].0).collect();
                    choose(me, &loads, &sessions(&has, &[0, 1, 2])).map(|(index, to)| (mine[index], to))
                });
                let Some((index, to)) = moved else { return Ok(()) };
                works[index].1 = to;
            }
            prop_assert!(false, "there is always another move");
        }
    }

    #[test]
    fn a_move_takes_three_windows_and_the_daemon_makes_one_at_a_time() {
        let board = Board::new(2);
        let (mut busy, mut idle) = (Meter::default(), Meter::default());
        let two = sessions(&[1, 1], &[0, 1]);
        let mut moves = Vec::new();
        for quarter in 0..40u32 {
            let now = Time(0).after(WINDOW / 4 * quarter);
            idle.tick(now, || Duration::ZERO, &board, 1);
            if busy.tick(now, || (WINDOW / 4 * quarter).mul_f64(0.9), &board, 0) == Due::Decide
                && let Some(choice) = busy.choose_move(&board, 0, &two)
            {
                moves.push((quarter / 4, choice));
            }
        }
        assert_eq!(moves, [(3, (0, 1)), (5, (0, 1)), (7, (0, 1)), (9, (0, 1))]);
    }

    #[test]
    fn a_core_that_has_not_published_for_long_sleeps() {
        let board = Board::new(2);
        board.publish(0, 7, 900);
        board.publish(1, 6, 300);
        assert_eq!(board.loads(7).collect::<Vec<_>>(), [900, 300]);
        assert_eq!(board.loads(8).collect::<Vec<_>>(), [900, 0]);
    }
}
