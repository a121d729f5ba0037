//! A logical unit's fixed identity, and one core's view of it.

use crate::state::copies::Copies;
use crate::state::policy::Policy;
use crate::state::port_groups::{PortGroup, PortGroups, Role};
use crate::state::space::Space;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::scsi::AccessState;

/// The fixed properties of a logical unit while it is served.
/// Its fields are properties that INQUIRY and its pages report, as a flat list.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Index among the daemon's units, the same on every core.
    pub index: u32,
    /// Logical block size in bytes (a power of two, 512..=65536), unless the store has one of its own.
    pub block_bytes: u32,
    /// Physical block size in bytes (a power of two, at least `block_bytes`).
    pub physical_block_bytes: u32,
    /// Unit serial number (VPD 80h): 1..=32 printable ASCII characters.
    pub serial: String,
    /// Product identification: 1..=16 printable ASCII characters.
    pub product: String,
    /// The unit's NAA identifier (locally assigned, NAA = 3h, or IEEE registered extended, NAA = 6h).
    pub naa: [u8; 16],
    /// The unit's EUI-64 based identifier.
    pub eui: [u8; 8],
    /// The incarnation of its store's cache, in the vendor specific bytes of INQUIRY data: while it is
    /// unchanged, no acknowledged write was lost for lack of a flush. Another Lunette that serves the unit
    /// queries it after each login.
    pub incarnation: Incarnation,
    /// Thin provisioned, if the store can deallocate space.
    pub thin: bool,
    /// The percentage of the size that it may use before its nexuses are notified; `None`: not unless MODE
    /// SELECT sets a threshold.
    pub warn_at: Option<u8>,
    /// The space that its store takes, if that can be measured: such a unit has thresholds, if it is thin.
    pub space: Option<Arc<Space>>,
    /// Write protected by configuration.
    pub read_only: bool,
    /// The medium is removable (RMB).
    pub removable: bool,
    /// Write cache enabled at start.
    pub write_cache: bool,
    /// Exported by ATA over Ethernet: SCSI initiators may pass ATA commands through.
    pub exported: bool,
    /// Whether its store is remote, where commands of an earlier process may be waiting that this one does
    /// not know of.
    pub remote: bool,
    /// State that must survive a restart can be saved: there is a state directory, or gateways share it.
    pub ptpl_capable: bool,
    /// Other gateways serve it as well: which of them at a time.
    /// ([`HomeRequest::SetRole`](crate::HomeRequest::SetRole)).
    pub sharing: Option<Sharing>,
    /// The copy operations that run on the unit.
    pub copies: Arc<Copies>,
    /// Target ports through which the unit is reached, in ascending order of their identifiers.
    pub ports: Vec<Port>,
    /// The groups of these ports; one that is missing has the defaults of [`PortGroup::new`].
    pub groups: Vec<PortGroup>,
}

impl Unit {
    /// Its target port groups, as configured.
    pub(crate) fn port_groups(&self) -> PortGroups {
        let groups =
            PortGroups::of(self.ports.iter().map(|port| (port.group, port.relative_id)), &self.groups);
        match self.sharing {
            None => groups,
            Some(Sharing::One) => groups.in_role(Role::Standby),
            Some(Sharing::All) => groups.in_role(Role::Standby).settling(),
        }
    }

    /// Whether gateways share it.
    pub fn is_shared(&self) -> bool {
        self.sharing.is_some()
    }

    /// Whether gateways serve it at the same time: none of them sees all commands.
    pub(crate) fn is_shared_by_all(&self) -> bool {
        self.sharing == Some(Sharing::All)
    }

    /// Whether SET TARGET PORT GROUPS may change the state of any of its groups.
    pub(crate) fn has_explicit_groups(&self) -> bool {
        self.groups.iter().any(|group| group.explicit)
    }

    /// The port with this relative identifier; `None` for AoE, which has no ports.
    pub(crate) fn port(&self, relative_id: u16) -> Option<&Port> {
        self.ports.iter().find(|port| port.relative_id == relative_id)
    }
}

/// Which of the gateways that share a unit access its medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// One at a time.
    One,
    /// All at the same time.
    All,
}

/// Identifies a period in which a store lost nothing that it had acknowledged.
#[derive(Clone, Default, Debug)]
pub struct Incarnation {
    /// Identifies the process or the machine's boot; zeros: unknown.
    pub name: [u8; 16],
    /// How often the store lost something in that period.
    pub losses: Arc<AtomicU64>,
}

impl Incarnation {
    /// Its present value.
    pub fn now(&self) -> [u8; 16] {
        let losses = u128::from(self.losses.load(Ordering::SeqCst));
        match u128::from_be_bytes(self.name) {
            0 => [0; 16],
            name => name.wrapping_add(losses).max(1).to_be_bytes(),
        }
    }
}

