//! Units that several gateways share: one of them decides what all must know, and saves the state that all need
//! where all can read it, whatever APTPL says. The others are in standby, or serve the medium as well.

use crate::state::attention::UnitAttention;
use crate::state::encoding;
use crate::state::home::{Aborted, Draft, Home, HomeReply, HomeRequest, NexusIdentity, Who};
use crate::state::news::News;
use crate::state::policy::Policy;
use crate::state::port_groups::Role;
use crate::state::reservation::Table;
use crate::state::unit::{OtherPort, PortNames, Unit};
use crate::vocabulary::modes::Modes;
use crate::vocabulary::sense::Check;
use std::sync::Arc;
use wire::scsi::AccessState;

/// The first bytes of the saved state; mode parameters, a checksum and the state that any unit saves follow.
const MAGIC: &[u8] = b"LuneShr\x04";

impl Policy {
    /// What the next gateway needs to know about the unit.
    pub(crate) fn saved_for_gateways(&self, unit: &Unit) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        encoding::push_modes(&mut bytes, self.modes);
        let flags = [self.started, self.ejected, self.threshold_reached, self.reservations.survives_power()];
        bytes.extend(flags.map(u8::from));
        bytes.extend_from_slice(&self.reservations.generation().to_be_bytes());
        self.news.as_deref().cloned().unwrap_or_default().save(&mut bytes);
        bytes.extend(self.saved_of_unit(self.reservations.encode(PortNames::of(&unit.ports, &self.others))));
        encoding::seal(bytes)
    }

    /// The policy with the state saved by another gateway; empty: the unit has not been served yet.
    fn restored_of_gateways(&self, saved: &[u8], unit: &Unit) -> Option<Policy> {
        let mut policy = Policy {
            modes: Modes::initial(unit),
            started: true,
            ejected: false,
            threshold_reached: false,
            erasure: None,
            reservations: Arc::default(),
            news: Some(Arc::default()),
            ..self.clone()
        };
        if saved.is_empty() {
            return Some(policy);
        }
        let mut rest = encoding::unseal(saved)?.strip_prefix(MAGIC)?;
        policy.modes = encoding::take_modes(&mut rest)?;
        let flags = encoding::take(&mut rest)?.map(|byte: u8| byte == 1);
        let survives_power;
        [policy.started, policy.ejected, policy.threshold_reached, survives_power] = flags;
        let generation = u32::from_be_bytes(encoding::take(&mut rest)?);
        policy.news = Some(Arc::new(News::restore(&mut rest)?));
        let (erasure, table) = Policy::restore_unit(rest, PortNames::of(&unit.ports, &self.others))?;
        policy.erasure = erasure;
        policy.reservations = Arc::new(Table::continued(table, generation, survives_power));
        Some(policy)
    }
}

impl Policy {
    /// SET TARGET PORT GROUPS of a shared unit, which changes nothing: initiators use it to make a gateway active
    /// that this one already is. `all`: all gateways are active at the same time.
    pub(crate) fn confirm(&self, states: &[(u16, AccessState)], all: bool) -> HomeReply {
        let others = |tag: u16| self.others.iter().find(|port| port.group == tag).map(|port| port.state);
        let is_so = if all { self.groups.confirms(states, others) } else { self.activates(states) };
        is_so.map_or_else(HomeReply::Check, |()| HomeReply::Done)
    }
}

impl Home {
    /// How a request for a shared unit ends if its sender was preempted after the command had arrived, or if
    /// that is unknown because the unit's state had not been read by then.
    pub(crate) fn untimely(&self, request: &HomeRequest) -> Option<Check> {
        if !self.unit.is_shared() || !request.changes_all_gateways() {
            return None;
        }
        let (from, _) = request.subject_to_access_state()?;
        let policy = self.policy();
        let (Some(news), Some(known)) = (policy.news.as_deref(), from.known_news) else {
            return Some(Check::ACCESS_STATE_TRANSITION);
        };
        let preempts = news.preempts(from, known, PortNames::of(self.ports(), &policy.others));
        // The nexus has the unit attention, which it gets for its next command.
        preempts.then_some(Check::ACCESS_STATE_TRANSITION)
    }
}

