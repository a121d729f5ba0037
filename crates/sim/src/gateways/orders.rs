//! What was sent to gateways, and may still be done or not: nothing that was sent to one which is shut out, and no order once nobody has
//! it any more.

use super::Scene;
use super::member::{Course, Member, name};
use super::rados::Client;
use cluster::Record;
use proto::time::Time;
use std::time::Duration;

/// How often it is looked whether an order may still be done.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);
/// For so many looks nothing may have been in the way of those that do it.
const LOOKS: u32 = 10;

/// An order or a reset whose outcome nobody knows.
#[derive(Debug)]
pub(super) struct Open {
    what: Unknown,
    /// Its gateway has nothing more to send; the object had this version then.
    since: Option<u64>,
    looks: u32,
}

#[derive(Clone, Copy, Debug)]
enum Unknown {
    Order(u64),
    Reset(u64),
}

impl Scene {
    /// The object was replaced.
    ///
    /// # Errors
    /// When it must not be so.
    pub(super) fn object_changed(&mut self) -> Result<(), String> {
        let now = self.net.borrow().now;
        let Some((version, bytes)) = self.object() else { return Ok(()) };
        let record = Record::decode(bytes).expect("a gateway has written it");
        let changed = self.truth.borrow_mut().changes(now, *version, &record, name);
        self.record = Some(record);
        changed
    }

    /// The monitors have shut a client out. If it used the image, its gateway ends all sessions before it is active again.
    pub(super) fn is_shut_out(&mut self, client: Client) {
        let now = self.net.borrow().now;
        self.note(&[40, client.0], || format!("client {} is shut out", client.0));
        let of = |one: &Member| Some((one.number, one.clients.iter().find(|(its, _)| *its == client)?.1));
        if let Some((member, died)) = self.members.iter().find_map(of) {
            self.fenced.push((client, member, died.unwrap_or(now)));
        }
        if self.served.contains(&client)
            && let Some(member) = self.members.iter().find(|member| member.image.now() == client)
        {
            self.ended[member.number] = now;
        }
        self.maps_travel();
    }

    /// An OSD has served a new claim: what was sent before by those that were killed or shut out since is refused there from now on.
    pub(super) fn cut_off(&mut self, osd: usize) {
        let now = self.net.borrow().now;
        let (initiators, ended) = (self.initiators.len(), &self.ended);
        let is_there =
            |block: usize| self.rados.osd_of(block as u64 * u64::from(crate::register::BLOCK_BYTES)) == osd;
        self.registers.borrow_mut().cut_off(now, is_there, |by, start| start < ended[by / initiators]);
    }

    /// An OSD has another map: what was sent there by those that are shut out in it is refused from now on.
    pub(super) fn cut_off_fenced(&mut self, osd: usize) {
        let now = self.net.borrow().now;
        let (initiators, mut ended) = (self.initiators.len(), vec![Time(0); self.members.len()]);
        for (client, member, at) in &self.fenced {
            if self.rados.refuses(osd, *client) {
                ended[*member] = ended[*member].max(*at);
            }
        }
        let is_there =
            |block: usize| self.rados.osd_of(block as u64 * u64::from(crate::register::BLOCK_BYTES)) == osd;
        self.registers.borrow_mut().cut_off(now, is_there, |by, start| start < ended[by / initiators]);
    }

    /// Orders of which nobody knows whether they were done, and that nobody can do any more, are closed.
    pub(super) fn look_at_orders(&mut self) {
        let now = self.net.borrow().now;
        let is_quiet = self.members.iter_mut().all(|one| {
            let daemon = one.daemon.as_mut();
            one.paused_until <= now
                && one.cut_until <= now
                && one.course != Course::Withdraws
                && daemon.is_none_or(|daemon| {
                    one.waits.is_none() && one.works.is_none() && !daemon.cores.gateway_is_called(0)
                })
        });
        // Changes of a unit wait for those before them, which wait for what the cluster and the medium do.
        let is_slow = !self.post.are_all_since(Time(now.0.saturating_sub(LOOK_EVERY.as_nanos() as u64)));
        if is_quiet && !is_slow && !self.truth.borrow().has_requests() {
            self.truth.borrow_mut().views.is_calm(now);
        }
        let mut reservations = self.reservations.borrow_mut();
        let unit = &mut reservations[0];
        let mut attentions = self.attentions.borrow_mut();
        let orders = unit.take_open().into_iter().map(Unknown::Order);
        let fresh = orders.chain(attentions.take_open().into_iter().map(Unknown::Reset));
        self.open.extend(fresh.map(|what| Open { what, since: None, looks: 0 }));
        let (is_asking, version) = (self.truth.borrow().has_requests(), self.truth.borrow().version);
        self.open.retain_mut(|open| {
            match open.since {
                None if is_quiet => open.since = Some(version),
                Some(since) if version > since && !is_asking => open.looks += u32::from(is_quiet),
                None | Some(_) => {}
            }
            let is_over = open.looks >= LOOKS;
            if is_over {
                match open.what {
                    Unknown::Order(id) => unit.close(id),
                    Unknown::Reset(lost) => attentions.close(now, lost),
                }
            }
            !is_over
        });
    }
}
