//! The login phase (RFC 7143 section 6) of both roles, and the text negotiation of the full feature phase.

mod discovery;
mod initiator;
mod target;
#[cfg(test)]
mod tests;

pub use crate::iscsi::keys::{Digests, Offers};
pub use discovery::text_request;
pub use initiator::{InitiatorChap, InitiatorLogin, LoginSend, Plan};
pub use target::TargetLogin;

use crate::iscsi::chap::Algorithm;
use crate::iscsi::keys::{self, Key, Values};
use crate::services::Session;
use std::fmt;
use std::net::SocketAddr;
use wire::iscsi::{LoginStatus, Stage};
use wire::scsi::transport_id::iscsi_port;

/// What the daemon decides about who may log in. All connections share it, and it answers from memory.
pub trait Access: Send + Sync {
    /// Whether this initiator may log in to `target` (`None`: a discovery session) on this portal. The names are
    /// what the peer says; they are proved only by the credentials asked for in the grant.
    fn authorize(
        &self,
        initiator: &str,
        target: Option<&str>,
        from: SocketAddr,
        portal: SocketAddr,
        isid: [u8; 6],
    ) -> Result<Grant, Refusal>;

    /// The targets that this initiator may see, with their addresses.
    fn send_targets(
        &self,
        initiator: &str,
        from: SocketAddr,
        portal: SocketAddr,
        which: SendTargets<'_>,
    ) -> Vec<TargetRecord>;

    /// Fills `bytes` with what nobody can guess.
    fn random(&self, bytes: &mut [u8]);

    /// A target session identifying handle that is not in use, never 0.
    fn new_tsih(&self) -> u16;

    /// Called for each step of a login, for the log.
    fn log_step(&self, step: &Step<'_>) {
        let _ = step;
    }
}

/// What one side says in a login at once.
#[derive(Debug)]
pub struct Step<'a> {
    /// Where the connection comes from.
    pub from: SocketAddr,
    /// And where it goes to.
    pub portal: SocketAddr,
    /// The stage that it is in.
    pub stage: Stage,
    /// It is our answer.
    pub is_answer: bool,
    /// The keys, and their values, those that prove who somebody is among them.
    pub keys: &'a [(&'a str, &'a str)],
}

/// An initiator may log in.
#[derive(Clone, Debug, Default)]
pub struct Grant {
    /// What it must prove first.
    pub chap: Option<ChapCredentials>,
    /// TargetPortalGroupTag of the portal.
    pub group: u16,
    /// TargetAlias.
    pub alias: Option<String>,
    /// TSIH, and CID of the connection, of the session with this initiator name, ISID, target and portal group, if
    /// there is one: it may be reinstated.
    pub session: Option<(u16, u16)>,
    /// Commands that it may have in flight, if they are fewer than the target's own limit.
    pub queue_depth: Option<u16>,
}

/// Names and secrets of CHAP.
#[derive(Clone, PartialEq, Eq)]
pub struct ChapCredentials {
    /// The initiator's CHAP name.
    pub user: String,
    /// The initiator's secret.
    pub secret: Vec<u8>,
    /// The target's CHAP name and secret, for initiators that want the target to prove who it is.
    pub mutual: Option<(String, Vec<u8>)>,
    /// Algorithms that are accepted, the best first; empty: all, as the initiator prefers.
    pub algorithms: Vec<Algorithm>,
}

impl fmt::Debug for ChapCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mutual = self.mutual.as_ref().map(|(name, _)| name);
        f.debug_struct("ChapCredentials")
            .field("user", &self.user)
            .field("mutual", &mutual)
            .finish_non_exhaustive()
    }
}

/// An initiator may not log in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No such target on this portal.
    NotFound,
    /// Not this initiator, for this reason.
    Forbidden(String),
    /// The target has as many sessions as it may have.
    TooManySessions,
    /// The target does not serve now, for this reason.
    Unavailable(String),
    /// It is reached there for the time being.
    Moved(SocketAddr),
}

impl Refusal {
    /// The status of the login response (section 11.13.5).
    pub fn status(&self) -> LoginStatus {
        match self {
            Refusal::NotFound => LoginStatus::NOT_FOUND,
            Refusal::Forbidden(_) => LoginStatus::AUTHORIZATION_FAILURE,
            Refusal::TooManySessions => LoginStatus::OUT_OF_RESOURCES,
            Refusal::Unavailable(_) => LoginStatus::SERVICE_UNAVAILABLE,
            Refusal::Moved(_) => LoginStatus::MOVED_TEMPORARILY,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NotFound => f.write_str("no such target"),
            Refusal::Forbidden(reason) => write!(f, "not allowed: {reason}"),
            Refusal::TooManySessions => f.write_str("too many sessions"),
            Refusal::Unavailable(reason) => write!(f, "target unavailable: {reason}"),
            Refusal::Moved(address) => write!(f, "redirected to {address}"),
        }
    }
}

/// Which targets are asked for (appendix C).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendTargets<'a> {
    /// All.
    All,
    /// The one with this name.
    One(&'a str),
}

/// A target and where it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetRecord {
    /// Its name.
    pub name: String,
    /// Its addresses, each with its portal group tag.
    pub portals: Vec<(SocketAddr, u16)>,
}

