//! Whether this machine has what a configuration needs.

use config::{ByDevice, Cluster, Fault, Lun, Protocol, StoreSpec};
use rdma::verbs::{DeviceFacts, Transport};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::net::{AddressFamily, SocketType, netdevice, socket};
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use store::{Claim, OpenError};

/// The machine's setting for transparent huge pages (Documentation/admin-guide/mm/transhuge.rst).
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// The first port that unprivileged users may listen on (ip(7)).
const PORT_FREE: u16 = 1024;

/// What to do about an image file that is served as a raw disk.
pub(crate) const IMAGE_REMEDY: &str = "convert it: qemu-img convert -O raw";

/// This machine.
#[derive(Clone, Copy, Debug)]
pub struct ThisMachine;

impl config::Preflight for ThisMachine {
    fn huge_pages(&self) -> Result<(), Fault> {
        huge_pages(std::fs::read_to_string(HUGE_PAGES).ok().as_deref())
    }

    fn store(&self, lun: &Lun) -> Result<(), Fault> {
        store(lun)
    }

    fn cluster(&self, cluster: &Cluster) -> Result<(), Fault> {
        store::rbd::examine(&cluster.place).map_err(missing)
    }

    fn address(&self, listen: SocketAddr, rdma: ByDevice) -> Result<(), Fault> {
        if rdma == ByDevice::Only { address(listen) } else { port(listen) }
    }

    fn devices(&self, rdma: ByDevice) -> Result<(), Fault> {
        devices(rdma)
    }

    fn interface(&self, name: &str) -> Result<(), Fault> {
        interface(name)
    }

    fn directory(&self, path: &Path) -> Result<(), Fault> {
        directory(path)
    }
}

fn huge_pages(setting: Option<&str>) -> Result<(), Fault> {
    match setting {
        None => Err(Fault::new("this kernel has no transparent huge pages", "write `auto` or `never`")),
        Some(text) if text.contains("[never]") => Err(Fault::new(
            "huge pages are disabled on this machine",
            format!("as root: echo madvise > {HUGE_PAGES}"),
        )),
        Some(_) => Ok(()),
    }
}

fn missing(error: OpenError) -> Fault {
    Fault::new(format!("{}: {}", error.what, error.problem), error.remedy)
}

fn store(lun: &Lun) -> Result<(), Fault> {
    let claim = Claim::to_serve(lun.read_only);
    match &lun.store {
        StoreSpec::File { path, size } => {
            store::file::examine(path, *size, lun.block_bytes, claim).map_err(missing)?;
            match store::image::format(path) {
                Ok(Some(format)) => Err(Fault::new(image_problem(path, format), IMAGE_REMEDY)),
                // A missing directory is created; one that cannot be read was reported before.
                Ok(None) | Err(_) => Ok(()),
            }
        }
        StoreSpec::Block { path } => store::file::examine_block(path, claim).map_err(missing),
        StoreSpec::Remote { url, .. } if url.protocol == Protocol::Aoe => interface(&url.host),
        StoreSpec::Rbd { image, .. } => store::rbd::examine(image).map_err(missing),
        StoreSpec::Remote { .. } | StoreSpec::Nbd { .. } | StoreSpec::Null { .. } | StoreSpec::Ram { .. } => {
            Ok(())
        }
    }
}

/// What is wrong with serving an image file as a raw disk.
pub(crate) fn image_problem(path: &Path, format: &str) -> String {
    format!("{}: this is a {format} image: initiators see its bytes, not the disk in it", path.display())
}

/// Whether this machine has an address.
fn address(listen: SocketAddr) -> Result<(), Fault> {
    // With the scope of a link-local address, without which it cannot be bound (RFC 4007 section 6).
    let mut any_port = listen;
    any_port.set_port(0);
    let bound = UdpSocket::bind(any_port);
    bound.map(drop).map_err(|error| {
        let ip = listen.ip();
        let what = match error.kind() {
            ErrorKind::AddrNotAvailable => format!("this machine does not have the address {ip}"),
            _ => format!("cannot listen on {ip}: {error}"),
        };
        Fault::new(what, "choose one of those that `ip address` shows, or 0.0.0.0 or [::] for all")
    })
}

