//! Gateways of one unit in a world determined by a seed: a pool that answers slowly, an image with a lock and
//! a list of fenced clients, of which its servers learn one after the other, and gateways that are paused,
//! cut off, killed and started.

mod all;
mod checks;
mod home;
mod pool;
mod scenarios;

use cluster::{Access, Action, By, Machine, Me, Member, Outcome, Port, Record, ReplaceError, Role};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::time::Duration;

const TAKEOVER: u64 = 10_000;
const BLOCKS: usize = 3;
/// How long a call waits for a cluster that does not answer.
const SILENCE: u64 = 3_000;
/// How long it waits for the monitors.
const ELECTION: u64 = 30_000;
/// What gateways are configured for.
const MAPS: u64 = 7_000;
/// All servers have a map after this time.
const SPREADS: u64 = 6_500;

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
    /// A home does not say that a change ends what others have begun.
    EndsUnannounced,
    /// A gateway that serves does not wait for the map with the fences of which the object speaks.
    NotCaughtUp,
    /// It reports as applied what it has yet to apply.
    AppliedEarly,
    /// It serves before it is in the object.
    ServesUnlisted,
    /// It ends what it has begun when it finds itself fenced, although others have not caught up with that.
    EndsEarly,
}

#[derive(Clone, Debug)]
enum Event {
    /// A gateway looks for what to do.
    Turn,
    /// A call takes effect in the cluster.
    Effect(Action),
    /// The monitors answer, or it waits for them no longer.
    Late(Action),
    /// It takes effect although nobody waits for it any more; of this client, and process.
    Stray(Action, String, u64),
    /// It returns.
    Return(Returned),
    /// The home takes the next request.
    Home,
    /// All cores have applied it.
    Applied,
    /// All cores have applied a change that is saved, or it was undone.
    Published(Change, bool),
    /// A state takes effect that was reported as applied.
    Takes(Vec<u16>),
    /// An initiator sends something.
    Load,
    /// A request leaves the gateway, and arrives.
    Send(Request),
    Arrive(Request),
    Ended(u64, bool),
    /// Another gateway has notified it that the object has changed.
    Noticed,
    Start,
}

#[derive(Clone, Debug)]
enum Returned {
    Read(Box<Option<(u64, Record)>>),
    Replaced(Result<u64, ReplaceError>),
    Promoted(Result<(), String>),
    Fenced,
    FencedOthers,
    CaughtUp(Result<(), String>),
    Demoted,
    Reopened,
    /// It has failed.
    Cut(Action),
}

#[derive(Clone, Debug)]
struct Request {
    id: u64,
    client: String,
    /// The process that waits for it.
    life: u64,
    /// The claim under which it was admitted.
    epoch: u64,
    block: usize,
    is_write: bool,
    map: u64,
    /// How many changes were in force when it was admitted, and how many had been acknowledged.
    state: usize,
    acked: usize,
    issued: u64,
    /// Its client was fenced already.
    is_out: bool,
}

/// The server of a block.
#[derive(Clone, Default)]
struct Server {
    map: u64,
    /// The newest claim that it has served.
    epoch: u64,
    /// The most acknowledged changes that an initiator knew of, and when the newest write was issued.
    acked: usize,
    issued: BTreeMap<String, u64>,
    /// It executes nothing until then.
    stuck_until: u64,
}

