//! iSER over iWARP.

use crate::commands;
use crate::disk;
use crate::rig::CONFIG;
use proto::iscsi::initiator::{Completion, Event, InitiatorConfig, Request};
use proto::iscsi::login::{Access, Grant, Offers, Plan, Refusal, SendTargets, TargetRecord};
use proto::iscsi::target::TargetConfig;
use proto::iser::initiator::Initiator;
use proto::iser::target::Target;
use proto::services::{Down, TaskId};
use proto::time::Time;
use reactor::crc::crc32c;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "iqn.2026-11.io.lunette:disk";
const WITHIN: Duration = Duration::from_secs(30);

struct Door;

impl Access for Door {
    fn authorize(
        &self,
        _: &str,
        _: Option<&str>,
        _: SocketAddr,
        _: SocketAddr,
        _: [u8; 6],
    ) -> Result<Grant, Refusal> {
        Ok(Grant { group: 1, ..Grant::default() })
    }

    fn send_targets(&self, _: &str, _: SocketAddr, _: SocketAddr, _: SendTargets<'_>) -> Vec<TargetRecord> {
        Vec::new()
    }

    fn random(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }

    fn new_tsih(&self) -> u16 {
        1
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
        let (from, portal) = ("192.0.2.1:50000".parse().unwrap(), "192.0.2.2:3260".parse().unwrap());
        let (queue_depth, login_within, idle, offers) = (16, WITHIN, WITHIN, Offers::default());
        let plan = Plan {
            initiator: "iqn.2026-11.io.lunette:test".into(),
            alias: None,
            target: Some(NAME.into()),
            isid: [0x80, 1, 2, 3, 4, 5],
            chap: None,
            offers,
            text_bytes: 8192,
        };
        let target = TargetConfig { queue_depth, login_within, idle, crc32c, offers };
        let initiator = InitiatorConfig { plan, queue_depth, login_within, idle, crc32c };
        let target = Target::new(target, CONFIG.receives, Arc::new(Door), from, portal, now);
        (Initiator::new(initiator, now), target)
    }

    fn submit(&mut self, request: Request) -> Option<TaskId> {
        Initiator::submit(self, request)
    }

    fn logout(&mut self, now: Time) {
        Initiator::logout(self, now);
    }

    fn completion(event: &Event) -> Option<&Completion> {
        if let Event::Completed(completion) = event { Some(completion) } else { None }
    }

    fn reason(event: &Event) -> Option<&str> {
        if let Event::Gone { reason } = event { Some(reason) } else { None }
    }
}

commands::tests!(Initiator);

#[test]
fn a_logout_reaches_the_other_side() {
    commands::a_logout_reaches_the_other_side::<Initiator>();
}
