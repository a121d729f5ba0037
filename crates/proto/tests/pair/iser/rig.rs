//! iSER's two machines against each other.

use crate::support::rig::{Client, START};
use crate::support::{Device, Setup, Transport, addresses};
use proto::iscsi::initiator::{Completion, Event, Request};
use proto::iser::initiator::Initiator;
use proto::iser::target::Target;
use proto::services::{Down, TaskId};
use proto::time::Time;
use std::sync::Arc;

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

/// Both machines.
pub(super) type Rig = crate::support::rig::Rig<Initiator, Target>;

/// The most receives of the target.
pub(super) const RECEIVES_MAX: u16 = 1024;

/// A target's machine.
pub(super) fn target(setup: &mut Setup) -> Target {
    let access = Arc::new(std::mem::take(&mut setup.access));
    let (from, portal) = addresses();
    Target::new(setup.target(), RECEIVES_MAX, access, from, portal, START)
}

impl Rig {
    /// Machines that are about to log in, with a device.
    pub(super) fn ours(mut setup: Setup) -> Rig {
        let initiator = Initiator::new(setup.initiator(), START);
        let mut rig = Rig::new(initiator, target(&mut setup), setup.seed);
        rig.device = Some(Device::default());
        rig.connect();
        rig
    }

    /// Machines that are logged in.
    pub(super) fn logged_in(setup: Setup) -> Rig {
        let mut rig = Rig::ours(setup);
        rig.run();
        match rig.events.pop() {
            Some(Event::Ready(session)) => assert_eq!(Some(*session), rig.device().session),
            other => panic!("{other:?}, {:?}", rig.target_gone),
        }
        rig
    }
}
