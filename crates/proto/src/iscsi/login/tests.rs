//! The target's side of the login with requests that our own initiator would not send.

use super::*;
use crate::iscsi::chap::Algorithm;
use crate::iscsi::text;
use proptest::prelude::*;
use std::sync::Arc;
use wire::iscsi::{CONTINUE, LoginRequest};

const NAMES: &str = "InitiatorName=iqn.a:b\0TargetName=iqn.t:u\0";
/// T, from operational to full feature.
const TO_FULL: u8 = 0x87;
/// T, from security to operational.
const TO_OPERATIONAL: u8 = 0x81;

struct TestAccess {
    chap: Option<ChapCredentials>,
    /// Where all initiators are redirected.
    elsewhere: Option<SocketAddr>,
}

impl Access for TestAccess {
    fn authorize(
        &self,
        _: &str,
        _: Option<&str>,
        _: SocketAddr,
        _: SocketAddr,
        _: [u8; 6],
    ) -> Result<Grant, Refusal> {
        if let Some(elsewhere) = self.elsewhere {
            return Err(Refusal::Moved(elsewhere));
        }
        let session = Some((7, 1));
        let alias = Some("Disk".into());
        Ok(Grant { chap: self.chap.clone(), group: 3, alias, session, queue_depth: None })
    }

    fn send_targets(&self, _: &str, _: SocketAddr, _: SocketAddr, _: SendTargets<'_>) -> Vec<TargetRecord> {
        Vec::new()
    }

    fn random(&self, bytes: &mut [u8]) {
        bytes.fill(9);
    }

    fn new_tsih(&self) -> u16 {
        5
    }
}

#[test]
fn a_login_that_is_redirected_names_the_other_address() {
    let here = "127.0.0.1:3260".parse().unwrap();
    for (elsewhere, text) in
        [("192.0.2.1:3261", "192.0.2.1:3261"), ("[2001:db8::1]:3260", "[2001:db8::1]:3260")]
    {
        let access = Arc::new(TestAccess { chap: None, elsewhere: elsewhere.parse().ok() });
        let mut login = TargetLogin::new(access, here, here, Offers::default());
        let reply = send(&mut login, TO_OPERATIONAL, NAMES);
        assert_eq!((reply.status, reply.transit), (LoginStatus::MOVED_TEMPORARILY, false));
        assert_eq!(shown(&reply), format!("TargetAddress={text}"));
        assert!(reply.close.is_some_and(|reason| reason.contains(text)));
    }
}

fn open(chap: bool) -> TargetLogin {
    login_with(chap.then(|| credentials(&[])))
}

fn credentials(algorithms: &[Algorithm]) -> ChapCredentials {
    let mutual = Some(("disk".to_string(), b"target".to_vec()));
    let algorithms = algorithms.to_vec();
    ChapCredentials { user: "alice".into(), secret: b"initiator".to_vec(), mutual, algorithms }
}

fn login_with(chap: Option<ChapCredentials>) -> TargetLogin {
    let address = "127.0.0.1:3260".parse().unwrap();
    TargetLogin::new(Arc::new(TestAccess { chap, elsewhere: None }), address, address, Offers::default())
}

fn send(login: &mut TargetLogin, flags: u8, text: &str) -> LoginReply {
    let bhs = LoginRequest { opcode: 0x43, flags, ..LoginRequest::default() };
    login.request(&bhs, text.as_bytes())
}

fn shown(reply: &LoginReply) -> String {
    String::from_utf8(reply.text.clone()).unwrap().replace('\0', " ").trim_end().to_string()
}

/// The status of a login that is refused at this request.
fn refused(login: &mut TargetLogin, flags: u8, text: &str) -> LoginStatus {
    let reply = send(login, flags, text);
    assert!(reply.close.is_some() && reply.done.is_none() && !reply.transit, "{reply:?}");
    assert!(send(login, flags, "").close.is_some(), "over is over");
    reply.status
}

