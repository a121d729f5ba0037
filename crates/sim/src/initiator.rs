//! An initiator: one session at a time, which reads and writes, aborts and resets, logs out, loses its
//! connection, and comes back by reinstating its session.

mod allocation;
mod attentions;
pub(crate) mod carrier;
mod functions;
mod groups;
pub(crate) mod link;
mod memory;
mod nexuses;
mod orders;
mod others;
mod paths;
mod settings;
mod tables;
mod verdict;

pub(crate) use carrier::{Protocol, SRP_GUID};

use crate::attention::{Act, Attentions};
use crate::groups::Path;
use crate::kernel::Kernel;
use crate::limits::Meter;
use crate::net::Shared;
use crate::register::{BLOCK_BYTES, Fate, Range, Registers, WriteId};
use crate::reservations::{Reservations, Verdict};
use crate::truth::Truth;
use link::Link;
use memory::parts;
use nexuses::Paths;
use proto::iscsi::initiator::{Completion, Event, Request};
use proto::iscsi::login::{Digests, Offers};
use proto::services::{Attribute, FunctionId, TaskId};
use proto::time::Time;
use reactor::io::{self, Handle, Io, Wait};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use wire::iscsi::{AsyncEvent, TaskFunction};
use wire::scsi::command::{Read10, SynchronizeCache10, Write10};
use wire::{Cdb, Places};

/// How long an abort or a reset may take before the connection is given up.
const PATIENCE: Duration = Duration::from_secs(8);
/// The longest duration of a command when nothing goes wrong.
const CALM: Duration = Duration::from_millis(150);
/// An initiator that can only wait pauses this many times longer: any arrival wakes it.
const IDLE_PAUSES: u32 = 16;
const CONNECT: u64 = 3;
/// The most blocks of a READ or WRITE, which is then fetched or pushed in three pieces; and the most that fit
/// into buffers.
const BLOCKS_MAX: u32 = 1200;
const BUFFERS_BLOCKS: u32 = memory::BUFFERS_BYTES / BLOCK_BYTES;
/// Outcomes that are checked twice.
const GOOD_WORD: &str = "good";
const BUSY_WORD: &str = "busy";
const FAILED_WORD: &str = "failure";
const ATTENTION_WORD: &str = "unit attention";
const CONFLICT_WORD: &str = "reservation conflict";
const MISCOMPARE_WORD: &str = "miscompare";
const ILLEGAL_WORD: &str = "illegal request";
const STANDBY_WORD: &str = "a port that is not active";
/// The reason why the initiator itself drops a working connection.
const RETURN: &str = "it comes back on another connection";

/// The target as an initiator sees it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Of the gateways that share them, where there are several.
    pub(crate) portals: Rc<[SocketAddr]>,
    pub(crate) target: String,
    pub(crate) units: usize,
    pub(crate) blocks: u32,
    /// Units that support only READ, WRITE and SYNCHRONIZE CACHE.
    pub(crate) plain: Rc<[bool]>,
    /// Units whose disks may fail.
    pub(crate) fragile: Rc<[bool]>,
    /// Nothing goes wrong there, and nothing is slow: no command takes longer than [`CALM`].
    pub(crate) is_calm: bool,
    /// What is known of gateways that share them.
    pub(crate) truth: Option<Rc<RefCell<Truth>>>,
    /// How long a path was left, where several gateways access them at a time, before another one is used: what was sent is over then.
    pub(crate) gives_up: Option<Duration>,
}

/// How an initiator behaves: odds in 1000 at each of its turns.
/// Its fields are the things that it may do, one for each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    pub(crate) depth: u16,
    pub(crate) reads: u32,
    pub(crate) long: u32,
    /// How many of those are longer than buffers.
    pub(crate) longer: u32,
    pub(crate) flushes: u32,
    pub(crate) aborts: u32,
    pub(crate) resets: u32,
    pub(crate) logouts: u32,
    pub(crate) returns: u32,
    /// PERSISTENT RESERVE OUT.
    pub(crate) orders: u32,
    /// SET TARGET PORT GROUPS.
    pub(crate) moves: u32,
    /// COMPARE AND WRITE and the other commands in `others`.
    pub(crate) others: u32,
    /// Only COMPARE AND WRITE, always of the same block.
    pub(crate) duels: bool,
    /// Orders are mostly PREEMPT AND ABORT, and aborted commands are often orders.
    pub(crate) preempts: bool,
    /// How long after a login it does not write.
    pub(crate) calm: Duration,
    /// One READ or WRITE in this many is ORDERED, and one HEAD OF QUEUE.
    pub(crate) simple: u32,
    pub(crate) pause_micros: u64,
    /// How long a command may take before it is aborted.
    pub(crate) patience: Duration,
}

