//! Gateways that all serve.

use super::*;

fn world(seed: u64, slow: bool, mutant: Mutant) -> World {
    World::with(Access::All, seed, 2 + seed as usize % 7, slow, mutant)
}

/// Occasional faults, until a given time.
fn trouble(until: u64) -> impl FnMut(&mut World) {
    move |world| {
        world.restart_withdrawn();
        if world.now > until || world.rng.u32(..8_000) != 0 {
            return;
        }
        let index = world.rng.usize(..world.gateways.len());
        if !world.gateways[index].is_alive {
            return;
        }
        let long = world.rng.u64(100..60_000);
        match world.rng.u32(..9) {
            0 => world.kill(index, Some(long / 2)),
            1 => world.stick(long),
            6 => world.deaf_until = world.now + long / 2,
            7 => world.gateways[index].deaf_until = world.now + long,
            2 => world.gateways[index].machine.noticed(),
            8 => world.gateways[index].machine.withdraw(),
            3 => world.gateways[index].cut_until = world.now + long,
            _ => world.gateways[index].held_until = world.now + long,
        }
    }
}

/// Runs a world with faults for five minutes, and then three minutes for everything to recover.
fn troubled(seed: u64, lags: bool, mutant: Mutant) -> World {
    let mut world = world(seed, true, mutant);
    world.lags = lags;
    world.run(300_000, trouble(300_000));
    world.slow = false;
    world.run(480_000, World::restart_withdrawn);
    world
}

impl World {
    /// One of the medium's servers executes nothing for some time.
    fn stick(&mut self, long: u64) {
        let block = self.rng.usize(..BLOCKS);
        self.servers[block].stuck_until = self.now + long;
    }

    fn roles(&self) -> Vec<(bool, Role, Option<String>)> {
        let status = |gateway: &Gateway| {
            let status = gateway.machine.status();
            (gateway.is_alive, status.role, status.fault)
        };
        self.gateways.iter().map(status).collect()
    }

    /// Whether all serve that are alive, and one of them decides.
    fn all_serve(&self) -> bool {
        let roles = self.roles();
        let serve = |(is_alive, role, _): &(bool, Role, Option<String>)| {
            !is_alive || matches!(role, Role::Serving | Role::Active)
        };
        let homes = self.gateways.iter().all(|gateway| gateway.serves || !gateway.is_alive);
        roles.iter().all(serve) && homes && self.active().len() == 1
    }
}

#[test]
fn what_was_acknowledged_is_in_force_everywhere_and_nothing_old_overwrites_newer_data() {
    let (mut landed, mut refused, mut claims, mut forwarded, mut acked) = (0, 0, 0, 0, 0);
    for seed in 0..40 {
        let mut world = troubled(seed, seed % 4 == 3, Mutant::None);
        if !world.all_serve() {
            let (roles, record) = (world.roles(), world.object.clone());
            world.find(|| format!("not all serve at last: {roles:?} {record:#?}"));
        }
        assert_eq!(world.found, None);
        (landed, refused, claims) = (landed + world.landed, refused + world.refused, claims + world.claims);
        (forwarded, acked) = (forwarded + world.forwarded, acked + world.acked);
    }
    assert!(landed > 100_000 && refused > 1_000 && claims > 200, "{landed} {refused} {claims}");
    assert!(forwarded > 3_000 && acked > 10_000, "{forwarded} {acked}");
}

#[test]
fn a_break_of_the_protocol_is_found_when_all_serve() {
    for (mutant, lags) in [
        (Mutant::AcknowledgedEarly, false),
        (Mutant::AppliedEarly, false),
        (Mutant::ReplyApart, false),
        (Mutant::ServesUnlisted, false),
        (Mutant::EndsEarly, false),
        (Mutant::FenceWithoutEpoch, true),
        (Mutant::NotCaughtUp, true),
    ] {
        let found = (0..400).find(|seed| troubled(*seed, lags, mutant).found.is_some());
        assert!(found.is_some(), "{mutant:?} is not found");
    }
}

