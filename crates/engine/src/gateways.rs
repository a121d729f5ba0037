//! Units that gateways share: for each of them a thread does what [`cluster::Machine`] decides. It waits for the pool and the image, which
//! no core does.

use crate::message::{Message, Origin, Waiter};
use crate::readings::GatewayReading;
use crate::seat::{Forward, GatewayEvent, Seat, Wanter};
use crate::stores::Opened;
use crate::units::NewUnit;
use cluster::{Action, By, Machine, Me, Member, Outcome, Port, Record, ReplaceError, Role};
use config::{Cluster, Config, Lun, StoreSpec};
use reactor::mailbox::Sender;
use scsi::sense::Check;
use scsi::unit::OtherPort;
use scsi::{HomeReply, HomeRequest};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, mpsc};
use std::time::{Duration, Instant};
use store::lane::Failover;
use store::rados::{Pool, PoolError, Watch};
use wire::scsi::AccessState;

/// How often it is checked whether the image's client was shut out.
const GLANCE: Duration = Duration::from_millis(250);

/// How long others may take to notice that they may claim a unit; they poll, too.
const NOTICE: Duration = Duration::from_secs(1);

/// Clients that were shut out and that are shown.
const SHOWN_FENCES: usize = 16;

/// Why it does nothing for anybody any more.
const ENDED: &str = "it does not serve the LUN any more";

/// How long the end of a daemon waits for a unit to be left to others, beyond the time of a takeover.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// The threads of shared units, by the units' numbers.
pub(crate) struct Gateways {
    cluster: Option<Box<Cluster>>,
    running: Vec<(u32, Running)>,
}

struct Running {
    inbox: mpsc::Sender<GatewayEvent>,
    ended: mpsc::Receiver<()>,
}

impl Gateways {
    /// Those of a configuration's LUNs.
    ///
    /// # Errors
    /// When one has no thread.
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
    /// When there is no thread for it.
    pub(crate) fn start(
        &mut self,
        lun: &Lun,
        unit: &scsi::Unit,
        opened: &Opened,
        home: usize,
        cores: &[Sender<Message>],
    ) -> Result<(), String> {
        let (Some(cluster), Some(seat)) = (&self.cluster, &opened.seat) else { return Ok(()) };
        let events = seat.take_events();
        let (Some(events), StoreSpec::Rbd { image, .. }) = (events, &lun.store) else { return Ok(()) };
        let port = |port: &scsi::unit::Port| {
            let group = unit.groups.iter().find(|group| group.tag == port.group);
            let state = group.map_or(AccessState::Optimized, |group| group.state);
            Port { id: port.relative_id, group: port.group, name: port.name.clone(), state: state.code() }
        };
        let gateway = Gateway {
            lun: lun.name.clone(),
            home: Home { unit: unit.index, core: home, cores: cores.to_vec() },
            object: object(&cluster.name, image),
            ports: unit.ports.iter().map(port).collect(),
            disk: format!("blocks of {} bytes", unit.block_bytes),
            cluster: cluster.clone(),
            seat: seat.clone(),
            pool: None,
            watch: None,
            shown: (Role::Standby, None),
            others: Arc::default(),
            forwarded: BTreeMap::new(),
            is_news: false,
            wanters: Vec::new(),
            shut_out: Vec::new(),
        };
        let (end, ended) = mpsc::channel();
        let thread = std::thread::Builder::new().name(format!("gateway-{}", unit.index));
        let started = thread.spawn(move || {
            let home = gateway.run(&events);
            let _ = end.send(());
            // Until the unit is gone its cores may have sent what somebody waits for.
            events.iter().for_each(|event| home.refuse(event, ENDED));
        });
        started.map_err(|error| format!("a thread for {}: {error}", lun.name))?;
        self.running.push((unit.index, Running { inbox: seat.inbox(), ended }));
        Ok(())
    }

    /// Has this gateway become the active one for a unit, and returns when it is.
    ///
    /// # Errors
    /// Why it is not.
    pub(crate) fn activate(&self, unit: u32) -> Result<(), String> {
        let running = self.running.iter().find(|(number, _)| *number == unit);
        let (Some(cluster), Some((_, running))) = (&self.cluster, running) else {
            return Err("gateways do not share it".into());
        };
        let (outbox, outcome) = mpsc::channel();
        let _ = running.inbox.send(GatewayEvent::Want(Wanter::Person(outbox)));
        outcome
            .recv_timeout(moves_within(cluster) + LEAVE_WITHIN)
            .unwrap_or_else(|_| Err("it waits for the cluster; see the log".into()))
    }

