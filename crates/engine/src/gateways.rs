//! Units shared by gateways: for each, a thread carries out what [`cluster::Machine`] decides. It waits for
//! the pool and the image, which no core does. [`Gateway`] determines what to wait for, and has neither
//! thread nor clock.

mod calls;
mod peers;
mod show;
#[cfg(test)]
mod tests;

pub use calls::{Answer, ImageCall, ObjectCall};

use crate::gateway_handle::{Forward, GatewayEvent, GatewayHandle, Requester};
use crate::message::{Message, Origin, Waiter};
use crate::stores::Opened;
use crate::units::NewUnit;
use calls::Calls;
use cluster::{Access, Action, By, Machine, Me, Member, Outcome, Port, Record, Role};
use config::{Cluster, Config, Lun, StoreSpec};
use reactor::io::Io;
use reactor::mailbox::Sender;
use scsi::sense::Check;
use scsi::unit::OtherPort;
use scsi::{HomeReply, HomeRequest, Sharing};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};
use store::lane::Failover;

/// How often it is checked whether the image's client was fenced.
const FENCE_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Most fenced clients shown.
const SHOWN_FENCES: usize = 16;

/// Why it does nothing any more.
const ENDED: &str = "it no longer serves the LUN";

/// How long a stopping daemon waits for a unit to be left to others, beyond the takeover time.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// The threads of shared units, by unit number.
pub(crate) struct Gateways {
    cluster: Option<Box<Cluster>>,
    running: Vec<(u32, Running)>,
}

struct Running {
    inbox: mpsc::Sender<GatewayEvent>,
    ended: mpsc::Receiver<()>,
    /// How long leaving the unit to others may take.
    leaves_within: Duration,
    /// The ports of all gateways, as last seen.
    ports: Arc<Mutex<BTreeMap<String, Vec<Port>>>>,
}

impl Gateways {
    /// Starts those for a configuration's LUNs.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub(crate) fn all(
        config: &Config,
        units: &[NewUnit],
        opened: &[Opened],
        cores: &[Sender<Message>],
    ) -> Result<Gateways, String> {
        let mut all = Gateways { cluster: config.cluster.clone(), running: Vec::new() };
        for ((lun, unit), opened) in config.luns.iter().zip(units).zip(opened) {
            all.start(lun, &unit.view.unit, opened, unit.home_core, cores)?;
        }
        Ok(all)
    }

    /// Starts the thread of a unit, if gateways share it.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(crate) fn start(
        &mut self,
        lun: &Lun,
        unit: &scsi::Unit,
        opened: &Opened,
        home: usize,
        cores: &[Sender<Message>],
    ) -> Result<(), String> {
        let (Some(cluster), Some(handle)) = (&self.cluster, &opened.gateway) else { return Ok(()) };
        let home = HomeSender { unit: unit.index, core: home, cores: cores.to_vec() };
        let gateway = Gateway::of(cluster, lun, unit, handle, home);
        let (Some((gateway, object)), Some(events)) = (gateway, handle.take_events()) else { return Ok(()) };
        let place = cluster.place.clone();
        let calls = Calls::new(object, place, handle.inbox());
        let (end, ended) = mpsc::channel();
        let thread = std::thread::Builder::new().name(format!("gateway-{}", unit.index));
        let started = thread.spawn(move || {
            let home = run(gateway, calls, &events);
            let _ = end.send(());
            // Until the unit is removed, its cores may have sent events for which somebody waits.
            events.iter().for_each(|event| home.refuse(event, ENDED));
        });
        started.map_err(|error| format!("a thread for {}: {error}", lun.name))?;
        // Initiators must not notice the end of what hangs before its fence is complete.
        let is_for_all = unit.sharing == Some(Sharing::All);
        let leaves = if is_for_all { cluster.fenced_within() } else { cluster.takeover };
        let (inbox, ports) = (handle.inbox(), handle.ports.clone());
        let running = Running { inbox, ended, leaves_within: leaves + LEAVE_WITHIN, ports };
        self.running.push((unit.index, running));
        Ok(())
    }

    /// Makes this gateway the active one for a unit.
    ///
    /// # Errors
    /// When gateways do not share it.
    pub(crate) fn activate(&self, unit: u32) -> Result<Moving, String> {
        let running = self.running.iter().find(|(number, _)| *number == unit);
        let (Some(cluster), Some((_, running))) = (&self.cluster, running) else {
            return Err("it is not shared between gateways".into());
        };
        let (outbox, outcome) = mpsc::channel();
        let _ = running.inbox.send(GatewayEvent::Activate(Requester::Administrator(outbox)));
        Ok(Moving { outcome, within: moves_within(cluster) + LEAVE_WITHIN })
    }

    /// What these ports of a unit would have in common with another gateway's, unless those that it has now do so, too.
    pub(crate) fn clash(
        &self,
        unit: u32,
        before: &[scsi::unit::Port],
        after: &[scsi::unit::Port],
    ) -> Option<String> {
        let (_, running) = self.running.iter().find(|(number, _)| *number == unit)?;
        let gateways = running.ports.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let record = Record { gateways, ..Record::default() };
        let gateway = &self.cluster.as_ref()?.gateway;
        let clash = |ports| record.clash(gateway, &peers::ports_of(ports, &[]));
        clash(after).filter(|_| clash(before).is_none())
    }

    /// Leaves a unit to other gateways, and returns when that is done, or takes too long.
    pub(crate) fn withdraw(&mut self, unit: u32) {
        let leaving: Vec<_> = self.running.extract_if(.., |(number, _)| *number == unit).collect();
        Self::wait(&leaving);
    }

    /// The same for all of them.
    pub(crate) fn withdraw_all(&mut self) {
        let leaving = std::mem::take(&mut self.running);
        Self::wait(&leaving);
    }

    fn wait(leaving: &[(u32, Running)]) {
        for (_, running) in leaving {
            let _ = running.inbox.send(GatewayEvent::Withdraw);
        }
        let begun = Instant::now();
        for (unit, running) in leaving {
            running.wait(*unit, begun + running.leaves_within);
        }
    }
}

