//! The Debian packages that tests need: initiators, file system tools, a browser and an emulator.

use crate::command::{Result, command, exists, succeed};
use std::process::Stdio;

/// A package, and one of its programs, by which it is recognised if there is no dpkg.
struct Package {
    name: &'static str,
    program: Option<&'static str>,
}

const PACKAGES: [Package; 25] = [
    Package { name: "libiscsi-bin", program: Some("iscsi-test-cu") },
    Package { name: "qemu-utils", program: Some("qemu-img") },
    Package { name: "qemu-block-extra", program: None },
    Package { name: "qemu-system-common", program: Some("qemu-storage-daemon") },
    Package { name: "nbdkit", program: Some("nbdkit") },
    Package { name: "e2fsprogs", program: Some("mke2fs") },
    Package { name: "mount", program: Some("losetup") },
    Package { name: "procps", program: Some("kill") },
    Package { name: "curl", program: Some("curl") },
    Package { name: "coreutils", program: Some("stdbuf") },
    Package { name: "g++", program: Some("c++") },
    Package { name: "valgrind", program: Some("callgrind_control") },
    Package { name: "chromium", program: Some("chromium") },
    Package { name: "fonts-dejavu-core", program: None },
    Package { name: "prometheus", program: Some("promtool") },
    Package { name: "tgt", program: Some("tgtd") },
    Package { name: "vblade", program: Some("vblade") },
    Package { name: "aoetools", program: Some("aoeping") },
    Package { name: "iproute2", program: Some("tc") },
    Package { name: "util-linux", program: Some("nsenter") },
    Package { name: "bsdutils", program: Some("script") },
    Package { name: "ceph-mon", program: Some("ceph-mon") },
    Package { name: "ceph-osd", program: Some("ceph-osd") },
    Package { name: "ceph-common", program: Some("rbd") },
    Package { name: "librbd1", program: None },
];

/// Needed only by `cargo xtask bench`.
const FIO: Package = Package { name: "fio", program: Some("fio") };

/// Needed only by `cargo xtask vm`. The compiler is the one with which Debian 12's kernel was built.
const VM: [Package; 15] = [
    Package { name: "qemu-system-x86", program: Some("qemu-system-x86_64") },
    Package { name: "cpio", program: Some("cpio") },
    Package { name: "kmod", program: Some("modprobe") },
    Package { name: "gcc-12", program: Some("gcc-12") },
    Package { name: "make", program: Some("make") },
    Package { name: "libelf1", program: None },
    Package { name: "binutils", program: Some("strip") },
    Package { name: "xz-utils", program: Some("xz") },
    Package { name: "iproute2", program: Some("ip") },
    Package { name: "util-linux", program: Some("unshare") },
    Package { name: "procps", program: Some("kill") },
    Package { name: "ceph-mon", program: Some("ceph-mon") },
    Package { name: "ceph-osd", program: Some("ceph-osd") },
    Package { name: "ceph-common", program: Some("rbd") },
    Package { name: "librbd1", program: None },
];

/// Needed only by `cargo xtask package`.
const PACKAGE: [Package; 3] = [
    Package { name: "mmdebstrap", program: Some("mmdebstrap") },
    Package { name: "systemd-container", program: Some("systemd-nspawn") },
    Package { name: "util-linux", program: Some("unshare") },
];

/// Ensures that all packages are installed: installs them as root, otherwise names the missing ones.
pub(crate) fn ensure() -> Result {
    ensure_all(&PACKAGES).and_then(|()| ensure_identity())
}

/// The same for measurements.
pub(crate) fn ensure_for_bench() -> Result {
    ensure().and_then(|()| ensure_all(&[FIO]))
}

/// The same for the virtual machine.
pub(crate) fn ensure_for_vm() -> Result {
    ensure_all(&VM).and_then(|()| ensure_identity())
}

/// The same for the test of the package.
pub(crate) fn ensure_for_package() -> Result {
    ensure_all(&PACKAGE)
}

/// Ensures that the machine has an identity, without which the daemon serves no file without `serial=`.
/// Debian's container images have none.
fn ensure_identity() -> Result {
    const PATH: &str = "/etc/machine-id";
    let id = std::fs::read_to_string(PATH).unwrap_or_default();
    if !matches!(id.trim(), "" | "uninitialized") {
        return Ok(());
    }
    if !is_root() {
        return Err(format!("{PATH} has no identity (as root: systemd-machine-id-setup)"));
    }
    println!("making {PATH}");
    let fault = |error: std::io::Error| format!("{PATH}: {error}");
    let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid").map_err(fault)?;
    std::fs::write(PATH, random.replace('-', "")).map_err(fault)
}

/// Runs something that needs apt's package lists; if that fails, retries with updated lists, which only root
/// can fetch.
pub(crate) fn with_lists<T>(act: impl Fn() -> Result<T>) -> Result<T> {
    act().or_else(|reason| {
        if !is_root() {
            return Err(format!("{reason} (as root: apt-get update)"));
        }
        succeed(command("apt-get").arg("update"))?;
        act()
    })
}

fn ensure_all(packages: &[Package]) -> Result {
    let missing = missing(packages);
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    if !is_root() || !exists("apt-get") {
        return Err(format!("these Debian packages are needed: {names} (as root: apt-get install {names})"));
    }
    println!("installing {names}");
    with_lists(|| install(&missing))
}

fn missing(packages: &[Package]) -> Vec<&'static str> {
    let by_dpkg = exists("dpkg-query");
    packages
        .iter()
        .filter(
            |package| if by_dpkg { !is_installed(package.name) } else { !package.program.is_none_or(exists) },
        )
        .map(|package| package.name)
        .collect()
}

fn is_installed(package: &str) -> bool {
    command("dpkg-query")
        .args(["-W", "-f", "${db:Status-Status}", package])
        .stderr(Stdio::null())
        .output()
        .is_ok_and(|output| output.stdout == b"installed")
}

/// Whether we run as root.
pub(crate) fn is_root() -> bool {
    command("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

fn install(packages: &[&str]) -> Result {
    succeed(
        command("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["install", "--yes", "--no-install-recommends"])
            .args(packages),
    )
}
