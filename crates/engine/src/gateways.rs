//! Units that gateways share: for each of them a thread does what [`cluster::Machine`] decides. It waits for the pool and the image, which
//! no core does.

use crate::message::{Message, Origin, Waiter};
use crate::seat::{GatewayEvent, Seat};
use crate::stores::Opened;
use crate::units::NewUnit;
use cluster::{Action, Machine, Me, Port, Record, ReplaceError, Role};
use config::{Cluster, Config, Lun, StoreSpec};
use reactor::mailbox::Sender;
use scsi::HomeRequest;
use scsi::unit::OtherPort;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use store::lane::Failover;
use store::rados::{Pool, PoolError, Watch};
use wire::scsi::AccessState;

/// How often it is checked whether the image's client was shut out.
const GLANCE: Duration = Duration::from_millis(250);

/// How long others may take to notice that they may claim a unit; they poll, too.
const NOTICE: Duration = Duration::from_secs(1);

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
            unit: unit.index,
            object: object(&cluster.name, image),
            ports: unit.ports.iter().map(port).collect(),
            cluster: cluster.clone(),
            seat: seat.clone(),
            home,
            cores: cores.to_vec(),
            pool: None,
            watch: None,
            shown: (Role::Standby, None),
            others: Arc::default(),
        };
        let (end, ended) = mpsc::channel();
        let thread = std::thread::Builder::new().name(format!("gateway-{}", unit.index));
        let started = thread.spawn(move || {
            gateway.run(&events);
            let _ = end.send(());
        });
        started.map_err(|error| format!("a thread for {}: {error}", lun.name))?;
        self.running.push((unit.index, Running { inbox: seat.inbox(), ended }));
        Ok(())
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

/// A unit's thread.
struct Gateway {
    lun: String,
    unit: u32,
    object: String,
    ports: Vec<Port>,
    cluster: Box<Cluster>,
    seat: Arc<Seat>,
    /// The core of the unit's home.
    home: usize,
    cores: Vec<Sender<Message>>,
    pool: Option<Arc<Pool>>,
    watch: Option<Watch>,
    /// What the log had last.
    shown: (Role, Option<String>),
    /// The ports of other gateways that the home knows.
    others: Arc<[OtherPort]>,
}

impl Gateway {
    fn run(mut self, events: &mpsc::Receiver<GatewayEvent>) {
        let Some(store) = self.await_store(events) else { return };
        let began = Instant::now();
        let client = store.client().unwrap_or_default();
        let me = Me { gateway: self.cluster.gateway.clone(), client, ports: self.ports.clone() };
        let mut machine = Machine::new(me, self.cluster.takeover);
        loop {
            if store.is_fenced() {
                machine.fenced();
            }
            while let Some(action) = machine.next(began.elapsed()) {
                self.act(&mut machine, &*store, began, action);
                self.report_others(&machine.status().record);
            }
            self.show(&machine);
            if machine.has_withdrawn() {
                return;
            }
            let wait = machine.wake_at().saturating_sub(began.elapsed()).min(GLANCE);
            match events.recv_timeout(wait) {
                Ok(GatewayEvent::Keep(state)) => machine.save(state),
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
                Ok(GatewayEvent::Keep(_)) => self.answer(false),
                Ok(GatewayEvent::Withdraw | GatewayEvent::End)
                | Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                Ok(GatewayEvent::Applied(_) | GatewayEvent::Noticed) => {}
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
                let concerns_others =
                    record.next != before.next || (record.active.is_none() && before.active.is_some());
                let is_done = outcome.is_ok();
                machine.replaced(began.elapsed(), outcome);
                if let Some(pool) = self.pool.as_ref().filter(|_| is_done && concerns_others) {
                    let _ = pool.notify(&self.object, NOTICE);
                }
            }
            Action::Promote { fence } => {
                if !fence.is_empty() {
                    tracing::warn!(lun = %self.lun, "the gateway that served the unit is shut out: {}", fence.join(", "));
                }
                let outcome = store.promote(&fence);
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
                self.request(Waiter::Nobody, HomeRequest::StoreChanged(store.traits()));
                self.ask(true, Some(saved.into()));
            }
            Action::Deactivate { lost } => {
                self.ask(false, None);
                if lost {
                    self.cores.iter().for_each(|core| core.post(Message::EndSessionsOf { unit: self.unit }));
                }
            }
            Action::Saved(ok) => self.answer(ok),
        }
    }

    /// Has the home know the ports of other gateways, and their states.
    fn report_others(&mut self, record: &Record) {
        let others = others(record, &self.cluster.gateway);
        if *self.others != *others {
            self.others = others.into();
            self.request(Waiter::Nobody, HomeRequest::SetOthers(self.others.clone()));
        }
    }

    /// Has the home set the unit's role.
    fn ask(&self, active: bool, saved: Option<Arc<[u8]>>) {
        self.request(Waiter::Gateway(self.unit), HomeRequest::SetRole { active, saved });
    }

    fn request(&self, who: Waiter, request: HomeRequest) {
        let origin = Origin { core: self.home, who };
        self.cores[self.home].post(Message::Home { unit: self.unit, origin, request });
    }

    fn answer(&self, ok: bool) {
        self.cores[self.home].post(Message::Persisted { unit: self.unit, ok });
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

    /// Logs what has changed.
    fn show(&mut self, machine: &Machine) {
        let status = machine.status();
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
                Role::Active => tracing::error!(%lun, "this gateway cannot show others that it lives: {why}"),
                _ => tracing::error!(%lun, "this gateway cannot become active: {why}"),
            }
        }
        self.shown = (status.role, status.fault);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
