//! SANITIZE (SBC-4 section 5.30).

use crate::home::{Draft, HomeReply};
use crate::nexus::NexusId;

impl Draft {
    pub(crate) fn sanitize_begin(&mut self, _from: NexusId, _unrestricted: bool) -> HomeReply {
        HomeReply::Conflict
    }

    pub(crate) fn sanitize_end(&mut self, _ok: bool) -> HomeReply {
        HomeReply::Conflict
    }

    pub(crate) fn sanitize_exit_failure(&mut self, _from: NexusId) -> HomeReply {
        HomeReply::Conflict
    }
}