/// A target port, for VPD 83h and 88h, and REPORT TARGET PORT GROUPS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// Relative target port identifier, from 1.
    pub relative_id: u16,
    /// Target port group: for iSCSI the target portal group tag, from 1.
    pub group: u16,
    /// Its unique, permanent name: for iSCSI the SCSI name `iqn...,t,0xTPGT`.
    pub name: String,
    /// SCSI name of the target device.
    pub device: String,
    /// Its protocol.
    pub protocol: Protocol,
}

/// A target port of another gateway that serves the same unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OtherPort {
    /// Relative target port identifier, unique among all gateways.
    pub relative_id: u16,
    /// Target port group, whose ports all belong to that gateway.
    pub group: u16,
    /// Its unique, permanent name.
    pub name: String,
    /// The state of its group.
    pub state: AccessState,
}

/// All target ports through which a unit is reached, by identifier and name.
#[derive(Clone, Copy, Debug)]
pub struct PortNames<'a> {
    here: &'a [Port],
    others: &'a [OtherPort],
}

impl<'a> PortNames<'a> {
    /// The ports of this gateway and of others.
    pub fn of(here: &'a [Port], others: &'a [OtherPort]) -> PortNames<'a> {
        PortNames { here, others }
    }

    /// Until a reload undoes it, a port here may have the identifier of another gateway's port, which no
    /// identifier means then.
    fn all(self) -> impl Iterator<Item = (u16, &'a str)> {
        let is_here = move |id: u16| self.here.iter().any(|port| port.relative_id == id);
        let here = self.here.iter().map(|port| (port.relative_id, port.name.as_str()));
        let others = self.others.iter().filter(move |port| !is_here(port.relative_id));
        here.chain(others.map(|port| (port.relative_id, port.name.as_str())))
    }

    /// Their identifiers.
    pub(crate) fn ids(self) -> impl Iterator<Item = u16> {
        self.all().map(|(id, _)| id)
    }

    /// The name of the port with this identifier.
    pub(crate) fn name(self, id: u16) -> Option<&'a str> {
        self.all().find(|(other, _)| *other == id).map(|(_, name)| name)
    }

    /// The identifier of the port with this name.
    pub(crate) fn id(self, name: &str) -> Option<u16> {
        self.all().find(|(_, other)| *other == name).map(|(id, _)| id)
    }
}

/// The protocol of a target port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// iSCSI, over TCP or iSER.
    Iscsi,
    /// SRP.
    Srp {
        /// The target port identifier (SRP r16a section 4.3).
        identifier: [u8; 16],
    },
}

/// One core's view of a unit: its identity and the newest policy that this core has applied.
#[derive(Clone, Debug)]
pub struct View {
    /// The identity.
    pub unit: Arc<Unit>,
    /// The policy.
    pub policy: Arc<Policy>,
}

impl View {
    /// Unit serial number: the medium's own, if it has one.
    pub fn serial(&self) -> &str {
        let own = self.policy.traits.identity.as_ref();
        own.and_then(|own| std::str::from_utf8(&own.serial).ok()).unwrap_or(&self.unit.serial)
    }

    /// EUI-64 based identifier.
    pub(crate) fn eui(&self) -> &[u8; 8] {
        self.policy.traits.identity.as_ref().map_or(&self.unit.eui, |own| &own.eui)
    }

    /// NAA identifier: 8 bytes when locally assigned (3h), 16 when IEEE registered extended (6h).
    pub(crate) fn naa(&self) -> &[u8] {
        let naa = self.policy.traits.identity.as_ref().map_or(&self.unit.naa, |own| &own.naa);
        let long = naa.first().is_some_and(|byte| byte >> 4 == 0x6);
        if long { naa } else { naa.first_chunk::<8>().map_or(naa, |short| short) }
    }
}

#[cfg(test)]
mod tests {
    use crate::state::attention::UnitAttention;
    use crate::state::home::HomeRequest;
    use crate::testing::Bench;
    use crate::vocabulary::storage::{Identity, Traits};
    use wire::scsi::command::Inquiry;
    use wire::scsi::vpd::page;

    #[test]
    fn a_medium_that_comes_with_names_of_its_own_names_the_unit() {
        let mut bench = Bench::new();
        let own = Identity { serial: *b"0123456789abcdef", naa: [0x61; 16], eui: [2; 8] };
        assert_eq!(bench.view.serial(), bench.view.unit.serial);
        bench.ask(HomeRequest::StoreChanged(Traits { identity: Some(own), ..bench.view.policy.traits }));
        for nexus in &mut bench.nexuses {
            assert_eq!(std::mem::take(&mut nexus.attentions), [UnitAttention::InquiryChanged]);
        }
        let serial = bench.read(Inquiry::page(page::SERIAL_NUMBER, 255));
        assert_eq!(&serial.assert_good().data[4..], own.serial);
        let names = bench.read(Inquiry::page(page::IDENTIFICATION, 255)).data;
        for name in [&own.naa[..], &own.eui, &own.serial] {
            assert!(names.windows(name.len()).any(|part| part == name), "{names:02x?}");
        }
    }
}
