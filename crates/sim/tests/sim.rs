//! Fixed seeds, for a few seconds.

/// Each seed is a different world. Further, fresh seeds are run by `cargo xtask test` and `sim` in an
/// optimised build; this is not one.
const SEEDS: u64 = 10;

#[test]
fn the_first_seeds_go_well() {
    for seed in 0..SEEDS {
        if let Err(failure) = sim::run(seed, false) {
            panic!("{}\nit happens again with: cargo xtask sim --seed {seed}", failure.what);
        }
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [1, 7] {
        assert!(sim::Worlds::Gateways.have(seed), "seed {seed}");
    }
    for seed in [1, 7, 3, 8, 23] {
        let (one, other) = (sim::run(seed, true), sim::run(seed, true));
        assert!(one == other, "seed {seed}");
        let ran = one.unwrap_or_else(|failure| panic!("seed {seed}: {}", failure.what));
        assert!(ran.commands > 0 && !ran.trace.is_empty(), "seed {seed}: {} commands", ran.commands);
    }
}