#[test]
fn every_key_has_its_answer() {
    let mut login = open(false);
    let keys = "HeaderDigest=CRC32C,None\0DataDigest=None\0MaxConnections=8\0InitialR2T=No\0ImmediateData=Yes\0\
        MaxRecvDataSegmentLength=65536\0FirstBurstLength=262144\0MaxBurstLength=32768\0DefaultTime2Wait=2\0\
        DefaultTime2Retain=20\0MaxOutstandingR2T=1\0DataPDUInOrder=No\0DataSequenceInOrder=No\0\
        ErrorRecoveryLevel=2\0TaskReporting=FastAbort,RFC3720\0iSCSIProtocolLevel=2\0IFMarker=Yes\0OFMarker=No\0\
        IFMarkInt=1~2\0OFMarkInt=8\0X#NodeArchitecture=x\0X-com.example=1\0Something=2\0";
    let reply = send(&mut login, TO_FULL, &format!("{NAMES}{keys}"));
    assert_eq!(
        shown(&reply),
        "X-com.example=NotUnderstood Something=NotUnderstood TargetPortalGroupTag=3 TargetAlias=Disk \
         HeaderDigest=CRC32C DataDigest=None MaxConnections=1 InitialR2T=No ImmediateData=Yes \
         MaxBurstLength=32768 DefaultTime2Wait=2 DefaultTime2Retain=0 MaxOutstandingR2T=1 DataPDUInOrder=Yes \
         DataSequenceInOrder=Yes ErrorRecoveryLevel=0 TaskReporting=RFC3720 iSCSIProtocolLevel=1 IFMarker=No \
         OFMarker=No IFMarkInt=Reject OFMarkInt=Reject FirstBurstLength=32768 MaxRecvDataSegmentLength=262144"
    );
    assert!(reply.transit && reply.tsih == 5);
    let done = reply.done.unwrap();
    assert_eq!((done.max_recv_initiator, done.first_burst, done.max_burst), (65_536, 32_768, 32_768));
    assert!(done.header_digest && !done.data_digest);
}

#[test]
fn a_discovery_session_has_irrelevant_keys() {
    let mut login = open(false);
    let text = "InitiatorName=iqn.a:b\0SessionType=Discovery\0MaxBurstLength=4096\0ErrorRecoveryLevel=0\0";
    let reply = send(&mut login, TO_FULL, text);
    assert!(shown(&reply).contains("MaxBurstLength=Irrelevant ErrorRecoveryLevel=0"));
    let done = reply.done.unwrap();
    assert!(done.discovery && done.session.target.is_none());
}

#[test]
fn defaults_hold_without_the_operational_stage() {
    let mut login = open(false);
    let reply = send(&mut login, 0x83, NAMES);
    assert_eq!(shown(&reply), "TargetPortalGroupTag=3 TargetAlias=Disk");
    let done = reply.done.unwrap();
    assert_eq!((done.max_recv_initiator, done.max_recv_target), (8192, 8192));
    assert!(done.initial_r2t && done.immediate_data && !done.header_digest);
}

#[test]
fn bad_logins_have_their_status() {
    let named = |text: &str| format!("{NAMES}{text}");
    for (flags, text, status) in [
        (TO_FULL, "TargetName=iqn.t:u\0".into(), LoginStatus::MISSING_PARAMETER),
        (TO_FULL, "InitiatorName=iqn.a:b\0".into(), LoginStatus::MISSING_PARAMETER),
        (TO_FULL, "InitiatorName=a\0TargetName=iqn.t:u\0".into(), LoginStatus::INITIATOR_ERROR),
        (TO_FULL, named("SessionType=Other\0"), LoginStatus::SESSION_TYPE_NOT_SUPPORTED),
        (TO_FULL, named("InitialR2T=No\0InitialR2T=No\0"), LoginStatus::INITIATOR_ERROR),
        (TO_FULL, named("X-a=1\0X-a=1\0"), LoginStatus::INITIATOR_ERROR),
        (TO_FULL, named("InitialR2T"), LoginStatus::INITIATOR_ERROR),
        (TO_FULL, named("InitialR2T=Irrelevant\0"), LoginStatus::INITIATOR_ERROR),
        (TO_FULL, named("MaxRecvDataSegmentLength=1\0"), LoginStatus::INITIATOR_ERROR),
        (TO_FULL, named("TargetAlias=x\0"), LoginStatus::INITIATOR_ERROR),
        (TO_FULL, named("SendTargets=All\0"), LoginStatus::INITIATOR_ERROR),
        (TO_FULL, named("AuthMethod=None\0"), LoginStatus::INITIATOR_ERROR),
        (TO_OPERATIONAL, named("InitialR2T=No\0"), LoginStatus::INITIATOR_ERROR),
        (TO_OPERATIONAL, named("CHAP_A=5\0"), LoginStatus::INITIATOR_ERROR),
        (TO_OPERATIONAL, named("AuthMethod=CHAP,KRB5\0"), LoginStatus::AUTHENTICATION_FAILURE),
        // Stages: backwards, reserved, C with T.
        (0x84, named(""), LoginStatus::INITIATOR_ERROR),
        (0x86, named(""), LoginStatus::INITIATOR_ERROR),
        (0x0c, named(""), LoginStatus::INITIATOR_ERROR),
        (TO_FULL | CONTINUE, named(""), LoginStatus::INITIATOR_ERROR),
    ] {
        assert_eq!(refused(&mut open(false), flags, &text), status, "{flags:x} {text}");
    }
    let header = |change: fn(&mut LoginRequest)| {
        let mut bhs = LoginRequest { flags: TO_FULL, ..LoginRequest::default() };
        change(&mut bhs);
        open(false).request(&bhs, NAMES.as_bytes()).status
    };
    assert_eq!(header(|bhs| bhs.version_min = 1), LoginStatus::UNSUPPORTED_VERSION);
    assert_eq!(header(|bhs| bhs.tsih = 1.into()), LoginStatus::NO_SUCH_SESSION);
    assert_eq!(header(|bhs| bhs.tsih = 7.into()), LoginStatus::TOO_MANY_CONNECTIONS);
    let again = LoginRequest { flags: TO_FULL, tsih: 7.into(), cid: 1.into(), ..LoginRequest::default() };
    let reply = open(false).request(&again, NAMES.as_bytes());
    assert_eq!((reply.status, reply.tsih), (LoginStatus::SUCCESS, 7), "reinstated with its TSIH");
}

