//! Gateways of one unit in a world determined by a seed: a pool that answers slowly, an image with a lock and
//! a list of fenced clients, of which its servers learn one after the other, and gateways that are paused,
//! cut off, killed and started.

mod scenarios;

use cluster::{Access, Action, By, Machine, Me, Member, Outcome, Port, Record, ReplaceError, Role};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::time::Duration;

const TAKEOVER: u64 = 10_000;
const BLOCKS: usize = 3;
/// How long a call waits for a cluster that does not answer.
const SILENCE: u64 = 3_000;

/// Ways to break the machine's environment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mutant {
    None,
    /// A client is fenced, but the gateway taking over does not wait for the map that contains that.
    FenceWithoutEpoch,
    /// State is acknowledged before it is written.
    AcknowledgedEarly,
    /// A claim is not confirmed after fencing.
    Unconfirmed,
    /// The reply to another gateway is not written together with the state that it reports.
    ReplyApart,
}

#[derive(Clone, Debug)]
enum Event {
    /// A gateway looks for what to do.
    Turn,
    /// A call takes effect in the cluster.
    Effect(Action),
    /// It returns.
    Return(Returned),
    /// The home takes the next request.
    Home,
    /// All cores have applied it.
    Applied,
    /// All cores have applied a change that is saved, or it was undone.
    Published(Change, bool),
    /// An initiator sends something.
    Load,
    /// A request leaves the gateway, and arrives.
    Send(Request),
    Arrive(Request),
    Ended(bool),
    Start,
}

#[derive(Clone, Debug)]
enum Returned {
    Read(Box<Option<(u64, Record)>>),
    Replaced(Result<u64, ReplaceError>),
    Promoted(Result<(), String>),
    Fenced,
    Demoted,
    Reopened,
    /// It has failed.
    Cut(Action),
}

#[derive(Clone, Debug)]
struct Request {
    client: String,
    /// The process that waits for it.
    life: u64,
    /// The claim under which it was admitted.
    epoch: u64,
    block: usize,
    is_write: bool,
    map: u64,
}

/// Requests to the home, which takes one after the other.
#[derive(Clone, Debug)]
enum Ask {
    Adopt,
    /// With the saved state, under this claim.
    Activate(Vec<u8>, u64),
    Deactivate,
    /// To change state that must survive.
    Change(Change),
}

/// A change of state that must survive: adds a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Change {
    id: u16,
    /// Another gateway's initiator requested it.
    is_forwarded: bool,
}

/// A gateway: its process, its client, and its unit's home.
/// Its fields are what these three know, each as simple as it can be.
struct Gateway {
    machine: Machine,
    /// The number of its current process and client: events of others are ignored.
    life: u64,
    clients: u64,
    client: String,
    is_alive: bool,
    /// It is paused or cut off until then: nothing leaves it and nothing reaches it.
    held_until: u64,
    /// Until then it does not reach the cluster, although initiators reach it.
    cut_until: u64,
    is_active: bool,
    epoch: u64,
    saved: Vec<u16>,
    /// A change that must become durable before it is acknowledged.
    keeping: Option<Change>,
    /// A change that not all cores have applied yet.
    publishing: bool,
    /// Its requests to another gateway, and whether their initiators have aborted them.
    asking: BTreeMap<u16, bool>,
    in_flight: u32,
    asked: VecDeque<Ask>,
    /// Going to standby, once nothing is in flight.
    leaves: bool,
    map: u64,
    /// When it next looks for what to do.
    next_turn: u64,
}

