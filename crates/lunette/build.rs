//! Determines the commit that `lunette --version` shows. Without git, or outside a checkout (in a release
//! archive), it shows only the version.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let version = env::var("CARGO_PKG_VERSION").expect("Cargo sets it");
    let shown = commit().map_or_else(|| version.clone(), |commit| format!("{version} ({commit})"));
    println!("cargo::rustc-env=LUNETTE_VERSION={shown}");
    println!("cargo::rerun-if-changed=build.rs");
}

/// The commit that is checked out, abbreviated.
fn commit() -> Option<String> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR")?).join("../..").canonicalize().ok()?;
    // An archive that was unpacked inside another checkout has no commit of that.
    let checkout = git(&root, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&checkout).canonicalize().ok()? != root {
        return None;
    }
    let commit = git(&root, &["rev-parse", "--short=12", "HEAD"])?;
    // HEAD changes with the branch, the branch with every commit. While it is only in packed-refs, the next
    // commit creates a file for it: its directory is watched until then, as Cargo treats a missing file as
    // changed.
    let path = |name: &str| Some(root.join(git(&root, &["rev-parse", "--git-path", name])?));
    let watch = |path: &Path| println!("cargo::rerun-if-changed={}", path.display());
    [path("HEAD")?, path("packed-refs")?].iter().filter(|path| path.exists()).for_each(|path| watch(path));
    if let Some(branch) = git(&root, &["symbolic-ref", "--quiet", "HEAD"]) {
        path(&branch)?.ancestors().find(|path| path.exists()).into_iter().for_each(watch);
    }
    Some(commit)
}

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
