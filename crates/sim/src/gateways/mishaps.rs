//! What goes wrong with gateways.

use super::member::{Course, Member, portal};
use super::rados::Client;
use super::{Scene, Step};
use proto::time::Time;
use std::time::Duration;
use store::lane::Failover as _;

/// How long it may take beyond a takeover until a gateway has left its unit, and ended.
const ENDS_WITHIN: Duration = Duration::from_secs(8);

impl Scene {
    /// The next one is not before this.
    pub(super) fn plan_mishap(&mut self, from: Duration) {
        if let Some(millis) = self.plan.mishap_millis {
            let after = from + self.net.borrow_mut().nanos(0, millis * 1_000_000);
            self.later(after, Step::Mishap);
        }
    }

    /// One of them.
    pub(super) fn mishap(&mut self) {
        if self.is_healed {
            return;
        }
        let what = self.plan.quarrel.map_or(0, |_| self.net.borrow_mut().rng.u32(0..8));
        let takes = match what {
            0 => self.any_mishap(),
            1..4 => self.outage(),
            _ => self.hang(),
        };
        self.plan_mishap(takes);
    }

    fn any_mishap(&mut self) -> Duration {
        let (member, what, short, long) = {
            let rng = &mut self.net.borrow_mut().rng;
            let member = rng.usize(0..self.members.len());
            // Where all access the image, more of what they have sent there hangs.
            let most = if self.plan.is_for_all() { 20 } else { 14 };
            (member, rng.u32(0..most), rng.u64(0..3_000), rng.u64(0..100_000))
        };
        let time = Duration::from_millis(if what.is_multiple_of(2) { short } else { long });
        match what {
            0..2 => {
                self.kill(member);
                self.later(time / 2, Step::Starts { member });
            }
            2..6 => self.pause(member, time),
            6..8 => self.cut_off_from_cluster(member, time / 2),
            8 => {
                self.note(&[31, member as u64], || format!("initiators do not reach gateway {member}"));
                let net = &mut *self.net.borrow_mut();
                let until = net.now.after(time * 4);
                net.cut_off(portal(member), until);
            }
            9 if !self.plan.is_for_all() && long % 2 == 0 => self.lose_the_medium(member),
            9 => {
                let osd = member % self.rados.osds();
                self.stall(osd, time / 4);
            }
            10 => self.activate(member),
            11 | 12 => self.reload(member),
            13 => {
                self.stop(member);
                self.later(ENDS_WITHIN + self.plan.takeover, Step::Starts { member });
            }
            _ => {
                let (osd, is_long) = {
                    let rng = &mut self.net.borrow_mut().rng;
                    (rng.usize(0..self.rados.osds()), rng.u32(0..3) > 0)
                };
                // Long enough for hosts to give up the path.
                let time = Duration::from_millis(if is_long { 15_000 + long / 4 } else { short });
                if what < 19 { self.hold_up(member, None, osd, time) } else { self.stall(osd, time) }
            }
        }
        Duration::ZERO
    }

    /// The cluster and a gateway do not reach each other for this time.
    pub(super) fn cut_off_from_cluster(&mut self, member: usize, time: Duration) {
        self.note(&[30, member as u64], || format!("gateway {member} is cut off for {time:?}"));
        let until = self.net.borrow().now.after(time);
        self.members[member].cut_until = until;
        self.works_from(member);
    }

    /// What a gateway asks of the object has no answer for this time.
    pub(super) fn blind(&mut self, member: usize, time: Duration) {
        self.note(&[43, member as u64], || {
            format!("gateway {member} does not reach the object for {time:?}")
        });
        let until = self.net.borrow().now.after(time);
        self.members[member].blind_until = until;
        self.works_from(member);
    }

    /// An OSD does nothing for this time, after which it does what it has got in any order.
    fn stall(&mut self, osd: usize, time: Duration) {
        self.note(&[32, osd as u64], || format!("OSD {osd} does nothing for {time:?}"));
        let until = self.net.borrow().now.after(time);
        self.osds_until[osd] = until;
        if osd == 0 || !self.plan.is_for_all() {
            // It has the object.
            self.truth.borrow_mut().works_from(None, until);
        }
    }

    /// What a gateway, or this client of it, has sent to an OSD, or sends, does not get there for this time.
    pub(super) fn hold_up(&mut self, member: usize, client: Option<Client>, osd: usize, time: Duration) {
        self.note(&[42, member as u64, osd as u64], || {
            format!("OSD {osd} gets nothing from gateway {member} for {time:?}")
        });
        let until = self.net.borrow().now.after(time);
        self.members[member].held_up.insert((osd, client), until);
    }

    /// The same of all OSDs, while it reaches its object, for longer than it may go on so: the active gateway, if there is one.
    fn lose_the_medium(&mut self, member: usize) {
        let member = self.members.iter().position(Member::is_active).unwrap_or(member);
        let time = self.plan.takeover * 10 + Duration::from_secs(5);
        (0..self.rados.osds()).for_each(|osd| self.hold_up(member, None, osd, time));
    }

