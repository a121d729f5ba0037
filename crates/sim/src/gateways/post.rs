//! Messages between gateways and the cluster: each is sent, arrives, is executed and answered, and any of that takes its time. What was
//! sent is executed, whatever becomes of who has sent it.

use super::image::{Ask, Said};
use super::rados::{Client, OBJECT_BYTES, Sender, Versioned, offset};
use super::{Scene, Step};
use cluster::ReplaceError;
use engine::world::Answer;
use proto::time::Time;
use scsi::storage::Found;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store::calls::{Call, Work};

/// By then an OSD that did nothing has done what it has got meanwhile.
const BACKLOG_NANOS: u64 = 1_000_000_000;
/// A notice waits so long for those that do not answer.
const NOTICE: Duration = Duration::from_secs(1);

/// What is asked.
#[derive(Debug)]
pub(super) enum What {
    /// A part of a call: this much of its data.
    Part {
        call: u64,
        work: Work,
        data: Range<usize>,
    },
    Ask(Ask),
    Object(Object, u64),
}

/// What is asked of the object, and the gateway's call.
#[derive(Debug)]
pub(super) enum Object {
    Read,
    Replace { expected: Option<u64>, bytes: Vec<u8> },
    Notify,
}

/// How far a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Sending,
    Arriving,
    Answering,
}

/// The answer to one.
#[derive(Debug)]
enum Reply {
    Part(i64),
    Said(Said),
    Opened(Client),
    Object(Answer),
}

/// A message.
#[derive(Debug)]
pub(super) struct Message {
    member: usize,
    life: u32,
    sender: Sender,
    stage: Stage,
    what: What,
    reply: Option<Reply>,
    /// The map that the sender has with the answer.
    learns: u64,
}

/// A call of the image's lanes.
struct DataCall {
    began: Time,
    member: usize,
    life: u32,
    call: Box<Call>,
    left: usize,
    answer: i64,
}

/// Calls whose parts are under way, and the maps that clients have.
#[derive(Default)]
pub(super) struct Post {
    calls: BTreeMap<u64, DataCall>,
    next: u64,
    epochs: BTreeMap<Client, u64>,
    clients: u64,
}

impl Post {
    /// Whether this process has calls under way.
    pub(super) fn is_busy(&self, member: usize, life: u32) -> bool {
        self.calls.values().any(|call| call.member == member && call.life == life)
    }

    /// Whether all calls under way have begun since then.
    pub(super) fn are_all_since(&self, since: Time) -> bool {
        self.calls.values().all(|call| call.began >= since)
    }

    /// A client that has just come, and has this map.
    pub(super) fn client(&mut self, epoch: u64) -> Client {
        self.clients += 1;
        self.epochs.insert(Client(self.clients), epoch);
        Client(self.clients)
    }

    fn learns(&mut self, client: Client, epoch: u64) {
        let known = self.epochs.entry(client).or_default();
        *known = epoch.max(*known);
    }
}

/// The parts of a call's work, one for each object, with what each has of its data.
fn parts(work: Work, bytes: usize) -> Vec<(Work, Range<usize>)> {
    let (at, len) = match work {
        Work::Read { offset } | Work::Write { offset, .. } => (offset, bytes as u64),
        Work::Zero { offset, len, .. } => (offset, len),
        Work::Extent { .. } | Work::CompareAndWrite { .. } | Work::Flush => return vec![(work, 0..bytes)],
    };
    let (mut parts, mut from) = (Vec::new(), at);
    while from < at + len {
        let to = ((from / OBJECT_BYTES + 1) * OBJECT_BYTES).min(at + len);
        let data = (from - at) as usize..(to - at) as usize;
        parts.push(match work {
            Work::Read { .. } => (Work::Read { offset: from }, data),
            Work::Write { durable, .. } => (Work::Write { offset: from, durable }, data),
            Work::Zero { stays, durable, .. } => {
                (Work::Zero { offset: from, len: to - from, stays, durable }, 0..0)
            }
            Work::Extent { .. } | Work::CompareAndWrite { .. } | Work::Flush => unreachable!("see above"),
        });
        from = to;
    }
    parts
}

impl Scene {
    /// Begins what a daemon's lanes have called for.
    pub(super) fn take_calls(&mut self, member: usize) {
        let (began, calls) = (self.net.borrow().now, self.members[member].image.take());
        for call in calls {
            self.post.next += 1;
            let number = self.post.next;
            let parts = parts(call.work, call.data.len());
            let (life, left) = (self.members[member].life, parts.len());
            self.post.calls.insert(number, DataCall { began, member, life, call, left, answer: 0 });
            for (work, data) in parts {
                self.send(member, What::Part { call: number, work, data });
            }
        }
    }

    /// A gateway or its lanes send something.
    pub(super) fn send(&mut self, member: usize, what: What) {
        let one = &self.members[member];
        let (client, claim) = (one.image.now(), one.image.claim.load(Ordering::Relaxed));
        let sender = Sender { client, epoch: 0, claim };
        let (life, stage) = (one.life, Stage::Sending);
        let message = Message { member, life, sender, stage, what, reply: None, learns: 0 };
        let after = self.net.borrow_mut().nanos(500, 5_000);
        self.later(after, Step::Message(Box::new(message)));
    }

