//! Runs other programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The error is a message for a person.
pub(crate) type Result<T = ()> = std::result::Result<T, String>;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_path_buf()
}

/// A path in cargo's build directory.
pub(crate) fn built(path: impl AsRef<Path>) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    target.join(path)
}

/// The profile of the tests in `cargo xtask test`.
pub(crate) const TESTS: &str = "tests";
/// The profile of README's first command.
pub(crate) const RELEASE: &str = "release";
/// The profile for packages and measurements.
pub(crate) const DIST: &str = "dist";

/// The `lunette` program, as built with a profile.
pub(crate) fn lunette(profile: &str) -> PathBuf {
    built_by(profile, "lunette")
}

/// A program, as built with a profile.
pub(crate) fn built_by(profile: &str, program: &str) -> PathBuf {
    let directory = if profile == "dev" { "debug" } else { profile };
    built(directory).join(program)
}

/// Builds it.
pub(crate) fn build_lunette(profile: &str) -> Result {
    succeed(cargo().args(["build", "--locked", "--package", "lunette", "--profile", profile]))
}

/// The cargo that runs us, started in the repository's root.
pub(crate) fn cargo() -> Command {
    command(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
}

/// `cargo test` for everything built with the profile of tests: clippy compiles this workspace's crates, so
/// that they are linted and built in one go.
pub(crate) fn cargo_test() -> Command {
    let mut cargo = cargo();
    cargo.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver").args(["test", "--locked", "--profile", TESTS]);
    cargo
}

/// A program run in the repository's root, without input.
pub(crate) fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// Runs a command until it exits; anything but success is an error.
pub(crate) fn succeed(command: &mut Command) -> Result {
    let line = describe(command);
    let status = command.status().map_err(|error| format!("cannot run `{line}`: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{line}` failed: {status}")) }
}

/// Runs a command until it exits, and returns its output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let line = describe(command);
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|error| format!("cannot run `{line}`: {error}"))?;
    if !output.status.success() {
        return Err(format!("`{line}` failed: {}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("`{line}` printed no UTF-8"))
}

/// Whether a program can be found, including in an administrator's PATH.
pub(crate) fn exists(program: &str) -> bool {
    find(program).is_some()
}

/// An administrator's program that others may run too.
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