/// What the target answers to one login request.
#[derive(Clone, Debug)]
pub struct LoginReply {
    /// Status.
    pub status: LoginStatus,
    /// T: on to the next stage.
    pub transit: bool,
    /// C: the text continues in the next response.
    pub cont: bool,
    /// Current stage.
    pub csg: Stage,
    /// Next stage.
    pub nsg: Stage,
    /// TSIH: 0 until the login is complete.
    pub tsih: u16,
    /// Text.
    pub text: Vec<u8>,
    /// Why to close the connection once this was sent.
    pub close: Option<String>,
    /// The full feature phase begins once this was sent.
    pub done: Option<Negotiated>,
}

/// The outcome of a login.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Negotiated {
    /// CRC32C over headers.
    pub header_digest: bool,
    /// CRC32C over data.
    pub data_digest: bool,
    /// InitialR2T.
    pub initial_r2t: bool,
    /// ImmediateData.
    pub immediate_data: bool,
    /// MaxRecvDataSegmentLength of the initiator: limits what the target sends.
    pub max_recv_initiator: u32,
    /// MaxRecvDataSegmentLength of the target: limits what the initiator sends.
    pub max_recv_target: u32,
    /// FirstBurstLength, never above MaxBurstLength.
    pub first_burst: u32,
    /// MaxBurstLength.
    pub max_burst: u32,
    /// MaxOutstandingR2T.
    pub max_outstanding_r2t: u16,
    /// Whether this is a discovery session.
    pub discovery: bool,
    /// What was agreed on over RDMA.
    pub rdma: Option<Rdma>,
    /// The target's portal group, if it reported it.
    pub portal_group: Option<u32>,
    /// Who is logged in where.
    pub session: Session,
}

/// What iSER adds (RFC 7145 section 6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rdma {
    /// What the peer takes of PDUs that it does not expect; 0: it sets no limit.
    pub unexpected_max: u32,
    /// The Write Base Offset is that of the solicited data, not of all data. So it is with Linux, which does not send
    /// the key; whoever means the other must say so.
    pub solicited_only: bool,
}

/// Who logs in where, as far as both roles know it.
#[derive(Clone, Debug, Default)]
struct Names {
    initiator: String,
    alias: Option<String>,
    target: Option<String>,
    discovery: bool,
}

/// Bytes of text in one login PDU: MaxRecvDataSegmentLength before it is declared (section 6.3).
const LOGIN_TEXT_MAX: usize = 8192;
/// Requests that one login may take. The standard asks for six exchanges at least (section 6.2); texts in small
/// pieces need more.
const REQUESTS_MAX: u32 = 128;
/// MaxOutstandingUnexpectedPDUs: immediate requests that either role takes over RDMA, beside what it expects.
pub const UNEXPECTED_MAX: u16 = 16;

impl Negotiated {
    fn new(values: &Values, recv: Recv, names: &Names, link: Link) -> Negotiated {
        let max_burst = values.get(Key::MaxBurstLength);
        let flag = |key| values.get(key) != 0;
        let [a, b, c, d, e, f] = link.isid;
        let isid = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        let mut negotiated = Negotiated {
            header_digest: flag(Key::HeaderDigest),
            data_digest: flag(Key::DataDigest),
            initial_r2t: flag(Key::InitialR2T),
            immediate_data: flag(Key::ImmediateData),
            max_recv_initiator: recv.initiator,
            max_recv_target: recv.target,
            first_burst: values.get(Key::FirstBurstLength).min(max_burst),
            max_burst,
            max_outstanding_r2t: u16::try_from(values.get(Key::MaxOutstandingR2T)).unwrap_or(u16::MAX),
            discovery: names.discovery,
            rdma: flag(Key::RdmaExtensions).then(|| Rdma {
                unexpected_max: values.get(Key::MaxOutstandingUnexpectedPdus),
                solicited_only: !values.has(Key::TaggedBufferForSolicitedDataOnly)
                    || flag(Key::TaggedBufferForSolicitedDataOnly),
            }),
            portal_group: values
                .has(Key::TargetPortalGroupTag)
                .then(|| values.get(Key::TargetPortalGroupTag)),
            session: Session {
                initiator: names.initiator.clone(),
                alias: names.alias.clone(),
                target: names.target.clone().filter(|_| !names.discovery),
                isid: link.isid,
                tsih: link.tsih,
                cid: link.cid,
                keeps_others: false,
                negotiated: Vec::new(),
                transport_id: iscsi_port(&names.initiator, isid),
            },
        };
        negotiated.session.negotiated = log_keys(&negotiated, values, link.method);
        negotiated
    }
}

/// MaxRecvDataSegmentLength of both sides.
#[derive(Clone, Copy, Debug)]
struct Recv {
    initiator: u32,
    target: u32,
}

/// What names a session besides names.
#[derive(Clone, Copy, Debug)]
struct Link {
    isid: [u8; 6],
    tsih: u16,
    cid: u16,
    method: &'static str,
}

fn log_keys(negotiated: &Negotiated, values: &Values, method: &'static str) -> Vec<(&'static str, String)> {
    let shown = [
        Key::HeaderDigest,
        Key::DataDigest,
        Key::InitialR2T,
        Key::ImmediateData,
        Key::MaxBurstLength,
        Key::FirstBurstLength,
        Key::MaxOutstandingR2T,
    ];
    let shown = shown.into_iter().filter_map(keys::rule);
    let mut list = vec![("AuthMethod", method.to_string())];
    list.extend(shown.map(|rule| (rule.name, rule.show(values.get(rule.key)))));
    if negotiated.rdma.is_some() {
        list.push(("RDMAExtensions", "Yes".to_string()));
    }
    list.push(("MaxRecvDataSegmentLength", negotiated.max_recv_initiator.to_string()));
    // It stays as long as the session.
    list.shrink_to_fit();
    list
}
