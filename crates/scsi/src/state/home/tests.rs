//! Requests to one unit, one after another.

use super::*;
use crate::testing::Bench;
use crate::vocabulary::modes::EraseKind;

const FIRST: NexusId = NexusId(1);

fn with_modes(change: impl FnOnce(&mut Modes)) -> Bench {
    let mut bench = Bench::new();
    let mut modes = bench.view.policy.modes;
    change(&mut modes);
    bench.ask(HomeRequest::SetModes { from: bench.nexuses[0].identity(), change: ModesChange::all(modes) });
    bench.nexuses[1].attentions.clear();
    bench
}

#[test]
fn a_cleared_task_set_is_reported_by_attention_or_by_status() {
    let mut bench = Bench::new();
    bench.ask(HomeRequest::ClearTaskSet { from: FIRST });
    let aborts = bench.published.take().unwrap().aborts;
    assert!(aborts.contains(&(Who::Others(FIRST), Aborted::Silently)));
    assert_eq!(bench.nexuses[1].attentions, [UnitAttention::CommandsCleared]);

    let mut bench = with_modes(|modes| modes.task_aborted_status = true);
    bench.ask(HomeRequest::ClearTaskSet { from: FIRST });
    let aborts = bench.published.take().unwrap().aborts;
    assert!(aborts.contains(&(Who::Others(FIRST), Aborted::WithStatus)));
    assert!(bench.nexuses[1].attentions.is_empty());

    let mut bench = with_modes(|modes| modes.task_set_per_nexus = true);
    bench.ask(HomeRequest::ClearTaskSet { from: FIRST });
    assert_eq!(bench.published.unwrap().aborts, [(Who::Only(FIRST), Aborted::Silently)]);
}

#[test]
fn queue_errors_end_what_the_mode_page_says() {
    let mut bench = Bench::new();
    bench.ask(HomeRequest::QueueError { from: FIRST, read_only: false });
    assert!(bench.published.is_none());
    let aborts = |queue_error, read_only| {
        let mut bench = with_modes(|modes| modes.queue_error = queue_error);
        bench.ask(HomeRequest::QueueError { from: FIRST, read_only });
        bench.published.unwrap().aborts
    };
    let own = (Who::Only(FIRST), Aborted::Silently);
    assert_eq!(aborts(3, false), std::slice::from_ref(&own));
    assert_eq!(aborts(1, false), [own.clone(), (Who::Others(FIRST), Aborted::Silently)]);
    assert_eq!(aborts(1, true), [own], "others are no matter of who may only read");
}

#[test]
fn a_store_that_grows_is_reported_to_everyone() {
    let mut bench = Bench::new();
    let traits = bench.view.policy.traits;
    let epoch = bench.view.policy.epoch;
    bench.ask(HomeRequest::StoreChanged(traits));
    assert_eq!(bench.view.policy.epoch, epoch);
    bench.ask(HomeRequest::StoreChanged(Traits { size_bytes: traits.size_bytes * 2, ..traits }));
    assert_eq!(bench.view.policy.epoch, epoch + 1);
    for nexus in &bench.nexuses {
        assert_eq!(nexus.attentions, [UnitAttention::CapacityChanged]);
    }
}

#[test]
fn a_reset_below_the_store_is_reported_to_everyone_and_changes_nothing() {
    let mut bench = Bench::new();
    let before = bench.home.policy();
    bench.ask(HomeRequest::Reserve(bench.nexuses[0].identity()));
    bench.ask(HomeRequest::StoreReset);
    for nexus in &bench.nexuses {
        assert_eq!(nexus.attentions, [UnitAttention::PowerOn]);
    }
    assert_eq!(bench.home.policy().modes, before.modes);
    let second = bench.nexuses[1].identity();
    assert_eq!(bench.ask(HomeRequest::Reserve(second)), HomeReply::Conflict);
}

#[test]
fn what_waits_at_the_home_is_judged_by_the_reservations_of_then() {
    let mut bench = Bench::new();
    let (first, second) = (bench.nexuses[0].identity(), bench.nexuses[1].identity());
    bench.ask(HomeRequest::Reserve(first));
    let modes = Modes { write_cache: false, ..bench.view.policy.modes };
    let from = || second.clone();
    for request in [
        HomeRequest::SetModes { from: from(), change: ModesChange::all(modes) },
        HomeRequest::StartStop { from: from(), start: false, load_eject: false },
        HomeRequest::StartStop { from: from(), start: true, load_eject: false },
        HomeRequest::PreventRemoval { from: from(), prevent: true },
        HomeRequest::EraseBegin { from: from(), kind: EraseKind::Sanitize { unrestricted: false } },
        HomeRequest::SanitizeExitFailure { from: from() },
    ] {
        bench.published = None;
        assert_eq!(bench.ask(request), HomeReply::Conflict);
        assert!(bench.published.is_none());
    }
}

#[test]
fn what_cannot_be_kept_is_undone() {
    let mut bench = Bench::new();
    let before = bench.home.policy();
    let from = bench.nexuses[0].identity();
    let request = HomeRequest::EraseBegin { from, kind: EraseKind::Sanitize { unrestricted: false } };
    let (_, publish) = bench.home.handle(request.clone());
    assert!(publish.unwrap().persist.is_some() && bench.home.undo());
    assert!(Arc::ptr_eq(&before, &bench.home.policy()));
    bench.home.handle(request);
    bench.home.handle(HomeRequest::EraseEnd { ok: true, kind: EraseKind::Sanitize { unrestricted: false } });
    assert!(!bench.home.can_undo() && !bench.home.undo());
}

#[test]
fn a_changed_configuration_is_reported_once_by_its_unit_attentions() {
    use UnitAttention::{CapacityChanged, InquiryChanged, ModeChanged};
    type Change = fn(&mut Unit);
    let changes: [(Change, &[UnitAttention]); 6] = [
        (|unit| unit.product = "Another".into(), &[InquiryChanged]),
        (|unit| unit.removable = !unit.removable, &[InquiryChanged]),
        (|unit| unit.thin = !unit.thin, &[InquiryChanged, CapacityChanged]),
        (|unit| unit.read_only = true, &[ModeChanged]),
        (|unit| unit.write_cache = !unit.write_cache, &[ModeChanged]),
        (|_| {}, &[]),
    ];
    for (change, reported) in changes {
        let mut bench = Bench::new();
        let mut unit = Unit::clone(&bench.view.unit);
        change(&mut unit);
        bench.ask(HomeRequest::Configure(Arc::new(unit.clone())));
        assert_eq!(
            bench.published.as_ref().and_then(|publish| publish.unit.clone()).unwrap().product,
            unit.product
        );
        assert_eq!(bench.view.policy.modes.write_cache, unit.write_cache);
        for nexus in &bench.nexuses {
            assert_eq!(nexus.attentions, reported);
        }
    }
}

#[test]
fn two_mode_selects_at_once_both_take_effect() {
    let mut bench = Bench::new();
    let before = bench.view.policy.modes;
    let caching = Modes { write_cache: false, ..before };
    let control = Modes { descriptor_sense: true, ..before };
    for (nexus, modes) in [(0, caching), (1, control)] {
        let from = bench.nexuses[nexus].identity();
        let change = ModesChange { caching: nexus == 0, control: nexus == 1, ..ModesChange::none(modes) };
        bench.ask(HomeRequest::SetModes { from, change });
    }
    let after = bench.view.policy.modes;
    assert!(!after.write_cache && after.descriptor_sense);
}