#[test]
fn nobody_is_fenced_and_nobody_starves_while_nothing_goes_wrong() {
    // Also with a pool that takes its time.
    for (pace, longest) in [(1..20, 3_000), (10..100, 4_500)] {
        for seed in 0..7 {
            let mut world = world(seed, false, Mutant::None);
            world.pace = pace.clone();
            world.run(30_000, |_| ());
            assert!(world.all_serve(), "seed {seed}: {:?}", world.roles());
            world.longest = 0;
            world.run(300_000, |world| {
                let index = world.rng.usize(..world.gateways.len());
                if world.rng.u32(..20) == 0 {
                    world.gateways[index].machine.noticed();
                }
            });
            assert_eq!(
                (world.found.clone(), world.claims, world.all_serve()),
                (None, 1, true),
                "seed {seed}"
            );
            assert!(world.shut_out.is_empty(), "seed {seed}: {:?}", world.shut_out);
            assert!(world.longest < longest, "seed {seed}: {}", world.longest);
        }
    }
}

/// A world in which nothing has gone wrong yet.
fn calm(seed: u64) -> World {
    let mut world = world(seed, false, Mutant::None);
    world.patience = PATIENCE;
    let until = 20_000 + world.rng.u64(..5_000);
    world.run(until, |_| ());
    assert!(world.all_serve(), "seed {seed}: {:?}", world.roles());
    world
}

/// So many gateways, which serve.
fn serving(seed: u64, count: usize) -> World {
    let mut world = World::with(Access::All, seed, count, false, Mutant::None);
    world.patience = PATIENCE;
    world.run(20_000, |_| ());
    world
}

/// How long initiators must wait for a path.
const PATIENCE: u64 = 2 * TAKEOVER + MAPS + 1_000;

#[test]
fn one_that_dies_hangs_or_is_cut_off_is_fenced_in_time_and_the_others_serve_on() {
    for seed in 0..42 {
        let mut world = calm(seed);
        let (began, acked) = (world.now, world.acked);
        let victim = world.rng.usize(..world.gateways.len());
        let client = world.gateways[victim].client.clone();
        match seed % 3 {
            0 => world.kill(victim, None),
            1 => world.gateways[victim].held_until = world.now + 60_000,
            _ => world.gateways[victim].cut_until = world.now + 60_000,
        }
        world.run(began + TAKEOVER, |_| ());
        assert!(world.shut_out.contains_key(&client), "seed {seed}: {:?}", world.roles());
        world.run(began + PATIENCE, |_| ());
        assert_eq!((world.found.clone(), world.shut_out.len()), (None, 1), "seed {seed}");
        assert!(world.acked > acked, "seed {seed}: changes are made");
        let serve = |index: usize| world.gateways[index].serves || index == victim;
        assert!((0..world.gateways.len()).all(serve), "seed {seed}: {:?}", world.roles());
        world.run(began + 90_000, |_| ());
        assert_eq!((world.found.clone(), world.shut_out.len()), (None, 1), "seed {seed}");
        assert!(world.all_serve(), "seed {seed}: {:?}", world.roles());
    }
}

/// The monitors elect a leader for longer than a gateway may show no sign of life.
#[test]
fn an_election_of_the_monitors_costs_no_gateway_that_is_alive_its_client() {
    for seed in 0..42 {
        let mut world = calm(seed);
        let began = world.now;
        let victim = world.rng.usize(..world.gateways.len());
        let client = world.gateways[victim].client.clone();
        world.kill(victim, None);
        // When it begins somebody may have been fenced whom others have yet to catch up with.
        let from = began + world.rng.u64(..2 * TAKEOVER);
        world.run(from, |_| ());
        world.deaf_until = world.now + world.rng.u64(TAKEOVER * 3 / 5..ELECTION);
        world.run(world.deaf_until + 2 * TAKEOVER, |_| ());
        assert_eq!(world.found, None, "seed {seed}");
        let fenced: Vec<_> = world.shut_out.keys().collect();
        assert_eq!(fenced, [&client], "seed {seed}");
        assert!(world.all_serve(), "seed {seed}: {:?}", world.roles());
    }
}

