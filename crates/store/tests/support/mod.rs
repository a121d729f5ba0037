//! What the tests of whole stores share.
#![allow(dead_code, unreachable_pub, missing_docs)]

pub mod ceph;
pub mod fake;
pub mod fuse;
pub mod nbd;
pub mod rig;

use reactor::memory::Arena;
use reactor::uring::Uring;
use reactor::wake::Waker;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The size of most test disks: not a multiple of a lock stripe, more than one clearing step.
pub const SIZE: u64 = (17 << 20) + 8192;

/// A directory on a real file system, next to the build's output.
pub fn directory() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A sparse file.
pub fn sparse(directory: &TempDir, size: u64) -> PathBuf {
    let path = directory.path().join("disk");
    std::fs::File::create_new(&path).unwrap().set_len(size).unwrap();
    path
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs a tool that a test requires, and returns its output.
pub fn tool(name: &str, arguments: &[&str]) -> String {
    let output = std::process::Command::new(name).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{name} is needed by this test: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A loop device over a file; detached when dropped.
pub struct Loop {
    pub device: PathBuf,
}

impl Loop {
    pub fn attach(file: &Path, sector: u32) -> Loop {
        let sector = sector.to_string();
        let file = file.to_str().unwrap();
        let device = tool("losetup", &["--find", "--show", "--sector-size", &sector, file]);
        Loop { device: device.into() }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        tool("losetup", &["--detach", self.device.to_str().unwrap()]);
    }
}

/// A mounted tmpfs; unmounted when dropped.
pub struct Tmpfs {
    pub directory: TempDir,
}

impl Tmpfs {
    pub fn mount(size: u64) -> Tmpfs {
        Tmpfs::mount_kind("tmpfs", size)
    }

    /// The same with another file system in memory.
    pub fn mount_kind(kind: &str, size: u64) -> Tmpfs {
        let directory = directory();
        let size = format!("size={size}");
        tool("mount", &["-t", kind, "-o", &size, "none", directory.path().to_str().unwrap()]);
        Tmpfs { directory }
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        tool("umount", &[self.directory.path().to_str().unwrap()]);
    }
}

/// Pseudorandom numbers, the same in every run (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 8) % end
    }

    pub fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.next() >> 32) as u8).collect()
    }
}

impl Kernel for Uring {
    fn start() -> Uring {
        let arena = Arena::new(4 << 20).unwrap();
        Uring::new(arena, Waker::new().unwrap()).expect("these tests need io_uring")
    }
}

/// A kernel that a test can create.
pub trait Kernel: reactor::io::Io {
    fn start() -> Self;
}

impl Kernel for fake::FakeIo {
    fn start() -> fake::FakeIo {
        fake::FakeIo::healthy()
    }
}