/// Requests to the home, which takes one after the other.
#[derive(Clone, Debug)]
enum Ask {
    Adopt(Vec<u8>),
    Join(Vec<u8>),
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
    /// Until then it does not reach the cluster, although initiators reach it; or not its monitor.
    cut_until: u64,
    deaf_until: u64,
    /// It has claimed the unit, and others are fenced.
    is_promoted: bool,
    /// Between these times the medium gets nothing of it, although the pool does.
    hung: (u64, u64),
    /// And its calls to them fail at once, since one that hangs occupies the thread that makes them.
    fails_until: u64,
    /// Calls that concern the image, nobody waits for, and have yet to take effect: no other one is begun before that.
    hanging: u32,
    /// Its home decides; it has access to the medium.
    is_active: bool,
    serves: bool,
    epoch: u64,
    saved: Vec<u16>,
    /// It applies a state, and has done so when what was admitted before has ended.
    adopting: bool,
    /// A change that must become durable before it is acknowledged.
    keeping: Option<Change>,
    /// A change that not all cores have applied yet.
    publishing: bool,
    /// What it was, and whether it was saved, once it only waits for what was admitted before.
    published: Option<(Change, bool)>,
    /// Its requests to another gateway, and whether their initiators have aborted them.
    asking: BTreeMap<u16, bool>,
    /// Requests that have no answer: under which state they were admitted, and when.
    in_flight: BTreeMap<u64, (usize, u64)>,
    asked: VecDeque<Ask>,
    /// Going to standby, once nothing is in flight.
    leaves: bool,
    /// What it need not apply any more.
    begun: usize,
    map: u64,
    /// When it next looks for what to do.
    next_turn: u64,
    /// When it last replaced the object.
    wrote: u64,
}

/// A request on its way.
struct Outstanding {
    client: String,
    state: usize,
    /// When its initiator considered it as over.
    released: Option<u64>,
}

/// Its fields are the parts of the model and what its invariants count.
struct World {
    seed: u64,
    rng: fastrand::Rng,
    mutant: Mutant,
    access: Access,
    now: u64,
    /// Time, order, gateway and its life, event.
    queue: BinaryHeap<std::cmp::Reverse<(u64, u64)>>,
    events: BTreeMap<u64, (usize, u64, Event)>,
    order: u64,
    gateways: Vec<Gateway>,
    slow: bool,
    /// The monitors elect a leader until then.
    deaf_until: u64,
    object: Option<(u64, Record)>,
    lock: Option<String>,
    /// The monitors' map, and since which map clients are fenced.
    map: u64,
    shut_out: BTreeMap<String, u64>,
    /// When there was a new one.
    maps: Vec<u64>,
    servers: [Server; BLOCKS],
    /// Requests on their way.
    outstanding: BTreeMap<u64, Outstanding>,
    /// Initiators give a path up if it does not answer for this long.
    patience: u64,
    /// How many changes have been acknowledged.
    acked: usize,
    requests: u64,
    /// Servers may never get a map on their own. Then it counts only what others see that are not fenced.
    lags: bool,
    /// What a call takes, and the longest time between two changes of the object by a gateway.
    pace: std::ops::Range<u64>,
    longest: u64,
    holders: BTreeMap<u64, String>,
    promised: BTreeSet<u16>,
    /// Requests of gateways in standby whose initiators know that they were not executed; how many were, and how
    /// many were aborted; under which claim each was executed, and what all cores there have applied.
    declined: BTreeSet<u16>,
    forwarded: u64,
    recalled: u64,
    executed_in: BTreeMap<u16, u64>,
    executed_by: BTreeMap<u16, String>,
    applied: BTreeSet<u16>,
    next_id: u16,
    claims: u64,
    landed: u64,
    refused: u64,
    found: Option<String>,
}

impl World {
    fn new(seed: u64, count: usize, slow: bool, mutant: Mutant) -> World {
        World::with(Access::One, seed, count, slow, mutant)
    }

