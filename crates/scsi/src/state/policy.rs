//! What every core knows about a unit: an immutable snapshot, published by the unit's home and replaced as a
//! whole.

use crate::state::encoding;
use crate::state::export::Export;
use crate::state::news::News;
use crate::state::nexus::NexusId;
use crate::state::port_groups::{PortGroups, Role};
use crate::state::reservation::Table;
use crate::state::unit::{OtherPort, Port, PortNames, Unit};
use crate::vocabulary::modes::EraseKind;
use crate::vocabulary::modes::{Modes, ModesChange};
use crate::vocabulary::sense::Check;
use crate::vocabulary::storage::Traits;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use wire::scsi::AccessState;

/// A unit's shared state at one moment. Cores compare `epoch` to see that it changed.
/// Its fields are published together, so that no core sees a part of a change.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Counts publications, from 1.
    pub epoch: u64,
    /// Capacity, limits and abilities of the store at present.
    pub traits: Traits,
    /// Logical block size in bytes: the store's own, else the unit's.
    pub block_bytes: u32,
    /// Physical block size in bytes, likewise.
    pub physical_block_bytes: u32,
    /// Why the store does not serve, for sense data and log; `None` when it does.
    pub failed: Option<Arc<str>>,
    /// Mode page fields that MODE SELECT may change.
    pub modes: Modes,
    /// The unit's used space has reached its threshold, and its nexuses were notified.
    pub threshold_reached: bool,
    /// START STOP UNIT: whether the medium may be accessed.
    pub started: bool,
    /// START STOP UNIT with LOEJ: the medium is ejected (removable units).
    pub ejected: bool,
    /// Nexuses that prevent medium removal, by count.
    pub removal_prevented: bool,
    /// Persistent reservations and registrations.
    pub reservations: Arc<Table>,
    /// An operation that erases the whole medium, in progress or failed.
    pub erasure: Option<Erasure>,
    /// What exports of the unit by ATA over Ethernet share.
    pub export: Arc<Export>,
    /// Its target port groups.
    pub groups: Arc<PortGroups>,
    /// Unit attentions that nexuses of other gateways get as well; `None`: not read yet.
    pub news: Option<Arc<News>>,
    /// Ports of other gateways that serve it.
    pub others: Arc<[OtherPort]>,
}

impl Modes {
    /// The default values, from the unit's configuration.
    pub fn initial(unit: &Unit) -> Modes {
        Modes {
            write_cache: unit.write_cache,
            software_write_protect: false,
            descriptor_sense: false,
            queue_error: 0,
            // No gateway knows the tasks of another one.
            task_set_per_nexus: unit.is_shared_by_all(),
            task_aborted_status: false,
            provisioning_errors: unit.warn_at.is_some(),
            threshold: unit.warn_at.is_some(),
            threshold_sets: None,
        }
    }
}

/// An operation that erases the whole medium. One that a restart interrupts has failed.
#[derive(Clone, Debug)]
pub enum Erasure {
    /// Under way.
    Running {
        /// Progress out of 65536, stored by the core that runs it.
        progress: Arc<AtomicU32>,
        /// Which.
        kind: EraseKind,
    },
    /// Failed.
    Failed {
        /// Which.
        kind: EraseKind,
    },
}

impl EraseKind {
    /// Its code in the saved state.
    fn code(self) -> u8 {
        match self {
            EraseKind::Sanitize { unrestricted } => u8::from(unrestricted),
            EraseKind::Format => 2,
        }
    }

    fn from_code(code: u8) -> Option<EraseKind> {
        match code {
            0 | 1 => Some(EraseKind::Sanitize { unrestricted: code == 1 }),
            2 => Some(EraseKind::Format),
            _ => None,
        }
    }
}

impl Erasure {
    /// The first bytes of the saved state of an operation; its kind, the reservations and a checksum follow.
    const MAGIC: &[u8] = b"LuneSan\x02";
    /// The same in the first version of the format, which had no checksum.
    const MAGIC_UNSEALED: &[u8] = b"LuneSan\x01";

    fn kind(&self) -> EraseKind {
        match self {
            Erasure::Running { kind, .. } | Erasure::Failed { kind } => *kind,
        }
    }
}

impl Policy {
    /// Whether SET TARGET PORT GROUPS with these states may make this gateway active.
    pub(crate) fn activates(&self, states: &[(u16, AccessState)]) -> Result<(), Check> {
        self.groups.activates(states, |tag| self.others.iter().any(|port| port.group == tag))
    }

    /// Whether this gateway accesses the medium.
    pub fn serves(&self) -> bool {
        self.groups.role() != Role::Standby
    }

    /// Whether this gateway decides what all gateways must know; otherwise the state here may be old.
    pub fn decides(&self) -> bool {
        self.groups.role() == Role::Active
    }

    /// Whether MODE SELECT with this may change mode parameters.
    pub(crate) fn is_changed_by(&self, change: ModesChange) -> bool {
        !self.decides() || change.of(self.modes) != self.modes
    }

    /// `started` and `ejected` after a START STOP UNIT.
    pub(crate) fn after_start_stop(&self, start: bool, load_eject: bool) -> (bool, bool) {
        let started = if start || !load_eject { start } else { self.started };
        (started, if load_eject { !start } else { self.ejected })
    }

    /// Whether the loss of this nexus may change it: it has reserved the unit by RESERVE, or some nexus
    /// prevents medium removal.
    pub fn may_be_held_by(&self, nexus: NexusId) -> bool {
        self.removal_prevented || self.reservations.is_reserved_by(nexus)
    }

    /// What must survive a restart, as bytes; empty if nothing must. What exports share comes first, if there
    /// is any; then an operation that erases the medium; then the reservations.
    pub(crate) fn saved(&self, ports: &[Port]) -> Vec<u8> {
        self.export.save(self.saved_of_unit(self.reservations.saved(PortNames::of(ports, &[]))))
    }

    /// These reservations, and an operation that erases the medium.
    pub(crate) fn saved_of_unit(&self, table: Vec<u8>) -> Vec<u8> {
        let Some(erasure) = &self.erasure else { return table };
        let mut bytes = Erasure::MAGIC.to_vec();
        bytes.push(erasure.kind().code());
        bytes.extend(table);
        encoding::seal(bytes)
    }

    /// The policy with the saved state in it; `None` if the bytes are not a saved state.
    pub(crate) fn restored(&self, saved: &[u8], ports: &[Port]) -> Option<Policy> {
        let (export, rest) = Export::restore(saved)?;
        let (erasure, reservations) = match rest {
            [] if export != Export::default() => (None, Table::default()),
            rest => Policy::restore_unit(rest, PortNames::of(ports, &[]))?,
        };
        let (export, reservations) = (Arc::new(export), Arc::new(reservations));
        Some(Policy { erasure, reservations, export, ..self.clone() })
    }

    /// Decodes what [`Policy::saved_of_unit`] encoded.
    pub(crate) fn restore_unit(saved: &[u8], ports: PortNames<'_>) -> Option<(Option<Erasure>, Table)> {
        let rest = if saved.starts_with(Erasure::MAGIC) {
            encoding::unseal(saved)?.strip_prefix(Erasure::MAGIC)?
        } else if let Some(rest) = saved.strip_prefix(Erasure::MAGIC_UNSEALED) {
            rest
        } else {
            return Table::decode(saved, ports).map(|table| (None, table));
        };
        let (kind, table) = rest.split_first()?;
        let kind = EraseKind::from_code(*kind)?;
        let table = if table.is_empty() { Table::default() } else { Table::decode(table, ports)? };
        Some((Some(Erasure::Failed { kind }), table))
    }
}
