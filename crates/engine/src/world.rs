//! The cores of a target driven by the caller, one at a time, over its own [`Io`]: no thread, no clock and no
//! socket but what that is. Nothing in a core knows the difference.

use crate::changes::{Change, Changes, Progress};
use crate::core::Core;
use crate::core::aoe::setup;
pub use crate::core::inspect::Counted;
use crate::daemon::{open_interfaces, share};
use crate::events::Events;
use crate::housekeeper::{Housekeeper, Job};
use crate::message::Message;
use crate::served::Door;
use crate::shared::Shared;
use crate::state::Keeper;
pub use crate::state::files::{Created, Files};
use crate::stores::Opened;
pub use crate::stores::saved_ports::SavedPorts;
use crate::units::NewUnit;
use config::{Config, StepOfChange};
use reactor::io::{Completion, Handle, Io, Wait};
use reactor::mailbox::{self, Mailbox, Sender};
use reactor::packet::Setup;
use reactor::wake::Waker;
use scsi::Incarnation;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, mpsc};
use store::lane::Backend;

/// A store, and the count of what it lost.
pub type CountedStore<I> = (Arc<dyn Backend<I>>, Arc<AtomicU64>);

/// A target's cores.
pub struct Cores<I: Io> {
    cores: Vec<Seat<I>>,
    mail: Vec<Sender<Message<I>>>,
    housekeeper: Housekeeper<I>,
    keeper: Keeper,
    jobs: mpsc::Receiver<Job<I::Line>>,
    /// The next one.
    job: Option<Job<I::Line>>,
    changes: Changes<I>,
    /// What INQUIRY has of each unit's cache.
    incarnations: Vec<Incarnation>,
}

struct Seat<I: Io> {
    core: Core<I>,
    waker: Waker,
    completions: Vec<Completion>,
    messages: Vec<Message<I>>,
}

/// What of a core's is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InUse {
    /// Connections of streams.
    pub streams: usize,
    /// Frames that were received and not returned.
    pub frames: u32,
    /// Tasks.
    pub tasks: usize,
    /// What units keep of connections that have ended.
    pub marks: usize,
    /// Bytes of buffers.
    pub buffer_bytes: u64,
}