/// Whether this user may listen on the port, and it is free.
fn port(listen: SocketAddr) -> Result<(), Fault> {
    address(listen)?;
    reactor::net::may_listen(listen).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => {
            let fix =
                format!("choose a port from {PORT_FREE}, or give it the capability CAP_NET_BIND_SERVICE");
            Fault::new(format!("this user may not listen on port {}", listen.port()), fix)
        }
        ErrorKind::AddrInUse => Fault::new(
            format!("port {} is in use now, by a running daemon?", listen.port()),
            "unless that daemon uses this very file, choose another port, or stop the process that uses it (`ss -ltnp`)",
        ),
        _ => Fault::new(format!("cannot listen on {listen}: {error}"), "choose another address"),
    })
}

/// Whether there is an RDMA device for a portal that needs one.
fn devices(rdma: ByDevice) -> Result<(), Fault> {
    let takes_iwarp = match rdma {
        ByDevice::No => return Ok(()),
        ByDevice::Too => false,
        ByDevice::Only => true,
    };
    let fix = "`lunette rdma` lists the devices; without `rdma` iSER and SRP are served without one";
    let devices = rdma::verbs::survey().map_err(|error| Fault::new(error.to_string(), fix))?;
    let fits = |facts: &DeviceFacts| match facts.transport {
        Transport::InfiniBand => true,
        Transport::Iwarp => takes_iwarp,
        Transport::Other => false,
    };
    if devices.iter().flatten().any(fits) {
        return Ok(());
    }
    let what = match devices.iter().find_map(|device| device.as_ref().err()) {
        Some(unknown) => format!("RDMA device {}: {}", unknown.name, unknown.error),
        None => "no RDMA device of this machine can listen here".into(),
    };
    Err(Fault::new(what, fix))
}

fn interface(name: &str) -> Result<(), Fault> {
    let found = socket(AddressFamily::INET, SocketType::DGRAM, None)
        .and_then(|socket| netdevice::name_to_index(socket, name));
    found.map(|_| ()).map_err(|_| {
        Fault::new(format!("this machine has no network interface `{name}`"), "`ip link` lists them")
    })
}

/// A directory in which files are created.
fn directory(path: &Path) -> Result<(), Fault> {
    let shown = path.display();
    match path.metadata() {
        Err(error) => Err(Fault::new(format!("{shown}: {error}"), format!("create it: mkdir -p {shown}"))),
        Ok(metadata) if !metadata.is_dir() => {
            Err(Fault::new(format!("{shown} is not a directory"), "name another"))
        }
        Ok(_) => {
            let access = accessat(CWD, path, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
            access.map_err(|error| {
                let fix = format!("let this user write to {shown}, or name another directory");
                Fault::new(format!("{shown}: {error}"), fix)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv6Addr, SocketAddrV6};

    #[test]
    fn huge_pages_that_the_machine_does_not_give_are_missed() {
        assert!(huge_pages(Some("always [madvise] never\n")).is_ok());
        assert!(huge_pages(Some("[always] madvise never\n")).is_ok());
        let never = huge_pages(Some("always madvise [never]\n")).unwrap_err();
        assert!(never.fix.contains("echo madvise > /sys/kernel/mm"), "{}", never.fix);
        assert!(huge_pages(None).is_err());
    }

    /// The machine's link-local addresses, from its table (proc_net(5), if_inet6).
    #[test]
    fn a_link_local_address_with_its_scope_is_found() {
        const LINK: &str = "20";
        const TENTATIVE: u8 = 0x40;
        let table = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
        for line in table.lines() {
            let [ip, scope_id, _, scope, flags, _] = line.split_whitespace().collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            let ip = Ipv6Addr::from(u128::from_str_radix(ip, 16).unwrap());
            let scope_id = u32::from_str_radix(scope_id, 16).unwrap();
            if scope == LINK && u8::from_str_radix(flags, 16).unwrap() & TENTATIVE == 0 {
                let found = address(SocketAddrV6::new(ip, 3260, 0, scope_id).into());
                assert!(found.is_ok(), "{line}");
            }
        }
    }
}
