//! Changes of a gateway's role at the image: what `store::rbd::roles` asks of the cluster, one call after the other.

use super::Scene;
use super::image::{Ask, Replay, Said};
use super::post::What;
use super::rados::Client;
use engine::world::Answer;
use std::time::Duration;
use store::calls::Medium as _;
use store::rados::SILENCE;
use store::rbd::roles::{self, Attempt, Named};

const NAME: &str = "p/disk";
/// How soon it is looked again whether all has ended.
const FLUSHES_EVERY: Duration = Duration::from_millis(2);

/// A change under way; nobody may wait for it any more.
pub(super) struct Change {
    kind: Kind,
    replay: Replay,
    /// The call of the gateway.
    number: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Promote { attempt: Attempt, fence: Vec<String> },
    CatchUp { attempt: Attempt },
    Fence { clients: Vec<String> },
    Demote,
    Reopen,
}

impl Kind {
    /// The answer, if it ends so.
    fn answer(&self, outcome: Result<(), String>, client: Client) -> Answer {
        match self {
            Kind::Promote { .. } => Answer::Promoted(outcome),
            Kind::CatchUp { .. } => Answer::CaughtUp(outcome),
            Kind::Fence { .. } => Answer::Fenced(outcome),
            Kind::Demote => Answer::Demoted(outcome),
            Kind::Reopen => Answer::Reopened(outcome.map(|()| client.address())),
        }
    }
}

impl Scene {
    pub(super) fn begin_change(&mut self, member: usize, number: u64, kind: Kind) {
        let one = &mut self.members[member];
        match kind {
            Kind::Promote { .. } | Kind::CatchUp { .. } | Kind::Fence { .. } => {}
            Kind::Demote | Kind::Reopen => one.image.roles.deactivate(),
        }
        if one.change.is_some() {
            // Something of that kind hangs.
            return self.change_is_late(member, &kind);
        }
        one.change = Some(Change { kind, replay: Replay::default(), number });
        self.go_on_changing(member);
    }

    /// Nobody waits for it any longer.
    pub(super) fn change_is_late(&mut self, member: usize, kind: &Kind) {
        let image = &self.members[member].image;
        let unanswered = || Err(format!("{NAME}: {SILENCE}"));
        let outcome = match kind {
            Kind::Promote { attempt, .. } | Kind::CatchUp { attempt } if image.roles.abandon(*attempt) => {
                Ok(())
            }
            Kind::Promote { .. }
            | Kind::CatchUp { .. }
            | Kind::Fence { .. }
            | Kind::Demote
            | Kind::Reopen => unanswered(),
        };
        let answer = kind.answer(outcome, image.now());
        self.answer(member, answer);
    }

    /// Something was answered.
    pub(super) fn change_heard(&mut self, member: usize, said: Said) {
        if let Some(change) = &mut self.members[member].change {
            change.replay.said.push(said);
        }
        self.go_on_changing(member);
    }

    /// It has its new client.
    pub(super) fn change_opened(&mut self, member: usize, client: Client) {
        self.members[member].image.becomes(client);
        self.members[member].clients.push((client, None));
        self.change_ends(member, Ok(()));
    }

    /// Asks the next, or ends.
    fn go_on_changing(&mut self, member: usize) {
        loop {
            let one = &mut self.members[member];
            let Some(change) = &mut one.change else { return };
            let named = Named { image: &change.replay, name: NAME, read_only: false };
            let roles = &one.image.roles;
            let outcome = match &change.kind {
                Kind::Promote { attempt, fence } => roles.promote(named, *attempt, fence, |_| {}),
                Kind::CatchUp { attempt } => roles.catch_up(named, *attempt, |_| {}),
                Kind::Fence { clients } => roles.fence(named, clients, &one.image.now().address()),
                Kind::Demote => roles.release(named, one.image.shared()),
                Kind::Reopen => roles.retire(named, one.image.shared(), false),
            };
            let ask = match change.replay.asks() {
                Some(ask) => ask,
                None if change.kind == Kind::Reopen && outcome.is_ok() => Ask::Open,
                None => return self.change_ends(member, outcome),
            };
            match ask {
                Ask::Size => change.replay.said.push(Said::Bytes(Ok(0))),
                Ask::Flush if self.post.is_busy(member, one.life) => {
                    let life = one.life;
                    return self.later(FLUSHES_EVERY, super::Step::Flushes { member, life });
                }
                Ask::Flush => change.replay.said.push(Said::Done(Ok(()))),
                ask => return self.send(member, What::Ask(ask)),
            }
        }
    }

    /// It is looked again whether all that was under way has ended.
    pub(super) fn flushes(&mut self, member: usize, life: u32) {
        if self.members[member].life == life {
            self.go_on_changing(member);
        }
    }

    fn change_ends(&mut self, member: usize, outcome: Result<(), String>) {
        let one = &mut self.members[member];
        let Some(change) = one.change.take() else { return };
        if let (Kind::Promote { .. }, true) = (&change.kind, one.image.roles.accepts()) {
            self.claims += 1;
            if !self.plan.is_for_all() {
                one.image.claims(self.claims);
            }
        }
        if let (Kind::Demote | Kind::Reopen, Ok(())) = (&change.kind, &outcome) {
            // Its sessions stay, and what is on their way comes later.
            self.served.remove(&one.image.now());
        }
        let text = format!("gateway {member}: {:?} ends: {outcome:?}", change.kind);
        let answer = change.kind.answer(outcome, one.image.now());
        if one.works == Some(change.number) {
            self.answer(member, answer);
        }
        self.note(&[20, member as u64], || text);
    }

    /// How long a gateway waits for a change.
    pub(super) const PATIENCE: Duration = roles::PATIENCE;
}