impl Aborted {
    /// As in the control mode page.
    pub(crate) fn by(modes: Modes) -> Aborted {
        if modes.task_aborted_status { Aborted::WithStatus } else { Aborted::Silently }
    }
}

impl Draft {
    /// The gateway's role; with the unit's state as saved until then.
    pub(crate) fn set_role(&mut self, role: Role, saved: Option<&[u8]>, unit: &Unit) -> HomeReply {
        if let Some(saved) = saved {
            let Some(policy) = self.policy.restored_of_gateways(saved, unit) else {
                return HomeReply::Check(Check::INTERNAL);
            };
            self.report(&policy, unit);
            self.policy = policy;
        }
        if let Some(holder) = self.policy.reservations.reserver().filter(|_| role != Role::Active) {
            // Its port no longer exists: that is the loss of the nexus that ends a reservation by RESERVE
            // (SPC-2 section 5.5.1).
            self.policy.reservations = Arc::new(self.policy.reservations.after_reset());
            self.attentions.push((Who::Only(holder), UnitAttention::NexusLoss));
        }
        self.is_adopted = true;
        self.change_groups(self.policy.groups.in_role(role), Who::Everyone);
        self.changed()
    }

    /// Reports to nexuses what other gateways have done since, according to this state of theirs, and ends the
    /// commands that they ended: those that arrived before this gateway knew of it.
    fn report(&mut self, saved: &Policy, unit: &Unit) {
        let (Some(before), Some(after)) = (&self.policy.news, &saved.news) else { return };
        let serves = self.policy.serves();
        for (who, attention, is_abort) in after.since(before, PortNames::of(&unit.ports, &saved.others)) {
            match attention {
                // While it serves, a reset is not complete before this is applied. A gateway in standby may be
                // behind: its commands may have come after the reset, and have not begun.
                UnitAttention::Reset if serves => {
                    self.aborts.push((who.clone(), Aborted::by(self.policy.modes)));
                }
                _ if is_abort => self.aborts.push((who.clone(), Aborted::by(saved.modes))),
                _ => {}
            }
            self.attentions.push((who, attention));
        }
    }

    /// Has other gateways report what concerns their nexuses. `sender`: the nexus that caused it, if it is
    /// another gateway's.
    pub(crate) fn report_to_gateways(&mut self, sender: Option<&NexusIdentity>, unit: &Unit) {
        if unit.is_shared() && !self.is_adopted && self.policy.decides() {
            let before = self.policy.news.as_deref().cloned().unwrap_or_default();
            let ports = PortNames::of(&unit.ports, &self.policy.others);
            // A store that came back is no other medium to other gateways; START STOP UNIT changes it for all, and
            // gateways of earlier versions, one at a time, do not know that.
            let is_known = |(who, attention): &&(Who, UnitAttention)| {
                *attention != UnitAttention::MediumChanged
                    || (unit.is_shared_by_all() && matches!(who, Who::Others(_)))
            };
            let attentions: Vec<_> = self.attentions.iter().filter(is_known).cloned().collect();
            self.policy.news = Some(Arc::new(before.with(&attentions, &self.aborts, sender, ports)));
        }
    }

    /// Sets the ports of other gateways, and the states of their groups.
    pub(crate) fn set_others(&mut self, others: Arc<[OtherPort]>, unit: &Unit) -> HomeReply {
        let before = &self.policy.others;
        if *before == others {
            return HomeReply::Done;
        }
        let is_another =
            |port: &OtherPort| others.iter().any(|new| new.group == port.group && new.state != port.state);
        if before.iter().any(is_another) {
            self.attentions.push((Who::Everyone, UnitAttention::AccessStateChanged));
        }
        let names = |others| PortNames::of(&unit.ports, others);
        let table = self.policy.reservations.with_ports(names(before), names(&others));
        (self.policy.reservations, self.policy.others) = (Arc::new(table), others);
        self.changed()
    }
}

#[cfg(test)]
mod tests {
    mod all;