/// Its fields are the parts of the model and what its invariants count.
struct World {
    seed: u64,
    rng: fastrand::Rng,
    mutant: Mutant,
    now: u64,
    /// Time, order, gateway and its life, event.
    queue: BinaryHeap<std::cmp::Reverse<(u64, u64)>>,
    events: BTreeMap<u64, (usize, u64, Event)>,
    order: u64,
    gateways: Vec<Gateway>,
    slow: bool,
    object: Option<(u64, Record)>,
    lock: Option<String>,
    /// The monitors' map, and since which map clients are fenced.
    map: u64,
    shut_out: BTreeMap<String, u64>,
    /// For each block's server: its map, and the newest claim that it has served.
    servers: [(u64, u64); BLOCKS],
    holders: BTreeMap<u64, String>,
    promised: BTreeSet<u16>,
    /// Requests of gateways in standby whose initiators know that they were not executed; how many were, and how
    /// many were aborted; under which claim each was executed, and what all cores there have applied.
    declined: BTreeSet<u16>,
    forwarded: u64,
    recalled: u64,
    executed_in: BTreeMap<u16, u64>,
    applied: BTreeSet<u16>,
    next_id: u16,
    claims: u64,
    landed: u64,
    refused: u64,
    found: Option<String>,
}

impl World {
    fn new(seed: u64, count: usize, slow: bool, mutant: Mutant) -> World {
        let mut world = World {
            seed,
            rng: fastrand::Rng::with_seed(seed),
            mutant,
            now: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            order: 0,
            gateways: Vec::new(),
            slow,
            object: None,
            lock: None,
            map: 1,
            shut_out: BTreeMap::new(),
            servers: [(1, 0); BLOCKS],
            holders: BTreeMap::new(),
            promised: BTreeSet::new(),
            declined: BTreeSet::new(),
            forwarded: 0,
            recalled: 0,
            executed_in: BTreeMap::new(),
            applied: BTreeSet::new(),
            next_id: 0,
            claims: 0,
            landed: 0,
            refused: 0,
            found: None,
        };
        for index in 0..count {
            let gateway = world.process(index, 0);
            world.gateways.push(gateway);
            world.post(index, 0, Event::Turn);
            world.post(index, 0, Event::Load);
        }
        world
    }

    fn process(&mut self, index: usize, life: u64) -> Gateway {
        let client = format!("g{index}.{life}.0");
        let number = index as u16 + 1;
        let me = Me {
            gateway: format!("g{index}"),
            client: client.clone(),
            ports: vec![Port { id: number, group: number, name: format!("port{index}"), state: 0 }],
            member: Member { process: client.clone(), takeover_ms: TAKEOVER, disk: String::new() },
        };
        Gateway {
            machine: Machine::new(me, Duration::from_millis(TAKEOVER), Access::One),
            life,
            clients: 0,
            client,
            is_alive: true,
            held_until: 0,
            cut_until: 0,
            is_active: false,
            epoch: 0,
            saved: Vec::new(),
            keeping: None,
            publishing: false,
            asking: BTreeMap::new(),
            in_flight: 0,
            asked: VecDeque::new(),
            leaves: false,
            map: self.map,
            next_turn: 0,
        }
    }

    fn post(&mut self, gateway: usize, after: u64, event: Event) {
        let life = self.gateways.get(gateway).map_or(0, |gateway| gateway.life);
        self.order += 1;
        self.events.insert(self.order, (gateway, life, event));
        self.queue.push(std::cmp::Reverse((self.now + after, self.order)));
    }

    /// How long something takes: rarely long.
    fn delay(&mut self) -> u64 {
        match self.rng.u32(..100) {
            0 if self.slow => self.rng.u64(1_000..15_000),
            1..4 if self.slow => self.rng.u64(100..1_000),
            _ => self.rng.u64(1..20),
        }
    }

    fn find(&mut self, what: impl FnOnce() -> String) {
        if self.found.is_none() {
            self.found = Some(format!("seed {} at {} ms: {}", self.seed, self.now, what()));
        }
    }

    /// Runs until this time, with faults along the way decided by `faults`.
    fn run(&mut self, until: u64, mut faults: impl FnMut(&mut World)) {
        while let Some(&std::cmp::Reverse((at, order))) = self.queue.peek() {
            if at > until || self.found.is_some() {
                break;
            }
            self.queue.pop();
            self.now = at;
            let (index, life, event) = self.events.remove(&order).expect("it is queued");
            let gateway = &self.gateways[index];
            let in_cluster = matches!(event, Event::Effect(_) | Event::Arrive(_));
            let is_gone = life != gateway.life || (!gateway.is_alive && !matches!(event, Event::Start));
            if is_gone && !in_cluster {
                continue;
            }
            if gateway.held_until > self.now && !in_cluster {
                // Its own events, and what it was about to send, wait.
                self.events.insert(order, (index, life, event));
                self.queue.push(std::cmp::Reverse((gateway.held_until, order)));
                continue;
            }
            self.handle(index, event);
            faults(self);
        }
        self.now = self.now.max(until);
    }

