//! A daemon: its cores, and when each has its turns.

use crate::kernel::Kernel;
use crate::net::Shared;
use engine::world::{Cores, Counted};
use reactor::io::Wait;

pub(crate) struct Daemon {
    pub(crate) cores: Cores<Kernel>,
    pub(crate) count: usize,
    /// The host of its first core.
    first: usize,
    /// The host for work offloaded from the cores.
    worker: usize,
    /// How the next turn of each core may wait; `None`: it has ended.
    waits: Vec<Option<Wait>>,
    /// Bytes of each core's buffers in use before it does anything.
    own_bytes: Vec<u64>,
}

impl Daemon {
    pub(crate) fn new(mut cores: Cores<Kernel>, count: usize, first: usize, worker: usize) -> Daemon {
        let own_bytes = (0..count).map(|core| cores.in_use(core).buffer_bytes).collect();
        Daemon { cores, count, first, worker, waits: vec![Some(Wait::No); count], own_bytes }
    }

    /// Whether it is one of its cores.
    pub(crate) fn has(&self, host: usize) -> bool {
        (self.first..self.first + self.count).contains(&host)
    }

    /// Whether it is its worker.
    pub(crate) fn is_worker(&self, host: usize) -> bool {
        host == self.worker
    }

    /// The kernel of this host, which is one of its cores.
    pub(crate) fn kernel(&mut self, host: usize) -> &mut Kernel {
        self.cores.io(host - self.first)
    }

    /// Gives all its cores a turn now.
    pub(crate) fn wake(&self, net: &Shared) {
        let mut net = net.borrow_mut();
        let now = net.now;
        (self.first..self.first + self.count).for_each(|host| net.wake(host, now));
    }

    /// Its process is killed: what it is writing is written in part, or not at all.
    pub(crate) fn die(&mut self) {
        (0..self.count).for_each(|core| self.cores.io(core).die());
    }

    /// Stops all cores gracefully.
    pub(crate) fn stop(&mut self, net: &Shared) {
        self.cores.stop();
        self.look_around(net, usize::MAX);
    }

    /// Whether all cores have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.waits.iter().all(Option::is_none)
    }

    /// Whether it has no stream connections any more and, with `frames`, nothing to do for a late copy of a
    /// frame.
    pub(crate) fn is_alone(&mut self, frames: bool) -> bool {
        (0..self.count).all(|core| {
            let in_use = self.cores.in_use(core);
            in_use.streams == 0 && (!frames || in_use.tasks == 0)
        })
    }

    /// Checks that it is unused: no tasks, no frames, and no buffers but its own, unless it is itself an
    /// initiator.
    pub(crate) fn is_clean(&mut self, is_initiator: bool) -> Result<(), String> {
        for core in 0..self.count {
            let in_use = self.cores.in_use(core);
            let has_others = !is_initiator && in_use.buffer_bytes != self.own_bytes[core];
            if in_use.tasks != 0 || in_use.frames != 0 || in_use.marks != 0 || has_others {
                return Err(format!("all is quiet, and core {core} has {in_use:?}"));
            }
        }
        Ok(())
    }

    /// The counters of this host, which is one of its cores.
    pub(crate) fn counted(&self, host: usize) -> impl Iterator<Item = Counted> + '_ {
        self.cores.counted(host - self.first)
    }

    /// Each core's state as text.
    pub(crate) fn status(&mut self) -> String {
        let cores = &mut self.cores;
        let of_one = |core| format!("core {core} (host {}): {:?}", self.first + core, cores.in_use(core));
        (0..self.count).map(of_one).collect::<Vec<_>>().join("\n")
    }

    /// Runs offloaded work.
    pub(crate) fn work(&mut self, net: &Shared) {
        self.cores.work();
        self.look_around(net, usize::MAX);
        self.let_work(net);
    }

    /// Gives a core its turn, if it is running. `moves`: how often it moves a session, in 1000 turns.
    pub(crate) fn turn(&mut self, net: &Shared, host: usize, slowness: u32, moves: u32) {
        let core = host - self.first;
        let Some(wait) = self.waits[core] else { return };
        self.move_a_session(net, core, moves);
        self.cores.turn(core, wait);
        net.borrow_mut().carry(host);
        self.let_work(net);
        let took = net.borrow_mut().turned(host, slowness);
        self.cores.io(core).took(took);
        self.waits[core] = self.cores.rest(core);
        {
            let mut net = net.borrow_mut();
            let now = net.now;
            match self.waits[core] {
                Some(Wait::No) => net.wake(host, now),
                Some(Wait::AtMost(time)) => net.wake(host, now.after(time)),
                Some(Wait::Forever) | None => {}
            }
        }
        self.look_around(net, core);
    }

    /// Now and then a core considers itself overloaded.
    fn move_a_session(&mut self, net: &Shared, core: usize, moves: u32) {
        let mut borrowed = net.borrow_mut();
        if self.count > 1 && borrowed.happens(moves) {
            let (nth, to, now) = (borrowed.rng.usize(0..8), borrowed.rng.usize(0..self.count), borrowed.now);
            drop(borrowed);
            if self.cores.move_session(core, nth, to) {
                let trace = &mut net.borrow_mut().trace;
                trace.note(now, &[core as u64, to as u64], || format!("core {core} moves a session to {to}"));
            }
        }
    }

    /// Schedules offloaded work for some time later.
    fn let_work(&mut self, net: &Shared) {
        if self.cores.has_work() {
            let mut net = net.borrow_mut();
            let at = net.now.after(net.nanos(10_000, 400_000));
            net.wake(self.worker, at);
        }
    }

    /// Wakes the cores that have messages.
    pub(crate) fn look_around(&mut self, net: &Shared, turned: usize) {
        for core in 0..self.count {
            if core != turned && self.cores.is_called(core) {
                net.borrow_mut().wake_soon(self.first + core);
            }
        }
    }
}
