//! PERSISTENT RESERVE OUT as sent (SPC-4 section 6.16).

use super::{Kind, NexusName, TargetPort, TransportId};
use crate::vocabulary::sense::Check;
use wire::Cdb;
use wire::scsi::command::PersistentReserveOut;
use wire::scsi::opcode::service_action::persistent_reserve_out::{
    CLEAR, PREEMPT, PREEMPT_AND_ABORT, REGISTER, REGISTER_AND_IGNORE_EXISTING_KEY, REGISTER_AND_MOVE,
    RELEASE, RESERVE,
};
use wire::scsi::parameters::{MoveList, ReserveOutList};
use wire::scsi::transport_id::Malformed;

/// PERSISTENT RESERVE OUT with its parameter list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReserveOut {
    /// RESERVATION KEY.
    pub(super) key: u64,
    /// SERVICE ACTION RESERVATION KEY.
    pub(super) action_key: u64,
    pub(super) action: Action,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// REGISTER and REGISTER AND IGNORE EXISTING KEY.
    Register(Register),
    Reserve(Kind),
    /// `None`: with a type or scope that no reservation can have.
    Release(Option<Kind>),
    Clear,
    /// PREEMPT and PREEMPT AND ABORT. The type matters only when a reservation is taken over.
    Preempt {
        kind: Option<Kind>,
        abort: bool,
    },
    /// REGISTER AND MOVE.
    Move {
        to: NexusName,
        unregister: bool,
        persist: bool,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Register {
    /// Regardless of the present key.
    pub(super) ignore_key: bool,
    /// SPEC_I_PT: registers these as well.
    pub(super) others: Option<Vec<TransportId>>,
    /// ALL_TG_PT.
    pub(super) all_target_ports: bool,
    /// APTPL.
    pub(super) persist: bool,
}

/// Length of a parameter list without TransportIDs.
const BASIC_BYTES: usize = ReserveOutList::BYTES;

impl ReserveOut {
    /// Where the parameter list requests that registrations survive a restart (APTPL), if it does.
    pub(super) fn requests_persistence(&self) -> Option<Check> {
        match &self.action {
            Action::Register(register) => {
                register.persist.then_some(Check::parameter_field(ReserveOutList::PERSIST))
            }
            Action::Move { persist, .. } => persist.then_some(Check::parameter_field(MoveList::PERSIST)),
            Action::Reserve(_) | Action::Release(_) | Action::Clear | Action::Preempt { .. } => None,
        }
    }

    /// The longest parameter list, in bytes.
    pub const BYTES_MAX: u32 = 32 * 1024;

    /// Reads the CDB and the parameter list, as long as the CDB says.
    pub fn parse(cdb: &Cdb, list: &[u8]) -> Result<ReserveOut, Check> {
        if list.len() < BASIC_BYTES {
            return Err(Check::PARAMETER_LENGTH);
        }
        let basic = ReserveOutList::read(list);
        let service_action = cdb.service_action();
        let kind =
            Some(cdb.get(PersistentReserveOut::KIND)).filter(|_| cdb.get(PersistentReserveOut::SCOPE) == 0);
        let kind = kind.and_then(Kind::from_bits);
        let names_initiators = basic.names_initiators && service_action != REGISTER_AND_MOVE;
        if names_initiators && service_action != REGISTER {
            return Err(Check::parameter_field(ReserveOutList::NAMES_INITIATORS));
        }
        if !names_initiators && service_action != REGISTER_AND_MOVE && list.len() != BASIC_BYTES {
            return Err(Check::PARAMETER_LENGTH);
        }
        let action = match service_action {
            REGISTER | REGISTER_AND_IGNORE_EXISTING_KEY => Action::Register(Register {
                ignore_key: service_action == REGISTER_AND_IGNORE_EXISTING_KEY,
                others: if names_initiators { Some(initiators(list)?) } else { None },
                all_target_ports: basic.all_target_ports,
                persist: basic.persist,
            }),
            RESERVE => Action::Reserve(kind.ok_or(Check::cdb_byte(PersistentReserveOut::KIND.byte()))?),
            RELEASE => Action::Release(kind),
            CLEAR => Action::Clear,
            PREEMPT => Action::Preempt { kind, abort: false },
            PREEMPT_AND_ABORT => Action::Preempt { kind, abort: true },
            REGISTER_AND_MOVE => parse_move(list)?,
            _ => return Err(Check::cdb_field(PersistentReserveOut::ACTION)),
        };
        Ok(ReserveOut { key: basic.key, action_key: basic.action_key, action })
    }
}

impl ReserveOut {
    /// The equivalent service action, type and parameter list.
    pub(crate) fn to_list(&self) -> (u8, u8, Vec<u8>) {
        let ReserveOut { key, action_key, ref action } = *self;
        let basic = ReserveOutList { key, action_key, ..ReserveOutList::ZERO };
        let kind_bits = |kind: Option<Kind>| kind.map_or(0, Kind::bits);
        let (action, kind) = match action {
            Action::Register(register) => {
                let Register { ignore_key, ref others, all_target_ports, persist } = *register;
                let names_initiators = others.is_some();
                let basic = ReserveOutList { names_initiators, all_target_ports, persist, ..basic };
                let mut list = basic.to_bytes().to_vec();
                if let Some(others) = others {
                    let ids: Vec<u8> = others.iter().flat_map(|id| id.as_bytes()).copied().collect();
                    list.extend(u32::try_from(ids.len()).unwrap_or(u32::MAX).to_be_bytes());
                    list.extend(ids);
                }
                return (if ignore_key { REGISTER_AND_IGNORE_EXISTING_KEY } else { REGISTER }, 0, list);
            }
            Action::Move { to, unregister, persist } => {
                let id = to.initiator.as_bytes();
                let target_port = match to.target_port {
                    TargetPort::Here(port) => port,
                    TargetPort::Gone(_) => 0,
                };
                let list = MoveList {
                    key,
                    action_key,
                    unregister: *unregister,
                    persist: *persist,
                    target_port,
                    transport_id_bytes: u32::try_from(id.len()).unwrap_or(u32::MAX),
                };
                return (REGISTER_AND_MOVE, 0, [&list.to_bytes()[..], id].concat());
            }
            Action::Reserve(kind) => (RESERVE, kind.bits()),
            Action::Release(kind) => (RELEASE, kind_bits(*kind)),
            Action::Clear => (CLEAR, 0),
            Action::Preempt { kind, abort: false } => (PREEMPT, kind_bits(*kind)),
            Action::Preempt { kind, abort: true } => (PREEMPT_AND_ABORT, kind_bits(*kind)),
        };
        (action, kind, basic.to_bytes().to_vec())
    }
}

/// The TransportIDs that follow the length field just before `start`, which must not exceed the list.
fn transport_ids(list: &[u8], start: usize) -> Result<&[u8], Check> {
    let (head, ids) = list.split_at_checked(start).ok_or(Check::PARAMETER_LENGTH)?;
    let len = u32::from_be_bytes(*head.last_chunk().ok_or(Check::PARAMETER_LENGTH)?);
    let len = usize::try_from(len).map_err(|_| Check::PARAMETER_LENGTH)?;
    ids.get(..len).ok_or(Check::PARAMETER_LENGTH)
}

fn malformed(error: Malformed, list: &[u8], rest: &[u8]) -> Check {
    match error {
        Malformed::Truncated => Check::PARAMETER_LENGTH,
        Malformed::Unknown => {
            Check::parameter_byte(u16::try_from(list.len().saturating_sub(rest.len())).unwrap_or(0))
        }
    }
}

/// SPEC_I_PT: the TransportIDs of the parameter list.
fn initiators(list: &[u8]) -> Result<Vec<TransportId>, Check> {
    let start = BASIC_BYTES.saturating_add(4);
    let mut rest = transport_ids(list, start)?;
    let list = list.get(..start.saturating_add(rest.len())).unwrap_or_default();
    let mut initiators = Vec::new();
    while !rest.is_empty() {
        let (id, next) = TransportId::split(rest).map_err(|error| malformed(error, list, rest))?;
        initiators.push(id);
        rest = next;
    }
    Ok(initiators)
}

/// REGISTER AND MOVE: one TransportID, of a port and not of a device with all its ports (SPC-4 section 7.6.4.6).
fn parse_move(list: &[u8]) -> Result<Action, Check> {
    let ids = transport_ids(list, BASIC_BYTES)?;
    let list_to_end = list.get(..BASIC_BYTES.saturating_add(ids.len())).unwrap_or_default();
    let (initiator, rest) = TransportId::split(ids).map_err(|error| malformed(error, list_to_end, ids))?;
    if initiator.is_device() || !rest.is_empty() {
        return Err(malformed(Malformed::Unknown, list_to_end, ids));
    }
    let MoveList { unregister, persist, target_port, .. } = MoveList::read(list);
    Ok(Action::Move {
        to: NexusName { initiator, target_port: TargetPort::Here(target_port) },
        unregister,
        persist,
    })
}
