//! Running other programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What went wrong, for a person.
pub(crate) type Result<T = ()> = std::result::Result<T, String>;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_path_buf()
}

/// What cargo has built there.
pub(crate) fn built(path: impl AsRef<Path>) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    target.join(path)
}

/// The profile that `cargo xtask test` builds tests by.
pub(crate) const TESTS: &str = "tests";
/// The profile that README's first command builds by.
pub(crate) const RELEASE: &str = "release";
/// The profile of what is packaged and measured.
pub(crate) const DIST: &str = "dist";

/// The daemon and all else that the command line does, as it was built by a profile.
pub(crate) fn lunette(profile: &str) -> PathBuf {
    built_by(profile, "lunette")
}

/// A program as it was built by a profile.
pub(crate) fn built_by(profile: &str, program: &str) -> PathBuf {
    let folder = if profile == "dev" { "debug" } else { profile };
    built(folder).join(program)
}

/// Builds it.
pub(crate) fn build_lunette(profile: &str) -> Result {
    succeed(cargo().args(["build", "--locked", "--package", "lunette", "--profile", profile]))
}

/// The cargo that runs us, started in the repository's root.
pub(crate) fn cargo() -> Command {
    command(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
}

/// `cargo test` for all that the profile of tests builds: clippy compiles the crates of this workspace, so that they are linted and
/// built at once.
pub(crate) fn cargo_test() -> Command {
    let mut cargo = cargo();
    cargo.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver").args(["test", "--locked", "--profile", TESTS]);
    cargo
}

/// A program that is started in the repository's root and gets no input.
pub(crate) fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// Runs a command to its end; anything but success is an error.
pub(crate) fn succeed(command: &mut Command) -> Result {
    let line = describe(command);
    let status = command.status().map_err(|error| format!("cannot run `{line}`: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{line}` failed: {status}")) }
}

/// Runs a command to its end and returns what it printed.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let line = describe(command);
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|error| format!("cannot run `{line}`: {error}"))?;
    if !output.status.success() {
        return Err(format!("`{line}` failed: {}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("`{line}` printed no UTF-8"))
}

/// Whether a program can be found, also where only an administrator's PATH leads.
pub(crate) fn exists(program: &str) -> bool {
    find(program).is_some()
}

/// An administrator's program, which also others may run.
pub(crate) fn administration(program: &str) -> Command {
    find(program).map_or_else(|| command(program), command)
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

/// The command as it would be typed, without its environment.
pub(crate) fn describe(command: &Command) -> String {
    let mut line = Path::new(command.get_program())
        .file_name()
        .unwrap_or(command.get_program())
        .to_string_lossy()
        .into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}
