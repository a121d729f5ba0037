//! Scenarios in such worlds, and their invariants.

use super::*;

/// Occasional faults, until a given time.
fn trouble(until: u64) -> impl FnMut(&mut World) {
    move |world| {
        world.restart_withdrawn();
        if world.now > until || world.rng.u32(..4_000) != 0 {
            return;
        }
        let index = world.rng.usize(..world.gateways.len());
        if !world.gateways[index].is_alive {
            return;
        }
        let long = world.rng.u64(100..60_000);
        match world.rng.u32(..9) {
            0 => world.kill(index, Some(long / 2)),
            6 => world.deaf_until = world.now + long / 2,
            7 => world.gateways[index].deaf_until = world.now + long,
            1 => {
                let by = if world.rng.bool() { By::Person } else { By::Initiator };
                world.gateways[index].machine.want(by);
            }
            5 if long % 2 == 0 => world.hang(index, 2 * long),
            5 => world.gateways[index].cut_until = world.now + long,
            2 => world.gateways[index].machine.noticed(),
            8 => world.gateways[index].machine.withdraw(),
            _ => world.gateways[index].held_until = world.now + long,
        }
    }
}

/// Runs a world with faults for five minutes, and then three minutes for everything to recover.
fn troubled(seed: u64, mutant: Mutant) -> World {
    let count = 2 + seed as usize % 7;
    let mut world = World::new(seed, count, true, mutant);
    world.run(300_000, trouble(300_000));
    world.slow = false;
    world.run(480_000, World::restart_withdrawn);
    world
}

#[test]
fn nothing_of_an_earlier_holder_lands_after_a_later_one_and_what_was_acknowledged_is_kept() {
    let (mut landed, mut refused, mut claims, mut forwarded, mut declined, mut recalled) = (0, 0, 0, 0, 0, 0);
    for seed in 0..40 {
        let mut world = troubled(seed, Mutant::None);
        if world.found.is_none() && world.active().len() != 1 {
            let roles: Vec<_> =
                world.gateways.iter().map(|gateway| (gateway.is_alive, gateway.machine.status())).collect();
            world.find(|| format!("nobody or more than one is active at last: {roles:#?}"));
        }
        assert_eq!(world.found, None);
        (landed, refused, claims) = (landed + world.landed, refused + world.refused, claims + world.claims);
        (forwarded, declined) = (forwarded + world.forwarded, declined + world.declined.len());
        recalled += world.recalled;
    }
    assert!(landed > 30_000 && refused > 100 && claims > 200, "{landed} {refused} {claims}");
    assert!(forwarded > 1_000 && declined > 10 && recalled > 100, "{forwarded} {declined} {recalled}");
}

#[test]
fn a_break_of_the_protocol_is_found() {
    // The last one shows only in few worlds.
    for (mutant, from) in [
        (Mutant::FenceWithoutEpoch, 0),
        (Mutant::AcknowledgedEarly, 0),
        (Mutant::ReplyApart, 0),
        (Mutant::EndsUnannounced, 0),
        (Mutant::Unconfirmed, 170),
    ] {
        let found = (from..1000).find(|seed| troubled(*seed, mutant).found.is_some());
        assert!(found.is_some(), "{mutant:?} is not found");
    }
}

#[test]
fn the_one_that_is_active_stays_so_while_nothing_goes_wrong() {
    for seed in 0..7 {
        let mut world = World::new(seed, 2 + seed as usize % 7, false, Mutant::None);
        world.run(600_000, |world| {
            let index = world.rng.usize(..world.gateways.len());
            if world.rng.u32(..20) == 0 {
                world.gateways[index].machine.noticed();
            }
        });
        assert_eq!((world.found.clone(), world.claims, world.active().len()), (None, 1, 1), "seed {seed}");
    }
}

#[test]
fn another_is_active_in_time_when_the_one_that_was_dies_hangs_or_is_cut_off() {
    for seed in 0..60 {
        let mut world = World::new(seed, 2 + seed as usize % 7, false, Mutant::None);
        let fault_at = 20_000 + world.rng.u64(..5_000);
        world.run(fault_at, |_| ());
        let victim = world.active()[0];
        match seed % 2 {
            0 => world.kill(victim, None),
            _ => world.gateways[victim].held_until = world.now + 60_000,
        }
        world.run(fault_at + TAKEOVER, |_| ());
        let others: Vec<usize> = world.active().into_iter().filter(|index| *index != victim).collect();
        assert_eq!((world.found.clone(), others.len(), world.claims), (None, 1, 2), "seed {seed}");
        // The one that hung comes back to standby, with a new client.
        world.run(fault_at + 90_000, |_| ());
        assert_eq!((world.found.clone(), world.active(), world.claims), (None, others, 2), "seed {seed}");
        assert!(seed % 2 == 0 || world.gateways[victim].clients == 1, "seed {seed}");
    }
}