    /// How long an OSD leaves something alone that it has got.
    fn sluggishness(&mut self) -> Duration {
        let (odds, most) = if self.is_healed { (0, Duration::ZERO) } else { self.plan.sluggish };
        let net = &mut *self.net.borrow_mut();
        if net.happens(odds) { net.nanos(0, most.as_nanos() as u64) } else { Duration::ZERO }
    }

    /// How long something is on its way.
    fn latency(&mut self) -> Duration {
        let slow = self.slow();
        let net = &mut *self.net.borrow_mut();
        let late = net.odds.late;
        let most = if net.happens(late) { 30_000_000 } else { 400_000 };
        let most = if net.happens(slow) { 12_000_000_000 } else { most };
        net.nanos(20_000, most)
    }

    /// A message continues.
    ///
    /// # Errors
    /// When something must not be.
    pub(super) fn proceed(&mut self, mut message: Box<Message>) -> Result<(), String> {
        let (member, life) = (message.member, message.life);
        let now = self.net.borrow().now;
        let one = &self.members[member];
        let lives = one.life == life;
        let reached = one.cut_until;
        match message.stage {
            Stage::Sending => {
                if !lives {
                    self.is_lost(&message);
                    return Ok(());
                }
                let until = one.paused_until.max(reached);
                if until > now {
                    self.later(until.since(now), Step::Message(message));
                    return Ok(());
                }
                message.stage = Stage::Arriving;
                message.sender.epoch = self.post.epochs.get(&message.sender.client).copied().unwrap_or(0);
                let mut after = self.latency();
                if let What::Part { .. } = message.what {
                    after += self.sluggishness();
                }
                self.later(after, Step::Message(message));
            }
            Stage::Arriving => {
                if reached > now {
                    // It was lost on its way, and is sent again.
                    message.stage = Stage::Sending;
                    self.later(Duration::ZERO, Step::Message(message));
                    return Ok(());
                }
                let until = self.osd_until(&message);
                if until > now {
                    let after = until.since(now) + self.net.borrow_mut().nanos(0, BACKLOG_NANOS);
                    self.later(after, Step::Message(message));
                    return Ok(());
                }
                self.execute(&mut message)?;
                message.stage = Stage::Answering;
                let mut after = self.latency();
                if let What::Object(Object::Notify, _) = message.what
                    && self.members.iter().any(|one| one.is_paused(now) || one.cut_until > now)
                {
                    after += NOTICE;
                }
                self.later(after, Step::Message(message));
            }
            Stage::Answering => {
                let until = one.paused_until.max(reached);
                if lives && until > now {
                    self.later(until.since(now), Step::Message(message));
                } else {
                    self.answered(*message);
                }
            }
        }
        Ok(())
    }

    /// Nothing of the OSD that it is for is done before this.
    fn osd_until(&self, message: &Message) -> Time {
        let osd = match &message.what {
            What::Part { work, .. } => {
                let osd = self.rados.osd_of(offset(*work));
                let held_up = &self.members[message.member].held_up;
                let of_client = [None, Some(message.sender.client)].map(|client| held_up.get(&(osd, client)));
                return of_client.into_iter().flatten().copied().fold(self.osds_until[osd], Time::max);
            }
            What::Ask(Ask::ShutOut(_) | Ask::LatestMap | Ask::Open) => return Time(0),
            What::Object(..) => return self.osds_until[0].max(self.members[message.member].blind_until),
            What::Ask(_) => 0,
        };
        self.osds_until[osd]
    }

    /// It was never sent.
    fn is_lost(&mut self, message: &Message) {
        if let What::Part { call, .. } = message.what {
            self.part_ends(call, -5);
        }
    }

    fn execute(&mut self, message: &mut Message) -> Result<(), String> {
        let sender = message.sender;
        let reply = match &mut message.what {
            What::Part { call, work, data } => {
                let (work, osd) = (*work, self.rados.osd_of(offset(*work)));
                let Some(of) = self.post.calls.get_mut(call) else { return Ok(()) };
                let bytes = &mut of.call.data[data.clone()];
                let before = self.rados.epoch_of(osd);
                let (answer, is_new) = self.rados.execute(sender, work, bytes, &mut of.call.mismatch)?;
                message.learns = self.rados.epoch_of(osd);
                let client = sender.client.0;
                self.note(&[21, client, offset(work)], || {
                    format!("OSD {osd} answers {answer} to client {client}, claim {}: {work:?}", sender.claim)
                });
                if answer >= 0 {
                    self.served.insert(sender.client);
                }
                if is_new {
                    self.cut_off(osd);
                }
                if self.plan.is_for_all() && self.rados.epoch_of(osd) > before {
                    self.cut_off_fenced(osd);
                }
                Reply::Part(answer)
            }
            What::Ask(Ask::Open) => Reply::Opened(self.post.client(self.rados.epoch)),
            What::Ask(ask) => {
                let ask = ask.clone();
                message.learns = self.rados.epoch_of(0);
                if ask == Ask::LatestMap {
                    message.learns = self.rados.epoch;
                }
                Reply::Said(self.hear(sender, &ask))
            }
            What::Object(object, _) => {
                let object = std::mem::replace(object, Object::Notify);
                Reply::Object(self.execute_object(message.member, object)?)
            }
        };
        message.reply = Some(reply);
        Ok(())
    }

