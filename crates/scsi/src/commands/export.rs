//! Commands of ATA over Ethernet that are not ATA, as they reach the unit ([`Order`]).

use crate::commands::admission::Admission;
use crate::commands::media::{failed, refused, unexpected};
use crate::commands::step::{Env, Event, Step};
use crate::state::export::{Change, Export};
use crate::state::home::{HomeReply, HomeRequest};
use crate::vocabulary::command::{Ending, Status};
use crate::vocabulary::sense::Failure;
use wire::Sense;
use wire::aoe::{Directive, DirectiveCommand, ErrorCode, Mac, Order, OrderKind, Refusal};
use zerocopy::{FromBytes, IntoBytes};

/// The program of an order.
pub(crate) fn begin<P: From<OrderProgram>>(admission: &Admission<'_>) -> Result<P, Ending> {
    let bad = || check_condition(Refusal::Error(ErrorCode::BAD_ARGUMENT).sense());
    let order = Order::from_cdb(admission.cdb()).ok_or_else(bad)?;
    let len = order.argument_bytes;
    let entry_bytes = u32::try_from(order.kind.entry_bytes()).unwrap_or(1);
    let is_whole = len.checked_rem(entry_bytes) == Some(0);
    if !is_whole || len > argument_bytes_max(order.kind) || admission.request.write_bytes < len {
        return Err(bad());
    }
    Ok(P::from(OrderProgram { kind: order.kind, len }))
}

/// The longest argument. The number of directives is one byte, and may exceed the capacity of the list that
/// they edit.
fn argument_bytes_max(kind: OrderKind) -> u32 {
    match kind {
        OrderKind::SetConfig | OrderKind::ForceConfig | OrderKind::SetReserve | OrderKind::ForceReserve => {
            entries_bytes(kind, kind.entries_max())
        }
        OrderKind::EditMask => entries_bytes(kind, u16::from(u8::MAX)),
        OrderKind::ReadMask | OrderKind::ReadReserve => 0,
    }
}

fn entries_bytes(kind: OrderKind, count: u16) -> u32 {
    u32::try_from(kind.entry_bytes()).unwrap_or(0).saturating_mul(u32::from(count))
}

/// An order in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OrderProgram {
    kind: OrderKind,
    len: u32,
}

impl OrderProgram {
    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.len.max(entries_bytes(self.kind, self.kind.entries_max()))
    }

    pub(crate) fn next(&mut self, env: &mut Env<'_>, event: Event) -> Step {
        match event {
            Event::Start if self.len > 0 => Step::Fetch { at: 0, len: self.len },
            Event::Start | Event::Fetched => match self.change(env) {
                Some(change) => {
                    let from = env.nexus.identity();
                    Step::Home(Box::new(HomeRequest::Export { from, change }))
                }
                None => self.answer(env),
            },
            Event::Home(HomeReply::Done) => self.answer(env),
            Event::Home(HomeReply::Conflict) => refused(env, Failure::CONFLICT),
            Event::Home(HomeReply::Check(check)) => Step::End(check_condition(check.encode_as(true))),
            Event::Stored(Err(error)) => failed(env, error),
            Event::Stored(Ok(_)) | Event::Pushed | Event::Detached => unexpected(env),
        }
    }

    /// The change that it makes; `None`: it reads.
    fn change(&self, env: &Env<'_>) -> Option<Change> {
        let argument = usize::try_from(self.len).ok().and_then(|len| env.buffer.get(..len));
        let argument = argument.unwrap_or_default();
        let list = || <[Mac]>::ref_from_bytes(argument).unwrap_or_default().into();
        match self.kind {
            OrderKind::SetConfig => Some(Change::Config { config: argument.to_vec(), force: false }),
            OrderKind::ForceConfig => Some(Change::Config { config: argument.to_vec(), force: true }),
            OrderKind::EditMask => {
                let directives = <[Directive]>::ref_from_bytes(argument).unwrap_or_default();
                Some(Change::Masks(directives.to_vec()))
            }
            OrderKind::SetReserve => Some(Change::Reserve { list: list(), force: false }),
            OrderKind::ForceReserve => Some(Change::Reserve { list: list(), force: true }),
            OrderKind::ReadMask | OrderKind::ReadReserve => None,
        }
    }

    /// The current value, with the ending.
    fn answer(&self, env: &mut Env<'_>) -> Step {
        let policy = &env.view.policy;
        let Export { config, masks } = &*policy.export;
        let listed: Vec<Directive>;
        let answer = match self.kind {
            OrderKind::SetConfig | OrderKind::ForceConfig => config.as_slice(),
            OrderKind::ReadMask | OrderKind::EditMask => {
                let entry = |mac: &Mac| Directive { reserved: 0, command: DirectiveCommand::NONE, mac: *mac };
                listed = masks.iter().map(entry).collect();
                listed.as_bytes()
            }
            OrderKind::ReadReserve | OrderKind::SetReserve | OrderKind::ForceReserve => {
                policy.reservations.list().as_bytes()
            }
        };
        for (slot, byte) in env.buffer.iter_mut().zip(answer) {
            *slot = *byte;
        }
        let len = u32::try_from(answer.len()).unwrap_or(0);
        let ending = Ending { write_bytes: u64::from(self.len), ..Ending::sent(u64::from(len)) };
        if len == 0 { Step::End(ending) } else { Step::Push { buffer: 0, len, at: 0, end: Some(ending) } }
    }
}

/// CHECK CONDITION with this sense data.
fn check_condition(sense: Sense) -> Ending {
    Ending { sense: Some(sense), ..Ending::of(Status::CheckCondition) }
}
