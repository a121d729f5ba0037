//! The data of PERSISTENT RESERVE IN (SPC-4 section 6.13).

use super::{Kind, Table, TargetPort};
use crate::state::unit::Unit;

impl Table {
    /// READ KEYS.
    pub(crate) fn report_keys(&self, data: &mut Vec<u8>) {
        let keys: Vec<u8> = self.registrations.iter().flat_map(|one| one.key.to_be_bytes()).collect();
        self.push_list(&keys, data);
    }

    /// READ RESERVATION. All registrants have no key in common.
    pub(crate) fn report_reservation(&self, data: &mut Vec<u8>) {
        let mut body = Vec::new();
        if let Some(held) = &self.reservation {
            let holder = held.holder.as_ref().and_then(|holder| self.registration(holder));
            body.extend_from_slice(&holder.map_or(0, |holder| holder.key).to_be_bytes());
            body.extend_from_slice(&[0, 0, 0, 0, 0, held.kind.bits(), 0, 0]);
        }
        self.push_list(&body, data);
    }

    /// REPORT CAPABILITIES: CRH, SIP_C, ATP_C and PTPL_C; TMV, and of ALLOW COMMANDS only that TEST UNIT READY is allowed
    /// through every reservation.
    pub(crate) fn report_capabilities(&self, unit: &Unit, data: &mut Vec<u8>) {
        let active = u8::from(self.is_kept);
        let mask = Kind::ALL.into_iter().fold(0u16, |mask, kind| mask | type_bit(kind));
        let can_keep = u8::from(unit.can_keep);
        data.extend_from_slice(&[0, 8, 0x1c | can_keep, 0x80 | 0x10 | active]);
        data.extend_from_slice(&mask.to_be_bytes());
        data.extend_from_slice(&[0, 0]);
    }

    /// READ FULL STATUS.
    pub(crate) fn report_full_status(&self, data: &mut Vec<u8>) {
        let mut body = Vec::new();
        for registration in &self.registrations {
            let held = self.reservation.as_ref().filter(|held| held.is_held_by(registration));
            let id = registration.nexus.initiator.as_bytes();
            body.extend_from_slice(&registration.key.to_be_bytes());
            let (holder, kind) = held.map_or((0, 0), |held| (0x01, held.kind.bits()));
            body.extend_from_slice(&[0, 0, 0, 0, holder, kind, 0, 0, 0, 0]);
            let port = match registration.nexus.target_port {
                TargetPort::Here(port) => port,
                // No port has it.
                TargetPort::Gone(_) => 0,
            };
            body.extend_from_slice(&port.to_be_bytes());
            body.extend_from_slice(&u32::try_from(id.len()).unwrap_or(0).to_be_bytes());
            body.extend_from_slice(id);
        }
        self.push_list(&body, data);
    }

    /// PRGENERATION, the length of what follows (of all of it, whatever the allocation length) and what follows.
    fn push_list(&self, body: &[u8], data: &mut Vec<u8>) {
        data.extend_from_slice(&self.generation.to_be_bytes());
        data.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes());
        data.extend_from_slice(body);
    }
}

/// The PERSISTENT RESERVATION TYPE MASK bit: that of the type's number, the first byte standing for types 0 to 7.
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