    fn handle(&mut self, index: usize, event: Event) {
        match event {
            Event::Turn => self.turn(index),
            Event::Effect(action) if self.gateways[index].cut_until > self.now => {
                self.post(index, SILENCE, Event::Return(Returned::Cut(action)));
            }
            Event::Effect(action) => self.effect(index, action),
            Event::Return(returned) => {
                self.returned(index, returned);
                self.turn(index);
            }
            Event::Home => self.home(index),
            Event::Applied => {
                self.gateways[index].machine.applied();
                self.turn(index);
            }
            Event::Published(change, ok) => self.published(index, change, ok),
            Event::Load => self.load(index),
            Event::Send(request) => {
                let map = self.gateways[index].map;
                let cut = self.gateways[index].cut_until.saturating_sub(self.now);
                if cut > 0 {
                    // Nobody waits for it any more when it arrives.
                    self.post(index, SILENCE, Event::Ended(true));
                    self.post(index, cut, Event::Arrive(Request { map, life: u64::MAX, ..request }));
                    return;
                }
                let delay = self.delay();
                self.post(index, delay, Event::Arrive(Request { map, ..request }));
            }
            Event::Arrive(request) => self.arrive(index, &request),
            Event::Ended(ok) => {
                let gateway = &mut self.gateways[index];
                gateway.in_flight -= 1;
                if !ok {
                    gateway.machine.fenced();
                }
                self.settle(index);
                self.turn(index);
            }
            Event::Start => {
                let life = self.gateways[index].life + 1;
                self.gateways[index] = self.process(index, life);
                self.post(index, 0, Event::Turn);
                self.post(index, 0, Event::Load);
            }
        }
    }

    /// The work of the daemon's thread.
    fn turn(&mut self, index: usize) {
        let now = Duration::from_millis(self.now);
        while let Some(action) = self.gateways[index].machine.next(now) {
            match action {
                Action::Adopt { .. } => self.ask(index, Ask::Adopt),
                Action::Activate { saved } => {
                    let epoch = self.gateways[index].machine.status().record.epoch;
                    self.ask(index, Ask::Activate(saved, epoch));
                }
                Action::Deactivate { lost: _ } => self.ask(index, Ask::Deactivate),
                Action::Saved(ok) => {
                    let gateway = &mut self.gateways[index];
                    if let Some(change) = gateway.keeping.take() {
                        gateway.publishing = true;
                        if ok {
                            gateway.saved.push(change.id);
                            self.promised.insert(change.id);
                        }
                        let delay = self.delay();
                        self.post(index, delay, Event::Published(change, ok));
                    }
                    self.check_promises(index);
                }
                Action::Execute { body } => {
                    self.ask(index, Ask::Change(Change { id: ids(&body)[0], is_forwarded: true }));
                }
                Action::Answer { id, outcome } => self.answered(index, id as u16, &outcome),
                Action::Reopen if self.gateways[index].cut_until > self.now => {
                    self.post(index, SILENCE, Event::Return(Returned::Cut(Action::Reopen)));
                }
                Action::Reopen => {
                    let gateway = &mut self.gateways[index];
                    gateway.clients += 1;
                    gateway.client = format!("g{index}.{}.{}", gateway.life, gateway.clients);
                    // What the old client has in flight ends on its own.
                    let delay = self.delay();
                    self.post(index, delay, Event::Return(Returned::Reopened));
                }
                call => {
                    let delay = self.delay();
                    self.post(index, delay, Event::Effect(call));
                }
            }
        }
        let wake = self.gateways[index].machine.wake_at().as_millis() as u64;
        let next = &mut self.gateways[index].next_turn;
        if wake > self.now && !(self.now + 1..=wake).contains(next) {
            *next = wake;
            self.post(index, wake - self.now, Event::Turn);
        }
    }

