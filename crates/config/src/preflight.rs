//! Whether the serving machine has what a configuration needs.

use super::model::{ByDevice, Cluster, Lun};
use super::problems::Fault;
use std::net::SocketAddr;
use std::path::Path;

/// Checks that the serving machine has what a configuration needs; a fault is what is missing, or not
/// permitted.
pub trait Preflight {
    /// Whether huge pages are available.
    fn huge_pages(&self) -> Result<(), Fault>;
    /// Whether a LUN's store can be opened.
    fn store(&self, lun: &Lun) -> Result<(), Fault>;
    /// Whether the gateways' shared objects can be accessed, as far as this machine can tell.
    fn cluster(&self, cluster: &Cluster) -> Result<(), Fault>;
    /// Whether the address can be listened on, by TCP unless only RDMA devices listen there.
    fn address(&self, listen: SocketAddr, rdma: ByDevice) -> Result<(), Fault>;
    /// Whether there is an RDMA device to listen on a portal that needs one.
    fn devices(&self, rdma: ByDevice) -> Result<(), Fault>;
    /// Whether there is such a network interface.
    fn interface(&self, name: &str) -> Result<(), Fault>;
    /// Whether files can be created in a directory.
    fn directory(&self, path: &Path) -> Result<(), Fault>;
}
