//! The data of PERSISTENT RESERVE IN (SPC-4 section 6.13).

use super::{Kind, Table, TargetPort};
use crate::state::unit::Unit;
use wire::scsi::parameters::{FullStatus, HeldReservation, ReserveCapabilities, ReserveInHeader};

impl Table {
    /// READ KEYS.
    pub(crate) fn report_keys(&self, data: &mut Vec<u8>) {
        let keys: Vec<u8> = self.registrations.iter().flat_map(|one| one.key.to_be_bytes()).collect();
        self.push_list(&keys, data);
    }

    /// READ RESERVATION. All registrants have no common key.
    pub(crate) fn report_reservation(&self, data: &mut Vec<u8>) {
        let mut body = Vec::new();
        if let Some(held) = &self.reservation {
            let holder = held.holder.as_ref().and_then(|holder| self.registration(holder));
            let key = holder.map_or(0, |holder| holder.key);
            body.extend(HeldReservation { key, scope: 0, kind: held.kind.bits() }.to_bytes());
        }
        self.push_list(&body, data);
    }

    /// REPORT CAPABILITIES.
    pub(crate) fn report_capabilities(&self, unit: &Unit, data: &mut Vec<u8>) {
        let capabilities = ReserveCapabilities {
            length_bytes: 8,
            compatible_reserve: !unit.is_shared_by_all(),
            can_name_initiators: true,
            can_be_all_target_ports: true,
            ptpl_capable: unit.ptpl_capable,
            mask_is_valid: true,
            allowed_commands: 1,
            is_persistent: self.is_persistent,
            type_mask: Kind::ALL.into_iter().fold(0, |mask, kind| mask | type_bit(kind)),
        };
        data.extend(capabilities.to_bytes());
    }

    /// READ FULL STATUS.
    pub(crate) fn report_full_status(&self, data: &mut Vec<u8>) {
        let mut body = Vec::new();
        for registration in &self.registrations {
            let held = self.reservation.as_ref().filter(|held| held.is_held_by(registration));
            let id = registration.nexus.initiator.as_bytes();
            let status = FullStatus {
                key: registration.key,
                is_holder: held.is_some(),
                kind: held.map_or(0, |held| held.kind.bits()),
                target_port: match registration.nexus.target_port {
                    TargetPort::Here(port) => port,
                    // No port has this identifier.
                    TargetPort::Gone(_) => 0,
                },
                transport_id_bytes: u32::try_from(id.len()).unwrap_or(0),
                ..FullStatus::ZERO
            };
            body.extend(status.to_bytes());
            body.extend_from_slice(id);
        }
        self.push_list(&body, data);
    }

    /// The header, with the length of everything that follows whatever the allocation length, and then that.
    fn push_list(&self, body: &[u8], data: &mut Vec<u8>) {
        let following_bytes = u32::try_from(body.len()).unwrap_or(u32::MAX);
        data.extend(ReserveInHeader { generation: self.generation, following_bytes }.to_bytes());
        data.extend_from_slice(body);
    }
}

/// The bit in PERSISTENT RESERVATION TYPE MASK: bit number = type, where the first byte has types 0 to 7.
fn type_bit(kind: Kind) -> u16 {
    match kind {
        Kind::WriteExclusive => 0x0200,
        Kind::ExclusiveAccess => 0x0800,
        Kind::WriteExclusiveRegistrantsOnly => 0x2000,
        Kind::ExclusiveAccessRegistrantsOnly => 0x4000,
        Kind::WriteExclusiveAllRegistrants => 0x8000,
        Kind::ExclusiveAccessAllRegistrants => 0x0001,
    }
}
