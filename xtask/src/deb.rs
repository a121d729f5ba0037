//! `cargo xtask deb`: the Debian package. `crates/lunette/Cargo.toml` lists its files; the manual pages and
//! completions are generated here.

mod manual;

use crate::command::{DIST, Result, build_lunette, cargo, command, exists, lunette, root, succeed};
use std::fs;
use std::path::{Path, PathBuf};

/// Options of `cargo xtask deb`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The profile to build with; `dev` builds fast.
    #[arg(long, value_name = "NAME", default_value = DIST)]
    pub(crate) profile: String,
}

impl Default for Options {
    fn default() -> Options {
        Options { profile: DIST.into() }
    }
}

/// Where the package and generated files go.
const DIRECTORY: &str = "target/package";

/// Builds the package.
pub(crate) fn run(options: &Options) -> Result {
    build(options)?;
    println!("{}", pack(options, &version()?, DIRECTORY)?.display());
    Ok(())
}

/// Builds and generates the package's files.
pub(crate) fn build(options: &Options) -> Result {
    if !exists("cargo-deb") {
        return Err("cargo-deb is needed (cargo install --locked cargo-deb)".into());
    }
    build_lunette(&options.profile)?;
    let directory = root().join(DIRECTORY);
    let fault = |error: std::io::Error| format!("{DIRECTORY}: {error}");
    for generated in ["man1", "man5", "bash", "fish", "zsh"] {
        match fs::remove_dir_all(directory.join(generated)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(fault(error)),
            Ok(()) | Err(_) => {}
        }
    }
    succeed(command(lunette(&options.profile)).arg("generate").arg(&directory))?;
    let source = "docs/configuration.md";
    let text = fs::read_to_string(root().join(source)).map_err(|error| format!("{source}: {error}"))?;
    fs::create_dir_all(directory.join("man5")).map_err(fault)?;
    fs::write(directory.join("man5/lunette.toml.5"), manual::page(&text, &version()?)).map_err(fault)
}

/// Packages them as this version, into this directory of the repository; returns the package's path.
pub(crate) fn pack(options: &Options, version: &str, directory: &str) -> Result<PathBuf> {
    let arguments = ["deb", "--package", "lunette", "--no-build", "--fast", "--no-dbgsym", "--quiet"];
    let file = root().join(directory).join(format!("lunette_{version}.deb"));
    let named = ["--deb-version", version, "--profile", &options.profile];
    succeed(cargo().args(arguments).args(named).arg("--output").arg(&file))?;
    Ok(file)
}

/// The version being built.
pub(crate) fn version() -> Result<String> {
    let text = crate::command::output(cargo().args(["pkgid", "--package", "lunette"]))?;
    let version = text.trim().rsplit(['#', '@']).next().filter(|version| !version.is_empty());
    version.map(str::to_owned).ok_or_else(|| format!("cargo names no version: {text}"))
}

/// A path in the repository's directory for packages.
pub(crate) fn place(name: &str) -> PathBuf {
    Path::new(&root()).join(DIRECTORY).join(name)
}
