//! Programs from Debian packages: installed on the machine, or unpacked just for this report.

use crate::directory::Directory;
use rustix::process::geteuid;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Directories of administrators' programs, which are not in a user's PATH.
const ADMINISTRATORS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Where to look for programs.
#[derive(Clone, Debug)]
pub struct Tools {
    places: Vec<PathBuf>,
    /// Library directories of unpacked packages.
    libraries: Vec<PathBuf>,
}

impl Tools {
    /// Those of the machine.
    pub fn here() -> Tools {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places = std::env::split_paths(&path).chain(ADMINISTRATORS.map(PathBuf::from)).collect();
        Tools { places, libraries: Vec::new() }
    }

    /// A command that finds these programs, as do its child processes.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("PATH", joined(&self.places)).stdin(Stdio::null());
        if !self.libraries.is_empty() {
            command.env("LD_LIBRARY_PATH", joined(&self.libraries));
        }
        command
    }

    /// Runs a command until it exits, and returns its output. Ctrl-C does not reach it, so that nothing is
    /// left half made or half removed.
    pub fn run(&self, line: &[&str]) -> Result<String, String> {
        let (program, arguments) = line.split_first().ok_or("there is no command")?;
        output(self.command(Path::new(program)).args(arguments).process_group(0))
    }

    fn has(&self, program: &str) -> bool {
        self.places.iter().any(|place| place.join(program).is_file())
    }
}

/// Unpacked packages, removed when this is dropped.
///
/// They are not installed: installing tgt would start a service that listens on every address, now or at the
/// next boot.
#[derive(Debug)]
pub struct Packages {
    /// The report's directory.
    directory: PathBuf,
    /// One for each package that had to be unpacked.
    unpacked: Vec<Directory>,
    tools: Tools,
}

impl Packages {
    /// Packages are unpacked into new directories inside this one.
    pub fn new(directory: &Path) -> Packages {
        // Programs may be started from another directory.
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.into());
        Packages { directory, unpacked: Vec::new(), tools: Tools::here() }
    }

    /// Where to look for programs now.
    pub fn tools(&self) -> &Tools {
        &self.tools
    }

    /// Ensures that the programs of a package are available.
    pub fn need(&mut self, package: &str, programs: &[&str]) -> Result<(), String> {
        let Some(missing) = programs.iter().find(|program| !self.tools.has(program)) else { return Ok(()) };
        let remedy = format!("install the Debian package {package} (as root: apt-get install {package})");
        if !geteuid().is_root() || !self.tools.has("apt-get") {
            return Err(format!("{missing} is missing; {remedy}"));
        }
        let fault =
            |error| format!("{missing} is missing, and {package} cannot be downloaded ({error}); {remedy}");
        self.unpack(package).map_err(fault)
    }

    /// Downloads a package with all its dependencies that are not installed.
    fn unpack(&mut self, package: &str) -> Result<(), String> {
        let directory = Directory::make(&self.directory, "packages")?;
        let (archives, root) = (directory.path().join("archives"), directory.path().join("root"));
        self.unpacked.push(directory);
        fs::create_dir_all(archives.join("partial")).map_err(|error| error.to_string())?;
        let cache = format!("Dir::Cache::archives={}", archives.display());
        let fetch = ["apt-get", "--yes", "-qq", "--no-install-recommends", "--download-only", "-o", &cache];
        let fetch = [&fetch[..], &["install", package]].concat();
        if self.tools.run(&fetch).is_err() {
            self.tools.run(&["apt-get", "-qq", "update"])?;
            self.tools.run(&fetch)?;
        }
        for archive in entries(&archives).filter(|path| path.extension().is_some_and(|end| end == "deb")) {
            let mut extract = self.tools.command(Path::new("dpkg-deb"));
            output(extract.arg("--extract").arg(archive).arg(&root))?;
        }
        let programs = ["usr/sbin", "usr/bin", "sbin", "bin"].map(|place| root.join(place));
        self.tools.places.extend(programs);
        let libraries = ["usr/lib", "lib"].map(|place| root.join(place));
        self.tools
            .libraries
            .extend(libraries.iter().flat_map(|place| entries(place)).filter(|path| path.is_dir()));
        Ok(())
    }
}

fn joined(places: &[PathBuf]) -> OsString {
    std::env::join_paths(places).unwrap_or_default()
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}

fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().display().to_string();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let arguments: Vec<String> = command.get_args().map(|word| word.display().to_string()).collect();
    Err(format!("{program} {}: {} ({})", arguments.join(" "), text(&output.stderr), output.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_not_fetched() {
        let directory = tempfile::tempdir().unwrap();
        let mut packages = Packages::new(directory.path());
        packages.need("coreutils", &["sleep", "timeout"]).unwrap();
        assert!(packages.unpacked.is_empty());
    }

    #[test]
    fn a_package_that_cannot_be_had_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let mut packages = Packages::new(directory.path());
        // Without apt-get, as every caller sees it.
        packages.tools.places = vec![directory.path().into()];
        let fault = packages.need("tgt", &["tgtd"]).unwrap_err();
        assert_eq!(fault, "tgtd is missing; install the Debian package tgt (as root: apt-get install tgt)");
    }

    #[test]
    fn only_what_was_made_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (archive, theirs) = (directory.path().join("packages"), directory.path().join("packages/keep"));
        fs::create_dir(&archive).and_then(|()| fs::write(&theirs, "theirs")).unwrap();
        let mut packages = Packages::new(directory.path());
        packages.tools.places = vec![directory.path().into()];
        // Without apt-get nothing is downloaded, but the directory for it is created.
        assert!(packages.unpack("tgt").is_err());
        assert_eq!(entries(directory.path()).count(), 2);
        drop(packages);
        assert!(theirs.exists() && entries(directory.path()).count() == 1);
    }

    #[test]
    fn a_command_that_fails_is_reported_with_its_output() {
        let tools = Tools::here();
        assert_eq!(tools.run(&["printf", "a b\n"]).unwrap(), "a b");
        let fault = tools.run(&["cat", "/nothing/there"]).unwrap_err();
        assert!(fault.contains("cat /nothing/there") && fault.contains("No such file"), "{fault}");
        assert!(tools.run(&["no-such-program"]).unwrap_err().starts_with("no-such-program: "));
    }
}
