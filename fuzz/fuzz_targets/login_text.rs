//! Login requests, one after the other: a byte of flags (T, C and the stages), two bytes of length, the text.
#![no_main]

use lunette_fuzz::{Door, Input, address};
use proto::iscsi::login::{Offers, TargetLogin};
use std::sync::Arc;
use wire::iscsi::{LoginRequest, Pdu};

/// A login that takes more requests than this goes round in circles.
const REQUESTS_MAX: usize = 64;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let mut login = TargetLogin::new(Arc::new(Door::default()), address(), address(), Offers::default());
    for _ in 0..REQUESTS_MAX {
        let (flags, len) = (input.byte(), input.short());
        let Some(text) = input.take(usize::from(len)) else { break };
        let mut header = [0; 48];
        header[..2].copy_from_slice(&[0x43, flags]);
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
});