#[test]
fn one_that_has_just_taken_over_hands_over_at_once() {
    for seed in 0..40 {
        let mut world = World::new(seed, 3 + seed as usize % 6, false, Mutant::None);
        let fault_at = 20_000 + world.rng.u64(..5_000);
        world.run(fault_at, |_| ());
        let victim = world.active()[0];
        world.kill(victim, None);
        while world.active().is_empty() {
            world.run(world.now + 100, |_| ());
        }
        let until = world.now + world.rng.u64(..4_000);
        world.run(until, |_| ());
        let holder = world.active()[0];
        let other =
            (0..world.gateways.len()).find(|index| ![victim, holder].contains(index)).expect("a third");
        world.gateways[other].machine.want(By::Person);
        // Each looks at the object every fifth of the time.
        world.run(world.now + TAKEOVER * 3 / 5, |_| ());
        assert_eq!(
            (world.found.clone(), world.active(), world.claims),
            (None, vec![other], 3),
            "seed {seed}"
        );
        assert_eq!(world.gateways[holder].clients, 0, "seed {seed}: it was fenced");
    }
}

#[test]
fn one_whose_medium_hangs_hands_over_in_time() {
    for seed in 0..14 {
        let mut world = World::new(seed, 2 + seed as usize % 7, false, Mutant::None);
        let fault_at = 6 * TAKEOVER + world.rng.u64(..5_000);
        world.run(fault_at, |_| ());
        let victim = world.active()[0];
        world.hang(victim, 200_000);
        // OSDs that are down are noticed within that time.
        world.run(fault_at + 5 * TAKEOVER / 2, |_| ());
        assert_eq!((world.found.clone(), world.active()), (None, vec![victim]), "seed {seed}");
        world.run(fault_at + 7 * TAKEOVER / 2, |_| ());
        let others = world.active();
        assert_eq!((world.found.clone(), others.len(), world.claims), (None, 1, 2), "seed {seed}");
        assert_ne!(others, [victim], "seed {seed}");
        world.run(fault_at + 300_000, |_| ());
        assert_eq!((world.found.clone(), world.active(), world.claims), (None, others, 2), "seed {seed}");
        assert_eq!(world.gateways[victim].machine.status().role, Role::Standby, "seed {seed}");
    }
}

#[test]
fn a_medium_that_hangs_for_all_does_not_make_a_unit_bounce() {
    for seed in 0..6 {
        let mut world = World::new(seed, 2 + seed as usize % 3, false, Mutant::None);
        world.run(20_000, |_| ());
        let long = 60 * TAKEOVER;
        (0..world.gateways.len()).for_each(|index| world.hang(index, long));
        world.run(20_000 + long, |_| ());
        let moves = world.claims - 1;
        assert!((2..=10).contains(&moves), "seed {seed}: {moves}");
        world.run(20_000 + long + 2 * TAKEOVER, |_| ());
        assert_eq!((world.found.clone(), world.active().len()), (None, 1), "seed {seed}");
        let moves = world.claims;
        world.run(20_000 + 2 * long, |_| ());
        assert_eq!((world.found.clone(), world.claims), (None, moves), "seed {seed}");
    }
    // Nobody is there to hand over to.
    let mut world = World::new(0, 1, false, Mutant::None);
    world.run(20_000, |_| ());
    world.hang(0, 300_000);
    world.run(400_000, |_| ());
    assert_eq!((world.found.clone(), world.claims, world.active()), (None, 1, vec![0]));
}

