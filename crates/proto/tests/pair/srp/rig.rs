//! SRP's target machine against a peer.

use super::scripted::ScriptedPeer;
use crate::support::rig::{Client, START};
use crate::support::{Device, IDLE, Transport, addresses};
use proto::iscsi::initiator::{Completion, Request};
use proto::services::{Down, TaskId, Up};
use proto::srp::initiator::{Event, Initiator, InitiatorConfig};
use proto::srp::target::login::{Access, Applicant};
use proto::srp::target::{Target, TargetConfig};
use proto::time::Time;
use std::sync::Arc;
use wire::srp::RejectReason;

pub(super) const GUID: [u8; 16] = *b"\x02\x11\x22\xff\xfe\x33\x44\x55\x02\x11\x22\xff\xfe\x33\x44\x55";
pub(super) const PORT: [u8; 16] = *b"\0\0\0\0\0\0\0\0\x02\x11\x22\xff\xfe\x33\x44\x66";
pub(super) const CONFIG: TargetConfig = TargetConfig {
    queue_depth: 8,
    max_it_iu_bytes: 80 + 4 + 8192,
    target_port: GUID,
    login_within: IDLE,
    idle: IDLE,
};
pub(super) const INITIATOR: InitiatorConfig = InitiatorConfig {
    initiator_port: PORT,
    target_port: GUID,
    queue_depth: 16,
    it_iu_bytes: 68 + 8192,
    immediate: true,
    keeps_others: false,
    login_within: IDLE,
    idle: IDLE,
};

/// Grants all logins, or none.
#[derive(Default)]
pub(super) struct TestAccess {
    pub refusal: Option<RejectReason>,
    pub others: bool,
}

impl Access for TestAccess {
    fn admit(&self, applicant: &Applicant) -> Result<bool, (RejectReason, String)> {
        assert_eq!((applicant.target_port, applicant.from.port()), (GUID, 50_000));
        self.refusal.map_or(Ok(self.others), |reason| Err((reason, "refused".into())))
    }
}

pub(super) fn target(config: TargetConfig, access: TestAccess) -> Target {
    let (from, portal) = addresses();
    Target::new(config, Arc::new(access), from, portal, START)
}

impl Transport for Target {
    const RDMA: bool = true;

    fn down(&mut self, now: Time, down: Down) {
        Target::down(self, now, down);
    }
}

impl Client for Initiator {
    fn submit(&mut self, request: Request) -> Option<TaskId> {
        Initiator::submit(self, request)
    }

    fn completion(event: &Event) -> Option<&Completion> {
        if let Event::Completed(completion) = event { Some(completion) } else { None }
    }

    fn reason(event: &Event) -> Option<&str> {
        if let Event::Gone { reason } = event { Some(reason) } else { None }
    }
}

/// The target machine and a peer.
pub(super) type Rig<M> = crate::support::rig::Rig<M, Target>;

impl Rig<Initiator> {
    /// Two machines of ours that are logged in, with a device.
    pub(super) fn ours(initiator: InitiatorConfig, config: TargetConfig, seed: u64) -> Rig<Initiator> {
        let machine = Initiator::new(initiator, START);
        let mut rig = Rig::new(machine, target(config, TestAccess::default()), seed);
        rig.device = Some(Device::default());
        rig.connect();
        match rig.events.pop() {
            Some(Event::Ready(session)) => {
                let seen = rig.device().session.as_ref().unwrap();
                assert_eq!((&session.initiator, &session.target), (&seen.initiator, &seen.target));
                assert_eq!(session.transport_id, seen.transport_id);
            }
            other => panic!("{other:?}, {:?}", rig.target_gone),
        }
        rig
    }
}

impl Rig<ScriptedPeer> {
    /// A peer controlled by the test, logged in with these flags; no device.
    pub(super) fn scripted(flags: u8, seed: u64) -> Rig<ScriptedPeer> {
        let mut rig = Rig::new(ScriptedPeer::new(flags), target(CONFIG, TestAccess::default()), seed);
        rig.connect();
        assert!(matches!(rig.ups.pop(), Some(Up::Ready(_))));
        rig
    }

    /// Sends an information unit.
    pub(super) fn send(&mut self, unit: &[u8]) {
        self.peer.machine.outbox.push_back(unit.to_vec());
    }

    /// The task of the last command that was passed up.
    pub(super) fn given(&mut self) -> proto::services::Command {
        match self.ups.pop() {
            Some(Up::Command(command)) => command,
            other => panic!("{other:?}, {:?} {:?}", self.target_gone, self.broken),
        }
    }
}