impl<I: Io> Cores<I> {
    /// Cores that listen at `listeners`, one for each portal of the configuration, serve its LUNs from `stores`, each with the
    /// count of what it lost, and keep in `files` what must survive a restart. `lines` opens those of an interface, one for each
    /// of so many cores. `io` is called with each core's index and its waker: [`Waker::get_up`] is due at the beginning of each
    /// of its turns.
    ///
    /// # Errors
    /// When the system has no descriptors, or a core has too little memory for the frames of its lines.
    pub fn new(
        config: Config,
        stores: Vec<CountedStore<I>>,
        listeners: Vec<Handle>,
        files: Box<dyn Files>,
        lines: impl FnMut(&Setup<'_>, usize) -> io::Result<Vec<I::Line>>,
        mut io: impl FnMut(usize, Waker) -> I,
    ) -> io::Result<Cores<I>> {
        let opened =
            |(store, losses)| Opened { store, failed: None, losses, space: Arc::default(), seat: None };
        let opened: Vec<Opened<I>> = stores.into_iter().map(opened).collect();
        let (mut units, _) = NewUnit::all(&config, &opened, &*files);
        let incarnations = units.iter().map(|unit| unit.view.unit.incarnation.clone()).collect();
        let lines = open_interfaces(&config, lines)?;
        let mailboxes = mailbox::mesh::<Message<I>>(config.cores.len())?;
        let mail: Vec<Sender<Message<I>>> =
            (0..mailboxes.len()).map(|core| mailboxes[0].sender(core)).collect();
        let (sender, jobs) = mpsc::channel();
        let each = config.portals.iter().zip(listeners).enumerate();
        let doors = each.map(|(number, (portal, handle))| door(number, portal.listen, handle)).collect();
        let (shared, served) = share(config.clone(), doors, i32::MAX, sender, Events::default());
        let housekeeper = Housekeeper::new(&shared, &mail);
        let changes = Changes::new(&mail, &served, &units, config);
        let mut seat = |me: usize, mailbox: Mailbox<Message<I>>, lines| {
            let waker = mailbox.waker();
            let io = io(me, waker.clone());
            let units = units.iter_mut().map(|unit| unit.on(me)).collect();
            let mut core =
                Core::new(me, io, Arc::<Shared<I::Line>>::clone(&shared), served.clone(), mailbox, units);
            core.serve_interfaces(lines)?;
            core.open_portals();
            Ok(Seat { core, waker, completions: Vec::new(), messages: Vec::new() })
        };
        let each = mailboxes.into_iter().zip(lines).enumerate();
        let cores = each.map(|(me, (mailbox, lines))| seat(me, mailbox, lines)).collect::<io::Result<_>>()?;
        let keeper = Keeper::new(files);
        Ok(Cores { cores, mail, housekeeper, keeper, jobs, job: None, changes, incarnations })
    }

    /// What a core has for a kernel.
    pub fn io(&mut self, core: usize) -> &mut I {
        self.cores[core].core.io()
    }

    /// How long a core may sleep before its next turn, if it is not called meanwhile; `None`: it has no more turns. Asked once
    /// between two turns.
    pub fn rest(&mut self, core: usize) -> Option<Wait> {
        self.cores[core].core.rest()
    }

    /// Whether a core has messages to look at.
    pub fn is_called(&self, core: usize) -> bool {
        self.cores[core].waker.is_called()
    }

    /// Gives a core a turn, which waits as it may in [`Io::turn`].
    pub fn turn(&mut self, core: usize, wait: Wait) {
        let Seat { core, completions, messages, .. } = &mut self.cores[core];
        core.io().turn(wait, completions);
        core.turn(completions, messages);
    }

    /// Has a core move one of its sessions to another, as when it has more to do than that. False: not now, or there are not so
    /// many.
    pub fn move_session(&mut self, core: usize, nth: usize, to: usize) -> bool {
        self.cores[core].core.move_nth(nth, to)
    }

    /// Whether there is a job that is kept off the cores.
    pub fn has_work(&mut self) -> bool {
        self.job = self.job.take().or_else(|| self.jobs.try_recv().ok());
        self.job.is_some() || !self.keeper.is_settled()
    }

    /// Does one of these, or tries again to make durable what is not yet.
    pub fn work(&mut self) {
        match self.job.take() {
            Some(job) => _ = self.housekeeper.act(&mut self.keeper, job),
            None => self.keeper.settle(),
        }
    }

    /// Begins to change what is served, when all was done that was begun before; with this store of the LUN that comes, and the
    /// count of what it lost.
    ///
    /// # Errors
    /// When it cannot be: nothing has changed.
    pub fn begin_change(&mut self, change: &Change, store: Option<CountedStore<I>>) -> Result<(), String> {
        let opened = store.map(|(store, losses)| Opened {
            store,
            failed: None,
            losses,
            space: Arc::default(),
            seat: None,
        });
        let plan = self.changes.plan(change)?;
        let prepared = self.changes.prepare(plan, opened.as_ref(), None, Vec::new(), self.keeper.files())?;
        self.changes.begin(prepared);
        self.changes.poll();
        Ok(())
    }

    /// Begins a step of [`config::diff`] from what is served to another configuration, likewise; `listen` opens a portal that
    /// comes, and `lines` those of an interface, one for each of so many cores.
    ///
    /// # Errors
    /// When it cannot be taken: nothing has changed.
    pub fn begin_step(
        &mut self,
        step: &StepOfChange,
        to: &Config,
        listen: impl FnOnce(SocketAddr) -> Handle,
        lines: impl FnOnce(&Setup<'_>, usize) -> io::Result<Vec<I::Line>>,
    ) -> Result<(), String> {
        let plan = self.changes.plan_step(step, to)?;
        let opens = plan
            .opens()
            .map(|(portal, number, before)| (number, portal.listen, before.and_then(|before| before.handle)));
        let opened = opens.map(|(number, address, before)| {
            door(number, address, before.unwrap_or_else(|| listen(address)))
        });
        let lines = match plan.attaches() {
            Some(new) => lines(&setup(new), new.cores.len()).map_err(|error| error.to_string())?,
            None => Vec::new(),
        };
        let prepared = self.changes.prepare(plan, None, opened, lines, self.keeper.files())?;
        self.changes.begin(prepared);
        self.changes.poll();
        Ok(())
    }

    /// The configuration that is served, or is being changed to.
    pub fn config(&self) -> &Config {
        self.changes.config()
    }

    /// Continues with a change. Whether it is done, and if so whether the store of a LUN that has gone could be flushed.
    pub fn go_on_changing(&mut self) -> Option<bool> {
        match self.changes.poll() {
            Progress::Waits => None,
            Progress::Done(is_flushed) => Some(is_flushed),
        }
    }

    /// What INQUIRY has of a unit's cache now.
    pub fn incarnation(&self, unit: usize) -> [u8; 16] {
        self.incarnations[unit].now()
    }

    /// Has all cores end in order.
    pub fn stop(&self) {
        self.mail.iter().for_each(|core| core.post(Message::Stop));
    }

    /// What was counted of each session that is here, which may be complete or have commands in flight.
    pub fn counted(&self, core: usize) -> Vec<Counted> {
        self.cores[core].core.counted()
    }

    /// What of a core's is in use.
    pub fn in_use(&mut self, core: usize) -> InUse {
        let core = &mut self.cores[core].core;
        let (streams, frames, tasks, marks) = core.in_use();
        InUse { streams, frames, tasks, marks, buffer_bytes: core.io().arena().in_use() }
    }
}

fn door(number: usize, address: SocketAddr, handle: Handle) -> Door {
    Door { number, address, handle: Some(handle), socket: None, by_device: None }
}
