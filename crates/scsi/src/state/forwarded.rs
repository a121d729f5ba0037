//! Requests that other gateways forward to the active one: PERSISTENT RESERVE OUT, MODE SELECT and resets, which
//! ports in standby accept as well, and START STOP UNIT; and their replies, as bytes. And the requests that make a
//! gateway in standby the active one.

use crate::state::encoding::{push_modes, push_sized, push_u16, take, take_modes, take_sized};
use crate::state::home::{Home, HomeReply, HomeRequest, NexusIdentity};
use crate::state::nexus::NexusId;
use crate::state::reservation::ReserveOut;
use crate::state::unit::{Port, PortNames};
use crate::vocabulary::modes::ModesChange;
use crate::vocabulary::sense::Check;
use std::sync::Arc;
use wire::scsi::command::PersistentReserveOut;
use wire::{Cdb, SenseKey, Specific};

const RESERVE_OUT: u8 = 1;
const SET_MODES: u8 = 2;
const RESET: u8 = 3;
const START_STOP: u8 = 4;

const DONE: u8 = 0;
const CONFLICT: u8 = 1;
const CHECK: u8 = 2;

/// In place of a bit number: the field begins at a byte's first bit.
const NO_BIT: u8 = u8::MAX;

impl Home {
    /// The request as bytes, if another gateway has to execute it, the active one; unless something here prevents
    /// it.
    pub fn forwards(&self, request: &HomeRequest) -> Option<Vec<u8>> {
        let is_for_others = !self.policy().decides() && self.refusal(request).is_none();
        is_for_others.then(|| request.encode(self.ports())).flatten()
    }

    /// Whether an initiator wants this gateway, in standby, to become active (SET TARGET PORT GROUPS).
    pub fn is_wanted(&self, request: &HomeRequest) -> bool {
        let HomeRequest::SetAccessStates { states, .. } = request else { return false };
        let policy = self.policy();
        if policy.serves() || self.unit.is_shared_by_all() {
            return false;
        }
        // An empty list changes nothing (SPC-4 section 6.45).
        let is_for_some = !states.is_empty() && policy.activates(states).is_ok();
        self.refusal(request).is_none() && is_for_some
    }
}

impl HomeRequest {
    /// A request received through one of these ports as bytes, if another gateway can execute it.
    fn encode(&self, ports: &[Port]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        match self {
            HomeRequest::PersistentReserveOut { from, order } => {
                bytes.push(RESERVE_OUT);
                push_from(&mut bytes, from, ports);
                let (cdb, list) = order.encode();
                push_sized(&mut bytes, cdb.as_bytes());
                bytes.extend(list);
            }
            HomeRequest::SetModes { from, change } => {
                bytes.push(SET_MODES);
                push_from(&mut bytes, from, ports);
                let ModesChange { modes, caching, control, error_recovery, provisioning } = *change;
                bytes.extend([caching, control, error_recovery, provisioning].map(u8::from));
                push_modes(&mut bytes, modes);
            }
            HomeRequest::StartStop { from, start, load_eject } => {
                bytes.push(START_STOP);
                push_from(&mut bytes, from, ports);
                bytes.extend([*start, *load_eject].map(u8::from));
            }
            // Whoever sent it: it affects all.
            HomeRequest::Reset { from: Some(_) } => bytes.push(RESET),
            _ => return None,
        }
        Some(bytes)
    }

    /// Parses the request of another gateway's nexus. `port` maps port names to identifiers.
    ///
    /// # Errors
    /// How the request ends: this gateway does not know it, or does not know its port (yet).
    pub fn forwarded(bytes: &[u8], port: impl FnOnce(&str) -> Option<u16>) -> Result<HomeRequest, Check> {
        if *bytes == [RESET] {
            return Ok(HomeRequest::Reset { from: Some(NexusId::ELSEWHERE) });
        }
        let mut rest = bytes;
        let Head { kind, known_news, transport_id, port: name } =
            Head::take(&mut rest).ok_or(Check::INTERNAL)?;
        let target_port = port(name).ok_or(Check::ACCESS_STATE_TRANSITION)?;
        let nexus = NexusId::ELSEWHERE;
        let from = NexusIdentity {
            nexus,
            transport_id,
            target_port,
            read_only: false,
            known_news: Some(known_news),
        };
        HomeRequest::take(kind, from, rest).ok_or(Check::INTERNAL)
    }

