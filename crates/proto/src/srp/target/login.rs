//! Login: the private data of the connection request (SRP r16a section 6.2).

use super::{Link, Target};
use crate::message::Answer;
use crate::services::{Session, Up, Withdrawal};
use std::net::{IpAddr, SocketAddr};
use wire::scsi::transport_id::srp_port;
use wire::srp::login::{FORMAT_DIRECT, FORMAT_INDIRECT};
use wire::srp::{Command, Layout, LoginReject, LoginRequest, LoginResponse, Opcode, RejectReason};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

/// The shortest information units that a login may request: below this no command fits with its descriptors.
pub const IU_BYTES_MIN: u32 = 64;
/// The furthest offset of immediate data that is granted.
pub const IMMEDIATE_OFFSET_MAX: u16 = 80;
/// The lowest request limit that an initiator can work with: a command, and a task management request about
/// it.
const LIMIT_MIN: u16 = 2;
/// Length of the descriptor of immediate data, which must precede the data.
const IMMEDIATE_DESCRIPTOR_BYTES: usize = 4;

/// An initiator that requests a login.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Applicant {
    /// Initiator port identifier; derived from the address of an initiator that does not send its own.
    pub initiator_port: [u8; 16],
    /// Identifier of our target port.
    pub target_port: [u8; 16],
    /// The initiator's address.
    pub from: SocketAddr,
    /// The target's address.
    pub portal: SocketAddr,
    /// Other channels of the same two ports are to continue beside this one; otherwise they end.
    pub keeps_others: bool,
}

/// Decides about logins.
pub trait Access: Send + Sync {
    /// Whether there are other channels of the same two ports; or why the login is rejected, with text for
    /// the log.
    fn admit(&self, applicant: &Applicant) -> Result<bool, (RejectReason, String)>;

    /// Requests that it may have in flight on the channel, if they are fewer than the target's own limit.
    fn queue_depth(&self, _applicant: &Applicant) -> Option<u16> {
        None
    }
}

/// A login that was granted.
#[derive(Clone, Debug)]
pub(super) struct Granted {
    applicant: Applicant,
    response: LoginResponse,
}

impl Target {
    /// Validates the private data of a connection request.
    pub(super) fn login(&mut self, private_data: &[u8]) -> Answer {
        let request = LoginRequest::from_private_data(private_data);
        let tag = request.as_ref().map(|request| request.tag).unwrap_or_default();
        let outcome = match request {
            Some(request) => self.validate(&request),
            None => Err((RejectReason::UNABLE_TO_ESTABLISH, "a login request that is too short".into())),
        };
        match outcome {
            Ok(granted) => {
                self.granted = Some(Box::new(granted));
                self.grant()
            }
            Err((reason, text)) => {
                self.refusal = Some(reason);
                self.over(&format!("login rejected: {text} (SRP r16a section 6.4)"));
                Answer::Reject(reject(tag, reason))
            }
        }
    }

    /// The answer to a login that was granted, with as many requests as there are receives for. It never
    /// increases: it may have been sent.
    pub(super) fn grant(&mut self) -> Answer {
        let depth = self.depth();
        let Some(granted) = &mut self.granted else { return Answer::Accept(Vec::new()) };
        if depth < LIMIT_MIN.min(self.config.queue_depth) {
            self.refusal = Some(RejectReason::INSUFFICIENT_RESOURCES);
            return Answer::Reject(reject(granted.response.tag, RejectReason::INSUFFICIENT_RESOURCES));
        }
        self.limit = if self.limit == 0 { depth } else { depth.min(self.limit) };
        granted.response.req_lim_delta = U32::new(u32::from(self.limit));
        Answer::Accept(granted.response.as_bytes().to_vec())
    }

    fn validate(&mut self, request: &LoginRequest) -> Result<Granted, (RejectReason, String)> {
        let (bytes, flags) = (request.req_it_iu_len.get(), request.req_flags);
        let initiator_port = initiator_port(&request.initiator_port_id, self.from.ip());
        let keeps_others = self.check(request).map_err(|(reason, text)| {
            let (initiator, target) = (port_name(&initiator_port), port_name(&request.target_port_id));
            (reason, format!("{text} (initiator {initiator}, target port {target})"))
        })?;
        let applicant = Applicant {
            initiator_port,
            target_port: request.target_port_id,
            from: self.from,
            portal: self.portal,
            keeps_others,
        };
        let others = self.access.admit(&applicant)?;
        if let Some(depth) = self.access.queue_depth(&applicant) {
            self.config.queue_depth = self.config.queue_depth.min(depth);
        }
        let offset = request.imm_data_offset.get();
        let is_immediate = flags & LoginRequest::IMMEDIATE != 0 && may_be_immediate(offset);
        self.link = Link { max_it_iu_bytes: bytes, immediate_offset: is_immediate.then_some(offset), flags };
        let channels = match (others, keeps_others) {
            (false, _) => 0,
            (true, true) => LoginResponse::CHANNELS_MAINTAINED,
            (true, false) => LoginResponse::CHANNELS_TERMINATED,
        };
        let response = LoginResponse {
            opcode: Opcode::LOGIN_RESPONSE,
            tag: request.tag,
            max_it_iu_len: U32::new(bytes),
            max_ti_iu_len: U32::new(super::TI_IU_BYTES_MAX),
            buf_fmt: U16::new(FORMAT_DIRECT | FORMAT_INDIRECT),
            rsp_flags: channels | if is_immediate { LoginResponse::IMMEDIATE } else { 0 },
            ..LoginResponse::default()
        };
        Ok(Granted { applicant, response })
    }