/// The gateway that decides waits for a monitor that has died, and the others do not.
#[test]
fn one_that_hangs_is_fenced_in_time_by_whoever_reaches_the_monitors() {
    for seed in 0..40 {
        let mut world = serving(seed, 3 + seed as usize % 6);
        let (began, holder) = (world.now, world.active()[0]);
        let victim = (holder + 1) % world.gateways.len();
        let client = world.gateways[victim].client.clone();
        world.gateways[victim].held_until = began + 60_000;
        world.gateways[holder].deaf_until = began + 30_000;
        world.run(began + PATIENCE - SPREADS, |_| ());
        assert!(world.shut_out.contains_key(&client), "seed {seed}: {:?}", world.roles());
        world.run(began + 90_000, |_| ());
        assert_eq!(world.found, None, "seed {seed}");
        assert!(world.all_serve(), "seed {seed}: {:?}", world.roles());
        assert!(world.shut_out.len() < 3, "seed {seed}: {:?}", world.shut_out);
    }
}

/// The monitors do not answer the gateway that decides, at once or by an error, and answer the others.
#[test]
fn one_that_the_monitors_do_not_answer_lets_another_one_fence_and_decide() {
    for seed in 0..16 {
        let mut world = serving(seed, 3 + seed as usize % 6);
        let (began, holder) = (world.now, world.active()[0]);
        let victim = (holder + 1) % world.gateways.len();
        let client = world.gateways[victim].client.clone();
        world.gateways[holder].deaf_until = began + 300_000;
        if seed % 2 == 0 {
            world.gateways[holder].fails_until = began + 300_000;
        }
        world.kill(victim, None);
        world.run(began + PATIENCE - SPREADS, |_| ());
        assert!(world.shut_out.contains_key(&client), "seed {seed}: {:?}", world.roles());
        world.run(began + 4 * TAKEOVER, |_| ());
        for _ in 0..6 {
            let acked = world.acked;
            world.run(world.now + 2 * TAKEOVER, |_| ());
            assert!(world.acked > acked, "seed {seed} at {}: {:?}", world.now, world.roles());
        }
        let serves = |index: usize| world.gateways[index].serves || [holder, victim].contains(&index);
        assert!((0..world.gateways.len()).all(serves), "seed {seed}: {:?}", world.roles());
        world.run(began + 300_000 + 4 * TAKEOVER, |_| ());
        assert_eq!(world.found, None, "seed {seed}");
        assert!(world.gateways[holder].serves, "seed {seed}: {:?}", world.roles());
    }
}

/// Of two gateways the one that decides gets no answer of the monitors, and the other one loses the cluster or starts
/// again.
#[test]
fn one_that_is_to_be_fenced_does_it_itself_if_the_monitors_do_not_answer_the_other_one() {
    for seed in 0..16 {
        let mut world = serving(seed, 2);
        let (began, holder) = (world.now, world.active()[0]);
        let other = 1 - holder;
        world.gateways[holder].deaf_until = began + 300_000;
        match seed % 2 {
            0 => world.gateways[other].cut_until = began + TAKEOVER,
            _ => world.kill(other, Some(TAKEOVER / 2)),
        }
        world.run(began + 6 * TAKEOVER, |_| ());
        assert_eq!(world.found, None, "seed {seed}");
        assert!(world.gateways[other].serves, "seed {seed}: {:?}", world.roles());
        let acked = world.acked;
        world.run(began + 9 * TAKEOVER, |_| ());
        assert!(world.acked > acked, "seed {seed} at {}: {:?}", world.now, world.roles());
        world.run(began + 300_000 + 4 * TAKEOVER, |_| ());
        assert_eq!(world.found, None, "seed {seed}");
        assert!(world.all_serve(), "seed {seed}: {:?}", world.roles());
    }
}

/// A gateway that starts and crashes again and again.
fn crashes_again(victim: usize) -> impl FnMut(&mut World) {
    let mut next = 0;
    move |world| {
        if world.now >= next && world.gateways[victim].is_alive {
            let (dead, lives) = (world.rng.u64(100..3_000), world.rng.u64(100..4_000));
            next = world.now + dead + lives;
            world.kill(victim, Some(dead));
        }
    }
}