    fn take(kind: u8, from: NexusIdentity, mut rest: &[u8]) -> Option<HomeRequest> {
        match kind {
            RESERVE_OUT => {
                let cdb = Cdb::from_bytes(take_sized(&mut rest)?)?;
                let order = ReserveOut::parse(&cdb, rest).ok()?;
                Some(HomeRequest::PersistentReserveOut { from, order })
            }
            SET_MODES => {
                let [caching, control, error_recovery, provisioning] =
                    take::<4>(&mut rest)?.map(|byte| byte == 1);
                let modes = take_modes(&mut rest)?;
                let change = ModesChange { modes, caching, control, error_recovery, provisioning };
                rest.is_empty().then_some(HomeRequest::SetModes { from, change })
            }
            START_STOP => {
                let [start, load_eject] = take::<2>(&mut rest)?.map(|byte| byte == 1);
                rest.is_empty().then_some(HomeRequest::StartStop { from, start, load_eject })
            }
            _ => None,
        }
    }
}

fn push_from(bytes: &mut Vec<u8>, from: &NexusIdentity, ports: &[Port]) {
    bytes.extend(from.known_news.unwrap_or_default().to_be_bytes());
    push_sized(bytes, &from.transport_id);
    // By its name: the identifier may belong to another port on a gateway that does not know this one's ports
    // yet.
    let name = PortNames::of(ports, &[]).name(from.target_port).unwrap_or_default();
    push_sized(bytes, name.as_bytes());
}

/// The beginning of each request.
struct Head<'a> {
    kind: u8,
    known_news: u64,
    /// The initiator port.
    transport_id: Arc<[u8]>,
    /// The target port's name.
    port: &'a str,
}

impl<'a> Head<'a> {
    fn take(rest: &mut &'a [u8]) -> Option<Head<'a>> {
        let [kind] = take(rest)?;
        let known_news = u64::from_be_bytes(take(rest)?);
        let transport_id = take_sized(rest)?.into();
        Some(Head { kind, known_news, transport_id, port: std::str::from_utf8(take_sized(rest)?).ok()? })
    }
}

impl ReserveOut {
    /// An equivalent CDB and parameter list.
    fn encode(&self) -> (Cdb, Vec<u8>) {
        let (action, kind, list) = self.to_list();
        let len = u32::try_from(list.len()).unwrap_or(u32::MAX);
        (PersistentReserveOut::new(action, kind, len).into(), list)
    }
}

impl HomeReply {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            HomeReply::Done => vec![DONE],
            HomeReply::Conflict => vec![CONFLICT],
            HomeReply::Check(check) => {
                let mut bytes = vec![CHECK, check.key.bits()];
                push_u16(&mut bytes, check.code);
                if let Some(Specific::Field { in_cdb, byte, bit }) = check.specific {
                    bytes.extend([u8::from(in_cdb), bit.unwrap_or(NO_BIT)]);
                    push_u16(&mut bytes, byte);
                }
                bytes
            }
        }
    }

    /// Parses an encoded reply; an unknown one becomes an error without details.
    pub fn decode(bytes: &[u8]) -> HomeReply {
        match bytes {
            [DONE] => HomeReply::Done,
            [CONFLICT] => HomeReply::Conflict,
            [CHECK, rest @ ..] => HomeReply::Check(check(rest).unwrap_or(Check::INTERNAL)),
            _ => HomeReply::Check(Check::INTERNAL),
        }
    }
}

