//! The cores of a target driven by the caller, one at a time, over its own [`Io`]: no threads, clocks or
//! sockets but that one's. Nothing in a core knows the difference.

use crate::changes::{Change, Changes, Progress};
use crate::core::Core;
use crate::core::aoe::setup;
pub use crate::core::inspect::Counted;
use crate::daemon::{open_interfaces, share};
use crate::events::Events;
use crate::gateway_handle::{GatewayEvent, GatewayHandle, Requester};
pub use crate::gateways::{Answer, ImageCall, ObjectCall};
use crate::gateways::{Gateway, HomeSender, Step};
use crate::housekeeper::{Housekeeper, Job};
use crate::message::{Message, Origin, Waiter};
pub use crate::readings::GatewayReading;
use crate::served::Endpoint;
use crate::shared::Shared;
use crate::state::StateSaver;
pub use crate::state::files::{Created, Files};
use crate::stores::Opened;
pub use crate::stores::saved_ports::SavedPorts;
use crate::units::NewUnit;
use config::{Config, StepOfChange};
use reactor::io::{Completion, Handle, Io, Wait};
use reactor::mailbox::{self, Mailbox, Sender};
use reactor::packet::Setup;
use reactor::wake::Waker;
use scsi::{HomeRequest, Incarnation, Space};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError, mpsc};
use std::time::Duration;
use store::lane::{Backend, Failover};

/// A store, and the count of its losses.
pub type CountedStore<I> = (Arc<dyn Backend<I>>, Arc<AtomicU64>);

/// A target's cores.
pub struct Cores<I: Io> {
    cores: Vec<DrivenCore<I>>,
    mail: Vec<Sender<Message<I>>>,
    housekeeper: Housekeeper<I>,
    state_saver: StateSaver,
    jobs: mpsc::Receiver<Job<I::Line>>,
    /// The next job's number.
    job: Option<Job<I::Line>>,
    changes: Changes<I>,
    /// The incarnation in INQUIRY data of each unit's cache.
    incarnations: Vec<Incarnation>,
    /// For units that gateways share.
    shared: Vec<SharedUnit<I>>,
    measured: Vec<MeasuredUnit>,
}

/// A unit whose used space the daemon may measure.
struct MeasuredUnit {
    number: u32,
    home_core: usize,
    /// `None`: it may not.
    space: Option<Arc<Space>>,
}

/// A unit that gateways share.
struct SharedUnit<I: Io> {
    handle: Arc<GatewayHandle>,
    gateway: Gateway<I>,
    events: mpsc::Receiver<GatewayEvent>,
    /// The next one.
    event: Option<GatewayEvent>,
}

/// What a unit's gateway does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// Makes this call, and does nothing else until [`Cores::gateway_answered`].
    Call(ObjectCall),
    /// Begins this call, and goes on.
    Begin(ImageCall),
    /// Waits for this long, if nothing happens.
    Wait(Duration),
    /// It has ended.
    End,
}

struct DrivenCore<I: Io> {
    core: Core<I>,
    waker: Waker,
    completions: Vec<Completion>,
    messages: Vec<Message<I>>,
}

/// What a core has in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InUse {
    /// Connections of streams.
    pub streams: usize,
    /// Frames that were received and not returned.
    pub frames: u32,
    /// Tasks.
    pub tasks: usize,
    /// What units hold of connections that have ended.
    pub marks: usize,
    /// Bytes of buffers.
    pub buffer_bytes: u64,
}

