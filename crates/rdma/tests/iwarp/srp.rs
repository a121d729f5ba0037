//! SRP over iWARP.

use crate::commands::{self, close, command, open, ready};
use crate::common::*;
use crate::disk::{self, WRITE};
use crate::rig::CONFIG;
use proto::iscsi::initiator::{Completion, Request};
use proto::services::{Down, TaskId};
use proto::srp::initiator::{Event, Initiator, InitiatorConfig};
use proto::srp::target::login::{Access, Applicant};
use proto::srp::target::{Target, TargetConfig};
use proto::time::Time;
use reactor::io::Io;
use std::sync::Arc;
use std::time::Duration;
use wire::srp::RejectReason;
use wire::{Cdb, Places};

const GUID: [u8; 16] = [2; 16];
const IDLE: Duration = Duration::from_secs(30);
const TARGET: TargetConfig = TargetConfig {
    queue_depth: 16,
    max_it_iu_bytes: 80 + 8192,
    target_port: GUID,
    login_within: IDLE,
    idle: IDLE,
};
const INITIATOR: InitiatorConfig = InitiatorConfig {
    initiator_port: [1; 16],
    target_port: GUID,
    queue_depth: 16,
    it_iu_bytes: 68 + 8192,
    immediate: true,
    keeps_others: false,
    login_within: IDLE,
    idle: IDLE,
};

struct Door(Option<RejectReason>);

impl Access for Door {
    fn admit(&self, _: &Applicant) -> Result<bool, (RejectReason, String)> {
        self.0.map_or(Ok(false), |reason| Err((reason, "refused".into())))
    }
}

impl disk::Target for Target {
    fn down(&mut self, now: Time, down: Down) {
        Target::down(self, now, down);
    }
}

impl commands::Initiator for Initiator {
    type Target = Target;

    fn pair(now: Time) -> (Initiator, Target) {
        machines(now, None)
    }

    fn submit(&mut self, request: Request) -> Option<TaskId> {
        Initiator::submit(self, request)
    }

    fn logout(&mut self, _: Time) {
        Initiator::logout(self);
    }

    fn completion(event: &Event) -> Option<&Completion> {
        if let Event::Completed(completion) = event { Some(completion) } else { None }
    }

    fn reason(event: &Event) -> Option<&str> {
        if let Event::Gone { reason } = event { Some(reason) } else { None }
    }
}

fn machines(now: Time, refusal: Option<RejectReason>) -> (Initiator, Target) {
    let (from, portal) = ("192.0.2.1:50000".parse().unwrap(), "192.0.2.2:3260".parse().unwrap());
    let target = Target::new(TARGET, Arc::new(Door(refusal)), from, portal, now);
    (Initiator::new(INITIATOR, now), target)
}

commands::tests!(Initiator);

#[test]
fn logouts_reach_the_other_side() {
    commands::a_logout_reaches_the_other_side::<Initiator>();
    // The target may not send before the initiator has (RFC 5044 section 7.1.2).
    let mut rig = ready::<Initiator>(ring(), CONFIG);
    rig.submit(WRITE, 0, Places::EMPTY);
    rig.complete(1);
    let now = rig.ring.now();
    rig.target.machine().down(now, Down::Close);
    rig.run_until(|rig| rig.is_gone());
    assert_eq!(rig.reason(), Some("logged out by the target with reason 0"));
    let (_, _, disk) = close(rig);
    assert_eq!(disk.gone.as_deref(), Some("closed by this side"));
}

#[test]
fn a_rejected_login_gets_the_reason() {
    let ring = ring();
    let pair = machines(ring.now(), Some(RejectReason::UNABLE_TO_ASSOCIATE));
    let mut rig = open(ring, CONFIG, pair);
    rig.run_until(|rig| rig.is_gone());
    let reason = rig.reason().unwrap();
    assert!(reason.contains("login rejected with reason 0x0001"), "{reason}");
    let (_, _, disk) = close(rig);
    assert!(disk.gone.unwrap().contains("login rejected"));
}

#[test]
fn commands_with_headers_longer_than_the_queue_copies_arrive() {
    let mut rig = ready::<Initiator>(ring(), CONFIG);
    // Four buffers make a header of 132 bytes, and a CDB of 64 bytes one of 180.
    let data = pattern(262_144, 5);
    let source = filled(&mut rig.ring, &data);
    assert_eq!(source.iter().count(), 4);
    for n in 0..16 {
        let request = command(WRITE, n * 262_144, source);
        let mut cdb = [0; 64];
        cdb[..16].copy_from_slice(request.cdb.as_bytes());
        let cdb = if n % 2 == 0 { request.cdb } else { Cdb::from_bytes(&cdb).unwrap() };
        rig.initiator.machine().submit(Request { cdb, ..request }).unwrap();
    }
    rig.complete(16);
    for n in 0..16 {
        assert!(rig.disk(n * 262_144, 262_144) == data, "{n}");
    }
    rig.ring.arena().give(&source);
    close(rig);
}
