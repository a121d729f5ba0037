//! Admission: every check that can be made before data moves, in the standard's order.

use crate::command::Request;
use crate::nexus::NexusUnit;
use crate::unit::View;

/// What a command may look at while its program is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission<'a> {
    /// The unit.
    pub(crate) view: &'a View,
    /// The nexus.
    pub(crate) nexus: &'a NexusUnit,
    /// The command.
    pub(crate) request: &'a Request<'a>,
}
