//! Unit attentions for nexuses of all gateways, caused by one of them: the last ones, numbered, are saved
//! with the unit's state.

use crate::state::attention::UnitAttention;
use crate::state::encoding::{push_sized, push_u16, take, take_sized};
use crate::state::home::{Aborted, NexusIdentity, Who};
use crate::state::nexus::NexusId;
use crate::state::unit::PortNames;
use std::collections::VecDeque;

/// The unit attentions of a unit that gateways share.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct News {
    /// How many there have been.
    count: u64,
    /// The most recent ones.
    last: VecDeque<Report>,
}

/// A unit attention.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Report {
    reader: Reader,
    attention: UnitAttention,
    /// The nexus's tasks were aborted with it (PREEMPT AND ABORT).
    is_abort: bool,
}

/// Which nexuses get it.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Reader {
    All,
    /// All but this one.
    AllBut(Port),
    Only(Port),
}

/// An initiator port at a target port, by name.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Port {
    transport_id: Vec<u8>,
    target_port: String,
}

const ALL: u8 = 0;
const ALL_BUT: u8 = 1;
const ONLY: u8 = 2;

/// Added to these.
const ABORT: u8 = 0x80;

impl News {
    /// How many are saved: as many as a single command may cause.
    const MAX: usize = 128;

    /// The unit attentions that other gateways report.
    const ATTENTIONS: [UnitAttention; 6] = [
        UnitAttention::Reset,
        UnitAttention::MediumChanged,
        UnitAttention::ModeChanged,
        UnitAttention::ReservationsPreempted,
        UnitAttention::ReservationsReleased,
        UnitAttention::RegistrationsPreempted,
    ];

    /// How many there have been.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// These and the new ones that other gateways report. `sender`: the nexus that caused them, if it is
    /// another gateway's.
    pub(crate) fn with(
        &self,
        attentions: &[(Who, UnitAttention)],
        aborts: &[(Who, Aborted)],
        sender: Option<&NexusIdentity>,
        ports: PortNames<'_>,
    ) -> News {
        let mut news = self.clone();
        for (who, attention) in attentions.iter().filter(|(_, one)| News::ATTENTIONS.contains(one)) {
            let Some(reader) = Reader::of(who, sender, ports) else { continue };
            // What waits at other gateways is not executed after a reset, but is answered: its sender may have
            // reset the unit itself, by another path, before.
            let is_reset = *attention == UnitAttention::Reset;
            let is_abort = !is_reset && aborts.iter().any(|(aborted, _)| aborted == who);
            news.count = news.count.saturating_add(1);
            news.last.push_back(Report { reader, attention: *attention, is_abort });
        }
        let surplus = news.last.len().saturating_sub(News::MAX);
        news.last.drain(..surplus);
        news
    }

    /// Those added after these: for each, its nexus, and whether that nexus's tasks were aborted.
    pub(crate) fn since(
        &self,
        before: &News,
        ports: PortNames<'_>,
    ) -> impl Iterator<Item = (Who, UnitAttention, bool)> {
        let who = move |report: &Report| Some((report.reader.who(ports)?, report.attention, report.is_abort));
        self.after(before.count).filter_map(who)
    }

    /// Those after this many.
    fn after(&self, count: u64) -> impl Iterator<Item = &Report> {
        let new = usize::try_from(self.count.saturating_sub(count)).unwrap_or(usize::MAX);
        self.last.iter().skip(self.last.len().saturating_sub(new))
    }

    /// Whether the sender of a request may have been preempted, or the unit reset, after the command had
    /// arrived, when there were `known`: whichever gateway it has waited at, it must not be executed once PREEMPT
    /// AND ABORT has returned GOOD, or the reset is complete.
    pub(crate) fn preempts(&self, from: &NexusIdentity, known: u64, ports: PortNames<'_>) -> bool {
        let saved = u64::try_from(self.last.len()).unwrap_or(u64::MAX);
        if known < self.count.saturating_sub(saved) {
            // A unit attention that is no longer saved may have been for its sender.
            return true;
        }
        let is_meant = |report: &Report| match report.attention {
            UnitAttention::Reset
            | UnitAttention::ReservationsPreempted
            | UnitAttention::RegistrationsPreempted => {
                report.reader.who(ports).is_some_and(|who| who.is_of(from))
            }
            _ => false,
        };
        self.after(known).any(is_meant)
    }

    pub(crate) fn save(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.count.to_be_bytes());
        push_u16(bytes, u16::try_from(self.last.len()).unwrap_or(u16::MAX));
        for Report { reader, attention, is_abort } in &self.last {
            push_u16(bytes, attention.code());
            let (kind, port) = match reader {
                Reader::All => (ALL, None),
                Reader::AllBut(port) => (ALL_BUT, Some(port)),
                Reader::Only(port) => (ONLY, Some(port)),
            };
            bytes.push(if *is_abort { kind | ABORT } else { kind });
            if let Some(Port { transport_id, target_port }) = port {
                push_sized(bytes, transport_id);
                push_sized(bytes, target_port.as_bytes());
            }
        }
    }

    pub(crate) fn restore(rest: &mut &[u8]) -> Option<News> {
        let mut news = News { count: u64::from_be_bytes(take(rest)?), ..News::default() };
        for _ in 0..u16::from_be_bytes(take(rest)?) {
            let code = u16::from_be_bytes(take(rest)?);
            let attention = News::ATTENTIONS.into_iter().find(|one| one.code() == code)?;
            let [kind] = take(rest)?;
            let reader = match kind & !ABORT {
                ALL => Reader::All,
                ALL_BUT => Reader::AllBut(Port::take(rest)?),
                ONLY => Reader::Only(Port::take(rest)?),
                _ => return None,
            };
            news.last.push_back(Report { reader, attention, is_abort: kind & ABORT != 0 });
        }
        Some(news)
    }
}

impl Reader {
    fn of(who: &Who, sender: Option<&NexusIdentity>, ports: PortNames<'_>) -> Option<Reader> {
        let port = |transport_id: &[u8], target_port: u16| {
            let target_port = ports.name(target_port)?.to_owned();
            Some(Port { transport_id: transport_id.to_vec(), target_port })
        };
        match who {
            Who::Everyone => Some(Reader::All),
            Who::Others(NexusId::ELSEWHERE) => {
                let sender = sender.and_then(|from| port(&from.transport_id, from.target_port));
                Some(sender.map_or(Reader::All, Reader::AllBut))
            }
            Who::Others(_) => Some(Reader::All),
            Who::Port { transport_id, target_port } => port(transport_id, *target_port).map(Reader::Only),
            Who::NotPort { .. } | Who::Only(_) | Who::Listed(_) | Who::Unlisted(_) => None,
        }
    }

    /// The nexuses here; `None`: none here can be included.
    fn who(&self, ports: PortNames<'_>) -> Option<Who> {
        match self {
            Reader::All => Some(Who::Everyone),
            Reader::AllBut(Port { transport_id, target_port }) => {
                let transport_id = transport_id.clone();
                let port = ports.id(target_port);
                Some(port.map_or(Who::Everyone, |target_port| Who::NotPort { transport_id, target_port }))
            }
            Reader::Only(Port { transport_id, target_port }) => {
                Some(Who::Port { transport_id: transport_id.clone(), target_port: ports.id(target_port)? })
            }
        }
    }
}

impl Port {
    fn take(rest: &mut &[u8]) -> Option<Port> {
        let transport_id = take_sized(rest)?.to_vec();
        let target_port = std::str::from_utf8(take_sized(rest)?).ok()?.to_owned();
        Some(Port { transport_id, target_port })
    }
}