    /// The only gateway with access to the medium leaves it to another one if it gets no answers.
    ///
    /// # Errors
    /// When it does not.
    pub(super) fn check_hangs(&mut self, member: usize) -> Result<(), String> {
        let now = self.net.borrow().now;
        let one = &mut self.members[member];
        one.hung = one.hung.or(Some(now)).filter(|_| one.image.is_stuck());
        let (Some(since), false) = (one.hung, self.plan.is_for_all() || self.is_healed) else {
            return Ok(());
        };
        let truth = self.truth.borrow();
        let Some(active) = truth.active_since(member) else { return Ok(()) };
        let takeover = self.plan.takeover * 1000 / 800;
        let slow = Duration::from_secs(if self.plan.slow > 0 { 40 } else { 3 });
        let from = since.max(truth.has_worked_from(member)).after(takeover * 11 / 5);
        let until = from.max(active.after(takeover * 31 / 5)).after(slow);
        if now < until {
            return Ok(());
        }
        Err(format!("gateway {member} keeps a unit whose medium has not answered since {since:?}"))
    }

    /// Its process is killed.
    pub(super) fn kill(&mut self, member: usize) {
        let now = self.net.borrow().now;
        let Some(mut daemon) = self.members[member].daemon.take() else { return };
        daemon.die();
        self.note(&[33, member as u64], || format!("gateway {member} is killed"));
        drop(daemon);
        self.ended[member] = now;
        self.members[member].is_gone(&self.net);
    }

    /// Nothing of it runs for this time (SIGSTOP).
    fn pause(&mut self, member: usize, time: Duration) {
        if self.members[member].daemon.is_none() {
            return;
        }
        self.note(&[34, member as u64], || format!("gateway {member} is paused for {time:?}"));
        {
            let one = &mut self.members[member];
            let net = &mut *self.net.borrow_mut();
            one.pauses(net.now, net.now.after(time));
            self.truth.borrow_mut().pauses(member, one.paused_until);
            one.hosts().for_each(|host| net.pause(host, one.paused_until));
        }
        self.works_from(member);
    }

    fn works_from(&mut self, member: usize) {
        let one = &self.members[member];
        let osds = self.osds_until.iter().copied().max().unwrap_or(Time(0));
        let from = one.paused_until.max(one.cut_until).max(one.blind_until).max(osds);
        self.truth.borrow_mut().works_from(Some(member), from);
    }

    fn activate(&mut self, member: usize) {
        if let Some(daemon) = &self.members[member].daemon {
            self.note(&[35, member as u64], || format!("gateway {member} is to be active"));
            // Nobody waits for the outcome.
            drop(daemon.cores.gateway_wanted(0));
            self.look_around(member);
        }
    }

    /// It ends in order.
    pub(super) fn stop(&mut self, member: usize) {
        let one = &mut self.members[member];
        let Some(daemon) = one.daemon.as_ref().filter(|_| one.course == Course::Serves) else { return };
        daemon.cores.gateway_withdraws(0);
        one.course = Course::Withdraws;
        let life = one.life;
        self.note(&[36, member as u64], || format!("gateway {member} is stopped"));
        if !self.is_ending {
            self.later(ENDS_WITHIN + self.plan.takeover, Step::MustEnd { member, life });
        }
        self.look_around(member);
    }

    /// It has ended in order.
    pub(super) fn has_ended(&mut self, member: usize) {
        self.note(&[37, member as u64], || format!("gateway {member} has ended"));
        self.ended[member] = self.net.borrow().now;
        self.members[member].is_gone(&self.net);
    }

    /// It is started, unless it runs.
    pub(super) fn start(&mut self, member: usize) {
        if self.members[member].daemon.is_some() || self.is_ending {
            return;
        }
        let client = self.post.client(self.rados.epoch);
        let now = self.net.borrow().now;
        self.truth.borrow_mut().finds_out(now, member);
        self.truth.borrow_mut().views.learns(now, member, None);
        self.truth.borrow_mut().is_active(now, member, false);
        self.note(&[38, client.0], || format!("gateway {member} is started, as client {}", client.0));
        self.members[member].start(&self.plan, &self.net, client);
    }

    /// Nothing goes wrong any more.
    pub(super) fn heal(&mut self) {
        self.note(&[39], || "nothing goes wrong any more".into());
        self.is_healed = true;
        self.fault_micros = None;
        for member in 0..self.members.len() {
            let net = &mut *self.net.borrow_mut();
            let now = net.now;
            self.osds_until.fill(now);
            net.cut_off(portal(member), now);
            let one = &mut self.members[member];
            (one.cut_until, one.blind_until) = (now, now);
            one.held_up.clear();
            one.continues(net);
            let hosts = one.hosts();
            hosts.for_each(|host| net.wake(host, now));
        }
        let now = self.net.borrow().now;
        self.truth.borrow_mut().works_from(None, now);
        for member in 0..self.members.len() {
            match self.members[member].course {
                Course::Serves => self.start(member),
                // It comes back when it has ended.
                Course::Withdraws | Course::Stops => {}
            }
        }
    }
}
