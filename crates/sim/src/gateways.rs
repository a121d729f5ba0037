//! Several whole daemons that share a unit, which lies on a cluster of ours. They are killed and started again, paused, cut off from the
//! cluster and from initiators, have the unit by hand, and are stopped; and their initiators change over.

mod change;
mod image;
mod member;
mod mishaps;
mod orders;
mod plan;
mod post;
mod quarrels;
mod rados;
mod reloads;

use crate::attention::Attentions;
use crate::initiator::{Aim, Checks, Initiator, Place, Protocol};
use crate::kernel::Kernel;
use crate::limits::Meter;
use crate::net::{Event, Net, Request, Shared};
use crate::play::Play;
use crate::register::Registers;
use crate::reservations::Reservations;
use crate::trace::Trace;
use crate::truth::Truth;
use crate::world::{Cuts, Failure, Ran, counters, habits, panic_message};
use change::Kind;
use cluster::{Record, ReplaceError};
use engine::world::{Answer, ImageCall, Next, ObjectCall};
use fastrand::Rng;
use member::{Course, Member, TARGET, portal};
use orders::Open;
use plan::Plan;
use post::{Message, Object, Post, What};
use proto::time::Time;
use rados::{Client, Rados};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;
use store::rados::SILENCE;

/// Ten times what the longest runs take.
const TURNS_MAX: u64 = 5_000_000;
/// How long it may take until somebody is active and all has ended, once nothing goes wrong any more: operations that hang come first.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long all work when nothing goes wrong any more.
const CALM: Duration = Duration::from_secs(2);
/// Commands that are enough.
const EFFORT_MAX: u64 = 15_000;
/// How long operations of the pool wait (see `store::rados`).
const POOL_PATIENCE: Duration = Duration::from_secs(10);

/// How often a gateway may look again at once.
const SPINS_MAX: u32 = 100;

/// Something that is to happen.
enum Step {
    Message(Box<Message>),
    /// A gateway waits for this call no longer.
    Late {
        member: usize,
        life: u32,
        number: u64,
        otherwise: Otherwise,
    },
    /// It is looked again whether all that was under way has ended.
    Flushes {
        member: usize,
        life: u32,
    },
    /// Somebody notifies of the object.
    Notice {
        member: usize,
        life: u32,
    },
    /// An OSD gets the monitors' map.
    Hears {
        osd: usize,
    },
    Mishap,
    Starts {
        member: usize,
    },
    /// It has had time enough to end.
    MustEnd {
        member: usize,
        life: u32,
    },
    /// The outcome of orders is looked for.
    Look,
}

/// What follows where a call has no answer in time.
#[derive(Debug)]
enum Otherwise {
    Object(Answer),
    Change(Kind),
}

/// The world.
/// Its fields are the cluster, the gateways, who uses them, and what is to happen and is checked.
struct Scene {
    plan: Plan,
    net: Shared,
    rados: Rados,
    post: Post,
    members: Vec<Member>,
    initiators: Vec<Initiator>,
    registers: Rc<RefCell<Registers>>,
    reservations: Rc<RefCell<Vec<Reservations>>>,
    attentions: Rc<RefCell<Attentions>>,
    truth: Rc<RefCell<Truth>>,
    /// What the object says.
    record: Option<Record>,
    /// Orders whose outcome nobody knows.
    open: Vec<Open>,
    steps: BTreeMap<u64, Step>,
    next: u64,
    /// How often a gateway has become active.
    claims: u64,
    /// Clients that have used the image, and whose sessions end when they are shut out.
    served: BTreeSet<Client>,
    /// Those that were shut out, whose they were, and when.
    fenced: Vec<(Client, usize, Time)>,
    /// What was sent to each gateway before then does nothing once the next one is active.
    ended: Vec<Time>,
    /// OSDs do nothing before.
    osds_until: Vec<Time>,
    is_healed: bool,
    /// Nobody comes back.
    is_ending: bool,
    fault_micros: Option<u64>,
    turns: u64,
}