#[test]
fn the_session_may_not_change_during_login() {
    let mut login = open(false);
    assert!(send(&mut login, 0x04, NAMES).close.is_none());
    let bhs = LoginRequest { flags: TO_FULL, isid: [1; 6], ..LoginRequest::default() };
    assert_eq!(login.request(&bhs, &[]).status, LoginStatus::INITIATOR_ERROR);
}

#[test]
fn names_may_come_again_in_the_next_stage_only() {
    let mut login = open(false);
    assert!(send(&mut login, TO_OPERATIONAL, &format!("{NAMES}AuthMethod=None\0")).transit);
    assert!(send(&mut login, TO_FULL, NAMES).done.is_some());
    let mut login = open(false);
    assert!(send(&mut login, TO_OPERATIONAL, NAMES).transit);
    assert_eq!(refused(&mut login, TO_FULL, "InitiatorName=iqn.c:d\0"), LoginStatus::INITIATOR_ERROR);
}

#[test]
fn authentication_cannot_be_bypassed() {
    assert_eq!(refused(&mut open(true), TO_FULL, NAMES), LoginStatus::AUTHENTICATION_FAILURE);
    let offer = |methods: &str| format!("{NAMES}AuthMethod={methods}\0");
    assert_eq!(refused(&mut open(true), TO_OPERATIONAL, &offer("None")), LoginStatus::AUTHENTICATION_FAILURE);
    // We propose it to those that do not; then they have to do it.
    let mut login = open(true);
    let reply = send(&mut login, 0x83, NAMES);
    assert!(!reply.transit && shown(&reply).ends_with("AuthMethod=CHAP"));
    assert_eq!(refused(&mut login, 0x83, ""), LoginStatus::AUTHENTICATION_FAILURE);
    let mut login = open(true);
    send(&mut login, 0x83, NAMES);
    let reply = send(&mut login, 0, "AuthMethod=CHAP\0CHAP_A=4,7,5\0");
    assert!(shown(&reply).starts_with("CHAP_A=7 CHAP_I=9 CHAP_C=0x0909"), "{}", shown(&reply));
    // Selecting CHAP, or a challenge, proves nothing.
    assert!(!send(&mut login, 0x83, "").transit);
    assert_eq!(refused(&mut login, 0x83, "CHAP_N=alice\0CHAP_R=0x00\0"), LoginStatus::AUTHENTICATION_FAILURE);
    for text in ["CHAP_N=alice\0", "CHAP_R=0x00\0", "CHAP_A=5\0"] {
        let mut login = open(true);
        send(&mut login, TO_OPERATIONAL, &format!("{}CHAP_A=5\0", offer("CHAP,None")));
        assert!(refused(&mut login, TO_OPERATIONAL, text).class == 2, "{text}");
    }
}

