//! The state of one I_T_L nexus, owned by the core of its session.

use crate::state::attention::UnitAttention;
use crate::state::home::NexusIdentity;
use crate::state::policy::Policy;
use crate::state::reservation::Access;
use crate::state::unit::{OtherPort, Port, Unit, View};
use std::collections::VecDeque;
use std::sync::Arc;
use wire::aoe::Mac;
use wire::scsi::transport_id::aoe_mac;

/// Identifies an I_T nexus within the daemon for as long as its session lives; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NexusId(pub u64);

impl NexusId {
    /// Stands for a nexus of another gateway: no session here has this id.
    pub const ELSEWHERE: NexusId = NexusId(u64::MAX);
}

/// The state of one I_T_L nexus.
#[derive(Clone, Debug)]
pub struct NexusUnit {
    /// The I_T nexus.
    pub id: NexusId,
    /// The initiator port as a TransportID (SPC-4 section 7.6.4), which all nexuses of a session share.
    pub transport_id: Arc<[u8]>,
    /// The target port's relative identifier.
    pub target_port: u16,
    /// Other ports of the unit, whose targets do not show it to the initiator and which are not reported to
    /// it. In ascending order.
    pub hidden_ports: Arc<[u16]>,
    /// The initiator's address, if it uses ATA (over Ethernet), as in its TransportID. Such a nexus has no
    /// unit attentions: ATA does not have them.
    pub mac: Option<Mac>,
    /// Its commands are never answered on arrival ([`View::transfer`](crate::View::transfer)): it uses ATA,
    /// or is subject to limits.
    pub takes_turns: bool,
    /// The MAC mask list excludes the initiator: it gets no answer.
    pub(crate) is_masked: bool,
    /// This nexus is read-only (access rule of its initiator group), and may change nothing for others.
    pub read_only: bool,
    /// Pending unit attentions, oldest first, without duplicates; at most [`NexusUnit::ATTENTIONS_MAX`].
    pub attentions: VecDeque<UnitAttention>,
    /// What reservations and its port's group permit this nexus, computed from the policy of `access_epoch`.
    pub access: Access,
    /// Epoch of the policy that `access` was computed from; 0: none yet.
    pub access_epoch: u64,
    /// How many reports of other gateways that policy had; `None`: it had not been read yet, or is not shared.
    pub(crate) known_news: Option<u64>,
    /// Results of this nexus's copy operations, for RECEIVE COPY RESULTS and STATUS.
    pub copies: crate::state::copies::Results,
}

/// How a nexus reaches a unit of the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// It has no LUN for it: to it the unit does not exist.
    No,
    /// It is read-only.
    ReadOnly,
    /// It may do everything.
    Full,
}

impl NexusUnit {
    /// The most pending unit attentions per nexus and unit.
    pub const ATTENTIONS_MAX: usize = 16;

    /// A new nexus, which gets the unit attention of a power on.
    pub fn new(
        id: NexusId,
        transport_id: impl Into<Arc<[u8]>>,
        target_port: u16,
        read_only: bool,
    ) -> NexusUnit {
        let transport_id = transport_id.into();
        let mac = aoe_mac(&transport_id);
        NexusUnit {
            id,
            transport_id,
            target_port,
            hidden_ports: Arc::default(),
            takes_turns: mac.is_some(),
            mac,
            is_masked: false,
            read_only,
            attentions: mac.is_none().then_some(UnitAttention::PowerOn).into_iter().collect(),
            access: Access::default(),
            access_epoch: 0,
            known_news: None,
            copies: crate::state::copies::Results::default(),
        }
    }

    /// The initiator's rights have changed, or the ports that it may see.
    pub fn change_access(&mut self, read_only: bool, hidden_ports: &[u16]) {
        if *self.hidden_ports != *hidden_ports {
            self.hidden_ports = hidden_ports.into();
        }
        if std::mem::replace(&mut self.read_only, read_only) != read_only {
            // Mode parameters include whether it is write protected (SBC-3 section 6.5.1).
            self.establish(UnitAttention::ModeChanged);
        }
    }

    /// The nexus as reservations identify it.
    pub fn identity(&self) -> NexusIdentity {
        NexusIdentity {
            nexus: self.id,
            transport_id: self.transport_id.clone(),
            target_port: self.target_port,
            read_only: self.read_only,
            known_news: self.known_news,
        }
    }

    /// Establishes a unit attention, without duplicates, in the order of precedence, then of age. A power on
    /// or a reset supersedes those below it in precedence, up to the level that reports something else (SAM-5
    /// section 5.14.2).
    pub fn establish(&mut self, attention: UnitAttention) {
        let rank = attention.precedence();
        let is_reset =
            |other: &UnitAttention| other.precedence() < UnitAttention::CommandsCleared.precedence();
        let covered = is_reset(&attention)
            && self.attentions.iter().any(|other| is_reset(other) && other.precedence() <= rank);
        if covered || self.mac.is_some() || self.attentions.contains(&attention) {
            return;
        }
        if is_reset(&attention) {
            self.attentions.retain(|other| !is_reset(other));
        }
        let at = self.attentions.iter().take_while(|other| other.precedence() <= rank).count();
        self.attentions.insert(at, attention);
        self.attentions.truncate(NexusUnit::ATTENTIONS_MAX);
    }

    /// The ports of a unit that the initiator may see.
    pub(crate) fn ports<'a>(&'a self, unit: &'a Unit) -> impl Iterator<Item = &'a Port> {
        unit.ports.iter().filter(|port| self.hidden_ports.binary_search(&port.relative_id).is_err())
    }

    /// Ports of other gateways that lead to the same unit: those of target devices whose ports here it may
    /// see.
    pub(crate) fn other_ports<'a>(&'a self, view: &'a View) -> impl Iterator<Item = &'a OtherPort> {
        let is_of = |other: &OtherPort, port: &Port| {
            other.name.strip_prefix(&port.device).is_some_and(|rest| rest.starts_with(','))
        };
        let is_known = move |other: &&OtherPort| self.ports(&view.unit).any(|port| is_of(other, port));
        view.policy.others.iter().filter(is_known)
    }

    /// Takes the unit attention that is to be reported first.
    pub(crate) fn take_attention(&mut self) -> Option<UnitAttention> {
        self.attentions.pop_front()
    }

    /// Computes what reservations and its port's group permit this nexus, if the policy has changed since.
    pub fn sync(&mut self, policy: &Policy) {
        if self.access_epoch == policy.epoch {
            return;
        }
        self.access = if policy.groups.state_of(self.target_port).is_active() {
            policy.reservations.access(self.id, &self.transport_id, self.target_port)
        } else {
            Access::Inactive
        };
        self.is_masked = self.mac.is_some_and(|mac| !policy.export.may_see(mac));
        self.known_news = policy.news.as_ref().map(|news| news.count());
        self.access_epoch = policy.epoch;
    }
}
