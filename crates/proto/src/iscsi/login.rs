//! The login phase (RFC 7143 section 6) for both roles, and the text negotiation of the full feature phase.

mod discovery;
mod initiator;
mod target;
#[cfg(test)]
mod tests;

pub use crate::iscsi::keys::{Digests, Offers};
pub use discovery::text_request;
pub use initiator::{Elsewhere, InitiatorChap, InitiatorLogin, LoginSend, Plan};
pub use target::TargetLogin;

use crate::iscsi::chap::Algorithm;
use crate::iscsi::keys::{self, Key, Values};
use crate::services::Session;
use std::fmt;
use std::net::SocketAddr;
use wire::iscsi::{LoginStatus, Stage};
use wire::scsi::transport_id::iscsi_port;

/// The daemon's decisions about logins. All connections share it, and it answers from memory.
pub trait Access: Send + Sync {
    /// Whether this initiator may log in to `target` (`None`: a discovery session) at this portal. The names
    /// are the peer's claim; only the credentials that the grant requires prove them.
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

    /// Fills `bytes` with unpredictable data.
    fn random(&self, bytes: &mut [u8]);

    /// An unused target session identifying handle, never 0.
    fn new_tsih(&self) -> u16;

    /// Called for each step of a login, for the log.
    fn log_step(&self, step: &Step<'_>) {
        let _ = step;
    }
}

/// What one side sends in one step of a login.
#[derive(Debug)]
pub struct Step<'a> {
    /// The initiator's address.
    pub from: SocketAddr,
    /// The target's address.
    pub portal: SocketAddr,
    /// The stage that it is in.
    pub stage: Stage,
    /// It is our answer.
    pub is_answer: bool,
    /// The keys and their values, including credentials.
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
    /// TSIH and CID of the existing session with this initiator name, ISID, target and portal group, if there
    /// is one: it may be reinstated.
    pub session: Option<(u16, u16)>,
    /// Commands that it may have in flight, if fewer than the target's own limit.
    pub queue_depth: Option<u16>,
}

/// Names and secrets of CHAP.
#[derive(Clone, PartialEq, Eq)]
pub struct ChapCredentials {
    /// The initiator's CHAP name.
    pub user: String,
    /// The initiator's secret.
    pub secret: Vec<u8>,
    /// The target's CHAP name and secret, for initiators that request mutual authentication.
    pub mutual: Option<(String, Vec<u8>)>,
    /// Accepted algorithms, the preferred first; empty: all, in the initiator's order.
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

/// Why an initiator may not log in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// There is no such target at this portal.
    NotFound,
    /// The initiator is not allowed, for this reason.
    Forbidden(String),
    /// The target has as many sessions as it may have.
    TooManySessions,
    /// The target does not serve at present, for this reason.
    Unavailable(String),
    /// The target has moved temporarily to this address.
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

/// Which targets are requested (appendix C).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendTargets<'a> {
    /// All.
    All,
    /// The one with this name.
    One(&'a str),
}

/// A target and its addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetRecord {
    /// Its name.
    pub name: String,
    /// Its addresses, each with its portal group tag.
    pub portals: Vec<(SocketAddr, u16)>,
}

/// The target's response to one login request.
#[derive(Clone, Debug)]
pub struct LoginReply {
    /// Status.
    pub status: LoginStatus,
    /// T: transit to the next stage.
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
    /// Why to close the connection once this has been sent.
    pub close: Option<String>,
    /// The full feature phase begins once this has been sent.
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
    /// What was negotiated over RDMA.
    pub rdma: Option<Rdma>,
    /// The target's portal group, if it reported it.
    pub portal_group: Option<u32>,
    /// Names of the session.
    pub session: Session,
}

/// The additions of iSER (RFC 7145 section 6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rdma {
    /// How many unexpected PDUs the peer accepts; 0: no limit.
    pub unexpected_max: u32,
    /// The Write Base Offset is relative to the solicited data, not to all data. This is Linux's
    /// interpretation, which does not send the key; peers with the other interpretation must send it.
    pub solicited_only: bool,
}

/// The names in a login, as both roles know them.
#[derive(Clone, Debug, Default)]
struct Names {
    initiator: String,
    alias: Option<String>,
    target: Option<String>,
    discovery: bool,
}

/// Bytes of text in one login PDU: MaxRecvDataSegmentLength before it is declared (section 6.3).
const LOGIN_TEXT_MAX: usize = 8192;
/// The most requests of one login. The standard requires at least six exchanges (section 6.2); texts in small
/// pieces need more.
const REQUESTS_MAX: u32 = 128;
/// MaxOutstandingUnexpectedPDUs: immediate requests that either role accepts over RDMA, beside those that it
/// expects.
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

/// What identifies a session besides names.
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
    // It is kept as long as the session.
    list.shrink_to_fit();
    list
}