    use super::*;
    use crate::state::home::Publish;
    use crate::state::nexus::NexusId;
    use crate::state::port_groups::PortGroup;
    use crate::state::reservation::ReserveOut;
    use crate::state::unit::{Port, Sharing};
    use crate::testing::{Bench, Outcome, unit};
    use crate::vocabulary::command::Status;
    use crate::vocabulary::modes::ModesChange;
    use wire::scsi::command::{
        ModeSelect6, ModeSense6, PersistentReserveIn, PersistentReserveOut, Read16, ReportTargetPortGroups,
        Reserve6, TestUnitReady,
    };
    use wire::scsi::mode::Caching;
    use wire::scsi::{code, mode};

    /// A unit of a gateway in standby.
    fn gateway() -> Bench {
        let mut unit = unit();
        unit.sharing = Some(Sharing::One);
        Bench::of(unit, 1 << 20)
    }

    /// REGISTER with this key by the first nexus, without APTPL.
    fn register(bench: &mut Bench, key: u64) -> Outcome {
        let list = [&[0; 8][..], &key.to_be_bytes(), &[0; 8]].concat();
        bench.write(PersistentReserveOut::new(0, 0, 24), &list)
    }

    fn assert_standby(outcome: &Outcome) {
        outcome.assert_check(2, code::PORT_IN_STANDBY);
    }

    fn activate(bench: &mut Bench, saved: &[u8]) {
        bench.ask(HomeRequest::SetRole { role: Role::Active, saved: Some(saved.into()) });
        bench.nexuses.iter_mut().for_each(|nexus| nexus.attentions.clear());
    }

    fn saved(publish: Option<Publish>) -> Vec<u8> {
        publish.expect("it is published").persist.expect("it is kept")
    }

    fn states(bench: &Bench) -> Vec<AccessState> {
        bench.view.policy.groups.states().map(|(_, state)| state).collect()
    }

    #[test]
    fn a_shared_unit_is_in_standby_until_its_gateway_is_active_and_all_are_notified_of_both() {
        let mut bench = gateway();
        assert_eq!(states(&bench), [AccessState::Standby; 2]);
        assert_standby(&bench.read(TestUnitReady {}));
        for (role, state) in [(Role::Active, AccessState::Optimized), (Role::Standby, AccessState::Standby)] {
            let active = role == Role::Active;
            bench.ask(HomeRequest::SetRole { role, saved: active.then(Arc::default) });
            assert_eq!(states(&bench), [state; 2]);
            assert_eq!(bench.published.as_ref().unwrap().persist, None, "it is kept already");
            let deactivated = &bench.published.as_ref().unwrap().deactivated;
            assert_eq!(deactivated.len(), if active { 0 } else { 2 });
            for nexus in &mut bench.nexuses {
                assert_eq!(std::mem::take(&mut nexus.attentions), [UnitAttention::AccessStateChanged]);
            }
        }
    }

    #[test]
    fn a_group_that_comes_while_another_gateway_is_active_is_in_standby() {
        let mut bench = gateway();
        let mut after = bench.view.unit.as_ref().clone();
        after.groups = vec![PortGroup { preferred: true, ..PortGroup::new(1) }];
        bench.ask(HomeRequest::Configure(Arc::new(after)));
        assert_eq!(states(&bench), [AccessState::Standby; 2]);
        activate(&mut bench, &[]);
        assert_eq!(states(&bench), [AccessState::Optimized; 2]);
    }

    #[test]
    fn registrations_without_aptpl_and_mode_parameters_are_as_they_were_at_the_next_gateway() {
        let mut first = gateway();
        activate(&mut first, &[]);
        register(&mut first, 7).assert_good();
        let modes = Modes { queue_error: 3, software_write_protect: true, ..first.view.policy.modes };
        let from = first.nexuses[0].identity();
        first.ask(HomeRequest::SetModes { from, change: ModesChange::all(modes) });
        let state = saved(first.published.take());

        let mut next = gateway();
        activate(&mut next, &state);
        assert_eq!(next.view.policy.modes, modes);
        let keys = |bench: &mut Bench| bench.read(PersistentReserveIn::new(0, 255)).data;
        assert_eq!(keys(&mut next), keys(&mut first));
        assert_eq!(next.home.policy().saved_for_gateways(&next.view.unit), state);
        for at in 0..state.len() {
            let mut damaged = state.clone();
            damaged[at] ^= 1;
            let before = next.home.policy();
            let (reply, publish) =
                next.home.handle(HomeRequest::SetRole { role: Role::Active, saved: Some(damaged.into()) });
            assert!(matches!(reply, HomeReply::Check(_)) && publish.is_none(), "damaged at {at}");
            assert!(Arc::ptr_eq(&before, &next.home.policy()));
        }
    }

