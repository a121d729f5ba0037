//! The fuzz targets, and what they share.
#![forbid(unsafe_code)]

pub mod above;
#[cfg(test)]
mod mutation;
pub mod targets;

use proto::iscsi::login::{Access, ChapCredentials, Grant, Refusal, SendTargets, TargetRecord};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};

/// The target known to [`Door`].
pub const TARGET: &str = "iqn.2026-11.io.lunette:disk";

/// The address of both ends of every connection.
pub fn address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 3260))
}

/// Fuzz input, taken piece by piece.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// Exactly this many bytes, or nothing.
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    /// Up to this many bytes, zero-padded.
    pub fn filled<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let (taken, rest) = self.0.split_at(N.min(self.0.len()));
        bytes[..taken.len()].copy_from_slice(taken);
        self.0 = rest;
        bytes
    }

    /// The next byte, zero at the end.
    pub fn byte(&mut self) -> u8 {
        self.filled::<1>()[0]
    }

    /// The next two bytes, zero at the end.
    pub fn short(&mut self) -> u16 {
        u16::from_be_bytes(self.filled())
    }

    /// Whether all input was taken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Admits everyone to one target; those with `chap` in their names must authenticate.
#[derive(Default)]
pub struct Door {
    handles: AtomicU16,
}

impl Access for Door {
    fn authorize(
        &self,
        initiator: &str,
        target: Option<&str>,
        _from: SocketAddr,
        _portal: SocketAddr,
        _isid: [u8; 6],
    ) -> Result<Grant, Refusal> {
        if target.is_some_and(|name| name != TARGET) {
            return Err(Refusal::NotFound);
        }
        let chap = initiator.contains("chap").then(|| ChapCredentials {
            user: "user".into(),
            secret: b"a secret of the user".to_vec(),
            mutual: initiator
                .contains("mutual")
                .then(|| ("target".into(), b"a secret of the target".to_vec())),
            algorithms: Vec::new(),
        });
        Ok(Grant { chap, group: 1, ..Grant::default() })
    }

    fn send_targets(
        &self,
        _initiator: &str,
        _from: SocketAddr,
        portal: SocketAddr,
        _which: SendTargets<'_>,
    ) -> Vec<TargetRecord> {
        vec![TargetRecord { name: TARGET.into(), portals: vec![(portal, 1)] }]
    }

    fn random(&self, bytes: &mut [u8]) {
        bytes.fill(0x5a);
    }

    fn new_tsih(&self) -> u16 {
        self.handles.fetch_add(1, Ordering::Relaxed) | 1
    }
}

/// A login request that goes straight to the full feature phase, with these keys.
pub fn login(keys: &str) -> Vec<u8> {
    let text = format!(
        "InitiatorName=iqn.2026-11.io.lunette:fuzz\0TargetName={TARGET}\0SessionType=Normal\0\
         InitialR2T=No\0ImmediateData=Yes\0{keys}"
    );
    let mut pdu = vec![0; 48];
    pdu[..2].copy_from_slice(&[0x43, 0x87]);
    pdu[7] = u8::try_from(text.len()).expect("a short text");
    pdu[8] = 0x80;
    pdu.extend_from_slice(text.as_bytes());
    pdu.resize(pdu.len().next_multiple_of(4), 0);
    pdu
}
