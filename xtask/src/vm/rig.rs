//! The virtual machine's kernel and root. Both are made from Debian packages, and cached until a package
//! changes.

mod kernel;
mod packages;
mod root;

use super::{directory, remove};
use crate::command::{Result, describe};
use crate::packages::with_lists;
use packages::Packages;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The guest's directory of programs.
pub(super) const PROGRAMS_DIRECTORY: &str = "sbin";

/// The kernel, uncompressed: an emulated machine would take seconds to unpack it.
pub(super) fn vmlinux() -> PathBuf {
    directory().join("vmlinux")
}

/// The root file system, as an archive.
pub(super) fn root_archive() -> PathBuf {
    directory().join("root.cpio")
}

/// Makes kernel and root, unless they exist and are up to date.
pub(super) fn ensure() -> Result {
    let stamp = directory().join("recipe");
    let last = fs::read_to_string(&stamp).unwrap_or_default();
    let chosen = with_lists(Packages::choose);
    let chosen = chosen.map_err(|reason| {
        format!(
            "{reason}\n(the virtual machine is made of Debian 12's packages, which apt has to be able to get)"
        )
    })?;
    if last == recipe(&chosen) {
        return Ok(());
    }
    println!("making the virtual machine, kept in {}", directory().display());
    let build = directory().join("build");
    let fault = |error: io::Error| format!("{}: {error}", directory().display());
    for path in [&build, &stamp] {
        remove(path).map_err(fault)?;
    }
    // A file that is no longer available is downloaded in the version of the new lists.
    let packages_directory = directory().join("packages");
    let packages = with_lists(|| {
        let packages = Packages::choose()?;
        packages.download(&packages_directory).map(|()| packages)
    })?;
    let unpacked = packages.unpack(&packages_directory, &build)?;
    kernel::uncompress(&unpacked, &vmlinux())?;
    kernel::build_siw(&unpacked)?;
    root::make(&unpacked, &build.join("root"), &root_archive())?;
    remove(&build).map_err(fault)?;
    fs::write(&stamp, recipe(&packages)).map_err(fault)
}

/// Everything that the result depends on.
fn recipe(packages: &Packages) -> String {
    packages.files().join("\n") + "\n" + &root::recipe()
}

/// Writes the content of a directory to an archive in the kernel's format.
pub(super) fn archive(directory: &Path, to: File) -> Result {
    let fault = |error: io::Error| format!("{}: {error}", directory.display());
    let mut find = Command::new("find");
    find.arg(".").current_dir(directory).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut find = find.spawn().map_err(fault)?;
    let mut cpio = Command::new("cpio");
    cpio.args(["--create", "--format=newc", "--owner=0:0", "--quiet"]).current_dir(directory).stdout(to);
    let line = describe(&cpio);
    let status = cpio.stdin(find.stdout.take().map_or_else(Stdio::null, Stdio::from)).status();
    let found = find.wait().map_err(fault)?;
    let status = status.map_err(|error| format!("cannot run `{line}`: {error}"))?;
    if found.success() && status.success() { Ok(()) } else { Err(format!("`{line}` failed: {status}")) }
}

/// Writes an executable file.
pub(super) fn write_executable(path: &Path, text: &str) -> io::Result<()> {
    let file = File::options().write(true).create(true).truncate(true).mode(0o755).open(path);
    file.and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()))
}