/// A unit moving to this gateway.
pub struct Moving {
    outcome: mpsc::Receiver<Result<(), String>>,
    within: Duration,
}

impl Moving {
    /// Blocks until this gateway is the active one.
    ///
    /// # Errors
    /// Why it is not.
    pub fn wait(self) -> Result<(), String> {
        let silent = |_| Err("it waits for the cluster; see the log".into());
        self.outcome.recv_timeout(self.within).unwrap_or_else(silent)
    }
}

impl Running {
    /// Waits for the end of a thread that is leaving its unit to others. If it has not ended by then, it must
    /// stop showing that this gateway is alive: its home is gone, and answers nothing.
    fn wait(&self, unit: u32, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        if self.ended.recv_timeout(left) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::error!(
                unit,
                "the unit was not handed over: another gateway will take over after a timeout"
            );
            let _ = self.inbox.send(GatewayEvent::End);
        }
    }
}

/// The name of an image's object: the same for each gateway of a cluster.
fn object(cluster: &str, image: &config::RbdImage) -> String {
    let namespace = image.namespace.as_deref().map(|name| format!("{name}/")).unwrap_or_default();
    format!("lunette.{cluster}.{}/{namespace}{}", image.pool, image.image)
}

/// What hosts rely on, which must be the same on each gateway.
fn disk(unit: &scsi::Unit) -> String {
    let blocks = format!("blocks of {} bytes", unit.block_bytes);
    if unit.sharing == Some(Sharing::All) { blocks + ", and all gateways active" } else { blocks }
}

/// How long a unit may take to move to another gateway: a takeover, should the active one die meanwhile, plus
/// time to end.
fn moves_within(cluster: &Cluster) -> Duration {
    cluster.takeover + LEAVE_WITHIN
}

