//! The guest's root: busybox, a few programs with their libraries, and the modules that scenarios load.

use super::packages::Unpacked;
use crate::command::{Result, administration, command, output, succeed};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// The modules, to which their dependencies are added; those for CRC32C are requested by algorithm, which
/// appears in no dependency.
const MODULES: [&str; 21] = [
    "virtio_pci",
    "virtio_net",
    "sd_mod",
    "ext4",
    "iscsi_tcp",
    "siw",
    "rdma_rxe",
    "rdma_ucm",
    "ib_iser",
    "ib_srp",
    "dm_multipath",
    "dm_round_robin",
    "dm_service_time",
    "scsi_dh_alua",
    "tcp_diag",
    "aoe",
    "crc32_generic",
    "crc32-pclmul",
    "crc32c_generic",
    "crc32c-intel",
    "crct10dif_pclmul",
];

/// Programs that need libraries: their paths in the packages and in the guest.
const PROGRAMS: [(&str, &str); 19] = [
    ("bin/kmod", "sbin/modprobe"),
    ("sbin/iscsid", "sbin/iscsid"),
    ("sbin/iscsiadm", "sbin/iscsiadm"),
    ("sbin/mke2fs", "sbin/mkfs.ext4"),
    ("sbin/e2fsck", "sbin/fsck.ext4"),
    ("usr/bin/rdma", "sbin/rdma"),
    ("bin/ss", "sbin/ss"),
    ("sbin/dmsetup", "sbin/dmsetup"),
    ("sbin/multipath", "sbin/multipath"),
    ("sbin/multipathd", "sbin/multipathd"),
    ("usr/bin/fio", "sbin/fio"),
    ("sbin/hdparm", "sbin/hdparm"),
    ("usr/sbin/smartctl", "sbin/smartctl"),
    ("usr/bin/sg_logs", "sbin/sg_logs"),
    ("usr/bin/sg_modes", "sbin/sg_modes"),
    ("usr/bin/sg_persist", "sbin/sg_persist"),
    ("usr/bin/sg_rtpg", "sbin/sg_rtpg"),
    ("usr/bin/sg_stpg", "sbin/sg_stpg"),
    ("usr/bin/sg_turs", "sbin/sg_turs"),
];