    /// Leaves a unit to other gateways, and returns when that is done, or takes too long.
    pub(crate) fn withdraw(&mut self, unit: u32) {
        let leaving: Vec<_> = self.running.extract_if(.., |(number, _)| *number == unit).collect();
        self.wait(&leaving);
    }

    /// The same for all of them.
    pub(crate) fn withdraw_all(&mut self) {
        let leaving = std::mem::take(&mut self.running);
        self.wait(&leaving);
    }

    fn wait(&self, leaving: &[(u32, Running)]) {
        let Some(cluster) = &self.cluster else { return };
        for (_, running) in leaving {
            let _ = running.inbox.send(GatewayEvent::Withdraw);
        }
        let until = Instant::now() + cluster.takeover + LEAVE_WITHIN;
        for (unit, running) in leaving {
            running.wait(*unit, until);
        }
    }
}

impl Running {
    /// Waits for the end of a thread that was asked to leave its unit to others. One that has not ended until then must not go on to
    /// show that this gateway lives: its home is gone, and answers nothing.
    fn wait(&self, unit: u32, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        if self.ended.recv_timeout(left) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::error!(unit, "the unit was not handed over: another gateway takes over in its own time");
            let _ = self.inbox.send(GatewayEvent::End);
        }
    }
}

/// The object of an image: the same for each gateway of a cluster.
fn object(cluster: &str, image: &config::RbdImage) -> String {
    let namespace = image.namespace.as_deref().map(|name| format!("{name}/")).unwrap_or_default();
    format!("lunette.{cluster}.{}/{namespace}{}", image.pool, image.image)
}

/// How long a unit may take to move to another gateway: a takeover, should the active one die meanwhile, and its end.
fn moves_within(cluster: &Cluster) -> Duration {
    cluster.takeover + LEAVE_WITHIN
}

/// Whether other gateways wait for what has changed, or their initiators see it.
fn concerns_others(before: &Record, after: &Record) -> bool {
    let is_released = after.active.is_none() && before.active.is_some();
    let exchanged = |record: &Record| (record.requests.clone(), record.replies.clone());
    let is_known =
        before.next == after.next && before.saved == after.saved && exchanged(before) == exchanged(after);
    is_released || !is_known
}

/// The ports of gateways other than this one, and the states that these have them in.
fn others(record: &Record, gateway: &str) -> Vec<OtherPort> {
    let state = |name: &str, port: &Port| match &record.active {
        Some(holder) if holder.gateway != name => AccessState::Standby,
        Some(_) if record.fence.is_empty() => AccessState::of_code(port.state).unwrap_or_default(),
        Some(_) => AccessState::Transitioning,
        None => AccessState::Standby,
    };
    let others = record.gateways.iter().filter(|(name, _)| *name != gateway);
    let ports = others.flat_map(|(name, ports)| ports.iter().map(move |port| (name, port)));
    let other = |(name, port): (&String, &Port)| OtherPort {
        relative_id: port.id,
        group: port.group,
        name: port.name.clone(),
        state: state(name, port),
    };
    ports.map(other).collect()
}

/// The identifier of a port of any gateway, by its name.
fn port_id(record: &Record, name: &str) -> Option<u16> {
    record.gateways.values().flatten().find(|port| port.name == name).map(|port| port.id)
}

/// The cores that serve a unit.
struct Home {
    unit: u32,
    /// That of the unit's home.
    core: usize,
    cores: Vec<Sender<Message>>,
}

impl Home {
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
        if let Waiter::Task(task) = origin.who {
            self.cores[origin.core].post(Message::Recalled { task });
        }
    }

    fn answer_wanter(&self, wanter: Wanter, outcome: Result<(), String>) {
        match wanter {
            Wanter::Initiator(origin) => {
                let failed = |_| HomeReply::Check(Check::SET_GROUPS_FAILED);
                self.reply(origin, outcome.map_or_else(failed, |()| HomeReply::Done));
            }
            // Nobody may wait for it any more.
            Wanter::Person(outbox) => _ = outbox.send(outcome),
        }
    }

    /// Answers what the unit's thread cannot do, before its image is open or after its end.
    fn refuse(&self, event: GatewayEvent, why: &str) {
        match event {
            GatewayEvent::Keep { .. } => self.persisted(false),
            GatewayEvent::Forward(forward) => {
                self.reply(forward.origin, HomeReply::Check(Check::PORT_IN_STANDBY));
            }
            GatewayEvent::Want(wanter) => self.answer_wanter(wanter, Err(why.into())),
            GatewayEvent::Recall(_)
            | GatewayEvent::Applied(_)
            | GatewayEvent::Executed(_)
            | GatewayEvent::Noticed
            | GatewayEvent::Withdraw
            | GatewayEvent::End => {}
        }
    }
}