#[test]
fn an_election_of_the_monitors_does_not_have_one_after_the_other_claim_the_unit() {
    for seed in 0..40 {
        let mut world = World::new(seed, 3 + seed as usize % 6, false, Mutant::None);
        world.run(20_000, |_| ());
        let victim = world.active()[0];
        let client = world.gateways[victim].client.clone();
        world.kill(victim, None);
        world.deaf_until = world.now + 3 * TAKEOVER / 2;
        world.run(world.deaf_until + TAKEOVER / 2, |_| ());
        let fenced: Vec<_> = world.shut_out.keys().collect();
        assert_eq!((world.found.clone(), fenced), (None, vec![&client]), "seed {seed}");
        assert_eq!((world.claims, world.active().len()), (2, 1), "seed {seed}");
    }
}

#[test]
fn one_that_does_not_reach_the_pool_steps_down_by_itself() {
    for seed in 0..40 {
        let mut world = World::new(seed, 2 + seed as usize % 7, false, Mutant::None);
        let cut_at = 20_000 + world.rng.u64(..5_000);
        world.run(cut_at, |_| ());
        let cut = world.active()[0];
        world.gateways[cut].cut_until = cut_at + 60_000;
        // A call waits for the cluster, and so does a request received through the ports.
        world.run(cut_at + TAKEOVER + 2 * SILENCE, |_| ());
        assert!(!world.gateways[cut].is_active, "seed {seed}");
        let others = world.active();
        assert_eq!((world.found.clone(), others.len(), world.claims), (None, 1, 2), "seed {seed}");
        world.run(cut_at + 90_000, |_| ());
        assert_eq!((world.found.clone(), world.active(), world.claims), (None, others, 2), "seed {seed}");
    }
}

#[test]
fn when_all_have_lost_the_pool_the_one_that_was_active_is_so_again() {
    for seed in 0..40 {
        let mut world = World::new(seed, 2 + seed as usize % 7, false, Mutant::None);
        world.run(20_000, |_| ());
        let before = world.active();
        for gateway in &mut world.gateways {
            gateway.cut_until = 80_000;
        }
        world.run(20_000 + TAKEOVER + 2 * SILENCE, |_| ());
        assert_eq!((world.found.clone(), world.active()), (None, vec![]), "seed {seed}");
        world.run(80_000 + TAKEOVER, |_| ());
        assert_eq!((world.found.clone(), world.active()), (None, before), "seed {seed}");
    }
}

#[test]
fn one_that_withdraws_and_one_that_is_wanted_hand_over_at_once() {
    for seed in 0..40 {
        let mut world = World::new(seed, 3, false, Mutant::None);
        world.run(20_000, |_| ());
        let before = world.active()[0];
        let wanted = (before + 1) % 3;
        if seed % 2 == 0 {
            world.gateways[before].machine.withdraw();
            world.post(before, 0, Event::Turn);
        } else {
            world.gateways[wanted].machine.want(By::Person);
            world.post(wanted, 0, Event::Turn);
        }
        world.run(20_000 + TAKEOVER / 2, |_| ());
        assert_eq!(world.active().len(), 1, "seed {seed}");
        assert_ne!(world.active()[0], before, "seed {seed}");
        assert!(seed % 2 == 0 || world.active()[0] == wanted, "seed {seed}");
        assert!(world.shut_out.is_empty(), "seed {seed}: nobody has to be shut out");
        assert_eq!(world.gateways[before].machine.has_withdrawn(), seed % 2 == 0);
    }
}

#[test]
fn initiators_that_want_the_contrary_of_each_other_do_not_make_a_unit_bounce() {
    let (until, stays) = (600_000, 6 * TAKEOVER);
    for seed in 0..10 {
        let mut world = World::new(seed, 2 + seed as usize % 3, false, Mutant::None);
        let mut next = 20_000;
        world.run(until, |world| {
            if world.now >= next {
                next = world.now + 1_000;
                let index = world.rng.usize(..world.gateways.len());
                world.gateways[index].machine.want(By::Initiator);
                world.post(index, 0, Event::Turn);
            }
        });
        assert_eq!(world.found, None);
        let moves = world.claims - 1;
        assert!((2..=until / stays).contains(&moves), "seed {seed}: {moves}");
        assert!(world.shut_out.is_empty(), "seed {seed}: nobody has to be shut out");
        // A person's request is carried out at once.
        let wanted = world.rng.usize(..world.gateways.len());
        world.gateways[wanted].machine.want(By::Person);
        world.post(wanted, 0, Event::Turn);
        world.run(until + TAKEOVER / 2, |_| ());
        assert_eq!((world.found.clone(), world.active()), (None, vec![wanted]), "seed {seed}");
    }
}
