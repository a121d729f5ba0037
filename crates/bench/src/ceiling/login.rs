//! Logins: everyone may log in, to the only target.

use super::TARGET;
use super::connection::Ends;
use proto::iscsi::login::{Access, Digests, Grant, Offers, Refusal, SendTargets, TargetLogin, TargetRecord};
use std::net::SocketAddr;
use std::sync::Arc;

/// The login of a connection.
pub(super) fn login(ends: Ends, rdma: bool) -> TargetLogin {
    // Everything else as in Lunette, so that PDUs have the same sizes.
    let offers = Offers { header_digest: Digests::Never, data_digest: Digests::Never, ..Offers::default() };
    let offers = if rdma { offers.over_rdma() } else { offers };
    TargetLogin::new(Arc::new(AllowAll), ends.from, ends.portal, offers)
}

struct AllowAll;

impl Access for AllowAll {
    fn authorize(
        &self,
        _initiator: &str,
        target: Option<&str>,
        _from: SocketAddr,
        _portal: SocketAddr,
        _isid: [u8; 6],
    ) -> Result<Grant, Refusal> {
        match target {
            Some(TARGET) => Ok(Grant { group: 1, ..Grant::default() }),
            Some(_) => Err(Refusal::NotFound),
            None => Err(Refusal::Forbidden("there is no discovery here".into())),
        }
    }

    fn send_targets(
        &self,
        _initiator: &str,
        _from: SocketAddr,
        _portal: SocketAddr,
        _which: SendTargets<'_>,
    ) -> Vec<TargetRecord> {
        Vec::new()
    }

    /// Needed only for challenges, and there are none.
    fn random(&self, bytes: &mut [u8]) {
        bytes.fill(0);
    }

    /// Sessions are never looked up by it.
    fn new_tsih(&self) -> u16 {
        1
    }
}