    #[test]
    fn a_request_that_changes_nothing_is_saved_like_others_since_this_gateway_may_no_longer_be_the_active_one()
     {
        let mut bench = gateway();
        activate(&mut bench, &[]);
        register(&mut bench, 7).assert_good();
        let modes = bench.view.policy.modes;
        for _ in 0..2 {
            let from = bench.nexuses[0].identity();
            bench.ask(HomeRequest::SetModes { from, change: ModesChange::all(modes) });
            saved(bench.published.take());
        }
        let list = [&7u64.to_be_bytes()[..], &[0; 16]].concat();
        bench.write(PersistentReserveOut::new(2, 1, 24), &list).assert_good();
        saved(bench.published.take());
        let page = Caching { write_cache: modes.write_cache, ..Caching::ZERO }.to_page();
        let list = [&[0; 4][..], &page[..]].concat();
        let select = ModeSelect6 { page_format: true, save: false, list_bytes: list.len() as u8 };
        bench.write(select, &list).assert_good();
        saved(bench.published.take());
    }

    #[test]
    fn what_would_change_the_unit_for_all_is_refused_in_standby() {
        let mut bench = gateway();
        register(&mut bench, 7).assert_check(2, Check::ACCESS_STATE_TRANSITION.code);
        bench.ask(HomeRequest::SetRole { role: Role::Standby, saved: Some(Arc::default()) });
        bench.nexuses[0].attentions.clear();
        assert_standby(&register(&mut bench, 7));
        assert_standby(&bench.read(Read16::new(0, 1)));
        bench.ask(HomeRequest::Reset { from: None });
        assert_eq!(bench.published.as_ref().unwrap().persist, None, "what is kept is the other gateway's");
        bench.read(PersistentReserveIn::new(0, 255));
        bench.read(PersistentReserveIn::new(0, 255)).assert_good();
    }

    #[test]
    fn the_groups_of_all_gateways_are_reported_and_their_changes() {
        let mut bench = gateway();
        let named = |id: u16, device: &str, state| OtherPort {
            relative_id: id,
            group: id,
            name: format!("{device},t,0x{id:04x}"),
            state,
        };
        let device = bench.view.unit.ports[0].device.clone();
        let other = |state| [named(7, &device, state)];
        let elsewhere = named(8, "iqn.2026-11.io.lunette:disk2", AccessState::Optimized);
        let before = [other(AccessState::Optimized).to_vec(), vec![elsewhere]].concat();
        bench.ask(HomeRequest::SetOthers(before.into()));
        assert!(bench.nexuses[0].attentions.is_empty(), "it knew none of them");
        let groups = bench.read(ReportTargetPortGroups::new(256)).data;
        assert_eq!(groups[3], 36, "no group of a target that it does not know");
        assert_eq!(groups[28..], [0, 0x8f, 0, 7, 0, 0, 0, 1, 0, 0, 0, 7]);
        bench.ask(HomeRequest::SetOthers(other(AccessState::Standby).into()));
        assert_eq!(bench.nexuses[0].attentions, [UnitAttention::AccessStateChanged]);
    }