#[test]
fn one_that_crashes_again_and_again_starves_neither_changes_nor_others_that_start() {
    for seed in 0..30 {
        let mut world = serving(seed, 3 + seed as usize % 6);
        world.patience = u64::MAX;
        let victim = (world.active()[0] + 1) % world.gateways.len();
        let started = (victim + 1 + world.rng.usize(..world.gateways.len() - 1)) % world.gateways.len();
        let mut faults = crashes_again(victim);
        world.run(world.now + 2 * TAKEOVER, &mut faults);
        world.kill(started, Some(1_000));
        let until = world.now + 4 * TAKEOVER;
        world.run(until, &mut faults);
        assert_eq!(world.found, None, "seed {seed}");
        let serve = |index: usize| world.gateways[index].serves || index == victim;
        assert!((0..world.gateways.len()).all(serve), "seed {seed}: {:?}", world.roles());
        for _ in 0..6 {
            let acked = world.acked;
            world.run(world.now + 2 * TAKEOVER, &mut faults);
            assert!(world.acked > acked, "seed {seed} at {}: {:?}", world.now, world.object);
        }
        assert_eq!(world.found, None, "seed {seed}");
        assert!(world.shut_out.len() > 20, "seed {seed}: {:?}", world.shut_out);
    }
}

#[test]
fn two_that_hang_at_once_are_fenced_in_time() {
    for seed in 0..40 {
        let mut world = serving(seed, 3 + seed as usize % 6);
        let began = world.now;
        let holder = world.active()[0];
        let other = (holder + 1) % world.gateways.len();
        let clients = [holder, other].map(|index| world.gateways[index].client.clone());
        [holder, other].into_iter().for_each(|index| world.gateways[index].held_until = began + 60_000);
        world.run(began + TAKEOVER, |_| ());
        assert!(clients.iter().all(|client| world.shut_out.contains_key(client)), "seed {seed}");
        world.run(began + 90_000, |_| ());
        assert_eq!((world.found.clone(), world.shut_out.len()), (None, 2), "seed {seed}");
        assert!(world.all_serve(), "seed {seed}: {:?}", world.roles());
    }
}

#[test]
fn a_write_that_hangs_lands_before_its_initiator_may_give_it_up_or_never() {
    let (mut fenced, mut landed) = (0, 0);
    for seed in 0..30 {
        let mut world = calm(seed);
        let began = world.now;
        let long = world.rng.u64(5_000..60_000);
        // A machine with OSDs and the active gateway may die.
        let dies = (seed % 3 == 0).then(|| world.active()[0]);
        world.stick(long);
        dies.into_iter().for_each(|holder| world.kill(holder, None));
        world.run(began + long + 60_000, |_| ());
        assert_eq!(world.found, None, "seed {seed}");
        assert!(world.all_serve(), "seed {seed}: {:?}", world.roles());
        (fenced, landed) = (fenced + world.shut_out.len(), landed + world.landed);
    }
    assert!(fenced > 30 && landed > 1_000, "{fenced} {landed}");
}

#[test]
fn one_that_withdraws_leaves_the_others_serving() {
    for seed in 0..40 {
        let mut world = calm(seed);
        let began = world.now;
        let index = world.rng.usize(..world.gateways.len());
        world.gateways[index].machine.withdraw();
        world.post(index, 0, Event::Turn);
        world.run(began + TAKEOVER / 2, |_| ());
        let role = world.gateways[index].machine.status().role;
        let serves = world.gateways[index].serves;
        assert_eq!((role, serves), (Role::Standby, false), "seed {seed}: {:?}", world.roles());
        world.kill(index, None);
        world.run(began + 3 * TAKEOVER, |_| ());
        assert_eq!((world.found.clone(), world.shut_out.len()), (None, 0), "seed {seed}");
        assert!(world.all_serve(), "seed {seed}: {:?}", world.roles());
    }
}

#[test]
fn when_all_have_lost_the_cluster_they_all_serve_again() {
    for seed in 0..40 {
        let mut world = calm(seed);
        for gateway in &mut world.gateways {
            gateway.cut_until = 80_000;
        }
        world.run(80_000 + 4 * TAKEOVER, |_| ());
        assert_eq!(world.found, None, "seed {seed}");
        assert!(world.all_serve(), "seed {seed}: {:?}", world.roles());
    }
}