    fn with(access: Access, seed: u64, count: usize, slow: bool, mutant: Mutant) -> World {
        let mut world = World {
            seed,
            rng: fastrand::Rng::with_seed(seed),
            mutant,
            access,
            now: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            order: 0,
            gateways: Vec::new(),
            slow,
            deaf_until: 0,
            object: None,
            lock: None,
            map: 1,
            shut_out: BTreeMap::new(),
            maps: Vec::new(),
            servers: [const { Server { map: 1, epoch: 0, acked: 0, issued: BTreeMap::new(), stuck_until: 0 } };
                BLOCKS],
            outstanding: BTreeMap::new(),
            patience: u64::MAX,
            acked: 0,
            requests: 0,
            lags: false,
            pace: 1..20,
            longest: 0,
            holders: BTreeMap::new(),
            promised: BTreeSet::new(),
            declined: BTreeSet::new(),
            forwarded: 0,
            recalled: 0,
            executed_in: BTreeMap::new(),
            executed_by: BTreeMap::new(),
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
            member: Member {
                process: client.clone(),
                takeover_ms: TAKEOVER,
                osd_map_ms: MAPS,
                disk: String::new(),
            },
        };
        Gateway {
            machine: Machine::new(me, Duration::from_millis(TAKEOVER), self.access),
            life,
            clients: 0,
            client,
            is_alive: true,
            held_until: 0,
            cut_until: 0,
            deaf_until: 0,
            is_promoted: false,
            hung: (0, 0),
            fails_until: 0,
            hanging: 0,
            is_active: false,
            serves: false,
            epoch: 0,
            saved: Vec::new(),
            adopting: false,
            keeping: None,
            publishing: false,
            published: None,
            asking: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            asked: VecDeque::new(),
            leaves: false,
            begun: 0,
            map: self.map,
            next_turn: 0,
            wrote: self.now,
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
            _ => self.rng.u64(self.pace.clone()),
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
            let in_cluster =
                matches!(event, Event::Effect(_) | Event::Late(_) | Event::Stray(..) | Event::Arrive(_));
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
            Event::Effect(action) if self.gateways[index].hanging > 0 && is_of_image(&action) => {
                let delay = self.delay();
                self.post(index, delay, Event::Return(Returned::Cut(action)));
            }
            Event::Effect(action) if self.gateways[index].cut_until > self.now => {
                let rest = self.gateways[index].cut_until - self.now;
                self.strays(index, rest, &action);
                self.post(index, SILENCE, Event::Return(Returned::Cut(action)));
            }
            // It is known to hang. So the image is not handed over, and a new client does not wait for that.
            Event::Effect(Action::Demote) if self.access == Access::One && self.lingers(index) => {
                let delay = self.delay();
                self.post(index, delay, Event::Return(Returned::Cut(Action::Demote)));
            }
            // They wait for the end of what is on its way, unless its client is fenced.
            Event::Effect(action @ (Action::Demote | Action::Reopen))
                if self.access == Access::All && self.lingers(index) =>
            {
                self.post(index, ELECTION, Event::Return(Returned::Cut(action)));
            }
            Event::Effect(action) => match self.is_deaf(index, &action) {
                0 => self.effect(index, action),
                _ if self.gateways[index].fails_until > self.now => {
                    let delay = self.delay();
                    self.post(index, delay, Event::Return(Returned::Cut(action)));
                }
                wait => self.post(index, wait.min(ELECTION), Event::Late(action)),
            },
            Event::Late(action) => match self.is_deaf(index, &action) {
                0 => self.effect(index, action),
                rest => {
                    self.gateways[index].fails_until = self.now + rest;
                    self.strays(index, rest, &action);
                    self.post(index, 0, Event::Return(Returned::Cut(action)));
                }
            },
            Event::Stray(action, client, life) => self.stray(index, action, &client, life),
            Event::Return(returned) => {
                self.returned(index, returned);
                self.turn(index);
            }
            Event::Home => self.home(index),
            Event::Applied => {
                self.gateways[index].machine.applied();
                self.turn(index);
            }
            Event::Published(change, ok) => {
                self.gateways[index].published = Some((change, ok));
                self.settle(index);
            }
            Event::Takes(saved) => self.gateways[index].saved = saved,
            Event::Load => self.load(index),
            Event::Send(request) => self.send(index, request),
            Event::Arrive(request) => self.arrive(index, request),
            Event::Ended(id, ok) => self.ended(index, id, ok),
            Event::Noticed => {
                self.gateways[index].machine.noticed();
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

    /// A request leaves a gateway.
    fn send(&mut self, index: usize, request: Request) {
        let map = self.gateways[index].map;
        let Gateway { cut_until, hung, .. } = self.gateways[index];
        let (cut, hung) = (cut_until.saturating_sub(self.now), hung.1.saturating_sub(self.now));
        if cut.max(hung) > 0 && self.access == Access::One {
            // Nobody waits for it any more when it arrives.
            let patience = if hung > 0 { TAKEOVER } else { SILENCE };
            let cut = cut.max(hung);
            self.post(index, patience, Event::Ended(request.id, true));
            self.post(index, cut, Event::Arrive(Request { map, life: u64::MAX, ..request }));
            return;
        }
        let delay = cut + self.delay();
        self.post(index, delay, Event::Arrive(Request { map, ..request }));
    }

    /// The work of the daemon's thread.
    fn turn(&mut self, index: usize) {
        let now = Duration::from_millis(self.now);
        if self.access == Access::One {
            let is_stuck = self.hangs(index) && self.gateways[index].hung.0 + TAKEOVER <= self.now;
            self.gateways[index].machine.medium_stuck(is_stuck);
        } else {
            let gateway = &mut self.gateways[index];
            let is_stuck = |(_, since): &(usize, u64)| since + TAKEOVER * 3 / 5 <= self.now;
            let is_stuck = gateway.in_flight.values().any(is_stuck);
            gateway.machine.medium_stuck(is_stuck);
            if is_stuck && self.mutant == Mutant::EndsEarly {
                self.release(index);
            }
        }
        while let Some(action) = self.gateways[index].machine.next(now) {
            match action {
                Action::Adopt { saved } => self.ask(index, Ask::Adopt(saved)),
                Action::Join { saved } => self.ask(index, Ask::Join(saved)),
                Action::Activate { saved } => {
                    let epoch = self.gateways[index].machine.status().record.epoch;
                    self.ask(index, Ask::Activate(saved, epoch));
                }
                Action::Deactivate { lost: true } if self.access == Access::All => self.abandon(index),
                Action::Deactivate { lost: false } if self.access == Access::All => self.withdraw(index),
                Action::Deactivate { lost: _ } => self.ask(index, Ask::Deactivate),
                Action::Saved(ok) => {
                    let gateway = &mut self.gateways[index];
                    if let Some(change) = gateway.keeping.take() {
                        gateway.publishing = true;
                        if ok {
                            gateway.saved.push(change.id);
                            self.promised.insert(change.id);
                            self.executed_by.insert(change.id, gateway.client.clone());
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
                call => {
                    let delay = self.delay();
                    self.post(index, delay, Event::Effect(call));
                }
            }
        }
        let wake = self.gateways[index].machine.wake_at(now).as_millis() as u64;
        let next = &mut self.gateways[index].next_turn;
        if wake > self.now && !(self.now + 1..=wake).contains(next) {
            *next = wake;
            self.post(index, wake - self.now, Event::Turn);
        }
    }

    /// The medium gets nothing of a gateway that is not fenced.
    fn hangs(&self, index: usize) -> bool {
        let gateway = &self.gateways[index];
        gateway.hung.1 > self.now && !self.shut_out.contains_key(&gateway.client)
    }

    /// What a gateway that is not fenced has sent to the medium has not ended.
    fn lingers(&self, index: usize) -> bool {
        let client = &self.gateways[index].client;
        let mut outstanding = self.outstanding.values();
        !self.shut_out.contains_key(client) && outstanding.any(|one| one.client == *client)
    }

    /// The medium gets nothing of it for some time.
    fn hang(&mut self, index: usize, long: u64) {
        let hung = &mut self.gateways[index].hung;
        *hung = (if hung.1 > self.now { hung.0 } else { self.now }, hung.1.max(self.now + long));
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

impl World {
    /// A gateway that has left the unit to others ends, and is started again.
    fn restart_withdrawn(&mut self) {
        for index in 0..self.gateways.len() {
            let gateway = &self.gateways[index];
            let is_held = gateway.held_until > self.now;
            if gateway.is_alive && !is_held && gateway.machine.has_withdrawn() {
                let after = self.rng.u64(10..5_000);
                self.kill(index, Some(after));
            }
        }
    }
}

fn is_of_image(action: &Action) -> bool {
    !matches!(action, Action::Read | Action::Replace { .. })
}

/// Whether a change also ends what others have begun.
fn ends(id: u16) -> bool {
    id.is_multiple_of(4)
}

fn ids(saved: &[u8]) -> Vec<u16> {
    saved.chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect()
}
