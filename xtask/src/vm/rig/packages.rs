//! The Debian packages that the virtual machine is made of: choosing and downloading them.

use crate::command::{Result, command, output, succeed};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Packages with the guest's programs; the libraries that these need are found through dependencies.
const PROGRAMS: [&str; 14] = [
    "busybox-static",
    "kmod",
    "open-iscsi",
    "e2fsprogs",
    "iproute2",
    "dmsetup",
    "multipath-tools",
    "fio",
    "hdparm",
    "smartmontools",
    "sg3-utils",
    "libibverbs1",
    "librdmacm1",
    "ibverbs-providers",
];
/// The packages that depend on the newest kernel, and on what modules are built with.
const KERNEL: [&str; 2] = ["linux-image-amd64", "linux-headers-amd64"];
/// The kernel series whose siw is built.
const SERIES: &str = "6.1";

/// The packages, as chosen by apt.
pub(super) struct Packages {
    release: String,
    files: Vec<PackageFile>,
}

struct PackageFile {
    name: String,
    bytes: u64,
}

/// Directories of unpacked packages.
pub(super) struct Unpacked {
    /// As printed by `uname -r` in the guest.
    pub(super) release: String,
    /// The kernel and its modules.
    pub(super) kernel: PathBuf,
    /// For building modules.
    pub(super) headers: PathBuf,
    /// The kernel's sources, in an archive.
    pub(super) source: PathBuf,
    /// Programs and libraries.
    pub(super) programs: PathBuf,
}

impl Packages {
    /// The newest packages in apt's lists.
    pub(super) fn choose() -> Result<Self> {
        let graph = depends(&apt_cache_depends()?);
        let image = format!("linux-image-{SERIES}.");
        let image = graph.get(KERNEL[0]).into_iter().flatten().find(|name| name.starts_with(&image));
        let image = image.ok_or_else(|| format!("no Debian kernel {SERIES}: this needs Debian 12"))?;
        let release = image.trim_start_matches("linux-image-").to_owned();
        let headers = format!("linux-headers-{release}");
        let mut names = vec![image.clone(), format!("linux-source-{SERIES}")];
        names.extend(with_dependencies(&graph, &[headers.as_str()], &["linux-"]));
        names.extend(with_dependencies(&graph, &PROGRAMS, &["lib", "zlib"]));
        let uris = output(command("apt-get").args(["download", "--print-uris"]).args(&names))?;
        let files: Vec<PackageFile> = uris.lines().filter_map(PackageFile::parse).collect();
        if files.len() < names.len() {
            return Err(format!("apt-get has not all of these packages: {}", names.join(" ")));
        }
        Ok(Self { release, files })
    }

    /// The names of their files, which include versions.
    pub(super) fn files(&self) -> Vec<&str> {
        self.files.iter().map(|file| file.name.as_str()).collect()
    }

    /// Downloads missing files into a directory, and removes outdated ones.
    pub(super) fn download(&self, directory: &Path) -> Result {
        let fault = |error: io::Error| format!("{}: {error}", directory.display());
        fs::create_dir_all(directory).map_err(fault)?;
        for entry in fs::read_dir(directory).map_err(fault)? {
            let entry = entry.map_err(fault)?;
            let name = entry.file_name();
            if !self.files.iter().any(|file| name == file.name.as_str()) {
                fs::remove_file(entry.path()).map_err(fault)?;
            }
        }
        let is_missing = |file: &&PackageFile| {
            fs::metadata(directory.join(&file.name)).map_or(true, |metadata| metadata.len() != file.bytes)
        };
        let missing: Vec<&PackageFile> = self.files.iter().filter(is_missing).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let bytes: u64 = missing.iter().map(|file| file.bytes).sum();
        println!("fetching {} packages, {} MB", missing.len(), bytes / 1_000_000);
        let names = missing.iter().map(|file| file.package());
        let mut apt = command("apt-get");
        // The other user, as whom apt downloads for safety, cannot write here.
        apt.args(["download", "--quiet=2", "-o", "APT::Sandbox::User=root"]).args(names);
        succeed(apt.current_dir(directory))
    }