/// A unit's thread.
/// Its fields are what it was started with, its connections to the pool, and who waits for what.
struct Gateway {
    lun: String,
    home: Home,
    object: String,
    ports: Vec<Port>,
    /// What hosts rely on at each gateway.
    disk: String,
    cluster: Box<Cluster>,
    seat: Arc<Seat>,
    pool: Option<Arc<Pool>>,
    watch: Option<Watch>,
    /// What the log had last.
    shown: (Role, Option<String>),
    /// The ports of other gateways that the home knows.
    others: Arc<[OtherPort]>,
    /// Requests of this gateway that the active one is to execute, by their numbers.
    forwarded: BTreeMap<u64, Forward>,
    /// Others have yet to be notified of what was written.
    is_news: bool,
    /// Who waits until when for this gateway to become active.
    wanters: Vec<(Instant, Wanter)>,
    /// Clients that it has had the cluster shut out, and when.
    shut_out: Vec<(String, Instant)>,
}

impl Gateway {
    fn run(mut self, events: &mpsc::Receiver<GatewayEvent>) -> Home {
        if let Some(store) = self.await_store(events) {
            self.serve(events, &*store);
        }
        // Nobody knows whether the active gateway executes them yet.
        for forward in std::mem::take(&mut self.forwarded).into_values() {
            self.home.reply(forward.origin, HomeReply::Check(Check::INTERNAL));
        }
        for (_, wanter) in std::mem::take(&mut self.wanters) {
            self.home.answer_wanter(wanter, Err(ENDED.into()));
        }
        self.home
    }

