//! A short run of each target without libFuzzer, which `cargo test` can build: all seeds, then mutations of
//! them. It is not guided by coverage; `cargo xtask fuzz` is.

use crate::targets::{
    aoe_frame, cdb, iser_message, iwarp_stream, login_text, nbd_replies, pdu_stream, spec_toml, srp_iu,
};
use fastrand::Rng;
use std::fs;
use std::path::{Path, PathBuf};

/// Mutated inputs per target.
const INPUTS: usize = 30_000;
/// Most changes to one input.
const CHANGES_MAX: usize = 8;
/// Most bytes inserted, removed, repeated or taken from another seed by one change.
const PIECE_BYTES_MAX: usize = 64;
/// Longest input, in bytes: a few PDUs.
const INPUT_BYTES_MAX: usize = 8192;
/// Typical wrong values of lengths and counts.
const EDGES: [u8; 8] = [0, 1, 2, 0x3f, 0x7f, 0x80, 0xfe, 0xff];

#[test]
fn aoe_frame() {
    feed("aoe_frame", aoe_frame::run);
}

#[test]
fn cdb() {
    feed("cdb", cdb::run);
}

#[test]
fn iser_message() {
    feed("iser_message", iser_message::run);
}

#[test]
fn iwarp_stream() {
    feed("iwarp_stream", iwarp_stream::run);
}

#[test]
fn login_text() {
    feed("login_text", login_text::run);
}

#[test]
fn nbd_replies() {
    feed("nbd_replies", nbd_replies::run);
}

#[test]
fn pdu_stream() {
    feed("pdu_stream", pdu_stream::run);
}

#[test]
fn spec_toml() {
    feed("spec_toml", spec_toml::run);
}

#[test]
fn srp_iu() {
    feed("srp_iu", srp_iu::run);
}

/// Runs a target with each of its seeds, and with mutations that differ each time.
fn feed(target: &str, run: fn(&[u8])) {
    let seeds = seeds(target);
    seeds.iter().for_each(|seed| run_kept(target, seed, run));
    let mut rng = Rng::new();
    for _ in 0..INPUTS {
        let mut input = rng.choice(&seeds).cloned().unwrap_or_default();
        for _ in 0..rng.usize(1..=CHANGES_MAX) {
            change(&mut input, &seeds, &mut rng);
        }
        input.truncate(INPUT_BYTES_MAX);
        run_kept(target, &input, run);
    }
}

/// The seeds in the target's directory, and an empty input.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    let mut paths: Vec<PathBuf> = match fs::read_dir(&directory) {
        Ok(entries) => entries.map(|entry| entry.expect("an entry of the directory").path()).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => panic!("{}: {error}", directory.display()),
    };
    paths.sort();
    let read = |path: &PathBuf| fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    std::iter::once(Vec::new()).chain(paths.iter().map(read)).collect()
}

/// Makes one change, to a bit, a byte or a piece.
fn change(input: &mut Vec<u8>, seeds: &[Vec<u8>], rng: &mut Rng) {
    let at = rng.usize(0..=input.len());
    let end = at + rng.usize(0..=PIECE_BYTES_MAX.min(input.len() - at));
    match rng.u8(0..6) {
        0 if at < input.len() => input[at] ^= 1 << rng.u8(0..8),
        1 if at < input.len() => input[at] = EDGES[rng.usize(0..EDGES.len())],
        2 => drop(input.drain(at..end)),
        3 => {
            let piece = input[at..end].to_vec();
            input.splice(at..at, piece);
        }
        4 => {
            let other = rng.choice(seeds).expect("an empty seed is one of them");
            let from = rng.usize(0..=other.len());
            let piece = &other[from..other.len().min(from + PIECE_BYTES_MAX)];
            input.splice(at..end, piece.iter().copied());
        }
        _ => input.insert(at, rng.u8(..)),
    }
}

/// Runs a target, and saves the input with which it panics.
fn run_kept(target: &str, input: &[u8], run: fn(&[u8])) {
    let _kept = KeptOnPanic { target, input };
    run(input);
}

/// When dropped by a panic, writes the input to where libFuzzer keeps failing ones.
struct KeptOnPanic<'a> {
    target: &'a str,
    input: &'a [u8],
}

impl Drop for KeptOnPanic<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts").join(self.target);
        let path = directory.join(format!("mutation-{}", std::process::id()));
        match fs::create_dir_all(&directory).and_then(|()| fs::write(&path, self.input)) {
            Ok(()) => eprintln!("the input is kept in {}", path.display()),
            Err(error) => eprintln!("{}: {error}; the input is {:02x?}", path.display(), self.input),
        }
    }
}
