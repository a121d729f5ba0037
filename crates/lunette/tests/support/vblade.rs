//! Debian's vblade, another AoE target.

use super::net::{INTERFACE, Namespace};
use super::tools::{read_text, spawn, tool};
use super::wait_until;
use std::path::Path;
use std::process::Child;
use tempfile::NamedTempFile;

/// A running vblade; it is ended when this is dropped.
pub struct Vblade {
    child: Child,
    output: NamedTempFile,
}

impl Vblade {
    /// Exports a file, whose size is a multiple of 512 bytes, under this address in this namespace.
    pub fn start(namespace: &Namespace, shelf: u16, slot: u8, file: &Path) -> Self {
        let output = NamedTempFile::new().expect("a temporary file");
        let mut command = tool("vblade");
        command.args([&shelf.to_string(), &slot.to_string(), INTERFACE]).arg(file);
        let child = spawn(&mut namespace.within(&command), output.as_file());
        let mut vblade = Self { child, output };
        wait_until("vblade serves", || {
            let ended = vblade.child.try_wait().expect("a child can be waited for");
            assert!(ended.is_none(), "vblade ended with {ended:?}: {}", read_text(vblade.output.path()));
            read_text(vblade.output.path()).contains(" sectors ")
        });
        vblade
    }
}

impl Drop for Vblade {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
