//! Login requests, one after the other: a byte of flags (T, C and the stages) and the text, terminated by a
//! byte that no text contains.

use crate::{Door, address};
use proto::iscsi::login::{Offers, TargetLogin};
use std::sync::Arc;
use wire::iscsi::{LoginRequest, Pdu};

/// A login that takes more requests than this is going around in circles.
const REQUESTS_MAX: usize = 64;

/// Feeds one input.
pub fn run(data: &[u8]) {
    let mut login = TargetLogin::new(Arc::new(Door::default()), address(), address(), Offers::default());
    for request in data.split(|byte| *byte == 0xff).take(REQUESTS_MAX) {
        let Some((flags, text)) = request.split_first() else { continue };
        let mut header = [0; 48];
        header[..2].copy_from_slice(&[0x43, *flags]);
        let reply = login.request(LoginRequest::view(&header).expect("48 bytes"), text);
        if reply.close.is_some() {
            assert!(reply.done.is_none(), "a login that is refused does not succeed");
            break;
        }
        if reply.done.is_some() {
            assert!(reply.transit && reply.status.class == 0);
            break;
        }
        assert!(proto::iscsi::text::pairs(&reply.text).is_ok() || reply.cont, "the answer is well-formed");
    }
}