/// What an initiator is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Aim {
    /// Send commands and cause trouble.
    Work,
    /// Finish what it has begun, and begin nothing.
    Settle,
    /// Log out, without logging in again.
    Leave,
}

enum State {
    Away,
    Connecting,
    Connected,
}

#[derive(Clone, Copy)]
enum Kind {
    Read(Range),
    Write(Range, WriteId),
    /// The same with FUA.
    Durable(Range, WriteId),
    Flush,
    /// GET LBA STATUS, starting at its first block.
    Allocation(Range),
    /// PERSISTENT RESERVE OUT, or MODE SELECT, by its number.
    Order(u64),
    /// MODE SENSE.
    Modes,
    /// SET TARGET PORT GROUPS.
    Move,
    /// REPORT TARGET PORT GROUPS.
    Groups,
}

struct Task {
    id: TaskId,
    unit: usize,
    kind: Kind,
    places: Places,
    began: Time,
    /// Its number in the reservations model.
    access: u64,
    /// The write that COMPARE AND WRITE or VERIFY compares with.
    compares: Option<WriteId>,
    is_aborting: bool,
    /// Its target is known to have received it.
    has_arrived: bool,
}

impl Task {
    fn new(id: TaskId, unit: usize, kind: Kind, places: Places, began: Time) -> Task {
        let (access, compares, is_aborting, has_arrived) = (0, None, false, false);
        Task { id, unit, kind, places, began, access, compares, is_aborting, has_arrived }
    }
}

/// A command to begin.
struct Wanted {
    is_read: bool,
    is_flush: bool,
    is_durable: bool,
    attribute: Attribute,
    range: Range,
}

/// A task management function without a response.
struct Asked {
    id: FunctionId,
    function: TaskFunction,
    unit: usize,
    began: Time,
    /// Its effect on RESERVE, in the reservations model: units and numbers.
    loses: Vec<(usize, u64)>,
}

/// What is checked against an initiator's findings; `index` is its own among all.
pub(crate) struct Checks {
    pub(crate) index: usize,
    pub(crate) registers: Rc<RefCell<Registers>>,
    pub(crate) attentions: Rc<RefCell<Attentions>>,
    /// For each unit.
    pub(crate) reservations: Rc<RefCell<Vec<Reservations>>>,
    pub(crate) meter: Rc<RefCell<Meter>>,
}

/// An initiator.
/// Its fields are its link, what it has in flight, and the records that it shares with others.
pub(crate) struct Initiator {
    pub(crate) host: usize,
    pub(crate) kernel: Kernel,
    pub(crate) aim: Aim,
    pub(crate) commands: u64,
    /// Total blocks of its commands.
    pub(crate) blocks: u64,
    net: Shared,
    /// Its nexus: a number for each gateway.
    index: usize,
    registers: Rc<RefCell<Registers>>,
    attentions: Rc<RefCell<Attentions>>,
    meter: Rc<RefCell<Meter>>,
    reservations: Rc<RefCell<Vec<Reservations>>>,
    place: Place,
    paths: Paths,
    habits: Habits,
    protocol: Protocol,
    offers: Offers,
    state: State,
    link: Option<Link>,
    /// Ended connections that still have something in flight.
    old: Vec<Link>,
    links: u64,
    /// When it last began to connect.
    connecting: Time,
    tasks: Vec<Task>,
    /// No command takes too long before this.
    late_at: Time,
    /// It does not write before this.
    calm_until: Time,
    functions: Vec<Asked>,
    /// Writes of earlier connections: they no longer take effect once the session is reinstated.
    unsettled: Vec<(Range, WriteId)>,
    /// The same for orders: units and numbers.
    unsettled_orders: Vec<(usize, u64)>,
    /// The effect on RESERVE of the end of its last session, until it has the next one.
    loses: Vec<(usize, u64)>,
    completions: Vec<io::Completion>,
}

