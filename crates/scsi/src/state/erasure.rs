//! SANITIZE and FORMAT UNIT as decided by a unit's home.

use crate::state::home::{Aborted, Draft, HomeReply, Who};
use crate::state::nexus::NexusId;
use crate::state::policy::Erasure;
use crate::vocabulary::modes::EraseKind;
use crate::vocabulary::sense::Check;
use std::sync::Arc;
use wire::scsi::cdb::SERVICE_ACTION;
use wire::scsi::command::Sanitize;

impl Draft {
    /// All other commands end first, so that none of them writes after the operation.
    pub(crate) fn erase_begin(&mut self, from: NexusId, kind: EraseKind) -> HomeReply {
        match (&self.policy.erasure, kind) {
            (Some(Erasure::Running { kind, .. }), _) => return HomeReply::Check(Check::erasing(*kind)),
            (
                Some(Erasure::Failed { kind: EraseKind::Sanitize { unrestricted: false } }),
                EraseKind::Sanitize { unrestricted: true },
            ) => return HomeReply::Check(Check::cdb_field(Sanitize::UNRESTRICTED)),
            (Some(Erasure::Failed { kind: EraseKind::Sanitize { .. } }), EraseKind::Format) => {
                return HomeReply::Check(Check::SANITIZE_FAILED);
            }
            (Some(Erasure::Failed { .. }) | None, _) => {}
        }
        self.policy.erasure = Some(Erasure::Running { progress: Arc::default(), kind });
        self.abort_others(from);
        // The sender's own as well; the command itself is spared where this is applied.
        self.aborts.push((Who::Only(from), Aborted::WithStatus));
        self.changed()
    }

    pub(crate) fn erase_end(&mut self, ok: bool, kind: EraseKind) -> HomeReply {
        self.policy.erasure = if ok { None } else { Some(Erasure::Failed { kind }) };
        self.changed()
    }

    pub(crate) fn sanitize_exit_failure(&mut self) -> HomeReply {
        match &self.policy.erasure {
            Some(Erasure::Running { kind, .. }) => HomeReply::Check(Check::erasing(*kind)),
            Some(Erasure::Failed { kind: EraseKind::Sanitize { unrestricted: false } }) => {
                HomeReply::Check(Check::cdb_field(SERVICE_ACTION))
            }
            Some(Erasure::Failed { kind: EraseKind::Sanitize { unrestricted: true } }) => {
                self.policy.erasure = None;
                self.changed()
            }
            Some(Erasure::Failed { kind: EraseKind::Format }) | None => HomeReply::Done,
        }
    }
}