fn check(mut rest: &[u8]) -> Option<Check> {
    let [key] = take(&mut rest)?;
    let code = u16::from_be_bytes(take(&mut rest)?);
    let check = Check::new(SenseKey::from_bits(key)?, code);
    if rest.is_empty() {
        return Some(check);
    }
    let [in_cdb, bit] = take(&mut rest)?;
    let byte = u16::from_be_bytes(take(&mut rest)?);
    let bit = (bit != NO_BIT).then_some(bit);
    Some(Check { specific: Some(Specific::Field { in_cdb: in_cdb == 1, byte, bit }), ..check })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::attention::UnitAttention;
    use crate::state::home::{Aborted, Who};
    use crate::state::port_groups::Role;
    use crate::state::unit::{OtherPort, Sharing, Unit};
    use crate::testing::{Bench, Outcome, unit};
    use crate::vocabulary::modes::Modes;
    use wire::scsi::AccessState;
    use wire::scsi::command::PersistentReserveIn;
    use wire::scsi::parameters::{MoveList, ReserveOutList};
    use wire::scsi::transport_id::iscsi_port;

    /// A nexus on a port of another gateway.
    fn elsewhere() -> NexusIdentity {
        let transport_id = iscsi_port("iqn.2026-11.example:host", 7).into();
        let nexus = NexusId::ELSEWHERE;
        NexusIdentity { nexus, transport_id, target_port: 9, read_only: false, known_news: Some(0) }
    }

    fn order(action: u8, kind: u8, list: &[u8]) -> HomeRequest {
        let cdb = PersistentReserveOut::new(action, kind, list.len() as u32).into();
        let order = ReserveOut::parse(&cdb, list).expect("a parameter list");
        HomeRequest::PersistentReserveOut { from: elsewhere(), order }
    }

    /// As if received through port 9.
    fn encoded(request: &HomeRequest) -> Vec<u8> {
        request.encode(other().home.ports()).expect("it can be forwarded")
    }

    fn port(name: &str) -> Option<u16> {
        (name == "port9").then_some(9)
    }

    fn assert_same(request: &HomeRequest) {
        let decoded = HomeRequest::forwarded(&encoded(request), port).expect("a request");
        assert_eq!(format!("{decoded:?}"), format!("{request:?}"));
    }

    #[test]
    fn requests_are_what_they_were_at_the_gateway_that_executes_them() {
        let basic = ReserveOutList { key: 1, action_key: 2, ..ReserveOutList::ZERO };
        for action in 0..=6 {
            for kind in [1, 5, 8] {
                assert_same(&order(action, kind, &basic.to_bytes()));
            }
        }
        let all = ReserveOutList { all_target_ports: true, persist: true, ..basic };
        assert_same(&order(0, 0, &all.to_bytes()));
        let ids = [iscsi_port("iqn.2026-11.example:a", 1), iscsi_port("iqn.2026-11.example:b", 2)].concat();
        let named = ReserveOutList { names_initiators: true, ..basic }.to_bytes();
        assert_same(&order(0, 0, &[&named[..], &(ids.len() as u32).to_be_bytes(), &ids].concat()));
        let to = iscsi_port("iqn.2026-11.example:a", 1);
        let list = MoveList {
            key: 1,
            action_key: 2,
            unregister: true,
            persist: true,
            target_port: 3,
            transport_id_bytes: to.len() as u32,
        };
        assert_same(&order(7, 0, &[&list.to_bytes()[..], &to].concat()));
        let modes = Modes { queue_error: 3, threshold_sets: Some(5), threshold: true, ..Modes::default() };
        let change = ModesChange { caching: true, provisioning: true, ..ModesChange::none(modes) };
        assert_same(&HomeRequest::SetModes { from: elsewhere(), change });
        for (start, load_eject) in [(true, false), (false, true)] {
            assert_same(&HomeRequest::StartStop { from: elsewhere(), start, load_eject });
        }
        assert_same(&HomeRequest::Reset { from: Some(NexusId::ELSEWHERE) });
    }

    #[test]
    fn answers_are_what_they_were() {
        let checks = [Check::CDB, Check::parameter_bit(20, 3), Check::cdb_byte(2), Check::INTERNAL];
        let checks = checks.map(HomeReply::Check);
        for reply in [HomeReply::Done, HomeReply::Conflict].iter().chain(&checks) {
            assert_eq!(HomeReply::decode(&reply.encode()), *reply);
        }
        assert_eq!(HomeReply::decode(&[]), HomeReply::Check(Check::INTERNAL));
    }

    #[test]
    fn what_is_damaged_is_no_request() {
        let basic = ReserveOutList { key: 1, action_key: 2, ..ReserveOutList::ZERO };
        let bytes = encoded(&order(0, 0, &basic.to_bytes()));
        for len in 0..bytes.len() {
            assert_eq!(HomeRequest::forwarded(&bytes[..len], port).err(), Some(Check::INTERNAL));
        }
    }

    #[test]
    fn what_comes_by_a_port_that_is_not_known_yet_is_to_be_retried() {
        let refused = HomeRequest::forwarded(&encoded(&register(2)), |_| None);
        assert_eq!(refused.err(), Some(Check::ACCESS_STATE_TRANSITION));
    }

    #[test]
    fn a_home_in_standby_forwards_what_all_gateways_must_know_unless_its_sender_may_only_read() {
        let mut unit = unit();
        unit.sharing = Some(Sharing::One);
        let mut bench = Bench::of(unit, 1 << 20);
        let adopt = |bench: &mut Bench| {
            bench.ask(HomeRequest::SetRole { role: Role::Standby, saved: Some([].into()) });
            bench.nexuses[0].sync(&bench.view.policy);
        };
        let basic = ReserveOutList { action_key: 2, ..ReserveOutList::ZERO };
        let HomeRequest::PersistentReserveOut { order, .. } = order(0, 0, &basic.to_bytes()) else {
            panic!()
        };
        let request = |bench: &Bench| {
            let from = bench.nexuses[0].identity();
            HomeRequest::PersistentReserveOut { from, order: order.clone() }
        };
        bench.nexuses[0].sync(&bench.view.policy);
        let early = request(&bench);
        let retry = HomeReply::Check(Check::ACCESS_STATE_TRANSITION);
        for _ in 0..2 {
            assert!(bench.home.forwards(&early).is_none(), "it arrived before the unit's state was read");
            assert_eq!(bench.home.handle(early.clone()).0, retry);
            adopt(&mut bench);
        }
        assert!(bench.home.forwards(&request(&bench)).is_some());
        bench.nexuses[0].read_only = true;
        let refused = request(&bench);
        assert!(bench.home.forwards(&refused).is_none());
        assert_eq!(bench.home.handle(refused).0, HomeReply::Check(Check::WRITE_PROTECTED));
        bench.nexuses[0].read_only = false;
        bench.ask(HomeRequest::SetRole { role: Role::Active, saved: Some([].into()) });
        assert!(bench.home.forwards(&request(&bench)).is_none(), "it is active");
        assert!(bench.home.forwards(&HomeRequest::Reset { from: None }).is_none());
    }

    #[test]
    fn set_target_port_groups_makes_a_gateway_active_and_does_nothing_else_to_a_shared_unit() {
        let mut unit = shared();
        unit.groups.iter_mut().for_each(|group| group.explicit = true);
        unit.groups[1].state = AccessState::Standby;
        let mut bench = Bench::of(unit, 1 << 20);
        let request = |bench: &Bench, states: &[(u16, AccessState)]| {
            let from = bench.nexuses[0].identity();
            HomeRequest::SetAccessStates { from, states: states.to_vec() }
        };
        let own = request(&bench, &[(1, AccessState::Optimized)]);
        assert!(bench.home.is_wanted(&own));
        let none = request(&bench, &[]);
        assert!(!bench.home.is_wanted(&none) && bench.home.handle(none).0 == HomeReply::Done);
        for states in [(1, AccessState::Standby), (2, AccessState::Optimized), (7, AccessState::Optimized)] {
            let request = request(&bench, &[states]);
            assert!(!bench.home.is_wanted(&request));
            assert!(matches!(bench.home.handle(request).0, HomeReply::Check(check) if check.code == 0x2600));
        }
        // sg_stpg sends all groups reported, with the states they are to have.
        let name = "port9".to_owned();
        let other_port = OtherPort { relative_id: 9, group: 9, name, state: AccessState::Optimized };
        bench.ask(HomeRequest::SetOthers([other_port].into()));
        let all = [(9, AccessState::Standby), (1, AccessState::Optimized), (2, AccessState::Standby)];
        assert!(bench.home.is_wanted(&request(&bench, &all)));
        for states in [&all[..1], &[all[0], all[2]], &[(9, AccessState::Optimized), all[1]]] {
            let request = request(&bench, states);
            assert!(!bench.home.is_wanted(&request));
            assert!(matches!(bench.home.handle(request).0, HomeReply::Check(check) if check.code == 0x2600));
        }
        bench.ask(HomeRequest::SetRole { role: Role::Active, saved: Some([].into()) });
        assert!(!bench.home.is_wanted(&own));
        let all = request(&bench, &all);
        assert_eq!(bench.home.handle(all).0, HomeReply::Done);
        let (reply, publish) = bench.home.handle(own);
        assert!(reply == HomeReply::Done && publish.is_none(), "it is active");
        assert!(!other().home.is_wanted(&request(&bench, &[(2, AccessState::Optimized)])), "not explicit");
    }

    fn shared() -> Unit {
        Unit { sharing: Some(Sharing::One), ..unit() }
    }

    /// A gateway that knows the other one's port 9, and is active.
    fn active() -> Bench {
        let mut bench = Bench::of(shared(), 1 << 20);
        let name = "port9".to_owned();
        let other = OtherPort { relative_id: 9, group: 9, name, state: AccessState::Standby };
        bench.ask(HomeRequest::SetOthers([other].into()));
        bench.ask(HomeRequest::SetRole { role: Role::Active, saved: Some([].into()) });
        bench.nexuses.iter_mut().for_each(|nexus| nexus.attentions.clear());
        bench
    }

    /// The other one, through whose port 9 its first nexus comes, as `elsewhere`.
    fn other() -> Bench {
        let mut unit = shared();
        (unit.ports[0].relative_id, unit.ports[0].name) = (9, "port9".into());
        let mut bench = Bench::of(unit, 1 << 20);
        bench.nexuses[0].transport_id = elsewhere().transport_id;
        bench.nexuses[0].target_port = 9;
        bench
    }

    fn saved(bench: &mut Bench) -> Arc<[u8]> {
        bench.published.take().and_then(|publish| publish.persist).expect("it is kept").into()
    }

    /// REGISTER of this key by `elsewhere`.
    fn register(action_key: u64) -> HomeRequest {
        order(0, 0, &ReserveOutList { action_key, ..ReserveOutList::ZERO }.to_bytes())
    }

    #[test]
    fn a_registration_by_another_gateways_port_is_that_ports_also_there() {
        let keys = |bench: &mut Bench| -> Outcome {
            bench.nexuses[0].attentions.clear();
            bench.read(PersistentReserveIn::new(3, 255))
        };
        let (mut first, mut second) = (active(), other());
        first.ask(register(2));
        second.ask(HomeRequest::SetRole { role: Role::Active, saved: Some(saved(&mut first)) });
        let status = keys(&mut second).data;
        assert_eq!(status[8..16], 2u64.to_be_bytes());
        assert_eq!(status[26..28], [0, 9], "relative target port identifier");
        assert_eq!(keys(&mut first).data, status);
    }

    #[test]
    fn nexuses_of_all_gateways_are_notified_of_what_concerns_them_once() {
        let (mut first, mut second) = (active(), other());
        let adopt = |second: &mut Bench, saved: &Arc<[u8]>| {
            second.ask(HomeRequest::SetRole { role: Role::Standby, saved: Some(saved.clone()) });
            [0, 1].map(|nexus| std::mem::take(&mut second.nexuses[nexus].attentions))
        };
        first.ask(register(2));
        let before = saved(&mut first);
        assert_eq!(adopt(&mut second, &before), [[], []]);
        // An initiator here registers, and preempts it.
        ask_here(&mut first, 0, 0, 1);
        ask_here(&mut first, 4, 1, 2);
        let after = saved(&mut first);
        let preempted = UnitAttention::RegistrationsPreempted;
        assert_eq!(adopt(&mut second, &after), [vec![preempted], vec![]]);
        assert_eq!(adopt(&mut second, &after), [[], []]);
        // It changes mode parameters: the others are notified, here and there.
        let modes = Modes { queue_error: 3, ..first.view.policy.modes };
        let from = NexusIdentity { known_news: Some(1), ..elsewhere() };
        first.ask(HomeRequest::SetModes { from, change: ModesChange::all(modes) });
        assert_eq!(first.nexuses[0].attentions, [UnitAttention::ModeChanged]);
        assert_eq!(adopt(&mut second, &saved(&mut first)), [vec![], vec![UnitAttention::ModeChanged]]);
        // A home that has not read anything yet has no news.
        assert_eq!(adopt(&mut other(), &after), [[], []]);
    }

    /// PERSISTENT RESERVE OUT by the first nexus, with type "write exclusive".
    fn ask_here(bench: &mut Bench, action: u8, key: u64, action_key: u64) {
        let list = ReserveOutList { key, action_key, ..ReserveOutList::ZERO }.to_bytes();
        let HomeRequest::PersistentReserveOut { order, .. } = order(action, 1, &list) else { panic!() };
        bench.view.policy = bench.home.policy();
        bench.nexuses[0].sync(&bench.view.policy);
        let from = bench.nexuses[0].identity();
        let reply = bench.ask(HomeRequest::PersistentReserveOut { from, order });
        assert_eq!(reply, HomeReply::Done);
    }

    #[test]
    fn what_waits_at_another_gateway_is_not_executed_once_its_sender_was_preempted() {
        const CLEAR: u8 = 3;
        const PREEMPT: u8 = 4;
        const PREEMPT_AND_ABORT: u8 = 5;
        let cleared = UnitAttention::ReservationsPreempted;
        let preempted = UnitAttention::RegistrationsPreempted;
        for (action, told) in [(CLEAR, cleared), (PREEMPT, preempted), (PREEMPT_AND_ABORT, preempted)] {
            let (mut first, mut second) = (active(), other());
            let known = saved(first_registered(&mut first));
            second.ask(HomeRequest::SetRole { role: Role::Standby, saved: Some(known) });
            // It registers again while it is being preempted, or requests other mode parameters.
            let waiting = |second: &mut Bench| {
                second.nexuses[0].sync(&second.home.policy());
                let from = second.nexuses[0].identity();
                let list = ReserveOutList { action_key: 3, ..ReserveOutList::ZERO }.to_bytes();
                let HomeRequest::PersistentReserveOut { order, .. } = order(6, 0, &list) else { panic!() };
                let change = ModesChange::all(Modes { queue_error: 3, ..Modes::default() });
                let modes = HomeRequest::SetModes { from: from.clone(), change };
                [HomeRequest::PersistentReserveOut { from, order }, modes]
            };
            let requests = waiting(&mut second);
            let bodies = requests.clone().map(|one| second.home.forwards(&one).expect("it is forwarded"));
            ask_here(&mut first, action, 1, 2);
            let before = first.home.policy();
            let refused = HomeReply::Check(Check::ACCESS_STATE_TRANSITION);
            for body in bodies {
                let request = HomeRequest::forwarded(&body, port).expect("a request");
                assert_eq!(first.ask(request), refused, "{action}");
            }
            assert!(Arc::ptr_eq(&before, &first.home.policy()), "nothing has changed");

            // The other gateway aborts what was preempted and aborted, and executes no earlier requests when
            // it takes over.
            let after: Arc<[u8]> = before.saved_for_gateways(&first.view.unit).into();
            second.ask(HomeRequest::SetRole { role: Role::Standby, saved: Some(after.clone()) });
            let aborts = &second.published.as_ref().expect("it is published").aborts;
            let is_aborted =
                |nexus: usize| aborts.iter().any(|(who, _)| who.includes(&second.nexuses[nexus]));
            assert_eq!([is_aborted(0), is_aborted(1)], [action == PREEMPT_AND_ABORT, false]);
            assert_eq!(second.nexuses[0].attentions, [told]);
            for request in &requests {
                assert!(second.home.forwards(request).is_none());
            }
            second.ask(HomeRequest::SetRole { role: Role::Active, saved: Some(after) });
            for request in requests {
                assert_eq!(second.ask(request), refused);
            }
            for request in waiting(&mut second) {
                assert_eq!(second.ask(request), HomeReply::Done, "it came after it was preempted");
            }
        }
    }

    /// Adopts the other one's state, and returns the unit attentions of both nexuses.
    fn adopt(bench: &mut Bench, saved: &Arc<[u8]>) -> [Vec<UnitAttention>; 2] {
        bench.ask(HomeRequest::SetRole { role: Role::Standby, saved: Some(saved.clone()) });
        [0, 1].map(|nexus| std::mem::take(&mut bench.nexuses[nexus].attentions).into())
    }

    #[test]
    fn a_reset_by_a_path_in_standby_is_one_of_the_active_gateway_and_each_nexus_is_notified_once() {
        let (mut first, mut second) = (active(), other());
        first.ask(HomeRequest::Reserve(first.nexuses[1].identity()));
        assert!(first.view.policy.reservations.reserver().is_some());
        let modes = Modes { queue_error: 3, ..first.view.policy.modes };
        first.nexuses[1].sync(&first.view.policy);
        let from = first.nexuses[1].identity();
        first.ask(HomeRequest::SetModes { from, change: ModesChange::all(modes) });
        let state = saved(&mut first);
        adopt(&mut second, &state);
        first.nexuses.iter_mut().for_each(|nexus| nexus.attentions.clear());

        let requester = second.nexuses[1].id;
        let reset = HomeRequest::Reset { from: Some(requester) };
        let body = second.home.forwards(&reset).expect("it is forwarded");
        let (reply, publish) = second.home.handle(reset);
        assert!(reply == HomeReply::Check(Check::PORT_IN_STANDBY) && publish.is_none(), "not alone");
        // What waits there has arrived before.
        second.nexuses[0].sync(&second.home.policy());
        let waiting = |second: &Bench| {
            let from = second.nexuses[0].identity();
            let change = ModesChange::all(Modes { queue_error: 1, ..Modes::default() });
            HomeRequest::SetModes { from, change }
        };
        let earlier = second.home.forwards(&waiting(&second)).expect("it is forwarded");

        let execute = |first: &mut Bench, body: &[u8]| {
            let request = HomeRequest::forwarded(body, port).expect("a request");
            first.ask(request)
        };
        assert_eq!(execute(&mut first, &body), HomeReply::Done);
        let publish = first.published.as_ref().expect("it is published");
        assert_eq!(publish.aborts, [(Who::Everyone, Aborted::Silently)]);
        let after = &first.view.policy;
        assert!(after.reservations.reserver().is_none() && after.modes == Modes::initial(&first.view.unit));
        for nexus in &mut first.nexuses {
            assert_eq!(std::mem::take(&mut nexus.attentions), [UnitAttention::Reset]);
        }
        let state = saved(&mut first);
        assert_eq!(execute(&mut first, &earlier), HomeReply::Check(Check::ACCESS_STATE_TRANSITION));

        assert_eq!(adopt(&mut second, &state), [vec![UnitAttention::Reset], vec![UnitAttention::Reset]]);
        assert_eq!(adopt(&mut second, &state), [[], []]);
        assert_eq!(second.home.policy().modes, Modes::initial(&second.view.unit));
        // What has arrived there ends before the reset is complete.
        second.ask(HomeRequest::EndTasks { from: requester });
        let publish = second.published.take().expect("it is published");
        assert_eq!(publish.aborts, [(Who::Everyone, Aborted::Silently)]);
        assert!(publish.attentions.is_empty() && publish.persist.is_none());
        second.nexuses[0].sync(&second.home.policy());
        let later = second.home.forwards(&waiting(&second)).expect("it is forwarded");
        assert_eq!(execute(&mut first, &later), HomeReply::Done);
    }

    #[test]
    fn a_reset_by_a_path_of_the_active_gateway_is_reported_by_the_others_and_ends_what_waits_there() {
        let (mut first, mut second) = (active(), other());
        let known = saved(first_registered(&mut first));
        adopt(&mut second, &known);
        second.nexuses[0].sync(&second.home.policy());
        let from = second.nexuses[0].identity();
        let change = ModesChange::all(Modes { queue_error: 3, ..Modes::default() });
        let waiting = HomeRequest::SetModes { from, change };
        let body = second.home.forwards(&waiting).expect("it is forwarded");
        first.ask(HomeRequest::Reset { from: Some(first.nexuses[0].id) });
        let state = saved(&mut first);
        let refused = HomeReply::Check(Check::ACCESS_STATE_TRANSITION);
        assert_eq!(first.ask(HomeRequest::forwarded(&body, port).expect("a request")), refused);
        assert_eq!(adopt(&mut second, &state), [vec![UnitAttention::Reset], vec![UnitAttention::Reset]]);
        second.ask(HomeRequest::SetRole { role: Role::Active, saved: Some(state) });
        assert_eq!(second.ask(waiting), refused, "nor once it is active itself");
    }

    #[test]
    fn who_knows_too_little_of_what_happened_has_to_retry() {
        let mut first = active();
        for key in 0..130 {
            let modes = Modes { queue_error: if key % 2 == 0 { 3 } else { 0 }, ..first.view.policy.modes };
            first.nexuses[0].sync(&first.view.policy);
            let from = first.nexuses[0].identity();
            first.ask(HomeRequest::SetModes { from, change: ModesChange::all(modes) });
        }
        assert_eq!(first.ask(register(2)), HomeReply::Check(Check::ACCESS_STATE_TRANSITION));
    }

    /// Where `elsewhere` is registered with key 2, and the first nexus with key 1.
    fn first_registered(first: &mut Bench) -> &mut Bench {
        first.ask(register(2));
        ask_here(first, 0, 0, 1);
        first
    }
}
