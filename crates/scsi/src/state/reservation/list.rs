//! The reserve list of ATA over Ethernet (AoEr11, reserve/release command), and its meaning for SCSI.
//!
//! While it is not empty, commands of every nexus that is not on it conflict as with a persistent reservation
//! of type Exclusive Access. Without force, it is set only if no reservation prevents that; with force it
//! replaces any reservation, and ends the commands of those that it excludes, as PREEMPT AND ABORT does.

use super::apply::{Change, who};
use super::{Access, Table};
use crate::state::attention::UnitAttention;
use crate::state::home::{Draft, HomeReply, NexusIdentity, Who};
use std::sync::Arc;
use wire::aoe::Mac;
use wire::scsi::transport_id::aoe_mac;

impl Table {
    /// The initiators whose commands are accepted; empty: no such list is set.
    pub fn list(&self) -> &[Mac] {
        &self.list
    }

    /// Whether the initiator is on the list.
    pub(super) fn is_listed(&self, transport_id: &[u8]) -> bool {
        aoe_mac(transport_id).is_some_and(|mac| self.list.contains(&mac))
    }

    /// The nexuses that lose a SCSI reservation when it is removed: its holder, and all that shared it.
    fn losers(&self) -> Vec<Who> {
        let mut losers: Vec<Who> = self.reserved.map(Who::Only).into_iter().collect();
        if let Some(held) = &self.reservation {
            let had_it =
                self.registrations.iter().filter(|one| held.kind.is_shared() || held.is_held_by(one));
            losers.extend(had_it.filter_map(who));
        }
        losers
    }
}

impl Draft {
    /// Sets the list. An empty one releases.
    pub(crate) fn set_reserve_list(
        &mut self,
        from: &NexusIdentity,
        list: Arc<[Mac]>,
        force: bool,
    ) -> HomeReply {
        let table = Arc::clone(&self.policy.reservations);
        if !force && table.access(from.nexus, &from.transport_id, from.target_port) != Access::Full {
            return HomeReply::Conflict;
        }
        let lost = table.losers().into_iter().map(|who| (who, UnitAttention::ReservationsPreempted));
        self.attentions.extend(lost);
        if force && !list.is_empty() {
            self.abort_of(Who::Unlisted(Arc::clone(&list)));
        }
        let table = Table::clone(&table);
        self.policy.reservations = Arc::new(Table { list, reservation: None, reserved: None, ..table });
        self.changed()
    }
}