    fn serve(&mut self, events: &mpsc::Receiver<GatewayEvent>, store: &dyn Failover) {
        let began = Instant::now();
        let client = store.client().unwrap_or_default();
        let takeover_ms = u64::try_from(self.cluster.takeover.as_millis()).unwrap_or(u64::MAX);
        let member = Member { process: client.clone(), takeover_ms, disk: self.disk.clone() };
        let me = Me { gateway: self.cluster.gateway.clone(), client, ports: self.ports.clone(), member };
        let mut machine = Machine::new(me, self.cluster.takeover);
        loop {
            if store.is_fenced() {
                machine.fenced();
            }
            while let Some(action) = machine.next(began.elapsed()) {
                self.act(&mut machine, store, began, action);
                self.report_others(&machine.status().record);
            }
            self.notify_others();
            self.answer_wanters(&mut machine);
            self.show(&machine);
            if machine.has_withdrawn() {
                return;
            }
            let wait = machine.wake_at().saturating_sub(began.elapsed()).min(GLANCE);
            match events.recv_timeout(wait) {
                Ok(GatewayEvent::Keep { state, outcome }) => machine.save(state, outcome),
                Ok(GatewayEvent::Forward(forward)) => self.forward(&mut machine, began, *forward),
                Ok(GatewayEvent::Recall(origin)) => self.recall(&mut machine, began, origin),
                Ok(GatewayEvent::Executed(outcome)) => machine.executed(outcome),
                Ok(GatewayEvent::Want(wanter)) => self.want(&mut machine, wanter),
                Ok(GatewayEvent::Applied(true)) => machine.applied(),
                Ok(GatewayEvent::Applied(false)) => {
                    tracing::error!(
                        lun = %self.lun, object = %self.object,
                        "what gateways keep of the unit is damaged: none can serve it; restore the object, or remove it to forget \
                         reservations and mode parameters"
                    );
                    machine.applied();
                    machine.withdraw();
                }
                Ok(GatewayEvent::Noticed) => machine.noticed(),
                Ok(GatewayEvent::Withdraw) => machine.withdraw(),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Ok(GatewayEvent::End) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Until the image is open there is no client that could be shut out.
    fn await_store(&self, events: &mpsc::Receiver<GatewayEvent>) -> Option<Arc<dyn Failover>> {
        loop {
            if let Some(store) = self.seat.store() {
                return Some(store);
            }
            match events.recv_timeout(GLANCE) {
                Ok(GatewayEvent::Withdraw | GatewayEvent::End)
                | Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                Ok(event) => self.home.refuse(event, "its image is not open yet"),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn act(&mut self, machine: &mut Machine, store: &dyn Failover, began: Instant, action: Action) {
        match action {
            Action::Read => {
                let found = self.read();
                machine.read(began.elapsed(), found);
            }
            Action::Replace { expected, record } => {
                let before = machine.status().record;
                let outcome = self.replace(expected, &record);
                self.is_news |= outcome.is_ok() && concerns_others(&before, &record);
                machine.replaced(began.elapsed(), outcome);
            }
            Action::Promote { fence } => {
                if !fence.is_empty() {
                    tracing::warn!(lun = %self.lun, "the gateway that served the unit is shut out: {}", fence.join(", "));
                }
                let outcome = store.promote(&fence);
                if outcome.is_ok() {
                    self.shut_out.extend(fence.into_iter().map(|client| (client, Instant::now())));
                    self.shut_out.drain(..self.shut_out.len().saturating_sub(SHOWN_FENCES));
                }
                machine.promoted(outcome);
            }
            Action::Demote => {
                let outcome = store.demote();
                machine.demoted(began.elapsed(), outcome);
            }
            Action::Reopen => {
                let outcome =
                    store.reopen().and_then(|()| store.client().ok_or_else(|| "it has no client".to_owned()));
                machine.reopened(began.elapsed(), outcome);
            }
            Action::Adopt { saved } => self.ask(false, Some(saved.into())),
            Action::Activate { saved } => {
                // Another gateway's hosts may know of a size that this one's home does not.
                self.home.request(Waiter::Nobody, HomeRequest::StoreChanged(store.traits()));
                self.ask(true, Some(saved.into()));
            }
            Action::Deactivate { lost } => {
                self.ask(false, None);
                if lost {
                    let unit = self.home.unit;
                    self.home.cores.iter().for_each(|core| core.post(Message::EndSessionsOf { unit }));
                }
            }
            Action::Saved(ok) => self.home.persisted(ok),
            Action::Execute { body } => {
                let record = machine.status().record;
                match HomeRequest::forwarded(&body, |name| port_id(&record, name)) {
                    Ok(request) => self.home.request(Waiter::OtherGateway(self.home.unit), request),
                    Err(check) => machine.executed(HomeReply::Check(check).encode()),
                }
            }
            Action::Answer { id, outcome } => self.forward_ended(machine.status().role, id, &outcome),
        }
    }

    /// Has the active gateway execute what the home, in standby, cannot do.
    fn forward(&mut self, machine: &mut Machine, began: Instant, forward: Forward) {
        let Ok(id) = getrandom::u64() else {
            return self.home.reply(forward.origin, HomeReply::Check(Check::INTERNAL));
        };
        machine.ask(began.elapsed(), id, forward.body.clone());
        self.forwarded.insert(id, forward);
    }

    /// A task was aborted: what it waits for is not done, unless the active gateway may have begun to.
    fn recall(&mut self, machine: &mut Machine, began: Instant, origin: Origin) {
        let forward = self.forwarded.extract_if(.., |_, forward| forward.origin == origin).next();
        if let Some((id, _)) = forward {
            machine.recall(began.elapsed(), id);
            self.home.recalled(origin);
        }
        let is_its = |wanter: &Wanter| matches!(wanter, Wanter::Initiator(other) if *other == origin);
        if self.wanters.extract_if(.., |(_, wanter)| is_its(wanter)).next().is_some() {
            self.home.recalled(origin);
            if self.wanters.is_empty() {
                machine.unwant();
            }
        }
    }

    /// What the active gateway has done of that.
    fn forward_ended(&mut self, role: Role, id: u64, outcome: &Outcome) {
        let Some(Forward { origin, request, .. }) = self.forwarded.remove(&id) else { return };
        match outcome {
            Outcome::Executed(reply) => self.home.reply(origin, HomeReply::decode(reply)),
            Outcome::NotExecuted if role == Role::Active => {
                self.home.forward(origin, request);
            }
            Outcome::NotExecuted => self.home.reply(origin, HomeReply::Check(Check::ACCESS_STATE_TRANSITION)),
            Outcome::Unknown => self.home.reply(origin, HomeReply::Check(Check::INTERNAL)),
        }
    }

    /// This gateway is to become active.
    fn want(&mut self, machine: &mut Machine, wanter: Wanter) {
        if machine.status().role != Role::Active {
            machine.want(match wanter {
                Wanter::Initiator(_) => By::Initiator,
                Wanter::Person(_) => By::Person,
            });
        }
        self.wanters.push((Instant::now() + moves_within(&self.cluster), wanter));
    }

    /// Answers who wants it to become active once it is, or will not be.
    fn answer_wanters(&mut self, machine: &mut Machine) {
        if self.wanters.is_empty() {
            return;
        }
        let (status, now) = (machine.status(), Instant::now());
        let is_active = status.role == Role::Active;
        let is_over = is_active || !machine.is_wanted();
        let ended: Vec<_> = self.wanters.extract_if(.., |(until, _)| is_over || now >= *until).collect();
        if self.wanters.is_empty() && !is_over {
            machine.unwant();
        }
        let active = status.record.active.map_or("none".to_owned(), |holder| holder.gateway);
        let why =
            status.fault.unwrap_or_else(|| format!("the active gateway ({active}) has not handed it over"));
        for (_, wanter) in ended {
            self.home.answer_wanter(wanter, if is_active { Ok(()) } else { Err(why.clone()) });
        }
    }

    /// Has others look at what was written: at once, and not only in their own time. Whoever waits for this gateway was answered before.
    fn notify_others(&mut self) {
        if std::mem::take(&mut self.is_news)
            && let Some(pool) = &self.pool
        {
            let _ = pool.notify(&self.object, NOTICE);
        }
    }

    /// Has the home know the ports of other gateways, and their states.
    fn report_others(&mut self, record: &Record) {
        let others = others(record, &self.cluster.gateway);
        if *self.others != *others {
            self.others = others.into();
            self.home.request(Waiter::Nobody, HomeRequest::SetOthers(self.others.clone()));
        }
    }

    /// Has the home set the unit's role.
    fn ask(&self, active: bool, saved: Option<Arc<[u8]>>) {
        self.home.request(Waiter::Gateway(self.home.unit), HomeRequest::SetRole { active, saved });
    }

    fn read(&mut self) -> Result<Option<(u64, Record)>, String> {
        let found = self.pool()?.read(&self.object);
        let found = found.map_err(|error| self.failed(&error))?;
        if found.is_some() && self.watch.is_none() {
            self.watch();
        }
        let decode = |(version, bytes): (u64, Vec<u8>)| match Record::decode(&bytes) {
            Ok(record) => Ok((version, record)),
            Err(error) => Err(format!("object {}: {error}", self.object)),
        };
        found.map(decode).transpose()
    }

    fn replace(&mut self, expected: Option<u64>, record: &Record) -> Result<u64, ReplaceError> {
        let pool = self.pool().map_err(ReplaceError::Failed)?;
        match pool.replace(&self.object, expected, &record.encode()) {
            Ok(version) => Ok(version),
            Err(PoolError::Conflict) => Err(ReplaceError::Conflict),
            Err(error) => Err(ReplaceError::Failed(self.failed(&error))),
        }
    }

    /// The pool, opened where it is not.
    fn pool(&mut self) -> Result<Arc<Pool>, String> {
        if let Some(pool) = &self.pool {
            return Ok(pool.clone());
        }
        let pool = Arc::new(Pool::open(&self.cluster.place).map_err(|error| error.to_string())?);
        Ok(self.pool.insert(pool).clone())
    }

    /// Is notified of changes that others report; without that it polls.
    fn watch(&mut self) {
        let inbox = self.seat.inbox();
        let hint = Box::new(move || _ = inbox.send(GatewayEvent::Noticed));
        let watch = self.pool.as_ref().map(|pool| pool.watch(&self.object, hint));
        self.watch = watch.and_then(Result::ok);
    }

    /// A client that was shut out is replaced by another one.
    fn failed(&mut self, error: &PoolError) -> String {
        match error {
            PoolError::Fenced => (self.watch, self.pool) = (None, None),
            PoolError::Conflict | PoolError::Failed(_) => {}
        }
        format!("object {} of pool {}: {error}", self.object, self.cluster.place.pool)
    }

    /// Shows how it is, and logs what has changed.
    fn show(&mut self, machine: &Machine) {
        let status = machine.status();
        let reading = GatewayReading {
            name: self.cluster.gateway.clone(),
            role: match status.role {
                Role::Active => "active",
                Role::Standby => "standby",
                Role::Transitioning => "transitioning",
            },
            active: status.record.active.as_ref().map(|holder| holder.gateway.clone()),
            gateways: status.record.gateways.keys().cloned().collect(),
            shut_out: self.shut_out.clone(),
            fault: status.fault.clone(),
        };
        *self.seat.reading.lock().unwrap_or_else(PoisonError::into_inner) = Some(reading);
        let lun = &self.lun;
        let (role, fault) = &self.shown;
        if status.role != *role {
            match status.role {
                Role::Active => {
                    let epoch = status.record.epoch;
                    tracing::warn!(%lun, epoch, "this gateway is active for the unit");
                }
                Role::Standby => {
                    let active = status.record.active.map_or("none".to_owned(), |holder| holder.gateway);
                    tracing::warn!(%lun, active, "this gateway is in standby for the unit");
                }
                Role::Transitioning => {}
            }
        }
        if let Some(why) = status.fault.as_ref().filter(|_| status.fault != *fault) {
            match status.role {
                Role::Active => tracing::error!(%lun, "this gateway is active, but {why}"),
                _ => tracing::error!(%lun, "this gateway cannot become active: {why}"),
            }
        }
        self.shown = (status.role, status.fault);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::files::System;

    #[test]
    fn a_thread_that_does_not_end_in_time_is_told_to_end_as_it_is() {
        let (inbox, events) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let running = Running { inbox, ended };
        running.wait(0, Instant::now());
        assert!(matches!(events.try_recv(), Ok(GatewayEvent::End)));
        end.send(()).expect("it is waited for");
        running.wait(0, Instant::now());
        assert!(events.try_recv().is_err(), "it has ended");
    }

    #[test]
    fn what_a_thread_is_asked_after_its_end_is_refused() {
        let text = "[cluster]\nname = 'c'\ngateway = 'a'\npool = 'p'\n[[lun]]\nrbd = 'p/i'\naccess = 'one'\n\
                    [[target]]\nname = 'iqn.2026-11.a:x'\n";
        let config = Config::from_toml(text, std::path::Path::new("lunette.toml"));
        let config = config.unwrap_or_else(|problems| panic!("{problems}"));
        let store = store::open_ram(1 << 20).expect("memory");
        let seat = Seat::of(&config.luns[0]);
        let opened = [Opened {
            store,
            failed: None,
            losses: Arc::default(),
            space: Arc::default(),
            seat: seat.clone(),
        }];
        let (units, _) = NewUnit::all(&config, &opened, &System);
        let core = reactor::mailbox::mesh::<Message>(1).expect("a mailbox");
        let gateways = Gateways::all(&config, &units, &opened, &[core[0].sender(0)]).expect("a thread");
        let inbox = seat.expect("it is shared").inbox();
        inbox.send(GatewayEvent::Withdraw).expect("it runs");
        gateways.running[0].1.ended.recv().expect("it ends");
        let (outbox, outcome) = mpsc::channel();
        inbox.send(GatewayEvent::Want(Wanter::Person(outbox))).expect("it refuses what comes");
        assert_eq!(outcome.recv(), Ok(Err(ENDED.to_owned())));
    }

    #[test]
    fn ports_of_other_gateways_are_in_the_state_that_their_gateway_is_in() {
        let port = |id: u16, state: AccessState| {
            vec![Port { id, group: id, name: format!("iqn.a:x,t,0x{id:04x}"), state: state.code() }]
        };
        let (best, second) = (AccessState::Optimized, AccessState::NonOptimized);
        let gateways =
            [("a".into(), port(1, best)), ("b".into(), port(2, second)), ("c".into(), port(3, best))];
        let active = Some(cluster::Holder { gateway: "b".into(), client: "client".into() });
        let mut record = Record { gateways: gateways.into(), active, ..Record::default() };
        let states = |record: &Record| -> Vec<_> {
            others(record, "a").into_iter().map(|port| (port.relative_id, port.state)).collect()
        };
        assert_eq!(states(&record), [(2, second), (3, AccessState::Standby)]);
        record.fence.push("earlier".into());
        assert_eq!(states(&record), [(2, AccessState::Transitioning), (3, AccessState::Standby)]);
        record.active = None;
        assert_eq!(states(&record), [(2, AccessState::Standby), (3, AccessState::Standby)]);
    }

    #[test]
    fn an_image_has_one_object_whoever_serves_it() {
        let image = config::RbdImage::parse("rbd/tenant/disk").expect("an image");
        assert_eq!(object("c", &image), "lunette.c.rbd/tenant/disk");
        let other = config::RbdImage { client: Some("b".into()), conf: Some("/c".into()), ..image.clone() };
        assert_eq!(object("c", &other), object("c", &image));
        assert_ne!(object("d", &image), object("c", &image));
    }
}