/// The way to a unit's home, and to the cores that wait for its answers.
pub(crate) struct HomeSender<I: Io> {
    pub(crate) unit: u32,
    /// The core of the unit's home.
    pub(crate) core: usize,
    pub(crate) cores: Vec<Sender<Message<I>>>,
}

impl<I: Io> HomeSender<I> {
    fn request(&self, who: Waiter, request: HomeRequest) {
        self.forward(Origin { core: self.core, who }, request);
    }

    fn forward(&self, origin: Origin, request: HomeRequest) {
        self.cores[self.core].post(Message::Home { unit: self.unit, origin, request });
    }

    fn persisted(&self, ok: bool) {
        self.cores[self.core].post(Message::Persisted { unit: self.unit, ok });
    }

    fn reply(&self, origin: Origin, reply: HomeReply) {
        self.cores[origin.core].post(Message::Answer { origin, reply });
    }

    fn recalled(&self, origin: Origin) {
        self.cores[origin.core].post(Message::recalled(origin));
    }

    fn answer_requester(&self, requester: Requester, outcome: Result<(), String>) {
        match requester {
            Requester::Initiator(origin) => {
                let failed = |_| HomeReply::Check(Check::SET_GROUPS_FAILED);
                self.reply(origin, outcome.map_or_else(failed, |()| HomeReply::Done));
            }
            // Nobody may be waiting for it any more.
            Requester::Administrator(outbox) => _ = outbox.send(outcome),
        }
    }

    /// Refuses what the unit's thread cannot do, before its image is open or after its end.
    fn refuse(&self, event: GatewayEvent, why: &str) {
        match event {
            GatewayEvent::Save { .. } => self.persisted(false),
            GatewayEvent::Forward(forward) => {
                self.reply(forward.origin, HomeReply::Check(Check::PORT_IN_STANDBY));
            }
            GatewayEvent::Activate(requester) => self.answer_requester(requester, Err(why.into())),
            GatewayEvent::Recall(_)
            | GatewayEvent::Applied(_)
            | GatewayEvent::Executed(_)
            | GatewayEvent::Configured(_)
            | GatewayEvent::CallEnded
            | GatewayEvent::ObjectChanged
            | GatewayEvent::Withdraw
            | GatewayEvent::End => {}
        }
    }
}

/// What a unit's thread does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Makes this call; [`Gateway::answered`] gets the answer.
    Call(ObjectCall),
    /// Begins this call; [`Gateway::answered`] gets the answer when there is one.
    Begin(ImageCall),
    /// Waits for events, for this long at most.
    Wait(Duration),
    /// Ends.
    End,
}

/// Carries out what a gateway decides, and waits for it.
fn run<I: Io>(
    mut gateway: Gateway<I>,
    mut calls: Calls,
    events: &mpsc::Receiver<GatewayEvent>,
) -> HomeSender<I> {
    let began = Instant::now();
    loop {
        while let Some(answer) = calls.ended() {
            gateway.answered(began.elapsed(), answer);
        }
        match gateway.next(began.elapsed()) {
            Step::Call(call) => {
                let answer = calls.make(call);
                gateway.answered(began.elapsed(), answer);
            }
            Step::Begin(call) => {
                let store = gateway.store.clone().expect("nothing is asked of one that is not open");
                calls.begin(store, call);
            }
            Step::Wait(wait) => match events.recv_timeout(wait) {
                Ok(event) => gateway.happened(began.elapsed(), event),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            },
            Step::End => break,
        }
    }
    let home = gateway.end();
    calls.end();
    home
}

/// A request that the active gateway is to execute.
struct Forwarded {
    forward: Forward,
    /// Its task was aborted, and ends when the request can no longer be executed.
    is_recalled: bool,
}