/// Runs what this seed makes.
///
/// # Errors
/// When something is not as it must be.
pub(crate) fn run(seed: u64, cuts: &Cuts, keeps_trace: bool) -> Result<Ran, Failure> {
    let mut rng = Rng::with_seed(seed);
    let mut plan = Plan::new(seed, &mut rng);
    plan.cut(cuts);
    let net = Net::new(rng, Trace::new(keeps_trace), plan.odds, plan.hosts());
    let mut scene = Scene::new(plan, cuts, net.clone());
    let lived = catch_unwind(AssertUnwindSafe(|| scene.run()));
    let (sum, trace) = net.borrow_mut().trace.end();
    match lived.unwrap_or_else(|panic| Err(panic_message(&*panic))) {
        Ok(()) => {
            let commands = scene.commands();
            Ok(Ran { commands, turns: scene.turns, changes: scene.claims, sum, trace })
        }
        Err(what) => {
            std::mem::forget(scene);
            Err(Failure { what, trace })
        }
    }
}

impl Play for Scene {
    fn net(&self) -> &Shared {
        &self.net
    }

    fn fault_micros(&self) -> Option<u64> {
        self.fault_micros
    }

    fn back(&mut self) -> Result<(), String> {
        unreachable!("there is no second daemon")
    }

    fn step(&mut self, number: u64) -> Result<(), String> {
        self.steps.remove(&number).map_or(Ok(()), |step| self.take_step(step))
    }

    fn go(&mut self, host: usize, request: Request) -> Result<(), String> {
        match self.member_of(host) {
            None => self.initiators[host - self.plan.first_initiator()].kernel.go(request),
            Some(member) => {
                if let Some(daemon) = self.members[member].daemon.as_mut().filter(|daemon| daemon.has(host)) {
                    daemon.kernel(host).go(request);
                }
            }
        }
        Ok(())
    }

    fn turn(&mut self, host: usize) -> Result<(), String> {
        let Some(member) = self.member_of(host) else {
            self.initiators[host - self.plan.first_initiator()].turn()?;
            self.net.borrow_mut().turned(host, 1);
            return Ok(());
        };
        let moves = self.plan.moves;
        let one = &mut self.members[member];
        let gateway = one.gateway();
        let Some(daemon) = &mut one.daemon else { return Ok(()) };
        if host == gateway {
            self.gateway_turn(member)?;
            self.check_hangs(member)?;
            let (now, is_active) = (self.net.borrow().now, self.members[member].is_active());
            self.truth.borrow_mut().is_active(now, member, is_active);
        } else if daemon.is_worker(host) {
            daemon.work(&self.net);
        } else {
            daemon.turn(&self.net, host, 1, moves);
            counters::check(daemon.counted(host))?;
            self.turns += 1;
            if self.turns > TURNS_MAX {
                return Err(format!(
                    "the cores had {TURNS_MAX} turns, and have not finished: one of them spins"
                ));
            }
        }
        self.go_on_reloading(member)?;
        self.look_around(member);
        Ok(())
    }
}