    /// Whether the request can be granted, and is for a channel beside others.
    fn check(&self, request: &LoginRequest) -> Result<bool, (RejectReason, &'static str)> {
        let bytes = request.req_it_iu_len.get();
        if request.opcode != Opcode::LOGIN_REQUEST {
            return Err((RejectReason::UNABLE_TO_ESTABLISH, "no login request"));
        }
        if bytes < IU_BYTES_MIN || bytes > self.config.max_it_iu_bytes {
            return Err((RejectReason::LENGTH_TOO_LARGE, "a length of information units that is not taken"));
        }
        if request.req_buf_fmt.get() & !(FORMAT_DIRECT | FORMAT_INDIRECT) != 0 {
            return Err((RejectReason::DESCRIPTOR_FORMAT, "an unknown data buffer descriptor format"));
        }
        let keeps_others = match request.req_flags & LoginRequest::CHANNEL_MASK {
            0 => false,
            LoginRequest::CHANNEL_MULTIPLE => true,
            _ => return Err((RejectReason::MULTI_CHANNEL, "an unknown multi-channel action")),
        };
        if request.target_port_id != self.config.target_port {
            return Err((RejectReason::UNABLE_TO_ASSOCIATE, "another target port"));
        }
        Ok(keeps_others)
    }

    /// The engine has no resources for a login that was granted (section 6.4).
    pub(super) fn withdraw(&mut self, why: Withdrawal) {
        let Some(granted) = self.granted.take() else { return };
        let reason = match why {
            Withdrawal::NoRoom => RejectReason::INSUFFICIENT_RESOURCES,
            Withdrawal::Unavailable => RejectReason::UNABLE_TO_ESTABLISH,
        };
        self.refusal = Some(reason);
        self.rejection = Some(reject(granted.response.tag, reason));
    }

    /// The connection is established: commands may follow.
    pub(super) fn begin(&mut self) {
        if self.granted.take().is_some() {
            self.tasks = super::task::TaskTable::new(self.config.slots());
            self.out.reserve(usize::from(self.config.slots()));
            self.phase = super::Phase::Full;
        }
    }

    /// Reports a granted login to the engine.
    pub(super) fn report_ready(&mut self) {
        if let Some(granted) = &self.granted {
            let session = session(&granted.applicant, &self.link, self.limit);
            self.up.push_back(Up::Ready(Box::new(session)));
        }
    }
}

fn reject(tag: U64, reason: RejectReason) -> Vec<u8> {
    let reject = LoginReject {
        opcode: Opcode::LOGIN_REJECT,
        reason,
        tag,
        buf_fmt: U16::new(FORMAT_DIRECT | FORMAT_INDIRECT),
        ..LoginReject::default()
    };
    reject.as_bytes().to_vec()
}

/// Linux's ib_srp has zeros in the identifier where its device has no InfiniBand GID, as with siw: all such
/// hosts would be one initiator port, end each other's channels and share reservations. Their addresses
/// distinguish them.
fn initiator_port(claimed: &[u8; 16], from: IpAddr) -> [u8; 16] {
    match from.to_canonical() {
        _ if *claimed != [0; 16] => *claimed,
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Immediate data has to leave room for the command and its descriptor, and may not begin further in than
/// other targets allow.
fn may_be_immediate(offset: u16) -> bool {
    let first = Command::BYTES.saturating_add(IMMEDIATE_DESCRIPTOR_BYTES);
    usize::from(offset) >= first && offset <= IMMEDIATE_OFFSET_MAX
}

fn session(applicant: &Applicant, link: &Link, limit: u16) -> Session {
    let immediate = link.immediate_offset.map_or("No".to_string(), |offset| offset.to_string());
    let channels = if applicant.keeps_others { "Multiple" } else { "Single" };
    Session {
        initiator: port_name(&applicant.initiator_port),
        alias: None,
        target: Some(port_name(&applicant.target_port)),
        isid: [0; 6],
        tsih: 0,
        cid: 0,
        keeps_others: applicant.keeps_others,
        negotiated: vec![
            ("RequestLimit", limit.to_string()),
            ("MaxInitiatorToTargetIU", link.max_it_iu_bytes.to_string()),
            ("ImmediateDataOffset", immediate),
            ("Channels", channels.to_string()),
        ],
        transport_id: srp_port(&applicant.initiator_port).to_vec(),
    }
}

/// A port identifier as Linux writes it.
pub fn port_name(port: &[u8; 16]) -> String {
    let digits: String = port.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("0x{digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initiators_without_an_identifier_are_distinguished_by_address() {
        let port =
            |claimed: [u8; 16], from: &str| port_name(&initiator_port(&claimed, from.parse().unwrap()));
        assert_eq!(port([0; 16], "192.0.2.2"), "0x00000000000000000000ffffc0000202");
        assert_eq!(port([0; 16], "::ffff:192.0.2.2"), port([0; 16], "192.0.2.2"));
        assert_eq!(port([0; 16], "2001:db8::2"), "0x20010db8000000000000000000000002");
        assert_eq!(port([7; 16], "192.0.2.2"), "0x07070707070707070707070707070707");
    }
}