/// The logic of a unit's thread: the machine, and what connects it with the unit. Times are relative to an
/// arbitrary start.
/// Its fields are what it was started with, and who waits for what.
pub(crate) struct Gateway<I: Io> {
    lun: String,
    home: HomeSender<I>,
    object: String,
    ports: Vec<Port>,
    /// What hosts rely on, on each gateway.
    disk: String,
    /// How many gateways access the medium at a time.
    access: Access,
    /// The role that the home was last given.
    role: scsi::Role,
    cluster: Box<Cluster>,
    handle: Arc<GatewayHandle>,
    /// Set once it is open: until then there is no client that could be fenced.
    store: Option<Arc<dyn Failover>>,
    /// The machine, likewise.
    machine: Option<Box<Machine>>,
    /// What was last logged.
    shown: (Role, Option<String>),
    /// The ports of other gateways known to the home.
    others: Arc<[OtherPort]>,
    /// Requests of this gateway that the active one is to execute, by number.
    forwarded: BTreeMap<u64, Forwarded>,
    /// Others have yet to be notified of what was written; and of what is being written.
    news: (bool, bool),
    /// Who is waiting for this gateway to become active, and until when.
    requesters: Vec<(Duration, Requester)>,
    /// Clients being fenced.
    fencing: Vec<String>,
    /// Fenced clients, and since when.
    shut_out: Vec<(String, Instant)>,
    is_over: bool,
}

impl<I: Io> Gateway<I> {
    /// For a LUN, with its object; `None`: its store is not shared by gateways.
    pub(crate) fn of(
        cluster: &Cluster,
        lun: &Lun,
        unit: &scsi::Unit,
        handle: &Arc<GatewayHandle>,
        home: HomeSender<I>,
    ) -> Option<(Gateway<I>, String)> {
        let StoreSpec::Rbd { image, .. } = &lun.store else { return None };
        let object = object(&cluster.name, image);
        let gateway = Gateway {
            lun: lun.name.clone(),
            home,
            object: object.clone(),
            ports: peers::ports(unit),
            disk: disk(unit),
            access: if unit.sharing == Some(Sharing::All) { Access::All } else { Access::One },
            role: scsi::Role::Standby,
            cluster: Box::new(cluster.clone()),
            handle: handle.clone(),
            store: None,
            machine: None,
            shown: (Role::Standby, None),
            others: Arc::default(),
            forwarded: BTreeMap::new(),
            news: (false, false),
            requesters: Vec::new(),
            fencing: Vec::new(),
            shut_out: Vec::new(),
            is_over: false,
        };
        Some((gateway, object))
    }

    /// Ends it once nothing is left to do, or nobody waits for that: answers whoever is waiting.
    pub(crate) fn end(mut self) -> HomeSender<I> {
        // It is unknown whether the active gateway will still execute them.
        for Forwarded { forward: Forward { origin, .. }, is_recalled } in
            std::mem::take(&mut self.forwarded).into_values()
        {
            if is_recalled {
                self.home.recalled(origin);
            } else {
                self.home.reply(origin, HomeReply::Check(Check::INTERNAL));
            }
        }
        for (_, requester) in std::mem::take(&mut self.requesters) {
            self.home.answer_requester(requester, Err(ENDED.into()));
        }
        self.home
    }

    /// What to do now.
    pub(crate) fn next(&mut self, now: Duration) -> Step {
        if self.is_over {
            return Step::End;
        }
        let Some(mut machine) = self.machine.take().or_else(|| self.begin()) else {
            return Step::Wait(FENCE_CHECK_INTERVAL);
        };
        let step = self.step(&mut machine, now);
        self.machine = Some(machine);
        step
    }

    /// Until the image is open there is nothing to do.
    fn begin(&mut self) -> Option<Box<Machine>> {
        let store = self.store.insert(self.handle.store()?);
        let client = store.client().unwrap_or_default();
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (process, disk) = (client.clone(), self.disk.clone());
        let takeover_ms = millis(self.cluster.takeover);
        let member = Member { process, takeover_ms, osd_map_ms: millis(self.cluster.osd_map_delay), disk };
        let me = Me { gateway: self.cluster.gateway.clone(), client, ports: self.ports.clone(), member };
        Some(Box::new(Machine::new(me, self.cluster.takeover, self.access)))
    }