impl Scene {
    fn new(plan: Plan, cuts: &Cuts, net: Shared) -> Scene {
        let (count, gateways) = (plan.initiators.len(), plan.cores.len());
        let nexuses = count * gateways;
        let registers = Rc::new(RefCell::new(Registers::new(nexuses, 1, plan.blocks, false)));
        let reservations = vec![Reservations::new(nexuses, false).of_gateways()];
        let reservations = Rc::new(RefCell::new(reservations));
        let attentions = Rc::new(RefCell::new(Attentions::new(nexuses, 1).of_gateways()));
        let meter = Rc::new(RefCell::new(Meter::new(None, 1)));
        let truth = Rc::new(RefCell::new(Truth::new(gateways, !plan.is_for_all(), plan.stays())));
        let place = Place {
            portals: (0..gateways).map(portal).collect(),
            target: TARGET.into(),
            units: 1,
            blocks: plan.blocks,
            plain: [false].into(),
            fragile: [true].into(),
            is_calm: false,
            truth: Some(truth.clone()),
            gives_up: plan.gives_up(),
        };
        let initiator = |(index, protocol): (usize, &Protocol)| {
            let host = plan.first_initiator() + index;
            let kernel = Kernel::new(host, net.clone(), 64 << 20, None, 0);
            let mut habits = habits(&mut net.borrow_mut().rng, 0, 0);
            plan.shape(&mut habits);
            cuts.of_habits(&mut habits);
            let (registers, attentions) = (registers.clone(), attentions.clone());
            let (reservations, meter) = (reservations.clone(), meter.clone());
            let checks = Checks { index, registers, attentions, reservations, meter };
            let first = net.borrow_mut().rng.usize(0..gateways);
            let initiator =
                Initiator::new(host, kernel, net.clone(), checks, place.clone(), habits, *protocol);
            let initiator = initiator.begins_at(first, count).thinks(plan.thinks);
            if plan.has_twins { initiator.session_of(plan.first_initiator(), index) } else { initiator }
        };
        let initiators = plan.initiators.iter().enumerate().map(initiator).collect();
        Scene {
            rados: Rados::new(plan.osds, plan.blocks),
            post: Post::default(),
            members: (0..gateways).map(|number| Member::new(&plan, number)).collect(),
            initiators,
            registers,
            reservations,
            attentions,
            truth,
            record: None,
            open: Vec::new(),
            steps: BTreeMap::new(),
            next: 0,
            claims: 0,
            served: BTreeSet::new(),
            fenced: Vec::new(),
            ended: vec![Time(0); gateways],
            osds_until: vec![Time(0); plan.osds],
            is_healed: false,
            is_ending: false,
            fault_micros: plan.fault_micros,
            turns: 0,
            plan,
            net,
        }
    }

    fn commands(&self) -> u64 {
        self.initiators.iter().map(|initiator| initiator.commands).sum()
    }

    fn run(&mut self) -> Result<(), String> {
        for member in 0..self.members.len() {
            // They need not come at once.
            let after = self.net.borrow_mut().nanos(0, 2_000_000_000);
            self.later(after, Step::Starts { member });
        }
        {
            let net = &mut *self.net.borrow_mut();
            let now = net.now;
            self.initiators.iter().for_each(|initiator| net.wake(initiator.host, now));
        }
        self.later(Duration::ZERO, Step::Look);
        self.plan_fault();
        self.plan_mishap(Duration::ZERO);
        let until = self.net.borrow().now.after(self.plan.work);
        self.run_until(until, |scene| scene.commands() >= EFFORT_MAX)?;
        self.heal();
        self.aim(Aim::Work, "a gateway is active", |scene| scene.members.iter().any(Member::is_active))?;
        let until = self.net.borrow().now.after(CALM);
        self.run_until(until, |_| false)?;
        self.aim(Aim::Settle, "what was begun ends", |scene| {
            scene.initiators.iter().all(Initiator::is_settled)
                && scene.members.iter().filter(|member| member.is_active()).count() == scene.actives()
                && scene.knows_groups()
        })?;
        self.aim(Aim::Leave, "all sessions end", |scene| {
            let mut daemons = scene.members.iter_mut().filter_map(|member| member.daemon.as_mut());
            scene.initiators.iter().all(Initiator::is_gone) && daemons.all(|daemon| daemon.is_alone(false))
        })?;
        for member in &mut self.members {
            member.daemon.as_mut().map_or(Ok(()), |daemon| daemon.is_clean(false))?;
        }
        self.is_ending = true;
        for member in 0..self.members.len() {
            self.stop(member);
        }
        self.aim(Aim::Leave, "all gateways end", |scene| {
            scene.members.iter().all(|member| member.daemon.is_none())
        })
    }

    /// Continues until this holds, which must be soon.
    fn aim(&mut self, aim: Aim, what: &str, is_done: impl FnMut(&mut Scene) -> bool) -> Result<(), String> {
        self.initiators.iter_mut().for_each(|initiator| initiator.aim = aim);
        let until = self.net.borrow().now.after(PATIENCE);
        if self.run_until(until, is_done)? {
            return Ok(());
        }
        let initiators = self.initiators.iter().map(Initiator::status);
        let status: Vec<String> = initiators.chain(self.members.iter_mut().map(Member::status)).collect();
        Err(format!("{} s are not enough until {what}\n{}", PATIENCE.as_secs(), status.join("\n")))
    }