impl Initiator {
    pub(crate) fn new(
        host: usize,
        kernel: Kernel,
        net: Shared,
        checks: Checks,
        place: Place,
        habits: Habits,
        protocol: Protocol,
    ) -> Initiator {
        let Checks { index, registers, attentions, reservations, meter } = checks;
        let offers = {
            let rng = &mut net.borrow_mut().rng;
            let digests = |yes: bool| if yes { Digests::Required } else { Digests::Never };
            Offers {
                header_digest: digests(rng.u32(0..4) == 0),
                data_digest: digests(rng.u32(0..4) == 0),
                initial_r2t: rng.bool(),
                immediate_data: rng.bool(),
                max_recv: 8192 << rng.u32(0..4),
                max_burst: 16384 << rng.u32(0..4),
                first_burst: 4096 << rng.u32(0..4),
                ..Offers::default()
            }
        };
        Initiator {
            host,
            kernel,
            aim: Aim::Work,
            commands: 0,
            blocks: 0,
            net,
            index,
            registers,
            attentions,
            reservations,
            meter,
            paths: Paths::new(place.portals.len()),
            place,
            habits,
            protocol,
            offers,
            state: State::Away,
            link: None,
            old: Vec::new(),
            links: 0,
            connecting: Time(0),
            tasks: Vec::new(),
            late_at: Time(0),
            calm_until: Time(0),
            functions: Vec::new(),
            unsettled: Vec::new(),
            unsettled_orders: Vec::new(),
            loses: Vec::new(),
            completions: Vec::new(),
        }
    }