    fn step(&mut self, machine: &mut Machine, now: Duration) -> Step {
        if let Some(store) = &self.store {
            if store.is_fenced() {
                machine.fenced();
            }
            machine.medium_stuck(store.is_stuck());
        }
        self.report_others(&machine.status().record);
        while let Some(action) = machine.next(now) {
            if let Some(step) = self.act(machine, action) {
                return step;
            }
            self.report_others(&machine.status().record);
        }
        // Whoever waits for this gateway was answered before.
        if std::mem::take(&mut self.news.0) {
            return Step::Call(ObjectCall::Notify);
        }
        self.answer_requesters(machine, now);
        self.show(machine);
        if machine.has_withdrawn() {
            return Step::End;
        }
        let wait = machine.wake_at(now).saturating_sub(now).min(FENCE_CHECK_INTERVAL);
        // What is overdue and not done now waits for the home, whose answer is an event.
        Step::Wait(if wait.is_zero() { FENCE_CHECK_INTERVAL } else { wait })
    }

    /// Handles an event.
    pub(crate) fn happened(&mut self, now: Duration, event: GatewayEvent) {
        let Some(mut machine) = self.machine.take() else {
            return match event {
                GatewayEvent::Withdraw | GatewayEvent::End => self.is_over = true,
                GatewayEvent::Configured(unit) => self.ports = peers::ports(&unit),
                event => self.home.refuse(event, "its image is not open yet"),
            };
        };
        match event {
            GatewayEvent::Save { state, outcome, ends } => machine.save(state, outcome, ends),
            GatewayEvent::Forward(forward) => self.forward(&mut machine, now, *forward),
            GatewayEvent::Recall(origin) => self.recall(&mut machine, now, origin),
            GatewayEvent::Executed(outcome) => machine.executed(outcome),
            GatewayEvent::Activate(requester) => self.want(&mut machine, now, requester),
            GatewayEvent::Applied(true) => machine.applied(),
            GatewayEvent::Applied(false) => {
                tracing::error!(
                    lun = %self.lun, object = %self.object,
                    "the saved state of the unit is damaged, so no gateway can serve it; stop all gateways, \
                     then restore the object, or remove it to discard reservations and mode parameters"
                );
                machine.not_applied();
            }
            GatewayEvent::Configured(unit) => {
                self.ports = peers::ports(&unit);
                machine.set_ports(self.ports.clone());
            }
            // Its answer comes first.
            GatewayEvent::CallEnded => {}
            GatewayEvent::ObjectChanged => machine.noticed(),
            GatewayEvent::Withdraw => machine.withdraw(),
            GatewayEvent::End => self.is_over = true,
        }
        self.machine = Some(machine);
    }

    /// A call has returned.
    pub(crate) fn answered(&mut self, now: Duration, answer: Answer) {
        if let Answer::Promoted(outcome) | Answer::Fenced(outcome) = &answer {
            self.has_fenced(outcome.is_ok());
        }
        let Some(machine) = &mut self.machine else { return };
        match answer {
            Answer::Read(found) => {
                let decode = |(version, bytes): (u64, Vec<u8>)| match Record::decode(&bytes) {
                    Ok(record) => Ok((version, record)),
                    Err(error) => Err(format!("object {}: {error}", self.object)),
                };
                machine.read(now, found.and_then(|found| found.map(decode).transpose()));
            }
            Answer::Replaced(outcome) => {
                self.news.0 |= outcome.is_ok() && self.news.1;
                machine.replaced(now, outcome);
            }
            Answer::Notified => {}
            Answer::Promoted(outcome) => machine.promoted(outcome),
            Answer::CaughtUp(outcome) => machine.caught_up(now, outcome),
            Answer::Fenced(outcome) => machine.fenced_others(now, outcome),
            Answer::Demoted(outcome) => machine.demoted(now, outcome),
            Answer::Reopened(outcome) => machine.reopened(now, outcome),
        }
    }

    fn fences(&mut self, clients: &[String]) {
        if !clients.is_empty() {
            tracing::warn!(lun = %self.lun, "the gateway that served the unit was fenced: {}", clients.join(", "));
        }
        self.fencing = clients.to_vec();
    }