    /// Something is to happen after this time.
    fn later(&mut self, after: Duration, step: Step) {
        self.next += 1;
        let number = self.next;
        self.steps.insert(number, step);
        let net = &mut *self.net.borrow_mut();
        net.at(net.now.after(after), Event::Step { number });
    }

    fn take_step(&mut self, step: Step) -> Result<(), String> {
        let now = self.net.borrow().now;
        match step {
            Step::Message(message) => return self.proceed(message),
            Step::Late { member, life, number, otherwise } => {
                let one = &self.members[member];
                if one.life != life || ![one.waits, one.works].contains(&Some(number)) {
                    return Ok(());
                }
                if one.is_paused(now) {
                    let after = one.paused_until.since(now);
                    self.later(after, Step::Late { member, life, number, otherwise });
                    return Ok(());
                }
                self.is_late(member, otherwise);
            }
            Step::Flushes { member, life } => self.flushes(member, life),
            Step::Notice { member, life } => {
                let one = &self.members[member];
                if one.life != life {
                    return Ok(());
                }
                let until = one.paused_until.max(one.cut_until);
                if until > now {
                    self.later(until.since(now), Step::Notice { member, life });
                } else if let Some(daemon) = &one.daemon {
                    daemon.cores.gateway_noticed(0);
                    self.look_around(member);
                }
            }
            Step::Hears { osd } if self.osds_until[osd] > now => {
                // Requests that it has got may be first.
                let after = self.osds_until[osd].since(now)
                    + self.net.borrow_mut().nanos(0, self.plan.deaf_micros * 1000);
                self.later(after, Step::Hears { osd });
            }
            Step::Hears { osd } => {
                self.rados.hears(osd);
                self.cut_off_fenced(osd);
            }
            Step::Mishap => self.mishap(),
            Step::Starts { member } => self.start(member),
            Step::MustEnd { member, life } => {
                if self.members[member].life == life {
                    self.kill(member);
                }
            }
            Step::Look => {
                self.look_at_orders();
                self.later(orders::LOOK_EVERY, Step::Look);
            }
        }
        Ok(())
    }

    /// Whose host that is.
    fn member_of(&self, host: usize) -> Option<usize> {
        self.members.iter().position(|member| member.hosts().contains(&host))
    }

    /// What a daemon has begun, and who has to see what has happened.
    fn look_around(&mut self, member: usize) {
        self.take_calls(member);
        let one = &mut self.members[member];
        let gateway = one.gateway();
        let Some(daemon) = &mut one.daemon else { return };
        if one.image.has_woken() {
            (0..daemon.count).for_each(|core| daemon.cores.io(core).look_at_watched());
        }
        daemon.look_around(&self.net, usize::MAX);
        if one.waits.is_none() && daemon.cores.gateway_is_called(0) {
            self.net.borrow_mut().wake_soon(gateway);
        }
        if one.course == Course::Stops && daemon.is_over() {
            self.has_ended(member);
        }
    }

    /// A gateway does what it can before it waits.
    fn gateway_turn(&mut self, member: usize) -> Result<(), String> {
        let one = &mut self.members[member];
        let (now, gateway) = (self.net.borrow().now, one.gateway());
        let clock = one.clock(now);
        let Some(daemon) = one.daemon.as_mut().filter(|_| one.waits.is_none() && one.course != Course::Stops)
        else {
            return Ok(());
        };
        match daemon.cores.gateway_next(0, clock) {
            Next::Call(call) => self.call_object(member, call),
            Next::Begin(call) => {
                self.call_image(member, call);
                self.net.borrow_mut().wake_soon(gateway);
            }
            Next::Wait(time) => {
                one.spins = if time.is_zero() { one.spins + 1 } else { 0 };
                if one.spins > SPINS_MAX {
                    return Err(format!("gateway {member} waits for nothing, again and again"));
                }
                let at = now.after(one.really(time));
                self.net.borrow_mut().wake(gateway, at);
            }
            Next::End => {
                daemon.stop(&self.net);
                one.course = Course::Stops;
            }
        }
        Ok(())
    }