    /// Unpacks the downloaded files, each kind into its own directory.
    pub(super) fn unpack(&self, from: &Path, below: &Path) -> Result<Unpacked> {
        let unpacked = Unpacked {
            release: self.release.clone(),
            kernel: below.join("kernel"),
            headers: below.join("headers"),
            source: below.join("source"),
            programs: below.join("programs"),
        };
        for file in &self.files {
            let to = match file.package() {
                name if name.starts_with("linux-image-") => &unpacked.kernel,
                name if name.starts_with("linux-source-") => &unpacked.source,
                name if name.starts_with("linux-") => &unpacked.headers,
                _ => &unpacked.programs,
            };
            fs::create_dir_all(to).map_err(|error| format!("{}: {error}", to.display()))?;
            succeed(command("dpkg-deb").arg("--extract").arg(from.join(&file.name)).arg(to))?;
        }
        Ok(unpacked)
    }
}

impl PackageFile {
    /// Parses a line `'URI' FILE BYTES HASH`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace().skip(1);
        Some(Self { name: words.next()?.to_owned(), bytes: words.next()?.parse().ok()? })
    }

    fn package(&self) -> &str {
        self.name.split('_').next().unwrap_or_default()
    }
}

fn apt_cache_depends() -> Result<String> {
    let without = ["recommends", "suggests", "conflicts", "breaks", "replaces", "enhances"];
    let mut depends = command("apt-cache");
    depends.args(["depends", "--recurse"]).args(without.map(|kind| format!("--no-{kind}")));
    output(depends.args(KERNEL).args(PROGRAMS))
}

/// The dependencies of each package.
type Graph = BTreeMap<String, Vec<String>>;

/// Parses lines `PACKAGE`, each followed by `  Depends: PACKAGE`; one with alternatives begins with `|`.
fn depends(text: &str) -> Graph {
    let mut graph = Graph::new();
    let mut package = String::new();
    for line in text.lines() {
        if !line.starts_with([' ', '|']) {
            package = line.to_owned();
            graph.entry(package.clone()).or_default();
        } else if let Some((kind, name)) = line.trim_start_matches([' ', '|']).split_once(": ")
            && matches!(kind, "Depends" | "PreDepends")
        {
            graph.entry(package.clone()).or_default().push(name.to_owned());
        }
    }
    graph
}

/// The given packages, and their dependencies with these prefixes.
fn with_dependencies(graph: &Graph, packages: &[&str], prefixes: &[&str]) -> Vec<String> {
    let mut names: Vec<String> = packages.iter().map(ToString::to_string).collect();
    let mut next = 0;
    while let Some(name) = names.get(next) {
        let needed = graph.get(name).into_iter().flatten();
        let wanted = |name: &&String| prefixes.iter().any(|prefix| name.starts_with(prefix));
        // A package may occur twice, with a minimum and a maximum version.
        for name in needed.filter(wanted) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        next += 1;
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPENDS: &str = "\
fio
  Depends: libaio1
  Depends: libaio1
 |Depends: libnuma1
  Depends: <virtual>
    libnuma1
  Depends: python3
  PreDepends: zlib1g
libaio1
  Depends: libc6
libc6
  Depends: libaio1
python3
  Depends: libpython3
";

    #[test]
    fn libraries_of_libraries_are_found_once_and_other_packages_are_left() {
        let graph = depends(DEPENDS);
        let names = with_dependencies(&graph, &["fio"], &["lib", "zlib"]);
        assert_eq!(names, ["fio", "libaio1", "libnuma1", "zlib1g", "libc6"]);
        assert_eq!(with_dependencies(&graph, &["unknown"], &["lib"]), ["unknown"]);
    }

    #[test]
    fn a_package_s_file_says_its_version() {
        let line = "'http://deb.example.org/b/busybox_1%3a1.35-4_amd64.deb' busybox_1%3a1.35-4_amd64.deb 928188 SHA256:00";
        let file = PackageFile::parse(line).expect("a file");
        assert_eq!((file.name.as_str(), file.bytes), ("busybox_1%3a1.35-4_amd64.deb", 928_188));
        assert_eq!(file.package(), "busybox");
        assert!(PackageFile::parse("").is_none());
    }
}