    fn ask(&mut self, index: usize, ask: Ask) {
        self.gateways[index].asked.push_back(ask);
        let delay = self.delay();
        self.post(index, delay, Event::Home);
    }

    fn home(&mut self, index: usize) {
        let gateway = &mut self.gateways[index];
        if gateway.leaves || gateway.keeping.is_some() || gateway.publishing {
            return;
        }
        match gateway.asked.pop_front() {
            None => return,
            Some(Ask::Change(change)) => return self.change(index, change),
            Some(Ask::Deactivate) => {
                (gateway.is_active, gateway.leaves) = (false, true);
                return self.settle(index);
            }
            Some(Ask::Adopt) => {}
            Some(Ask::Activate(saved, epoch)) => {
                (gateway.is_active, gateway.saved, gateway.epoch) = (true, ids(&saved), epoch);
                self.check_once(index);
                self.check_promises(index);
            }
        }
        self.post(index, 0, Event::Applied);
    }

    /// A home that goes to standby has applied that when nothing is in flight, and then continues.
    fn settle(&mut self, index: usize) {
        let gateway = &mut self.gateways[index];
        if gateway.leaves && gateway.in_flight == 0 {
            gateway.leaves = false;
            self.post(index, 0, Event::Applied);
            self.post(index, 0, Event::Home);
        }
    }

    fn effect(&mut self, index: usize, action: Action) {
        let client = self.gateways[index].client.clone();
        let returned = match action {
            Action::Read => Returned::Read(Box::new(self.object.clone())),
            Action::Replace { expected, record } => {
                if self.object.as_ref().map(|(version, _)| *version) == expected {
                    let version = expected.unwrap_or(0) + 1;
                    self.claims +=
                        u64::from(self.object.as_ref().map_or(0, |(_, now)| now.epoch) != record.epoch);
                    self.object = Some((version, *record));
                    Returned::Replaced(Ok(version))
                } else if self.mutant == Mutant::Unconfirmed
                    && record.fence.is_empty()
                    && !self.gateways[index].is_active
                {
                    Returned::Replaced(Ok(expected.unwrap_or(0)))
                } else {
                    Returned::Replaced(Err(ReplaceError::Conflict))
                }
            }
            Action::Promote { fence } => {
                for other in fence {
                    self.map += 1;
                    self.shut_out.entry(other).or_insert(self.map);
                }
                if self.mutant != Mutant::FenceWithoutEpoch {
                    self.gateways[index].map = self.map;
                }
                Returned::Fenced
            }
            Action::Demote => {
                if self.lock.as_ref() == Some(&client) {
                    self.lock = None;
                }
                Returned::Demoted
            }
            Action::Reopen
            | Action::CatchUp
            | Action::Fence { .. }
            | Action::Join { .. }
            | Action::Adopt { .. }
            | Action::Activate { .. }
            | Action::Deactivate { .. }
            | Action::Saved(_)
            | Action::Execute { .. }
            | Action::Answer { .. } => {
                unreachable!("no calls to the cluster")
            }
        };
        let returned = match returned {
            Returned::Fenced => {
                // Then it takes the lock, if its owner is certainly gone.
                let is_free = self
                    .lock
                    .as_ref()
                    .is_none_or(|owner| self.shut_out.contains_key(owner) || *owner == client);
                Returned::Promoted(if self.shut_out.contains_key(&client) {
                    self.gateways[index].machine.fenced();
                    Err("shut out".into())
                } else if is_free {
                    self.lock = Some(client);
                    Ok(())
                } else {
                    Err("another client lives".into())
                })
            }
            other => other,
        };
        let delay = self.delay();
        self.post(index, delay, Event::Return(returned));
    }