    #[test]
    fn a_reservation_by_reserve_holds_for_hosts_of_all_gateways_and_ends_when_another_one_becomes_active() {
        let mut bench = gateway();
        let name = "port9".to_owned();
        let other = OtherPort { relative_id: 9, group: 9, name, state: AccessState::Standby };
        bench.ask(HomeRequest::SetOthers([other].into()));
        assert_standby(&bench.run(0, Reserve6::ZERO, &[], 0));
        activate(&mut bench, &[]);
        bench.read(Reserve6::ZERO).assert_good();
        assert_eq!(bench.run(1, Read16::new(0, 1), &[], 512).ending.status, Status::ReservationConflict);
        let elsewhere =
            NexusIdentity { nexus: NexusId::ELSEWHERE, target_port: 9, ..bench.nexuses[1].identity() };
        let change = ModesChange::all(Modes { queue_error: 3, ..bench.view.policy.modes });
        assert_eq!(bench.ask(HomeRequest::SetModes { from: elsewhere, change }), HomeReply::Conflict);

        // Its holder is notified that it has lost it.
        bench.ask(HomeRequest::SetRole { role: Role::Standby, saved: None });
        let notified = [0, 1].map(|nexus| std::mem::take(&mut bench.nexuses[nexus].attentions));
        let (lost, moved) = (UnitAttention::NexusLoss, UnitAttention::AccessStateChanged);
        assert_eq!(notified, [vec![lost, moved], vec![moved]]);
        activate(&mut bench, &[]);
        bench.run(1, Reserve6::ZERO, &[], 0).assert_good();
    }

    #[test]
    fn mode_select_in_standby_is_for_the_active_gateway_even_if_it_changes_nothing_here() {
        let mut bench = gateway();
        bench.ask(HomeRequest::SetRole { role: Role::Standby, saved: Some(Arc::default()) });
        bench.nexuses[0].attentions.clear();
        let current = bench.read(ModeSense6::page_only(mode::page::CONTROL, 255)).data;
        let list = [&[0; 4][..], &current[4..]].concat();
        assert_standby(&bench.write(ModeSelect6::new(list.len() as u8), &list));
        bench.nexuses[0].read_only = true;
        assert_eq!(bench.write(ModeSelect6::new(list.len() as u8), &list).sense().0, 7);
        bench.nexuses[0].read_only = false;
        activate(&mut bench, &[]);
        bench.write(ModeSelect6::new(list.len() as u8), &list).assert_good();
    }

    #[test]
    fn a_port_here_with_the_identifier_of_another_gateways_port_takes_none_of_its_registrations() {
        let mut bench = gateway();
        let name = "port9".to_owned();
        let other = OtherPort { relative_id: 9, group: 9, name, state: AccessState::Standby };
        let others: Arc<[OtherPort]> = [other].into();
        bench.ask(HomeRequest::SetOthers(others.clone()));
        activate(&mut bench, &[]);
        register(&mut bench, 7).assert_good();
        let nexus = NexusId::ELSEWHERE;
        let from = NexusIdentity { nexus, target_port: 9, ..bench.nexuses[0].identity() };
        let list = [&[0; 8][..], &8u64.to_be_bytes(), &[0; 8]].concat();
        let order = ReserveOut::parse(&PersistentReserveOut::new(0, 0, 24).into(), &list).unwrap();
        assert_eq!(bench.ask(HomeRequest::PersistentReserveOut { from, order }), HomeReply::Done);
        let saved = |bench: &Bench| bench.home.policy().saved_for_gateways(&bench.view.unit);
        let (unit, before) = (bench.view.unit.clone(), saved(&bench));

        let mut clashing = Unit::clone(&unit);
        let own = Port { relative_id: 9, name: "own".into(), ..clashing.ports[1].clone() };
        clashing.ports.push(own);
        bench.ask(HomeRequest::Configure(Arc::new(clashing)));
        // What the gateway's thread reports before it has seen the new ports, and after it has.
        for others in [others.clone(), Arc::default()] {
            bench.ask(HomeRequest::SetOthers(others));
            assert_eq!(saved(&bench), before);
            assert!(!bench.home.policy().reservations.gone_ports().is_empty());
        }
        bench.ask(HomeRequest::Configure(unit));
        bench.ask(HomeRequest::SetOthers(others));
        assert_eq!(saved(&bench), before);
        assert!(bench.home.policy().reservations.gone_ports().is_empty());
    }
}