/// The dynamic loader for those libraries.
const LOADER: (&str, &str) = ("lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "lib64/ld-linux-x86-64.so.2");

/// Other files.
const FILES: [(&str, &str); 8] = [
    ("bin/busybox", "bin/busybox"),
    ("etc/iscsi/iscsid.conf", "etc/iscsi/iscsid.conf"),
    ("etc/mke2fs.conf", "etc/mke2fs.conf"),
    ("etc/libibverbs.d/rxe.driver", "etc/libibverbs.d/rxe.driver"),
    ("etc/libibverbs.d/siw.driver", "etc/libibverbs.d/siw.driver"),
    ("lib/multipath/libprioconst.so", "lib/multipath/libprioconst.so"),
    ("lib/multipath/libprioalua.so", "lib/multipath/libprioalua.so"),
    ("lib/multipath/libchecktur.so", "lib/multipath/libchecktur.so"),
];

/// Libraries that are loaded by name, or by something outside the packages.
const LOADED: [&str; 4] = ["libibverbs.so.1", "librdmacm.so.1", "libgcc_s.so.1", "libm.so.6"];

/// Where libibverbs looks for its providers.
const PROVIDERS: &str = "usr/lib/x86_64-linux-gnu/libibverbs";

/// Library directories in the packages; in the guest all libraries are in the first.
const LIBRARIES: [&str; 4] =
    ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/ceph", "lib"];

/// Mount points, and directories written while the guest runs.
const DIRECTORIES: [&str; 9] = [
    "proc",
    "sys",
    "dev",
    "tmp",
    "mnt",
    "run/lock/iscsi",
    "etc/iscsi/nodes",
    "etc/iscsi/send_targets",
    "etc/iscsi/ifaces",
];

/// Everything that determines what is made from the packages.
pub(super) fn recipe() -> String {
    format!("{MODULES:?}\n{PROGRAMS:?}\n{LOADED:?}\n{FILES:?}\n{DIRECTORIES:?}\n")
}

/// Assembles the root in a directory, and makes an archive of it.
pub(super) fn make(unpacked: &Unpacked, root: &Path, archive: &Path) -> Result {
    let fault = |error: io::Error| format!("{}: {error}", root.display());
    for directory in DIRECTORIES {
        fs::create_dir_all(root.join(directory)).map_err(fault)?;
    }
    for (from, to) in PROGRAMS.into_iter().chain([LOADER]).chain(FILES) {
        copy(&unpacked.programs.join(from), &root.join(to))?;
    }
    for (program, _) in PROGRAMS {
        for (library, path) in libraries(&unpacked.programs, program)? {
            copy(&path, &root.join(LIBRARIES[0]).join(library))?;
        }
    }
    loaded(&unpacked.programs, root)?;
    modules(unpacked, root)?;
    super::archive(root, File::create(archive).map_err(fault)?)
}

/// Copies libraries that are loaded by name with their dependencies, and the providers for software devices.
fn loaded(programs: &Path, root: &Path) -> Result {
    for name in LOADED {
        let found = LIBRARIES.into_iter().map(|directory| format!("{directory}/{name}"));
        let path = found.into_iter().find(|path| programs.join(path).is_file());
        let path = path.ok_or_else(|| format!("{name} is in none of the packages"))?;
        copy(&programs.join(&path), &root.join(LIBRARIES[0]).join(name))?;
        for (library, path) in libraries(programs, &path)? {
            copy(&path, &root.join(LIBRARIES[0]).join(library))?;
        }
    }
    let directory = programs.join(PROVIDERS);
    let fault = |error: io::Error| format!("{}: {error}", directory.display());
    for entry in fs::read_dir(&directory).map_err(fault)? {
        let path = entry.map_err(fault)?.path();
        let name = path.file_name().unwrap_or_default();
        // Their names end with the version of their interface with the library.
        let is_wanted =
            name.to_str().is_some_and(|name| name.starts_with("librxe-") || name.starts_with("libsiw-"));
        if is_wanted {
            copy(&path, &root.join(PROVIDERS).join(name))?;
        }
    }
    Ok(())
}

/// Copies the modules, and lists them for modprobe.
fn modules(unpacked: &Unpacked, root: &Path) -> Result {
    let all = &unpacked.kernel;
    succeed(administration("depmod").arg("--basedir").arg(all).arg(&unpacked.release))?;
    let mut paths = BTreeSet::new();
    for module in MODULES {
        let mut modprobe = administration("modprobe");
        modprobe
            .args(["--set-version", &unpacked.release, "--show-depends", module])
            .arg("--dirname")
            .arg(all);
        // Other lines list modules built into the kernel.
        paths.extend(
            output(&mut modprobe)?.lines().filter_map(|line| line.strip_prefix("insmod ")).map(module_path),
        );
    }
    let list = |name: &str| Path::new("lib/modules").join(&unpacked.release).join(name);
    let lists =
        ["modules.builtin", "modules.builtin.modinfo", "modules.order"].map(|name| all.join(list(name)));
    for path in paths.iter().chain(&lists) {
        let name =
            path.strip_prefix(all).map_err(|_| format!("{}: not below {}", path.display(), all.display()))?;
        copy(path, &root.join(name))?;
    }
    succeed(administration("depmod").arg("--basedir").arg(root).arg(&unpacked.release))
}

/// What follows `insmod`: the file, and possibly options.
fn module_path(line: &str) -> PathBuf {
    line.split(' ').next().unwrap_or_default().into()
}

/// A program's libraries, as found by the packages' own loader.
fn libraries(programs: &Path, program: &str) -> Result<Vec<(String, PathBuf)>> {
    let places = LIBRARIES.map(|directory| programs.join(directory).display().to_string());
    let mut loader = command(programs.join(LOADER.0));
    loader.args(["--library-path", &places.join(":"), "--list"]).arg(programs.join(program));
    let list = output(&mut loader)?;
    // The loader itself, listed by its path, and what the kernel provides need not be found.
    let named = list.lines().filter_map(|line| line.trim().split_once(" => "));
    named
        .filter(|(name, _)| !name.starts_with('/'))
        .map(|(name, place)| {
            let path = PathBuf::from(place.split(" (").next().unwrap_or_default());
            if path.starts_with(programs) {
                Ok((name.to_owned(), path))
            } else {
                Err(format!("{program} needs {name}, which is in none of the packages"))
            }
        })
        .collect()
}

fn copy(from: &Path, to: &Path) -> Result {
    let made = to.parent().map_or(Ok(()), fs::create_dir_all);
    let copied = made.and_then(|()| fs::copy(from, to));
    copied.map(drop).map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
}