    fn returned(&mut self, index: usize, returned: Returned) {
        let now = Duration::from_millis(self.now);
        let gateway = &mut self.gateways[index];
        match returned {
            Returned::Read(found) => gateway.machine.read(now, Ok(*found)),
            Returned::Replaced(outcome) => gateway.machine.replaced(now, outcome),
            Returned::Promoted(outcome) => gateway.machine.promoted(outcome),
            Returned::Demoted => gateway.machine.demoted(now, Ok(())),
            Returned::Reopened => {
                gateway.map = gateway.map.max(self.map);
                gateway.machine.reopened(now, Ok(gateway.client.clone()));
            }
            Returned::Cut(action) => {
                let why = String::from("the cluster does not answer");
                match action {
                    Action::Read => gateway.machine.read(now, Err(why)),
                    Action::Replace { .. } => gateway.machine.replaced(now, Err(ReplaceError::Failed(why))),
                    Action::Promote { .. } => gateway.machine.promoted(Err(why)),
                    Action::Demote => gateway.machine.demoted(now, Err(why)),
                    _ => gateway.machine.reopened(now, Err(why)),
                }
            }
            Returned::Fenced => unreachable!("it is a step of promoting"),
        }
    }

    /// Initiators read and write through whatever is active, and change state that must survive.
    fn load(&mut self, index: usize) {
        let pause = self.rng.u64(20..200);
        self.post(index, pause, Event::Load);
        if !self.gateways[index].is_active {
            return self.request(index);
        }
        let (block, is_write) = (self.rng.usize(..BLOCKS), self.rng.bool());
        let delay = self.delay();
        let gateway = &mut self.gateways[index];
        gateway.in_flight += 1;
        let request = Request {
            client: gateway.client.clone(),
            life: gateway.life,
            epoch: gateway.epoch,
            block,
            is_write,
            map: 0,
        };
        self.post(index, delay, Event::Send(request));
        let gateway = &mut self.gateways[index];
        if gateway.asked.len() < 3 && self.rng.u32(..5) == 0 {
            let id = self.next_id();
            self.ask(index, Ask::Change(Change { id, is_forwarded: false }));
        }
    }

    fn next_id(&mut self) -> u16 {
        self.next_id += 1;
        self.next_id
    }

    /// An initiator at a gateway in standby requests a change.
    fn request(&mut self, index: usize) {
        if self.gateways[index].asking.len() < 3 && self.rng.u32(..10) == 0 {
            let (id, now) = (self.next_id(), Duration::from_millis(self.now));
            let gateway = &mut self.gateways[index];
            gateway.asking.insert(id, false);
            gateway.machine.ask(now, id.into(), id.to_be_bytes().into());
            self.turn(index);
        }
        if self.rng.u32(..20) == 0 {
            self.recall(index);
        }
    }

    /// An initiator aborts its request to a gateway in standby.
    fn recall(&mut self, index: usize) {
        let nth = self.rng.usize(..3);
        let now = Duration::from_millis(self.now);
        let gateway = &mut self.gateways[index];
        let Some((id, is_recalled)) = gateway.asking.iter_mut().nth(nth) else { return };
        let id = *id;
        *is_recalled = true;
        self.recalled += 1;
        if gateway.machine.recall(now, id.into()) {
            gateway.asking.remove(&id);
            self.declined.insert(id);
        }
        self.turn(index);
    }

    /// The answer to an initiator of a gateway in standby.
    fn answered(&mut self, index: usize, id: u16, outcome: &Outcome) {
        let is_recalled = self.gateways[index].asking.remove(&id).expect("it is answered once");
        match outcome {
            Outcome::Executed(reply) if reply.is_empty() => {}
            Outcome::Executed(_) => {
                self.forwarded += 1;
                let newest = self.object.as_ref().map_or(0, |(_, record)| record.epoch);
                let is_applied = self.applied.contains(&id);
                // If it is not yet applied where it was executed, that gateway is fenced.
                self.promised.insert(id);
                if !is_applied && self.executed_in.get(&id).is_none_or(|epoch| *epoch == newest) {
                    self.find(|| format!("g{index} answers {id}, which is not done"));
                }
            }
            Outcome::NotExecuted if self.gateways[index].is_active && !is_recalled => {
                self.ask(index, Ask::Change(Change { id, is_forwarded: false }));
            }
            Outcome::NotExecuted => {
                self.declined.insert(id);
            }
            Outcome::Unknown => {}
        }
    }