    /// Monitors and OSDs answer what a change of role asks.
    fn hear(&mut self, sender: Sender, ask: &Ask) -> Said {
        let rados = &mut self.rados;
        let said = match ask {
            Ask::ShutOut(client) => {
                let client = Client::of(client).expect("a client of this cluster");
                rados.shut_out(client);
                self.is_shut_out(client);
                Said::Done(Ok(()))
            }
            Ask::LatestMap => Said::Done(Ok(())),
            Ask::OwnsLock => Said::Is(rados.lock_owner(sender).map(|owner| owner == Some(sender.client))),
            Ask::LockOwner => Said::Owner(rados.lock_owner(sender).map(|owner| owner.map(Client::address))),
            Ask::BreakLock(owner) => {
                let owner = Client::of(owner).expect("a client of this cluster");
                Said::Done(rados.unlock(sender, owner))
            }
            Ask::Lock => Said::Done(rados.lock(sender)),
            Ask::Unlock => Said::Done(rados.unlock(sender, sender.client)),
            Ask::Flush | Ask::Size | Ask::Open => unreachable!("nobody else is asked"),
        };
        self.note(&[22, sender.client.0], || {
            format!("the cluster answers client {}, {ask:?}: {said:?}", sender.client.0)
        });
        said
    }

    fn execute_object(&mut self, member: usize, object: Object) -> Result<Answer, String> {
        Ok(match object {
            Object::Read => Answer::Read(Ok(self.rados.object.clone())),
            Object::Replace { expected, bytes } => {
                let version = self.rados.replace(expected, bytes);
                self.note(&[23, member as u64, version.unwrap_or(0)], || match version {
                    Some(version) => format!("gateway {member} has made version {version} of {expected:?}"),
                    None => format!("gateway {member} finds another version than {expected:?}"),
                });
                if version.is_some() {
                    self.object_changed()?;
                }
                Answer::Replaced(version.ok_or(ReplaceError::Conflict))
            }
            Object::Notify => {
                for other in 0..self.members.len() {
                    let (life, after) = (self.members[other].life, self.latency());
                    if self.members[other].is_watching {
                        self.later(after, Step::Notice { member: other, life });
                    }
                }
                Answer::Notified
            }
        })
    }

    /// A message has come back, unless its process is gone.
    fn answered(&mut self, message: Message) {
        let member = message.member;
        let lives = self.members[member].life == message.life;
        if self.net.borrow_mut().happens(self.plan.shares) || matches!(message.what, What::Ask(_)) {
            self.post.learns(message.sender.client, message.learns);
        }
        match (message.what, message.reply) {
            (What::Part { call, .. }, Some(Reply::Part(answer))) => self.part_ends(call, answer),
            (What::Ask(_), Some(Reply::Said(said))) if lives => self.change_heard(member, said),
            (What::Ask(_), Some(Reply::Opened(client))) if lives => self.change_opened(member, client),
            (What::Object(_, number), Some(Reply::Object(answer)))
                if lives && self.members[member].waits == Some(number) =>
            {
                if let Answer::Read(Ok(Some(_))) = answer {
                    self.members[member].is_watching = true;
                }
                self.answer(member, answer);
            }
            _ => {}
        }
        self.look_around(member);
    }

    /// A part of a call has ended, and the call with the last of them.
    fn part_ends(&mut self, number: u64, answer: i64) {
        let Some(of) = self.post.calls.get_mut(&number) else { return };
        of.left -= 1;
        if answer < 0 {
            of.answer = of.answer.min(answer);
        }
        if of.left > 0 {
            return;
        }
        let DataCall { member, life, mut call, answer, .. } =
            self.post.calls.remove(&number).expect("it was there");
        if self.members[member].life != life {
            return;
        }
        call.answer = match call.work {
            Work::Read { .. } if answer == 0 => call.data.len() as i64,
            Work::Extent { len, .. } => {
                call.found = Found::Extent { mapped: true, len };
                answer
            }
            _ => answer,
        };
        self.members[member].image.answered(call);
    }

    /// A client has a map that the OSDs have not.
    pub(super) fn maps_travel(&mut self) {
        for osd in 0..self.rados.osds() {
            let after = self.net.borrow_mut().nanos(100_000, self.plan.deaf_micros * 1000 + 200_000);
            self.later(after, Step::Hears { osd });
        }
    }

    /// The object, and its version.
    pub(super) fn object(&self) -> Option<&Versioned> {
        self.rados.object.as_ref()
    }
}