#[test]
fn only_algorithms_that_are_accepted_are_used_the_best_first() {
    let ask = format!("{NAMES}AuthMethod=CHAP\0");
    for (offered, chosen) in [("5,6,7", "CHAP_A=7 "), ("7,8,5", "CHAP_A=8 ")] {
        let mut login = login_with(Some(credentials(&[Algorithm::Sha3, Algorithm::Sha256])));
        let reply = send(&mut login, 0, &format!("{ask}CHAP_A={offered}\0"));
        assert!(shown(&reply).contains(chosen), "{offered}: {}", shown(&reply));
    }
    for offered in ["5", "6,5", "9"] {
        let mut login = login_with(Some(credentials(&[Algorithm::Sha3, Algorithm::Sha256])));
        let reply = send(&mut login, 0, &format!("{ask}CHAP_A={offered}\0"));
        assert_eq!((reply.status.class, reply.status.detail), (2, 1), "{offered}");
        let reason = reply.close.expect("it has ended");
        let cause = format!("CHAP_A={offered} is offered, accepted is sha3-256, sha256");
        assert!(reason.contains(&cause), "{reason}");
    }
}

/// Our own challenge comes back, in another encoding.
#[test]
fn a_reflected_challenge_ends_the_login() {
    let mut login = open(true);
    send(&mut login, 0, &format!("{NAMES}AuthMethod=CHAP\0CHAP_A=5\0"));
    let algorithm = crate::iscsi::chap::Algorithm::Md5;
    let ours = crate::iscsi::chap::Challenge::new(algorithm, &[9; 33]);
    let response = text::Hexadecimal(&algorithm.response(&ours, b"initiator")).to_string();
    let proof =
        format!("CHAP_N=alice\0CHAP_R={response}\0CHAP_I=1\0CHAP_C=0b{}==\0", "CQkJ".repeat(5) + "CQ");
    assert_eq!(refused(&mut login, TO_OPERATIONAL, &proof), LoginStatus::AUTHENTICATION_FAILURE);
}

#[test]
fn text_is_gathered_and_bounded() {
    let mut login = open(false);
    let text = format!("{NAMES}InitialR2T=Yes\0");
    let (head, tail) = text.split_at(30);
    let reply = send(&mut login, 0x04 | CONTINUE, head);
    assert!(reply.text.is_empty() && reply.close.is_none());
    assert!(shown(&send(&mut login, TO_FULL, tail)).contains("InitialR2T=Yes"));
    let mut login = open(false);
    let endless = (0..9).find_map(|_| send(&mut login, 0x04 | CONTINUE, &"a".repeat(8192)).close);
    assert!(endless.unwrap().contains("64 KiB"));
    let mut login = open(false);
    let patient = (0..200).find_map(|_| send(&mut login, 0x04 | CONTINUE, "").close);
    assert!(patient.unwrap().contains("too many"));
}

#[test]
fn a_long_answer_comes_in_pieces() {
    let mut login = open(false);
    let unknown: String = (0..200).map(|n| format!("X-{n}{}=\0", "a".repeat(50))).collect();
    for piece in [NAMES, &unknown[..8000]] {
        assert!(send(&mut login, 0x04 | CONTINUE, piece).text.is_empty());
    }
    let first = send(&mut login, TO_FULL, &unknown[8000..]);
    assert!(first.cont && !first.transit && first.text.len() == 8192);
    let second = send(&mut login, TO_FULL, "");
    assert!(!second.cont && !second.transit);
    let whole = [first.text, second.text].concat();
    assert_eq!(text::pairs(&whole).unwrap().len(), 203);
    assert!(send(&mut login, TO_FULL, "").done.is_some());
}

proptest! {
    /// Whatever is received is answered, and a login without authentication never completes.
    #[test]
    fn no_request_panics(
        requests in proptest::collection::vec((any::<u8>(), "(InitiatorName=iqn.a:b\0)?(TargetName=iqn.t\0)?\
            (SessionType=Discovery\0)?(AuthMethod=(CHAP|None|CHAP,None)\0)?(CHAP_[AICNR]=(5|0x0[0-9]|alice)\0){0,3}\
            ((MaxBurst|FirstBurst)Length=[0-9]{1,6}\0)?[A-Za-z=\0]{0,6}"), 1..6)
    ) {
        let mut login = open(true);
        for (flags, text) in requests {
            let reply = send(&mut login, flags, &text);
            prop_assert!(reply.done.is_none());
            prop_assert!(reply.close.is_some() == (reply.status != LoginStatus::SUCCESS));
        }
    }
}