impl Change {
    /// A registered nexus removes the list: PREEMPT (AND ABORT) and CLEAR are how SCSI gets the unit back.
    pub(super) fn take_list(&mut self, abort: bool) {
        let list = std::mem::take(&mut self.table.list);
        if abort && !list.is_empty() {
            self.effects.aborts.push(Who::Listed(list));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::home::{Aborted, HomeRequest};
    use crate::testing::{BLOCK, Bench, MACS};
    use crate::vocabulary::command::Status;
    use wire::Cdb;
    use wire::aoe::OrderKind;
    use wire::ata::{Command, Registers};
    use wire::scsi::command::{Inquiry, ModeSense6, PersistentReserveIn, Read10, TestUnitReady, Write10};
    use wire::scsi::command::{PersistentReserveOut, Reserve6};
    use zerocopy::IntoBytes;

    const SCSI: usize = 0;
    const SECOND: usize = 1;
    /// Nexuses that use ATA.
    const ATA: usize = 2;
    const OTHER: usize = 3;

    const KEY: u64 = 0x1111;
    const WRITE_EXCLUSIVE: u8 = 1;
    const EXCLUSIVE_ACCESS: u8 = 3;
    const WRITE_REGISTRANTS: u8 = 5;

    const READY: TestUnitReady = TestUnitReady {};
    const RESERVE6: Reserve6 = Reserve6::ZERO;

    fn bench() -> Bench {
        let mut bench = Bench::with_ata();
        for (at, nexus) in bench.nexuses.iter_mut().take(2).enumerate() {
            nexus.transport_id =
                wire::scsi::transport_id::iscsi_port("iqn.2026-11.example:host", at as u64).into();
        }
        bench
    }

    fn set(bench: &mut Bench, nexus: usize, kind: OrderKind, list: &[Mac]) -> Status {
        let outcome = bench.order(nexus, kind, list.as_bytes());
        if outcome.ending.status == Status::Good {
            assert_eq!(outcome.data, list.as_bytes());
        }
        outcome.ending.status
    }

    /// PERSISTENT RESERVE OUT.
    fn order(bench: &mut Bench, nexus: usize, action: u8, kind: u8, key: u64, action_key: u64) -> Status {
        let list = [key.to_be_bytes(), action_key.to_be_bytes(), [0; 8]].concat();
        bench.run(nexus, PersistentReserveOut::new(action, kind, 24), &list, 0).ending.status
    }

    fn register(bench: &mut Bench, nexus: usize, key: u64) {
        assert_eq!(order(bench, nexus, 0, 0, 0, key), Status::Good);
    }

    /// The statuses of a read and a write.
    fn moves(bench: &mut Bench, nexus: usize) -> [Status; 2] {
        bench.nexuses[nexus].attentions.clear();
        if nexus < ATA {
            let read = bench.run(nexus, Read10::new(0, 1), &[], 512);
            let write = bench.run(nexus, Write10::new(0, 1), &[0; BLOCK], 0);
            return [read, write].map(|outcome| outcome.ending.status);
        }
        let read = bench.ata(nexus, Registers::new(Command::ReadDmaExt, 0, 1), &[]);
        let write = bench.ata(nexus, Registers::new(Command::WriteDmaExt, 0, 1), &[0; BLOCK]);
        [read, write].map(|outcome| outcome.ending.status)
    }

    const ALLOWED: [Status; 2] = [Status::Good; 2];
    const CONFLICTS: [Status; 2] = [Status::ReservationConflict; 2];
    const CONFLICT: Status = Status::ReservationConflict;

    #[test]
    fn only_listed_hosts_have_access() {
        let mut bench = bench();
        assert_eq!(set(&mut bench, ATA, OrderKind::SetReserve, &MACS[..1]), Status::Good);
        assert_eq!(moves(&mut bench, ATA), ALLOWED);
        for nexus in [SCSI, SECOND, OTHER] {
            assert_eq!(moves(&mut bench, nexus), CONFLICTS, "nexus {nexus}");
        }
        assert_eq!(bench.order(OTHER, OrderKind::ReadReserve, &[]).assert_good().data, MACS[0].as_bytes());
        bench.ata(OTHER, Registers::new(Command::IdentifyDevice, 0, 1), &[]).assert_good();
        let flush = bench.ata(OTHER, Registers::new(Command::FlushCacheExt, 0, 0), &[]);
        assert_eq!(flush.ending.status, CONFLICT);
        for kind in [OrderKind::SetConfig, OrderKind::EditMask] {
            assert_eq!(bench.order(OTHER, kind, &[0; 8]).ending.status, CONFLICT);
        }
        for cdb in
            [Cdb::from(READY), Cdb::from(Inquiry::new(96)), Cdb::from(PersistentReserveIn::new(0, 255))]
        {
            bench.run(SCSI, cdb, &[], 255).assert_good();
        }
        assert_eq!(bench.run(SCSI, ModeSense6::new(0x3f, 255), &[], 255).ending.status, CONFLICT);
    }

    #[test]
    fn the_list_belongs_to_those_on_it() {
        let mut bench = bench();
        assert_eq!(set(&mut bench, ATA, OrderKind::SetReserve, &MACS[..1]), Status::Good);
        assert_eq!(set(&mut bench, OTHER, OrderKind::SetReserve, &MACS), CONFLICT);
        assert_eq!(set(&mut bench, OTHER, OrderKind::SetReserve, &[]), CONFLICT);
        assert_eq!(set(&mut bench, ATA, OrderKind::SetReserve, &MACS), Status::Good);
        assert_eq!((moves(&mut bench, ATA), moves(&mut bench, OTHER)), (ALLOWED, ALLOWED));
        assert_eq!(set(&mut bench, OTHER, OrderKind::SetReserve, &[]), Status::Good);
        for nexus in [SCSI, SECOND, ATA, OTHER] {
            assert_eq!(moves(&mut bench, nexus), ALLOWED);
        }
        assert_eq!(set(&mut bench, ATA, OrderKind::SetReserve, &MACS[1..]), Status::Good, "of others");
        assert_eq!((moves(&mut bench, ATA), moves(&mut bench, OTHER)), (CONFLICTS, ALLOWED));
    }

    #[test]
    fn force_reserve_aborts_the_commands_of_excluded_hosts() {
        let mut bench = bench();
        assert_eq!(set(&mut bench, ATA, OrderKind::SetReserve, &MACS[..1]), Status::Good);
        assert!(bench.published.take().unwrap().aborts.is_empty());
        assert_eq!(set(&mut bench, OTHER, OrderKind::ForceReserve, &MACS[1..]), Status::Good);
        let published = bench.published.take().unwrap();
        let [(who, Aborted::Silently)] = &published.aborts[..] else { panic!("{:?}", published.aborts) };
        let victims: Vec<bool> = bench.nexuses.iter().map(|nexus| who.includes(nexus)).collect();
        assert_eq!(victims, [true, true, true, false]);
        assert_eq!(bench.nexuses[SCSI].attentions, [UnitAttention::CommandsCleared]);
        assert_eq!(moves(&mut bench, ATA), CONFLICTS);
        assert_eq!(set(&mut bench, ATA, OrderKind::ForceReserve, &[]), Status::Good);
        assert!(bench.published.take().unwrap().aborts.is_empty());
        assert_eq!(moves(&mut bench, SCSI), ALLOWED);
    }

    #[test]
    fn while_the_list_is_set_nobody_reserves_by_scsi() {
        let mut bench = bench();
        register(&mut bench, SCSI, KEY);
        assert_eq!(set(&mut bench, ATA, OrderKind::SetReserve, &MACS[..1]), Status::Good);
        register(&mut bench, SECOND, KEY);
        for nexus in [SCSI, SECOND] {
            assert_eq!(order(&mut bench, nexus, 1, WRITE_EXCLUSIVE, KEY, 0), CONFLICT);
            assert_eq!(bench.run(nexus, RESERVE6, &[], 0).ending.status, CONFLICT);
            assert_eq!(order(&mut bench, nexus, 0, 0, KEY, 0), Status::Good);
        }
        assert_eq!(bench.run(SCSI, RESERVE6, &[], 0).ending.status, CONFLICT);
        let second = bench.nexuses[SECOND].identity();
        assert_eq!(bench.ask(HomeRequest::Reserve(second)), HomeReply::Conflict);
        assert_eq!(moves(&mut bench, ATA), ALLOWED);
    }

    #[test]
    fn a_registrant_removes_the_reserve_list_by_clear_and_by_preempt() {
        const CLEAR: u8 = 3;
        const PREEMPT: u8 = 4;
        const PREEMPT_AND_ABORT: u8 = 5;
        for action in [CLEAR, PREEMPT, PREEMPT_AND_ABORT] {
            let mut bench = bench();
            register(&mut bench, SCSI, KEY);
            assert_eq!(set(&mut bench, ATA, OrderKind::SetReserve, &MACS[..1]), Status::Good);
            assert_eq!(order(&mut bench, SECOND, action, WRITE_EXCLUSIVE, KEY, KEY), CONFLICT);
            assert_eq!(moves(&mut bench, SCSI), CONFLICTS);
            assert_eq!(order(&mut bench, SCSI, action, WRITE_EXCLUSIVE, KEY, KEY), Status::Good);
            let aborts = bench.published.take().unwrap().aborts;
            let is_ended = |nexus: usize| aborts.iter().any(|(who, _)| who.includes(&bench.nexuses[nexus]));
            let ended: Vec<usize> = (0..4).filter(|nexus| is_ended(*nexus)).collect();
            assert_eq!(ended, if action == PREEMPT_AND_ABORT { vec![ATA] } else { vec![] });
            for nexus in [SCSI, SECOND, ATA, OTHER] {
                assert_eq!(moves(&mut bench, nexus), ALLOWED);
            }
        }
    }

    #[test]
    fn a_persistent_reservation_stops_ata_as_it_stops_scsi() {
        for (kind, expected) in [
            (WRITE_EXCLUSIVE, [Status::Good, CONFLICT]),
            (WRITE_REGISTRANTS, [Status::Good, CONFLICT]),
            (EXCLUSIVE_ACCESS, CONFLICTS),
        ] {
            let mut bench = bench();
            register(&mut bench, SCSI, KEY);
            assert_eq!(order(&mut bench, SCSI, 1, kind, KEY, 0), Status::Good);
            assert_eq!(moves(&mut bench, ATA), expected);
            assert_eq!(set(&mut bench, ATA, OrderKind::SetReserve, &MACS), CONFLICT);
            assert_eq!(set(&mut bench, ATA, OrderKind::SetReserve, &[]), CONFLICT);
            assert_eq!(order(&mut bench, SCSI, 2, kind, KEY, 0), Status::Good);
            assert_eq!(moves(&mut bench, ATA), ALLOWED);
        }
    }

    #[test]
    fn force_takes_a_persistent_reservation_away_and_notifies_its_holders() {
        for (kind, both_had_it) in [(WRITE_EXCLUSIVE, false), (WRITE_REGISTRANTS, true)] {
            let mut bench = bench();
            register(&mut bench, SCSI, KEY);
            register(&mut bench, SECOND, KEY);
            assert_eq!(order(&mut bench, SCSI, 1, kind, KEY, 0), Status::Good);
            assert_eq!(set(&mut bench, ATA, OrderKind::ForceReserve, &MACS[..1]), Status::Good);
            let is_notified = |nexus: usize| {
                bench.nexuses[nexus].attentions.contains(&UnitAttention::ReservationsPreempted)
            };
            assert_eq!((is_notified(SCSI), is_notified(SECOND)), (true, both_had_it));
            assert_eq!((moves(&mut bench, SCSI), moves(&mut bench, ATA)), (CONFLICTS, ALLOWED));
            assert_eq!(set(&mut bench, ATA, OrderKind::SetReserve, &[]), Status::Good);
            assert_eq!(moves(&mut bench, OTHER), ALLOWED, "the reservation does not come back");
            assert_eq!(order(&mut bench, SCSI, 1, kind, KEY, 0), Status::Good, "registrations have stayed");
        }
    }

    #[test]
    fn force_takes_the_reservation_of_reserve_away() {
        let mut bench = bench();
        bench.run(SCSI, RESERVE6, &[], 0).assert_good();
        assert_eq!(moves(&mut bench, ATA), CONFLICTS);
        assert_eq!(set(&mut bench, ATA, OrderKind::SetReserve, &MACS[..1]), CONFLICT);
        assert_eq!(set(&mut bench, ATA, OrderKind::ForceReserve, &MACS[..1]), Status::Good);
        assert!(bench.nexuses[SCSI].attentions.contains(&UnitAttention::ReservationsPreempted));
        assert!(!bench.nexuses[SECOND].attentions.contains(&UnitAttention::ReservationsPreempted));
        assert_eq!((moves(&mut bench, SCSI), moves(&mut bench, ATA)), (CONFLICTS, ALLOWED));
    }

    #[test]
    fn the_list_outlives_a_reset_but_not_a_restart() {
        let mut bench = bench();
        bench.order(ATA, OrderKind::SetConfig, b"x").assert_good();
        let saved = bench.published.take().unwrap().persist;
        assert_eq!(set(&mut bench, ATA, OrderKind::SetReserve, &MACS[..1]), Status::Good);
        assert!(saved.is_some() && bench.published.take().unwrap().persist.is_none());
        bench.ask(HomeRequest::Reset { from: None });
        assert_eq!((moves(&mut bench, SCSI), moves(&mut bench, ATA)), (CONFLICTS, ALLOWED));
    }
}