    /// A gateway makes this call, and waits for it.
    fn call_object(&mut self, member: usize, call: ObjectCall) {
        self.next += 1;
        let number = self.next;
        let one = &mut self.members[member];
        one.waits = Some(number);
        let life = one.life;
        self.note(&[24, member as u64], || match &call {
            ObjectCall::Replace { expected, .. } => format!("gateway {member} replaces version {expected:?}"),
            call => format!("gateway {member} calls {call:?}"),
        });
        let why = || format!("object: {SILENCE}");
        let (object, late) = match call {
            ObjectCall::Read => (Object::Read, Answer::Read(Err(why()))),
            ObjectCall::Replace { expected, bytes } => {
                let late = Answer::Replaced(Err(ReplaceError::Failed(why())));
                (Object::Replace { expected, bytes }, late)
            }
            ObjectCall::Notify => (Object::Notify, Answer::Notified),
        };
        self.send(member, What::Object(object, number));
        self.later(POOL_PATIENCE, Step::Late { member, life, number, otherwise: Otherwise::Object(late) });
    }

    /// It makes this one, and goes on.
    fn call_image(&mut self, member: usize, call: ImageCall) {
        self.next += 1;
        let number = self.next;
        self.members[member].works = Some(number);
        self.note(&[24, member as u64], || format!("gateway {member} calls {call:?}"));
        let roles = &self.members[member].image.roles;
        let kind = match call {
            ImageCall::Promote { fence } => Kind::Promote { attempt: roles.attempt(), fence },
            ImageCall::CatchUp => Kind::CatchUp { attempt: roles.attempt() },
            ImageCall::Fence { clients } => Kind::Fence { clients },
            ImageCall::Demote => Kind::Demote,
            ImageCall::Reopen => Kind::Reopen,
        };
        self.call_change(member, number, kind);
    }

    fn call_change(&mut self, member: usize, number: u64, kind: Kind) {
        let (life, otherwise) = (self.members[member].life, Otherwise::Change(kind.clone()));
        self.later(Scene::PATIENCE, Step::Late { member, life, number, otherwise });
        self.begin_change(member, number, kind);
    }

    /// Its call was not answered in time, and may still take effect.
    fn is_late(&mut self, member: usize, otherwise: Otherwise) {
        self.note(&[25, member as u64], || format!("gateway {member} waits no longer: {otherwise:?}"));
        match otherwise {
            Otherwise::Change(kind) => self.change_is_late(member, &kind),
            Otherwise::Object(answer) => self.answer(member, answer),
        }
        self.look_around(member);
    }

    /// A gateway's call has ended.
    fn answer(&mut self, member: usize, answer: Answer) {
        let one = &mut self.members[member];
        let (now, gateway) = (self.net.borrow().now, one.gateway());
        let clock = one.clock(now);
        let is_latest = match answer {
            Answer::Read(Ok(_)) => true,
            Answer::Replaced(Ok(version)) => version == self.truth.borrow().version,
            _ => false,
        };
        if is_latest {
            self.truth.borrow_mut().finds_out(now, member);
        }
        if let Answer::Read(Ok(Some((version, _)))) | Answer::Replaced(Ok(version)) = answer {
            self.truth.borrow_mut().views.learns(now, member, Some(version));
        }
        match answer {
            Answer::Read(_) | Answer::Replaced(_) | Answer::Notified => one.waits = None,
            _ => one.works = None,
        }
        if let Some(daemon) = &mut one.daemon {
            daemon.cores.gateway_answered(0, clock, answer);
            self.net.borrow_mut().wake_soon(gateway);
        }
    }

    /// How many gateways are active if nothing goes wrong.
    fn actives(&self) -> usize {
        if self.plan.is_for_all() { self.members.len() } else { 1 }
    }

    fn slow(&self) -> u32 {
        if self.is_healed { 0 } else { self.plan.slow }
    }

    fn note(&self, words: &[u64], text: impl FnOnce() -> String) {
        let net = &mut *self.net.borrow_mut();
        net.trace.note(net.now, words, text);
    }
}