    /// Whether nothing of it is left.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.state, State::Away) && self.old.is_empty() && self.tasks.is_empty()
    }

    /// Whether it is logged in, and all its commands have ended.
    pub(crate) fn is_settled(&self) -> bool {
        self.tasks.is_empty()
            && self.functions.is_empty()
            && self.link.as_ref().is_some_and(|link| link.is_ready)
    }

    /// Its state as text.
    pub(crate) fn status(&self) -> String {
        let state = match self.state {
            State::Away => "away",
            State::Connecting => "connecting",
            State::Connected if self.link.as_ref().is_some_and(|link| link.is_ready) => "logged in",
            State::Connected => "connected",
        };
        let began = self.tasks.iter().map(|task| task.began.0).min().unwrap_or(0);
        format!(
            "initiator {} is {state}, {} commands under way, the oldest from {began} ns, {} functions, {} old connections",
            self.host,
            self.tasks.len(),
            self.functions.len(),
            self.old.len()
        )
    }

    /// Its turn.
    ///
    /// # Errors
    /// What the target must not do.
    pub(crate) fn turn(&mut self) -> Result<(), String> {
        let mut completions = std::mem::take(&mut self.completions);
        self.kernel.turn(Wait::No, &mut completions);
        for completion in completions.drain(..) {
            self.completed(completion);
        }
        self.completions = completions;
        self.feed()?;
        self.look_at_arrivals(self.kernel.now());
        match (&self.state, self.aim) {
            (State::Away, Aim::Work | Aim::Settle) => self.connect()?,
            (State::Away | State::Connecting, _) => {}
            (State::Connected, _) => self.act()?,
        }
        self.flush()?;
        self.bury();
        let pause = match self.aim {
            Aim::Work => {
                let pause = self.net.borrow_mut().nanos(1_000, self.habits.pause_micros * 1000 + 2_000);
                if self.can_begin() { pause } else { pause * IDLE_PAUSES }
            }
            Aim::Settle | Aim::Leave => Duration::from_millis(20),
        };
        let mut net = self.net.borrow_mut();
        let at = net.now.after(pause);
        net.wake(self.host, at);
        Ok(())
    }

    /// Whether it can begin a command before anything arrives.
    fn can_begin(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_ready)
            && self.tasks.len() < usize::from(self.habits.depth)
    }

    fn completed(&mut self, completion: io::Completion) {
        let (number, kind) = (completion.tag.0 >> 2, completion.tag.0 & 3);
        if kind == CONNECT {
            match completion.result {
                Ok(socket) => self.connected(Handle(socket as i32)),
                Err(_) => {
                    self.state = State::Away;
                    self.may_change_paths(false);
                }
            }
            return;
        }
        let link = self.link.iter_mut().chain(&mut self.old).find(|link| link.number == number);
        if let Some(link) = link {
            link.completed(&mut self.kernel, kind, completion.result);
        }
    }

    fn feed(&mut self) -> Result<(), String> {
        while let Some(link) = &mut self.link {
            let is_more = link.feed(&mut self.kernel);
            let mut over = None;
            while let Some(event) = self.link.as_mut().and_then(Link::poll) {
                match event {
                    Event::Gone { reason } => over = Some(reason),
                    other => self.event(other)?,
                }
            }
            if let Some(reason) = over {
                return self.lost(&reason);
            }
            if !is_more {
                break;
            }
        }
        Ok(())
    }

    fn event(&mut self, event: Event) -> Result<(), String> {
        let now = self.kernel.now();
        match event {
            Event::Ready(_) => {
                let protocol = self.protocol;
                self.note(&[1], || format!("is logged in over {protocol:?}"));
                self.attentions.borrow_mut().begins(now, self.connecting, self.index);
                self.registers.borrow_mut().knows(self.index, self.connecting);
                self.calm_until = now.after(self.habits.calm);
                if let Some(link) = &mut self.link {
                    link.is_ready = true;
                }
                self.cut();
                // RFC 7143 section 6.3.5: the session that it replaces has ended. That of an earlier process may not have,
                // where all gateways are active: its successor executes nothing until then.
                if self.place.gives_up.is_none() {
                    self.settle_writes(now)?;
                }
                for (unit, id) in std::mem::take(&mut self.unsettled_orders) {
                    self.reservations.borrow_mut()[unit].forget(id);
                }
                for (unit, id) in std::mem::take(&mut self.loses) {
                    self.reservations.borrow_mut()[unit].ordered(id, Verdict::Good)?;
                }
            }
            Event::Completed(completion) => self.ended(completion)?,
            Event::FunctionDone { id, response } => self.function_ended(now, id, response)?,
            Event::Async { event, .. } if event == AsyncEvent::LOGOUT_REQUEST => self.logout(),
            Event::Async { .. } | Event::Text(_) | Event::Pong(_) | Event::Moved { .. } => {}
            Event::Rejected { reason, opcode } => {
                return Err(format!("the target rejects {opcode:?}: {reason}"));
            }
            Event::Gone { .. } => unreachable!("the caller looks for it"),
        }
        Ok(())
    }

    /// A command has ended, which is reported once.
    fn ended(&mut self, completion: Completion) -> Result<(), String> {
        let now = self.kernel.now();
        let Some(at) = self.tasks.iter().position(|task| task.id == completion.task) else {
            return Err(format!("{:?} ends, which is not under way", completion.task));
        };
        let task = self.tasks.swap_remove(at);
        let age = now.since(task.began);
        if self.place.is_calm && age > CALM {
            return Err(format!(
                "command {} has taken {} us, and nothing went wrong",
                task.id.slot,
                age.as_micros()
            ));
        }
        self.commands += 1;
        self.blocks += u64::from(task.places.len() / BLOCK_BYTES);
        let (outcome, fate) = self.verdict(&task, &completion)?;
        if matches!(outcome, STANDBY_WORD | FAILED_WORD) {
            self.may_change_paths(true);
            self.look_at_standby(now, &completion)?;
        }
        if outcome == GOOD_WORD && matches!(task.kind, Kind::Read(_) | Kind::Write(..) | Kind::Durable(..)) {
            self.settle_writes(now)?;
            self.meter.borrow_mut().ends(now, task.unit)?;
        }
        self.check_attentions(now, &task, &completion, outcome)?;
        self.look_at_settings(&task, &completion, outcome)?;
        self.look_at_groups(now, &task, &completion, outcome)?;
        self.look_at_reservations(now, &task, outcome)?;
        self.note(&[3, u64::from(completion.task.slot), fate as u64], || {
            format!("command {} ends: {outcome}", completion.task.slot)
        });
        self.end_in_registers(now, &task, &completion, (outcome, fate))?;
        self.give(&task.places);
        Ok(())
    }

    /// Applies a command's effect on the blocks, according to what it has reported.
    fn end_in_registers(
        &mut self,
        now: Time,
        task: &Task,
        completion: &Completion,
        (outcome, fate): (&str, Fate),
    ) -> Result<(), String> {
        let mut registers = self.registers.borrow_mut();
        if let (Kind::Write(range, _), Some(compared), Fate::Done) = (task.kind, task.compares, fate) {
            registers.swapped(now, task.began, range, compared)?;
        } else if task.compares.is_some() {
            registers.end_read(task.began);
        }
        match task.kind {
            Kind::Durable(range, id) if fate == Fate::Done => {
                registers.end_write(now, range, id, Fate::Durable)?;
            }
            Kind::Write(range, id) | Kind::Durable(range, id) => registers.end_write(now, range, id, fate)?,
            Kind::Read(range) if fate == Fate::Done => {
                registers.end_read(task.began);
                for (part, span) in parts(range, &task.places) {
                    registers.finds(now, task.began, part, &memory::bytes(self.kernel.arena(), span))?;
                }
            }
            Kind::Allocation(range) if fate == Fate::Done => {
                registers.end_read(task.began);
                let answer = self.kernel.arena().to_vec(&task.places);
                for hole in allocation::holes(range, &answer, completion.read_bytes as usize)? {
                    registers.finds_zeros(now, task.began, hole)?;
                }
            }
            Kind::Read(_) | Kind::Allocation(_) => registers.end_read(task.began),
            Kind::Flush if fate == Fate::Done => registers.flushed(self.index, task.unit, task.began)?,
            Kind::Flush if outcome == FAILED_WORD => registers.flush_failed(self.index, task.unit),
            Kind::Flush | Kind::Order(_) | Kind::Modes | Kind::Move | Kind::Groups => {}
        }
        Ok(())
    }

    /// The connection has ended.
    fn lost(&mut self, reason: &str) -> Result<(), String> {
        let now = self.kernel.now();
        let is_left_open = reason == RETURN;
        self.note(&[4], || format!("has lost its connection: {reason}"));
        let answers = self.link.as_ref().is_some_and(|link| link.machine.answers_logouts());
        let is_said = answers && reason == "logged out";
        if reason.contains("protocol violation") {
            return Err(reason.to_owned());
        }
        if !self.tasks.is_empty() {
            self.paths.left_at = now;
        }
        for task in std::mem::take(&mut self.tasks) {
            if task.compares.is_some() {
                self.registers.borrow_mut().end_read(task.began);
            }
            match task.kind {
                // RFC 7143 section 11.14: what a logout ended has ended before its response.
                Kind::Write(range, id) | Kind::Durable(range, id) if is_said => {
                    self.registers.borrow_mut().end_write(now, range, id, Fate::Unsure)?;
                }
                Kind::Write(range, id) | Kind::Durable(range, id) => self.unsettled.push((range, id)),
                Kind::Read(_) | Kind::Allocation(_) => self.registers.borrow_mut().end_read(task.began),
                Kind::Order(id) if is_said => self.reservations.borrow_mut()[task.unit].forget(id),
                Kind::Order(id) => self.unsettled_orders.push((task.unit, id)),
                Kind::Flush | Kind::Modes | Kind::Move | Kind::Groups => {}
            }
            self.reservations.borrow_mut()[task.unit].accessed(task.access, None)?;
            self.give(&task.places);
        }
        for asked in std::mem::take(&mut self.functions) {
            self.attentions.borrow_mut().loses(self.index, Act::Function(asked.id));
            self.unsettled_orders.extend(asked.loses);
        }
        self.lose_all();
        self.attentions.borrow_mut().ends(self.index);
        self.paths.path = Path::default();
        self.state = State::Away;
        self.old.extend(self.link.take());
        if !is_left_open {
            self.cut();
        }
        self.may_change_paths(false);
        Ok(())
    }

    fn cut(&mut self) {
        for link in &mut self.old {
            link.shut_down(&mut self.kernel);
        }
    }

    /// What it does in a turn of its own accord.
    fn act(&mut self) -> Result<(), String> {
        let now = self.kernel.now();
        if let Some(link) = &mut self.link {
            link.tick(now);
        }
        if !self.link.as_ref().is_some_and(|link| link.is_ready) {
            return Ok(());
        }
        if self.functions.iter().any(|asked| now.since(asked.began) > PATIENCE) {
            return self.lost("a function takes too long");
        }
        self.abort_late(now);
        if self.paths.is_left() && self.may_leave_path() {
            return self.leave_path();
        }
        match self.aim {
            Aim::Work => self.work(),
            Aim::Settle => Ok(()),
            Aim::Leave => {
                if self.is_settled() {
                    self.logout();
                }
                Ok(())
            }
        }
    }

    fn work(&mut self) -> Result<(), String> {
        let habits = self.habits;
        let net = self.net.clone();
        let dice = |odds| net.borrow_mut().happens(odds);
        if dice(habits.returns) {
            self.lost(RETURN)?;
            // What the old connection has in flight may still arrive.
            if self.net.borrow_mut().rng.bool() {
                self.cut();
            }
            return Ok(());
        }
        if dice(habits.logouts) {
            self.logout();
            return Ok(());
        }
        if dice(habits.aborts) && !self.tasks.is_empty() {
            let task = self.net.borrow_mut().rng.usize(0..self.tasks.len());
            let order = self.tasks.iter().position(|task| matches!(task.kind, Kind::Order(_)));
            self.abort(
                order
                    .filter(|_| habits.preempts && !self.has_paths() && task.is_multiple_of(2))
                    .unwrap_or(task),
            );
        }
        if dice(habits.resets) {
            let functions = [
                TaskFunction::LOGICAL_UNIT_RESET,
                TaskFunction::ABORT_TASK_SET,
                TaskFunction::CLEAR_TASK_SET,
                TaskFunction::TARGET_WARM_RESET,
            ];
            let (function, unit) = {
                let rng = &mut self.net.borrow_mut().rng;
                (functions[rng.usize(0..functions.len())], rng.usize(0..self.place.units))
            };
            self.function(unit, function, None);
        }
        let room = usize::from(habits.depth).saturating_sub(self.tasks.len());
        let begins = if room == 0 || self.waits_for_gateway() {
            0
        } else {
            self.net.borrow_mut().rng.usize(0..=room.min(8))
        };
        for _ in 0..begins {
            if !self.is_calm() && dice(habits.others) { self.begin_other() } else { self.begin() }
        }
        if begins > 0 {
            self.pauses();
        }
        if room > 0 && dice(habits.orders) {
            self.begin_order();
        }
        if room > 0 && dice(habits.moves) {
            self.move_unit(self.kernel.now(), 0);
        }
        Ok(())
    }

    fn logout(&mut self) {
        let now = self.kernel.now();
        self.note(&[5], || "logs out".to_owned());
        self.lose_all();
        if let Some(link) = &mut self.link {
            link.machine.logout(now);
        }
    }

    /// Whether it does not write yet.
    fn is_calm(&self) -> bool {
        self.kernel.now() < self.calm_until
    }

    /// Chooses the next command.
    fn draw(&self) -> Wanted {
        let habits = self.habits;
        let mut net = self.net.borrow_mut();
        let is_long = net.happens(habits.long);
        let (is_flush, is_read) = (net.happens(habits.flushes), net.happens(habits.reads) || self.is_calm());
        let rng = &mut net.rng;
        let most = match is_long {
            true if rng.u32(0..1000) < habits.longer => BLOCKS_MAX,
            true => BUFFERS_BLOCKS,
            false => 8,
        };
        let most = most.min(self.place.blocks);
        let blocks = rng.u32(1..=most);
        let first = rng.u32(0..=self.place.blocks - blocks);
        let attribute = match rng.u32(0..habits.simple) {
            0 => Attribute::Ordered,
            1 => Attribute::HeadOfQueue,
            _ => Attribute::Simple,
        };
        let (is_durable, unit) = (rng.u32(0..8) == 0, rng.usize(0..self.place.units));
        Wanted { is_read, is_flush, is_durable, attribute, range: Range { unit, first, blocks } }
    }

    /// Begins a command.
    fn begin(&mut self) {
        let now = self.kernel.now();
        let Wanted { is_read, is_flush, is_durable, attribute, range } = self.draw();
        let bytes = if is_flush { 0 } else { range.bytes() };
        let Some(place) = self.take(bytes) else { return };
        let (mut read, mut write) = (Places::EMPTY, Places::EMPTY);
        let (first, blocks) = (range.first, range.blocks as u16);
        let cdb = if is_flush {
            Cdb::from(SynchronizeCache10::new(0, 0))
        } else if is_read {
            read = place;
            Read10 { fua: is_durable, ..Read10::new(first, blocks) }.into()
        } else {
            write = place;
            Write10 { fua: is_durable, ..Write10::new(first, blocks) }.into()
        };
        let lun = (range.unit as u64) << 48;
        let request = Request { lun, attribute, cdb, read, write };
        let taken = self.link.as_mut().and_then(|link| link.machine.submit(request));
        // There is often no room for it, and its data is sent only at the end of the turn.
        let Some(id) = taken else { return self.give(&place) };
        let kind = if is_flush {
            Kind::Flush
        } else if is_read {
            self.registers.borrow_mut().begin_read(now);
            Kind::Read(range)
        } else {
            self.fill(now, range, (is_durable, attribute), &place)
        };
        let outcome = [7, u64::from(id.slot), range.unit as u64, u64::from(range.first)];
        self.note(&outcome, || {
            let what = match kind {
                Kind::Read(_) => format!("reads {range:?}"),
                Kind::Write(_, write) => format!("is write {} of {range:?}", write.0),
                Kind::Durable(_, write) => format!("is write {} of {range:?} with FUA", write.0),
                _ => {
                    format!("flushes unit {}", range.unit)
                }
            };
            format!("command {} {what}, {attribute:?}", id.slot)
        });
        let is_write = !matches!(kind, Kind::Read(_));
        let access = self.reservations.borrow_mut()[range.unit].access(self.index, is_write);
        self.meter.borrow_mut().begins(now);
        let is_head = attribute == Attribute::HeadOfQueue;
        self.sent(Task { access, ..Task::new(id, range.unit, kind, place, now) }, is_head);
    }

    /// Withdraws a command that could not be sent.
    fn withdraw(&mut self, now: Time, kind: Kind, place: &Places) {
        self.give(place);
        match kind {
            Kind::Read(_) | Kind::Allocation(_) => self.registers.borrow_mut().end_read(now),
            Kind::Write(range, id) | Kind::Durable(range, id) => {
                let refused = self.registers.borrow_mut().end_write(now, range, id, Fate::Refused);
                refused.expect("nobody reads what was never sent");
            }
            Kind::Flush | Kind::Order(_) | Kind::Modes | Kind::Move | Kind::Groups => {}
        }
    }

    fn flush(&mut self) -> Result<(), String> {
        if let Some(link) = &mut self.link {
            link.flush(&mut self.kernel);
        }
        self.feed()
    }

    /// Closes connections with nothing in flight.
    fn bury(&mut self) {
        let mut at = 0;
        while at < self.old.len() {
            if self.old[at].is_quiet() {
                self.old.swap_remove(at).close(&mut self.kernel);
            } else {
                at += 1;
            }
        }
    }

    fn note(&self, outcome: &[u64], text: impl FnOnce() -> String) {
        let net = &mut *self.net.borrow_mut();
        let now = net.now;
        let sum = outcome.iter().fold(self.host as u64, |sum, word| sum.wrapping_mul(31) ^ word);
        net.trace.note(now, &[sum], || format!("initiator {} {}", self.host, text()));
    }
}