    /// The home makes a change.
    fn change(&mut self, index: usize, change: Change) {
        let gateway = &mut self.gateways[index];
        if !gateway.is_active {
            // It was requested by an initiator of this gateway: the home would forward it.
            return self.post(index, 0, Event::Home);
        }
        let all = gateway.saved.iter().copied().chain([change.id]).flat_map(u16::to_be_bytes).collect();
        gateway.keeping = Some(change);
        self.executed_in.insert(change.id, gateway.epoch);
        let outcome = change.is_forwarded && self.mutant != Mutant::ReplyApart;
        gateway.machine.save(all, outcome.then(|| change.id.to_be_bytes().into()));
        if self.mutant == Mutant::AcknowledgedEarly {
            self.promised.insert(change.id);
        }
        self.turn(index);
    }

    /// All cores have applied a change, or it was not saved.
    fn published(&mut self, index: usize, change: Change, ok: bool) {
        if ok {
            self.applied.insert(change.id);
        }
        let gateway = &mut self.gateways[index];
        gateway.publishing = false;
        if change.is_forwarded {
            gateway.machine.executed(if ok { change.id.to_be_bytes().into() } else { Vec::new() });
        }
        self.post(index, 0, Event::Home);
        self.turn(index);
    }

    /// At the server of a block.
    fn arrive(&mut self, index: usize, request: &Request) {
        // Servers learn of a new map from whoever has it, or in their own time.
        let gossip = if self.rng.u32(..200) == 0 { self.map } else { 0 };
        let server = &mut self.servers[request.block];
        server.0 = server.0.max(request.map).max(gossip);
        let is_out = self.shut_out.get(&request.client).is_some_and(|since| *since <= server.0);
        if is_out {
            self.refused += 1;
        } else {
            let (newest, epoch) = (server.1, request.epoch);
            server.1 = newest.max(epoch);
            self.landed += u64::from(request.is_write);
            if epoch < newest {
                self.find(|| format!("{request:?} took effect after one of epoch {newest}"));
            }
            let holder = self.holders.entry(epoch).or_insert_with(|| request.client.clone()).clone();
            if holder != request.client {
                self.find(|| format!("{request:?}: {holder} has used the medium in that epoch"));
            }
        }
        if self.gateways[index].life == request.life {
            let delay = self.delay();
            self.post(index, delay, Event::Ended(!is_out));
        }
    }

    /// Whoever is active knows everything acknowledged.
    fn check_promises(&mut self, index: usize) {
        let newest = self.object.as_ref().map_or(0, |(_, record)| record.epoch);
        let gateway = &self.gateways[index];
        let is_current = gateway.is_active && gateway.epoch == newest;
        let saved: BTreeSet<u16> = gateway.saved.iter().copied().collect();
        if is_current && let Some(lost) = self.promised.difference(&saved).next().copied() {
            self.find(|| format!("{lost} was acknowledged, and g{index} does not know it"));
        }
    }

    /// Nothing was executed twice, or although its initiator knows otherwise.
    fn check_once(&mut self, index: usize) {
        let mut seen = BTreeSet::new();
        let saved = self.gateways[index].saved.clone();
        let twice = saved.into_iter().find(|id| !seen.insert(*id) || self.declined.contains(id));
        if let Some(id) = twice {
            self.find(|| format!("{id} was executed twice, or after it was declined, as g{index} finds"));
        }
    }

    fn active(&self) -> Vec<usize> {
        let is_active =
            |gateway: &&Gateway| gateway.is_alive && gateway.machine.status().role == Role::Active;
        (0..self.gateways.len()).filter(|index| is_active(&&self.gateways[*index])).collect()
    }

    fn kill(&mut self, index: usize, restarted_after: Option<u64>) {
        self.gateways[index].is_alive = false;
        self.gateways[index].life += 1;
        if let Some(after) = restarted_after {
            self.post(index, after, Event::Start);
        }
    }
}

fn ids(saved: &[u8]) -> Vec<u16> {
    saved.chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect()
}
