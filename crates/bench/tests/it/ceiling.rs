//! Jobs on the do-nothing responder.

use super::support::{measure_until, short};
use bench::ceiling::{Ceiling, CeilingOptions, SIZE_BYTES};
use bench::job::{Job, Poll, Rw, Style};
use bench::result::Stream;
use bench::target::{self, Opened, TargetOptions};
use std::net::TcpStream;
use std::time::Duration;

fn open(url: &str, job: &Job) -> Opened {
    target::open(url, &TargetOptions::of(job)).unwrap_or_else(|error| panic!("{url}: {error}"))
}

#[test]
fn every_size_and_direction_is_answered_over_every_transport() {
    for (spin, transport) in [(false, 0), (true, 0), (false, 1), (true, 1), (false, 2), (true, 2)] {
        let ceiling = Ceiling::start(CeilingOptions { spin, ..CeilingOptions::default() }).unwrap();
        let poll = if spin { Poll::Always } else { Poll::Never };
        for (rw, immediate_data) in
            [(Rw::RandRead, true), (Rw::RandWrite, true), (Rw::RandWrite, false), (Rw::Trim, true)]
        {
            for bs in [512, 4096, 65_536, 262_144] {
                let job = Job { rw, bs, poll, immediate_data, runtime: Duration::from_millis(40), ..short() };
                let opened = open(&ceiling.urls(0)[transport], &job);
                assert_eq!((opened.size, opened.block_bytes), (SIZE_BYTES, 512));
                let result = measure_until(&job, &[opened.backend], |result| result.streams().count() > 0);
                let is_well = |stream: &Stream| stream.iops > 0.0 && stream.errors == 0;
                let (name, errors) = (opened.name, result.first_errors.clone());
                assert!(result.streams().all(is_well), "{name} {rw:?} of {bs}: {errors:?}");
            }
        }
    }
}

#[test]
fn many_sessions_share_the_cores_that_are_given() {
    let options = CeilingOptions { cores: vec![0], size_bytes: 1 << 20, ..CeilingOptions::default() };
    let ceiling = Ceiling::start(options).unwrap();
    let job = Job { numjobs: 3, iodepth: 64, style: Style::Bidirectional, poll: Poll::Never, ..short() };
    let urls = [ceiling.urls(0)[0].clone(), ceiling.urls(7)[1].clone(), ceiling.urls(300)[2].clone()];
    let targets = urls.map(|url| open(&url, &job).backend);
    let result = measure_until(&job, &targets, |result| result.streams().count() == 2);
    assert!(
        result.streams().all(|stream| stream.iops > 0.0 && stream.errors == 0),
        "{:?}",
        result.first_errors
    );
}

#[test]
fn an_initiator_that_wants_crcs_is_refused() {
    let ceiling = Ceiling::start(CeilingOptions::default()).unwrap();
    let [_, iser, srp] = ceiling.urls(0);
    for url in [iser, srp] {
        assert!(target::open(&format!("{url}?crc=on"), &TargetOptions::of(&short())).is_err(), "{url}");
    }
}

#[test]
fn it_ends_with_connections_open() {
    let ceiling = Ceiling::start(CeilingOptions::default()).unwrap();
    let address = ceiling.address();
    let _idle = TcpStream::connect(address).unwrap();
    drop(ceiling);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn what_cannot_be_is_refused() {
    for options in [
        CeilingOptions { size_bytes: 511, ..CeilingOptions::default() },
        CeilingOptions { cores: vec![100_000], ..CeilingOptions::default() },
        CeilingOptions { listen: ([192, 0, 2, 1], 0).into(), ..CeilingOptions::default() },
    ] {
        assert!(Ceiling::start(options.clone()).is_err(), "{options:?}");
    }
}
