//! Jobs on units of a target over the network.

use super::support::{measure, short};
use super::targets::{serve, url};
use bench::job::{Job, Poll, Rw};
use bench::target::{self, TargetOptions};
use reactor::uring::Uring;
use std::sync::Arc;
use store::lane::Backend;

fn open(url: &str, job: &Job) -> Arc<dyn Backend<Uring>> {
    target::open(url, &TargetOptions::of(job)).unwrap_or_else(|error| panic!("{error}")).backend
}

#[test]
fn a_target_that_keeps_what_it_is_given_passes_over_several_sessions() {
    let daemon = serve(&["ram:1M", "ram:1M,bs=4096"]);
    for (lun, digests) in [(0, (false, false)), (1, (true, true))] {
        let job = Job {
            rw: Rw::RandRw,
            numjobs: 3,
            iodepth: 16,
            verify: true,
            poll: Poll::Never,
            digests,
            ..short()
        };
        let result = measure(&job, &[open(&url(&daemon, lun).to_string(), &job)]);
        let counts = result.verify.unwrap();
        assert!(counts.checked > 0 && counts.bad() == 0, "{counts:?} {:?}", result.first_errors);
        assert!(result.streams().all(|stream| stream.errors == 0), "{:?}", result.first_errors);
    }
    daemon.stop().expect("every core ends in order");
}

#[test]
fn a_target_that_forgets_everything_loses() {
    let daemon = serve(&["null:1M"]);
    let job = Job { rw: Rw::Write, verify: true, poll: Poll::Never, ..short() };
    let result = measure(&job, &[open(&url(&daemon, 0).to_string(), &job)]);
    let counts = result.verify.unwrap();
    assert!(counts.lost > 0 && counts.lost == counts.checked, "{counts:?}");
    daemon.stop().expect("every core ends in order");
}

#[test]
fn blocks_that_do_not_fit_and_secrets_are_not_passed_on() {
    let daemon = serve(&["ram:1M,bs=4096"]);
    let name = url(&daemon, 0).to_string();
    let job = Job { bs: 512, ..short() };
    let error = target::open(&name, &TargetOptions::of(&job)).err().expect("it does not fit").to_string();
    assert!(error.contains("its blocks have 4096 bytes"), "{error}");
    let secret = name.replace("iscsi://", "iscsi://me%hidden@");
    let opened = target::open(&secret, &TargetOptions::of(&short()));
    let shown = opened.map(|opened| opened.name).unwrap_or_else(|error| error.to_string());
    assert!(!shown.contains("hidden"), "{shown}");
    daemon.stop().expect("every core ends in order");
}
