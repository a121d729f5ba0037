//! `cargo xtask package`: tests the Debian package in a fresh Debian 12 booted by systemd, from installation
//! to purge.

use crate::command::{Result, command, root, succeed};
use crate::{deb, packages};
use std::fs;

/// Builds the package, and a newer one to upgrade to, and tests all operations on it.
pub(crate) fn run(options: &deb::Options) -> Result {
    if !packages::is_root() {
        return Err("cargo xtask package needs root, as mounts and namespaces do".into());
    }
    deb::build(options)?;
    let version = deb::version()?;
    let fault = |error: std::io::Error| format!("target/package: {error}");
    let debs = deb::place("debs");
    fs::create_dir_all(&debs).map_err(fault)?;
    let first = deb::pack(options, &version, "target/package/debs")?;
    let next = deb::pack(options, &format!("{version}+next"), "target/package/debs")?;
    let debian = deb::place("bookworm.tar");
    if !debian.exists() {
        make_debian(&debian)?;
    }
    let namespaces = ["--mount-proc", "--net", "--ipc", "--uts", "--fork", "--kill-child", "--pid"];
    let script = root().join("xtask/package/test.sh");
    succeed(command("unshare").args(namespaces).arg("bash").arg(script).arg(debian).args([first, next]))
}

/// What Debian's root contains beyond the minimal system: systemd, which the unit is for, and readers of
/// manual pages.
const INCLUDED: &str = "--include=adduser,dbus,iproute2,man-db,mandoc,procps,systemd,systemd-sysv";

fn make_debian(archive: &std::path::Path) -> Result {
    let beside = archive.with_extension("new");
    let _ = fs::remove_file(&beside);
    let arguments = ["--variant=apt", "--format=tar", INCLUDED, "bookworm"];
    succeed(command("mmdebstrap").args(arguments).arg(&beside))?;
    fs::rename(&beside, archive).map_err(|error| format!("{}: {error}", archive.display()))
}