    fn has_fenced(&mut self, is_done: bool) {
        let fenced = std::mem::take(&mut self.fencing);
        if is_done {
            self.shut_out.extend(fenced.into_iter().map(|client| (client, Instant::now())));
            self.shut_out.drain(..self.shut_out.len().saturating_sub(SHOWN_FENCES));
        }
    }

    /// Carries out an action of the machine, unless it is a call, which it returns.
    fn act(&mut self, machine: &mut Machine, action: Action) -> Option<Step> {
        match action {
            Action::Read => return Some(Step::Call(ObjectCall::Read)),
            Action::Replace { expected, record } => {
                self.news.1 = peers::concerns_others(&machine.status().record, &record);
                return Some(Step::Call(ObjectCall::Replace { expected, bytes: record.encode() }));
            }
            Action::Promote { fence } => {
                self.fences(&fence);
                return Some(Step::Begin(ImageCall::Promote { fence }));
            }
            Action::CatchUp => return Some(Step::Begin(ImageCall::CatchUp)),
            Action::Fence { clients } => {
                self.fences(&clients);
                return Some(Step::Begin(ImageCall::Fence { clients }));
            }
            Action::Demote => return Some(Step::Begin(ImageCall::Demote)),
            Action::Reopen => return Some(Step::Begin(ImageCall::Reopen)),
            Action::Adopt { saved } => self.ask(self.role, Some(saved.into())),
            Action::Join { saved } => self.begin_serving(scsi::Role::Serving, saved),
            Action::Activate { saved } => self.begin_serving(scsi::Role::Active, saved),
            Action::Deactivate { lost } => {
                if self.access == Access::All {
                    // The home may be waiting for what hangs before it goes to standby, and that may not end.
                    self.store
                        .iter()
                        .for_each(|store| if lost { store.abandon() } else { store.suspend(true) });
                }
                self.ask(scsi::Role::Standby, None);
                if lost {
                    let unit = self.home.unit;
                    self.home.cores.iter().for_each(|core| core.post(Message::EndSessionsOf { unit }));
                }
            }
            Action::Saved(ok) => self.home.persisted(ok),
            Action::Execute { body } => {
                let record = machine.status().record;
                match HomeRequest::forwarded(&body, |name| peers::port_id(&record, &self.ports, name)) {
                    Ok(request) => self.home.request(Waiter::OtherGateway(self.home.unit), request),
                    Err(check) => machine.executed(HomeReply::Check(check).encode()),
                }
            }
            Action::Answer { id, outcome } => self.forward_ended(machine.status().role, id, &outcome),
        }
        None
    }

    /// Forwards a request that the home leaves to the active gateway.
    fn forward(&mut self, machine: &mut Machine, now: Duration, forward: Forward) {
        let id = u64::from(I::random()) << 32 | u64::from(I::random());
        machine.ask(now, id, forward.body.clone());
        self.forwarded.insert(id, Forwarded { forward, is_recalled: false });
    }

    /// A task was aborted, or the session of a reset has ended: what it waits for is not executed, unless the active
    /// gateway may have begun to. It ends when that is over: a reset, too, since it must not end commands of the
    /// next session.
    fn recall(&mut self, machine: &mut Machine, now: Duration, origin: Origin) {
        let its = self.forwarded.iter_mut().find(|(_, forwarded)| forwarded.forward.origin == origin);
        if let Some((id, forwarded)) = its {
            let id = *id;
            forwarded.is_recalled = true;
            if machine.recall(now, id) {
                self.forwarded.remove(&id);
                self.home.recalled(origin);
            }
        }
        let is_its =
            |requester: &Requester| matches!(requester, Requester::Initiator(other) if *other == origin);
        if self.requesters.extract_if(.., |(_, requester)| is_its(requester)).next().is_some() {
            self.home.recalled(origin);
            if self.requesters.is_empty() {
                machine.unwant();
            }
        }
    }