impl<I: Io> Cores<I> {
    /// Cores that listen at `listeners`, one for each portal of the configuration, serve its LUNs from
    /// `stores`, each with the count of its losses, and keep in `files` what must survive a restart. `lines`
    /// opens the packet sockets of an interface, one for each of a number of cores. `io` is called with each
    /// core's index and its waker: [`Waker::get_up`] is due at the beginning of each of its turns.
    ///
    /// # Errors
    /// When the system has no descriptors, or a core has too little memory for the frames of its interfaces.
    pub fn new(
        config: Config,
        stores: Vec<CountedStore<I>>,
        listeners: Vec<Handle>,
        files: Box<dyn Files>,
        lines: impl FnMut(&Setup<'_>, usize) -> io::Result<Vec<I::Line>>,
        mut io: impl FnMut(usize, Waker) -> I,
    ) -> io::Result<Cores<I>> {
        let opened = |((store, losses), lun)| Opened {
            store,
            failed: None,
            losses,
            space: Arc::default(),
            gateway: GatewayHandle::of(lun),
        };
        let opened: Vec<Opened<I>> = stores.into_iter().zip(&config.luns).map(opened).collect();
        let (mut units, _) = NewUnit::all(&config, &opened, &*files);
        let incarnations = units.iter().map(|unit| unit.view.unit.incarnation.clone()).collect();
        let lines = open_interfaces(&config, lines)?;
        let mailboxes = mailbox::mesh::<Message<I>>(config.cores.len())?;
        let mail: Vec<Sender<Message<I>>> =
            (0..mailboxes.len()).map(|core| mailboxes[0].sender(core)).collect();
        let shared = gateways(&config, &units, &opened, &mail);
        let measured = |unit: &NewUnit<I>| MeasuredUnit {
            number: unit.view.unit.index,
            home_core: unit.home_core,
            space: unit.view.unit.space.clone(),
        };
        let measured = units.iter().map(measured).collect();
        let (sender, jobs) = mpsc::channel();
        let each = config.portals.iter().zip(listeners).enumerate();
        let endpoints =
            each.map(|(number, (portal, handle))| endpoint(number, portal.listen, handle)).collect();
        let (known, served) = share(config.clone(), endpoints, i32::MAX, sender, Events::default());
        let housekeeper = Housekeeper::new(&known, &mail);
        let changes = Changes::new(&mail, &served, &units, config);
        let mut start = |me: usize, mailbox: Mailbox<Message<I>>, lines| {
            let waker = mailbox.waker();
            let io = io(me, waker.clone());
            let units = units.iter_mut().map(|unit| unit.on(me)).collect();
            let mut core =
                Core::new(me, io, Arc::<Shared<I::Line>>::clone(&known), served.clone(), mailbox, units);
            core.serve_interfaces(lines)?;
            core.open_portals();
            Ok(DrivenCore { core, waker, completions: Vec::new(), messages: Vec::new() })
        };
        let each = mailboxes.into_iter().zip(lines).enumerate();
        let cores =
            each.map(|(me, (mailbox, lines))| start(me, mailbox, lines)).collect::<io::Result<_>>()?;
        let state_saver = StateSaver::new(files);
        let job = None;
        Ok(Cores {
            cores,
            mail,
            housekeeper,
            state_saver,
            jobs,
            job,
            changes,
            incarnations,
            shared,
            measured,
        })
    }

    /// A core's kernel.
    pub fn io(&mut self, core: usize) -> &mut I {
        self.cores[core].core.io()
    }

    /// How long a core may sleep before its next turn unless it is woken; `None`: it has no more turns. To be
    /// called once between two turns.
    pub fn rest(&mut self, core: usize) -> Option<Wait> {
        self.cores[core].core.rest()
    }

    /// Whether a core has messages waiting.
    pub fn is_called(&self, core: usize) -> bool {
        self.cores[core].waker.is_called()
    }

    /// Gives a core a turn, which may wait in [`Io::turn`] as `wait` allows.
    pub fn turn(&mut self, core: usize, wait: Wait) {
        let DrivenCore { core, completions, messages, .. } = &mut self.cores[core];
        core.io().turn(wait, completions);
        core.turn(completions, messages);
    }

    /// Has a core move one of its sessions to another, as for load balancing. False: not now, or it does not
    /// have that many.
    pub fn move_session(&mut self, core: usize, nth: usize, to: usize) -> bool {
        self.cores[core].core.move_nth(nth, to)
    }

    /// Whether there is a job for the housekeeper.
    pub fn has_work(&mut self) -> bool {
        self.job = self.job.take().or_else(|| self.jobs.try_recv().ok());
        self.job.is_some() || !self.state_saver.is_settled()
    }

    /// Does one of these, or retries making durable what is not yet.
    pub fn work(&mut self) {
        match self.job.take() {
            Some(job) => _ = self.housekeeper.act(&mut self.state_saver, job),
            None => self.state_saver.settle(),
        }
    }

    /// The store of a unit that gateways share is open; such units are numbered among themselves.
    pub fn open_shared(&mut self, unit: usize, store: Arc<dyn Failover>) {
        self.shared[unit].handle.open(store);
    }

    /// Whether there are events that the unit's gateway has not seen.
    pub fn gateway_is_called(&mut self, unit: usize) -> bool {
        let unit = &mut self.shared[unit];
        unit.event = unit.event.take().or_else(|| unit.events.try_recv().ok());
        unit.event.is_some()
    }

    /// What the unit's gateway does next, after handling all events; times are relative to an arbitrary
    /// start. It must not be in a [`Next::Call`].
    pub fn gateway_next(&mut self, unit: usize, now: Duration) -> Next {
        let SharedUnit { gateway, events, event, .. } = &mut self.shared[unit];
        loop {
            match gateway.next(now) {
                Step::Call(call) => return Next::Call(call),
                Step::Begin(call) => return Next::Begin(call),
                Step::End => return Next::End,
                Step::Wait(wait) => match event.take().or_else(|| events.try_recv().ok()) {
                    Some(event) => gateway.happened(now, event),
                    None => return Next::Wait(wait),
                },
            }
        }
    }

    /// Its call has returned.
    pub fn gateway_answered(&mut self, unit: usize, now: Duration, answer: Answer) {
        self.shared[unit].gateway.answered(now, answer);
    }

    /// The object of the unit may have changed.
    pub fn gateway_noticed(&self, unit: usize) {
        let _ = self.shared[unit].handle.inbox().send(GatewayEvent::ObjectChanged);
    }

    /// An administrator makes this gateway the active one; the outcome comes later.
    pub fn gateway_wanted(&self, unit: usize) -> mpsc::Receiver<Result<(), String>> {
        let (outbox, outcome) = mpsc::channel();
        let _ =
            self.shared[unit].handle.inbox().send(GatewayEvent::Activate(Requester::Administrator(outbox)));
        outcome
    }

    /// The gateway leaves the unit to others, and ends.
    pub fn gateway_withdraws(&self, unit: usize) {
        let _ = self.shared[unit].handle.inbox().send(GatewayEvent::Withdraw);
    }

    /// Its status as shown to people.
    pub fn gateway_reading(&self, unit: usize) -> Option<GatewayReading> {
        self.shared[unit].handle.reading.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its role in that status.
    pub fn gateway_role(&self, unit: usize) -> Option<&'static str> {
        let reading = self.shared[unit].handle.reading.lock().unwrap_or_else(PoisonError::into_inner);
        reading.as_ref().map(|reading| reading.role)
    }

    /// Begins to change what is served, once everything begun before is complete; with the store of the new
    /// LUN and the count of its losses.
    ///
    /// # Errors
    /// When the change is impossible: nothing has changed.
    pub fn begin_change(&mut self, change: &Change, store: Option<CountedStore<I>>) -> Result<(), String> {
        let opened = store.map(|(store, losses)| Opened {
            store,
            failed: None,
            losses,
            space: Arc::default(),
            gateway: None,
        });
        let plan = self.changes.plan(change)?;
        let prepared =
            self.changes.prepare(plan, opened.as_ref(), None, Vec::new(), self.state_saver.files())?;
        self.changes.begin(prepared);
        self.changes.poll();
        Ok(())
    }

    /// Likewise begins a step of [`config::diff`] from what is served to another configuration; `listen`
    /// opens a new portal, and `lines` the packet sockets of an interface, one for each of a number of cores.
    ///
    /// # Errors
    /// When the step is impossible: nothing has changed.
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
            endpoint(number, address, before.unwrap_or_else(|| listen(address)))
        });
        let lines = match plan.attaches() {
            Some(new) => lines(&setup(new), new.cores.len()).map_err(|error| error.to_string())?,
            None => Vec::new(),
        };
        let prepared = self.changes.prepare(plan, None, opened, lines, self.state_saver.files())?;
        self.changes.begin(prepared);
        self.changes.poll();
        Ok(())
    }

    /// The configuration that is served, or is being changed to.
    pub fn config(&self) -> &Config {
        self.changes.config()
    }

    /// Continues with a change. `Some` when it is complete: whether the store of a removed LUN could be
    /// flushed.
    pub fn go_on_changing(&mut self) -> Option<bool> {
        match self.changes.poll() {
            Progress::Waits => None,
            Progress::Done(is_flushed) => Some(is_flushed),
        }
    }

    /// The current incarnation in INQUIRY data of a unit's cache.
    pub fn incarnation(&self, unit: usize) -> [u8; 16] {
        self.incarnations[unit].now()
    }

    /// The store of a unit takes this much space, as the daemon finds on a thread.
    ///
    /// # Panics
    /// When it does not measure that.
    pub fn space_measured(&self, unit: usize, used_bytes: u64, available_bytes: u64) {
        let MeasuredUnit { number, home_core, space } = &self.measured[unit];
        let space = space.as_ref().expect("the unit is thin, and its space is known");
        if space.set(used_bytes, available_bytes) {
            let origin = Origin { core: *home_core, who: Waiter::Nobody };
            let message = Message::Home { unit: *number, origin, request: HomeRequest::SpaceChanged };
            self.mail[*home_core].post(message);
        }
    }

    /// Whether all cores know that a unit has reached its threshold of used space, or that it has not.
    pub fn know_threshold(&self, unit: usize, is_reached: bool) -> bool {
        let number = self.measured[unit].number;
        self.cores.iter().all(|driven| driven.core.threshold_reached(number) == is_reached)
    }

    /// Has all cores shut down.
    pub fn stop(&self) {
        self.mail.iter().for_each(|core| core.post(Message::Stop));
    }

    /// The counts of each session that is here, which may be complete or have commands in flight.
    pub fn counted(&self, core: usize) -> impl Iterator<Item = Counted> + '_ {
        self.cores[core].core.counted()
    }

    /// What a core has in use.
    pub fn in_use(&mut self, core: usize) -> InUse {
        let core = &mut self.cores[core].core;
        let (streams, frames, tasks, marks) = core.in_use();
        InUse { streams, frames, tasks, marks, buffer_bytes: core.io().arena().in_use() }
    }
}

/// The gateways of units that are shared.
fn gateways<I: Io>(
    config: &Config,
    units: &[NewUnit<I>],
    opened: &[Opened<I>],
    mail: &[Sender<Message<I>>],
) -> Vec<SharedUnit<I>> {
    let each = config.luns.iter().zip(units).zip(opened);
    let shared = each.filter_map(|((lun, unit), opened)| {
        let (cluster, handle) = (config.cluster.as_ref()?, opened.gateway.clone()?);
        let home = HomeSender { unit: unit.view.unit.index, core: unit.home_core, cores: mail.to_vec() };
        let (gateway, _) = Gateway::of(cluster, lun, &unit.view.unit, &handle, home)?;
        let events = handle.take_events()?;
        Some(SharedUnit { handle, gateway, events, event: None })
    });
    shared.collect()
}

fn endpoint(number: usize, address: SocketAddr, handle: Handle) -> Endpoint {
    Endpoint { number, address, handle: Some(handle), socket: None, by_device: None }
}
