//! Whether the machine that is to serve a configuration has what it needs.

use super::model::{ByDevice, Cluster, Lun};
use super::problems::Fault;
use std::net::SocketAddr;
use std::path::Path;

/// What a configuration needs of the machine that is to serve it; a fault says what is missing, or not permitted.
pub trait Preflight {
    /// Whether huge pages are available.
    fn huge_pages(&self) -> Result<(), Fault>;
    /// Whether a LUN's store can be opened.
    fn store(&self, lun: &Lun) -> Result<(), Fault>;
    /// Whether the objects in which gateways agree can be accessed, as far as this machine knows.
    fn cluster(&self, cluster: &Cluster) -> Result<(), Fault>;
    /// Whether the address can be listened on, by TCP unless RDMA devices alone listen there.
    fn address(&self, listen: SocketAddr, rdma: ByDevice) -> Result<(), Fault>;
    /// Whether there is an RDMA device that listens at a portal which is meant for them.
    fn devices(&self, rdma: ByDevice) -> Result<(), Fault>;
    /// Whether there is such a network interface.
    fn interface(&self, name: &str) -> Result<(), Fault>;
    /// Whether files can be created in a folder.
    fn folder(&self, path: &Path) -> Result<(), Fault>;
}