    /// The outcome of a forwarded request.
    fn forward_ended(&mut self, role: Role, id: u64, outcome: &Outcome) {
        let Some(Forwarded { forward, is_recalled }) = self.forwarded.remove(&id) else { return };
        let Forward { origin, request, .. } = forward;
        match outcome {
            _ if is_recalled => self.home.recalled(origin),
            Outcome::Executed(reply) => match (HomeReply::decode(reply), request) {
                // What it has to end here is left, unless this gateway serves: it has ended that with the adopted
                // state, and what is here now came later.
                (HomeReply::Done, HomeRequest::Reset { from: Some(from) })
                    if self.role == scsi::Role::Standby =>
                {
                    self.home.forward(origin, HomeRequest::EndTasks { from });
                }
                (reply, _) => self.home.reply(origin, reply),
            },
            Outcome::NotExecuted if role == Role::Active => {
                self.home.forward(origin, request);
            }
            Outcome::NotExecuted => self.home.reply(origin, HomeReply::Check(Check::ACCESS_STATE_TRANSITION)),
            Outcome::Unknown => self.home.reply(origin, HomeReply::Check(Check::INTERNAL)),
        }
    }

    /// This gateway is to become active.
    fn want(&mut self, machine: &mut Machine, now: Duration, requester: Requester) {
        if self.access == Access::All {
            let status = machine.status();
            let is_one = matches!(status.role, Role::Active | Role::Serving);
            let but = match status.fault {
                Some(why) if !is_one => format!(", but this one cannot be: {why}"),
                _ => String::new(),
            };
            let why = format!("all gateways are active for it at the same time (access = \"all\"){but}");
            return self.home.answer_requester(requester, Err(why));
        }
        if machine.status().role != Role::Active {
            machine.want(match requester {
                Requester::Initiator(_) => By::Initiator,
                Requester::Administrator(_) => By::Person,
            });
        }
        self.requesters.push((now + moves_within(&self.cluster), requester));
    }

    /// Answers those who want it to become active, once it is, or will not be.
    fn answer_requesters(&mut self, machine: &mut Machine, now: Duration) {
        if self.requesters.is_empty() {
            return;
        }
        let status = machine.status();
        let is_active = status.role == Role::Active;
        let is_over = is_active || !machine.is_wanted();
        let ended: Vec<_> = self.requesters.extract_if(.., |(until, _)| is_over || now >= *until).collect();
        if self.requesters.is_empty() && !is_over {
            machine.unwant();
        }
        let active = status.record.active.map_or("none".to_owned(), |holder| holder.gateway);
        let why =
            status.fault.unwrap_or_else(|| format!("the active gateway ({active}) has not handed it over"));
        for (_, requester) in ended {
            self.home.answer_requester(requester, if is_active { Ok(()) } else { Err(why.clone()) });
        }
    }

    /// Reports other gateways' ports, and their states, to the home.
    fn report_others(&mut self, record: &Record) {
        {
            let mut known = self.handle.ports.lock().unwrap_or_else(PoisonError::into_inner);
            if *known != record.gateways {
                known.clone_from(&record.gateways);
            }
        }
        let others = peers::others(record, self.access, &self.cluster.gateway, &self.ports);
        if *self.others != *others {
            self.others = others.into();
            self.home.request(Waiter::Nobody, HomeRequest::SetOthers(self.others.clone()));
        }
    }

    fn begin_serving(&mut self, role: scsi::Role, saved: Vec<u8>) {
        self.store.iter().for_each(|store| store.suspend(false));
        // Another gateway's hosts may know of a size that this one's home does not.
        let traits = self.store.as_ref().map(|store| HomeRequest::StoreChanged(store.traits()));
        traits.into_iter().for_each(|traits| self.home.request(Waiter::Nobody, traits));
        self.ask(role, Some(saved.into()));
    }

    /// Has the home set the unit's role.
    fn ask(&mut self, role: scsi::Role, saved: Option<Arc<[u8]>>) {
        self.role = role;
        self.home.request(Waiter::Gateway(self.home.unit), HomeRequest::SetRole { role, saved });
    }
}
