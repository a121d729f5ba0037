//! Real file systems, written by one initiator and read back by others, while a third and a fourth hammer
//! another unit.

use crate::support::daemon::{Daemon, Url};
use crate::support::initiator::{Initiator, Login};
use crate::support::tools::{must, read_text, spawn, tool, wait};
use crate::support::wait_until;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;
use tempfile::TempDir;

const IMAGE_BYTES: u64 = 64 << 20;

#[test]
fn a_file_system_in_ram_survives_the_round_trip() {
    round_trip(|_| format!("ram:{IMAGE_BYTES}"), 512);
}

#[test]
fn a_file_system_in_a_file_survives_the_round_trip() {
    round_trip(|directory| format!("file:{},size={IMAGE_BYTES}", directory.join("disk").display()), 512);
}

#[test]
fn a_file_system_on_blocks_of_4096_bytes_survives_the_round_trip() {
    round_trip(
        |directory| format!("file:{},size={IMAGE_BYTES},bs=4096", directory.join("disk").display()),
        4096,
    );
}

/// An image of this repository's sources is written to the unit and read back three ways: through QEMU with
/// header digests, through our own initiator with both digests, and once more after the hammering has
/// stopped.
fn round_trip(unit: impl Fn(&Path) -> String, block_bytes: u32) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let image = image_of_sources(directory.path(), block_bytes);
    let daemon = Daemon::serve(["--lun", &unit(directory.path()), "--lun", "ram:16M"]);

    let reader = Hammer::reads(&daemon.lun(1));
    let writer = Hammer::writes(&daemon.lun(1));
    must(
        tool("qemu-img")
            .args(["convert", "-n", "-f", "raw", "-O", "raw"])
            .arg(&image)
            .arg(daemon.lun(0).to_string()),
    );
    let copy = directory.path().join("copy");
    must(
        tool("qemu-img")
            .args(["convert", "-f", "raw", "-O", "raw"])
            .arg(with_header_digest(&daemon.lun(0)))
            .arg(&copy),
    );
    assert_same(&image, &copy);
    must(tool("e2fsck").args(["-f", "-n"]).arg(&copy));
    assert!(read_with_digests(&daemon.lun(0), block_bytes) == read(&image), "read back with both digests");
    reader.stop();
    writer.stop_verified();

    must(
        tool("qemu-img")
            .args(["compare", "-f", "raw", "-F", "raw"])
            .arg(&image)
            .arg(daemon.lun(0).to_string()),
    );
    daemon.stop();
}

/// An ext4 file system with the repository's sources in it.
fn image_of_sources(directory: &Path, block_bytes: u32) -> PathBuf {
    let image = directory.join("image");
    let file = std::fs::File::create(&image).expect("an image file");
    file.set_len(IMAGE_BYTES).expect("a sparse image");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crates' directory");
    let mut command = tool("mke2fs");
    command.args(["-q", "-F", "-t", "ext4", "-b"]).arg(block_bytes.max(1024).to_string());
    must(command.arg("-d").arg(sources).arg(&image));
    image
}

/// QEMU's syntax for a unit, its initiator and the digest; it does not support data digests.
fn with_header_digest(url: &Url) -> String {
    format!(
        "json:{{\"driver\":\"raw\",\"file\":{{\"driver\":\"iscsi\",\"transport\":\"tcp\",\"portal\":\"{}\",\
         \"target\":\"{}\",\"lun\":{},\"initiator-name\":\"iqn.2026-11.io.lunette.test:reader\",\
         \"header-digest\":\"crc32c\"}}}}",
        url.portal, url.target, url.lun
    )
}

/// The unit's content, read in pieces of odd sizes with header and data digests.
fn read_with_digests(url: &Url, block_bytes: u32) -> Vec<u8> {
    let mut initiator = Initiator::login(url, &Login::named("digests").with_digests()).expect("login");
    assert!(initiator.has_digests());
    let blocks = IMAGE_BYTES / u64::from(block_bytes);
    let mut content = Vec::new();
    let mut lba = 0;
    while lba < blocks {
        let count = u32::try_from((blocks - lba).min(u64::from((300 << 10) / block_bytes + 1)))
            .expect("a few blocks");
        content.extend(initiator.read_blocks(url.lun, lba, count, block_bytes).expect("READ"));
        lba += u64::from(count);
    }
    initiator.logout().expect("logout");
    content
}

fn assert_same(expected: &Path, found: &Path) {
    assert!(read(expected) == read(found), "{} and {} differ", expected.display(), found.display());
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A load that runs until it is stopped.
struct Hammer {
    child: Child,
    directory: TempDir,
}

impl Hammer {
    /// Random reads by `iscsi-perf`.
    fn reads(url: &Url) -> Self {
        let mut command = tool("iscsi-perf");
        command.args(["-i", "iqn.2026-11.io.lunette.test:hammer", "-m", "16", "-b", "8", "-t", "600", "-r"]);
        Self::start(command.arg(url.to_string()))
    }

    /// Reads and writes by our own initiator, which checks what it reads. They have begun when this returns.
    fn writes(url: &Url) -> Self {
        let mut command = Daemon::command();
        command.args(["bench", &url.to_string(), "--rw", "randrw", "--verify", "--yes", "--poll", "never"]);
        let hammer = Self::start(command.args(["--runtime", "1h", "--ramp", "0"]));
        wait_until("the writer writes", || hammer.output().contains("IOPS"));
        hammer
    }

    fn start(command: &mut Command) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let output = std::fs::File::create(directory.path().join("output")).expect("an output file");
        Self { child: spawn(command, &output), directory }
    }

    fn output(&self) -> String {
        read_text(&self.directory.path().join("output"))
    }

    /// It must have been running to the last.
    fn stop(mut self) {
        let ended = self.child.try_wait().expect("a child can be waited for");
        assert!(ended.is_none(), "it gave up: {ended:?}\n{}", self.output());
    }

    /// The same for one that verifies its data: what it wrote must be there.
    fn stop_verified(mut self) {
        must(tool("kill").args(["-INT", &self.child.id().to_string()]));
        let status = wait(&mut self.child, Duration::from_secs(60)).expect("it ends");
        let output = self.output();
        assert_eq!(status.code(), Some(130), "interrupted, and else all is well:\n{output}");
        assert!(output.contains("Verified: ") && output.contains("all as they were written"), "{output}");
    }
}

impl Drop for Hammer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
