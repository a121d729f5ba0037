//! `copy`, `discover` and `inquiry`, as used by a person.

use crate::support::daemon::Daemon;
use crate::support::tools::{LoopDevice, Outcome, must, read_text, run, spawn, tool, wait};
use crate::support::{Noise, wait_until};
use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

const TARGET: &str = "iqn.2026-11.io.lunette:disk";

fn lunette<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Outcome {
    run(Daemon::command().args(arguments), Duration::from_secs(60))
}

/// Must end with this status and message.
fn refused(arguments: &[&str], status: i32, words: &[&str]) {
    let outcome = lunette(arguments);
    assert_eq!(outcome.status.and_then(|status| status.code()), Some(status), "{}", outcome.text);
    for word in words {
        assert!(outcome.text.contains(word), "{arguments:?}: {word} is missing in: {}", outcome.text);
    }
}

/// A sparse file with some data.
fn sparse_file(path: &Path, bytes: u64) -> &str {
    let file = File::create(path).expect("a file");
    file.set_len(bytes).expect("its length");
    let mut noise = Noise(7);
    for at in [0, 5 << 20, (9 << 20) + 12_345, bytes - 70_000] {
        file.write_all_at(&noise.bytes(70_000), at).expect("a write");
    }
    path.to_str().expect("UTF-8")
}

#[test]
fn a_file_arrives_on_a_unit_and_comes_back() {
    let daemon = Daemon::serve(["--lun", "ram:32M"]);
    let (source, back) = (daemon.path("source"), daemon.path("back"));
    let source = sparse_file(&source, 32 << 20);
    let back = back.to_str().expect("UTF-8");
    let url = daemon.lun(0).to_string();
    // What was there before is overwritten, by holes too.
    let old = daemon.path("old");
    std::fs::write(&old, vec![0xee; 32 << 20]).expect("a file");
    lunette(["copy", "--no-sparse", old.to_str().expect("UTF-8"), &url]).expect_success("the first copy");
    refused(&["copy", source, &url], 2, &[&url, "data at byte 0", "--yes"]);
    let said = lunette(["copy", source, &url, "--verify", "--yes"]).expect_success("copy to the unit");
    assert!(said.contains("copied 32 MiB") && said.contains("no byte differs"), "{said}");
    must(tool("qemu-img").args(["compare", "-f", "raw", "-F", "raw", source, &url]));
    for options in [&["--bs", "4K", "--depth", "3"][..], &["--bs", "4M", "--depth", "2", "--no-sparse"]] {
        let _ = std::fs::remove_file(back);
        let copied = lunette(["copy", &url, back].iter().chain(options));
        copied.expect_success("copy from the unit");
        assert!(std::fs::read(source).expect("a file") == std::fs::read(back).expect("a file"));
        let blocks = File::open(back).and_then(|file| file.metadata()).expect("metadata").blocks();
        let is_sparse = blocks * 512 < 8 << 20;
        assert_eq!(is_sparse, !options.contains(&"--no-sparse"), "{blocks} blocks are allocated");
    }
    daemon.stop();
}

#[test]
fn units_are_copied_and_described_over_rdma() {
    let daemon = Daemon::serve(["--srp", "127.0.0.1:0", "--lun", "ram:32M,serial=WORDS-2"]);
    let (source, back) = (daemon.path("source"), daemon.path("back"));
    let source = sparse_file(&source, 32 << 20);
    let back = back.to_str().expect("UTF-8");
    for (there, here) in [("iser", "srp"), ("srp", "iser")] {
        let said =
            lunette(["copy", source, &daemon.url_over(there), "--verify", "--yes"]).expect_success("copy");
        assert!(said.contains("no byte differs"), "{said}");
        let _ = std::fs::remove_file(back);
        lunette(["copy", &daemon.url_over(here), back]).expect_success("copy from the unit");
        assert!(std::fs::read(source).expect("a file") == std::fs::read(back).expect("a file"));
        let said = lunette(["inquiry", &daemon.url_over(here)]).expect_success("inquiry");
        assert!(said.contains("WORDS-2"), "{said}");
    }
    let url = daemon.url_over("srp");
    refused(&["discover", "127.0.0.1:3260"], 2, &["write iscsi://127.0.0.1:3260"]);
    refused(&["discover", "me%open-sesame@host"], 2, &["iscsi://HOST"]);
    refused(&["discover", &url], 1, &["GUID", "iscsi://"]);
    refused(&["inquiry", url.trim_end_matches("/0")], 2, &["srp://HOST/GUID/LUN"]);
    let guid = url.rsplit('/').nth(1).expect("a GUID");
    refused(&["inquiry", &url.replace(guid, "0123456789abcdef")], 1, &["no such target port"]);
    daemon.stop();
}

#[test]
fn a_unit_that_is_not_ready_is_described_and_the_command_fails() {
    let daemon = Daemon::serve(["--lun", "ram:1M", "--lun", "file:/nonexistent/disk.img,serial=ABSENT"]);
    let (ready, absent) = (daemon.lun(0).to_string(), daemon.lun(1).to_string());
    let said = lunette(["inquiry", &ready]).expect_success("inquiry");
    assert!(said.lines().any(|line| line.split_whitespace().eq(["ready", "yes"])), "{said}");
    refused(&["inquiry", &absent], 1, &["ABSENT", "no: NOT READY", "/1: the unit is not ready: NOT READY"]);
    let output = Daemon::command().args(["inquiry", "--json", &absent]).output().expect("it runs");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((output.status.code(), document["serial"].as_str()), (Some(1), Some("ABSENT")));
    assert!(document["not_ready"].as_str().is_some_and(|why| why.starts_with("NOT READY")), "{document}");
    // Others report it in the standard's terms, too.
    let file = daemon.path("file");
    for arguments in [&["copy", &absent, file.to_str().expect("UTF-8")][..], &["bench", &absent]] {
        let outcome = lunette(arguments);
        assert!(outcome.status.is_some_and(|status| !status.success()), "{}", outcome.text);
        assert!(outcome.text.contains("failed: NOT READY"), "{}", outcome.text);
    }
    daemon.stop();
}

#[test]
fn units_of_other_block_sizes_are_copied() {
    let daemon = Daemon::serve(["--lun", "ram:13M,bs=4096", "--lun", "ram:16M"]);
    let source = daemon.path("source");
    let source = sparse_file(&source, (12 << 20) + 4567);
    let (large, small) = (daemon.lun(0).to_string(), daemon.lun(1).to_string());
    lunette(["copy", source, &large, "--verify"]).expect_success("file to unit");
    lunette(["copy", &large, &small, "--verify"]).expect_success("unit to unit");
    lunette(["copy", source, &small, "--verify", "--yes"]).expect_success("the same again");
    refused(&["copy", source, &large, "--bs", "512"], 2, &["4096", "multiple"]);
    daemon.stop();
}

#[test]
fn the_first_byte_that_differs_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("source");
    File::create(&source).and_then(|file| file.set_len(1 << 20)).expect("a file");
    let file = File::options().write(true).open(&source).expect("a file");
    file.write_all_at(&[1], 777_777).expect("a write");
    let source = source.to_str().expect("UTF-8");
    refused(&["copy", source, "null:1M", "--verify"], 1, &["differs from", "at byte 777777"]);
}

#[test]
fn what_would_destroy_data_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    let (large, small, link) = (path("large"), path("small"), path("link"));
    std::fs::write(&large, vec![1; 8192]).expect("a file");
    std::fs::write(&small, vec![2; 4096]).expect("a file");
    std::os::unix::fs::symlink(&large, &link).expect("a link");
    refused(&["copy", &large, &small], 2, &[&small, "too small", "4096", "8192"]);
    refused(&["copy", &large, &large], 2, &["the same"]);
    refused(&["copy", &large, &link], 2, &["the same"]);
    refused(&["copy", &path("nothing"), &path("new")], 1, &["nothing", "No such file"]);
    refused(&["copy", &large, directory.path().to_str().expect("UTF-8")], 1, &["not a regular file"]);
    refused(&["copy", &large, "ram:1X"], 2, &["1X"]);
    refused(&["copy", &large, "iscsi://host:0/"], 2, &["URL", "1 to 65535"]);
    refused(&["copy", &large, &path("new"), "--bs", "100"], 2, &["512"]);
    refused(&["copy", &large, &path("new"), "--depth", "0"], 2, &["--depth"]);
    assert!(!directory.path().join("new").exists(), "nothing is made before all is checked");
    assert_eq!(std::fs::read(&small).expect("a file"), vec![2; 4096]);
}

#[test]
fn an_image_of_another_format_is_copied_only_as_what_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    let copy = path("copy");
    for format in ["qcow2", "vmdk", "vhdx", "vpc", "vdi"] {
        let image = path(format);
        must(tool("qemu-img").args(["create", "-q", "-f", format, &image, "4M"]));
        refused(&["copy", &image, &copy], 2, &[&format!("a {format} image"), "-O raw", "--raw"]);
        assert!(!Path::new(&copy).exists(), "nothing is made");
        lunette(["copy", &image, &copy, "--raw"]).expect_success("as it is");
        assert!(std::fs::read(&image).expect("a file") == std::fs::read(&copy).expect("a file"));
        std::fs::remove_file(&copy).expect("it was made");
    }
}

#[test]
fn a_device_in_use_is_not_overwritten() {
    let directory = tempfile::tempdir().expect("a directory");
    let (source, backing) = (directory.path().join("source"), directory.path().join("backing"));
    std::fs::write(&source, vec![1; 1 << 20]).expect("a file");
    std::fs::write(&backing, vec![2; 2 << 20]).expect("a file");
    let device = LoopDevice::over(&backing, 512);
    let (source, name) = (source.to_str().expect("UTF-8"), device.path.to_str().expect("UTF-8"));
    const O_EXCL: i32 = 0x80;
    let held = File::options().read(true).custom_flags(O_EXCL).open(&device.path).expect("the device");
    refused(&["copy", source, name], 1, &[name, "in use"]);
    drop(held);
    assert!(std::fs::read(&backing).expect("a file").iter().all(|byte| *byte == 2));
    refused(&["copy", source, name], 2, &[name, "data at byte 0", "--yes"]);
    assert!(std::fs::read(&backing).expect("a file").iter().all(|byte| *byte == 2));
    lunette(["copy", source, name, "--verify", "--yes"]).expect_success("a copy to a free device");
    let bytes = std::fs::read(&backing).expect("a file");
    assert!(bytes[..1 << 20].iter().all(|byte| *byte == 1) && bytes[1 << 20..].iter().all(|byte| *byte == 2));
}

#[test]
fn an_interrupt_says_what_is_left_behind() {
    let output = tempfile::NamedTempFile::new().expect("a file");
    let arguments = ["copy", "null:1000T", "null:1000T", "--no-sparse"];
    let mut child = spawn(Daemon::command().args(arguments), output.as_file());
    // Until the first signal is caught it ends the process: it is caught once this thread has its name.
    let caught = || {
        let status = read_text(format!("/proc/{}/status", child.id()).as_ref());
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("").trim();
        u64::from_str_radix(mask, 16).is_ok_and(|mask| mask & 0b10 != 0)
    };
    wait_until("it catches SIGINT", caught);
    must(tool("kill").arg("-INT").arg(child.id().to_string()));
    let status = wait(&mut child, Duration::from_secs(120)).expect("it ends");
    let said = read_text(output.path());
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted") && said.contains("is incomplete"), "{said}");
}

#[test]
fn a_target_that_is_lost_ends_the_copy() {
    let daemon = Daemon::serve(["--lun", "null:1000T"]);
    let url = daemon.lun(0).with("", "?give_up_after=1");
    let output = tempfile::NamedTempFile::new().expect("a file");
    let mut child =
        spawn(Daemon::command().args(["copy", "null:1000T", &url, "--no-sparse", "--yes"]), output.as_file());
    // Its first session queries the unit, the second one writes.
    wait_until("its second session logs in", || {
        assert!(child.try_wait().expect("a child").is_none(), "{}", read_text(output.path()));
        daemon.log().matches("HeaderDigest=").count() >= 2
    });
    daemon.kill9();
    let status = wait(&mut child, Duration::from_secs(60)).expect("it ends");
    let said = read_text(output.path());
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("cannot be written at byte") && said.contains("is incomplete"), "{said}");
}

#[test]
fn targets_are_discovered() {
    let daemon = Daemon::serve(["--lun", "ram:1M"]);
    let portal = daemon.lun(0).portal.to_string();
    let url = format!("iscsi://{portal}");
    let said = lunette(["discover", &url]).expect_success("discover");
    assert_eq!(said, format!("{TARGET}\n  {portal} (portal group 1)\n"));
    let said = lunette(["discover", &url, "--json"]).expect_success("discover");
    let json: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(json[0]["name"], TARGET);
    assert_eq!(json[0]["portals"][0]["address"], portal.as_str());
    daemon.stop();
    refused(&["discover", &url], 1, &[&portal, "refused"]);
    refused(&["discover", "host"], 2, &["URL", "iscsi://host"]);
}

#[test]
fn a_unit_is_described_as_text_and_as_json() {
    let daemon = Daemon::serve(["--lun", "ram:64M,bs=4096,serial=WORDS-1,ro,thin=off", "--lun", "ram:1M"]);
    let url = daemon.lun(0).to_string();
    let said = lunette(["inquiry", &url]).expect_success("inquiry");
    let lines: Vec<String> =
        said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for expected in [
        "vendor LUNETTE",
        "serial number WORDS-1",
        "conforms to SPC-4",
        "standards SAM-5, SPC-4, SBC-3, iSCSI",
        "capacity 64 MiB (67108864 bytes)",
        "blocks 16384 of 4096 bytes",
        "thin no",
        "UNMAP not supported",
        "write-protected yes",
        "write cache on",
        "LUNs 0, 1",
        "port group 1 active/optimized, ports 4070",
        "b0h block limits",
        "88h READ(16)",
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected} is missing in:\n{said}");
    }
    let name = format!("target SCSI name {TARGET}");
    assert!(lines.contains(&name), "{said}");
    assert!(!said.contains("(unknown)"), "all of our own commands have names:\n{said}");
    let said = lunette(["inquiry", &url, "--json", "--raw"]).expect_success("inquiry");
    let json: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(json["identity"]["vendor"], "LUNETTE");
    assert_eq!(json["capacity"]["block_bytes"], 4096);
    assert_eq!(json["modes"]["write_protected"], true);
    assert!(json["raw"][0]["data"].as_str().is_some_and(|data| data.contains("4c554e45545445")));
    refused(&["inquiry", &url.replace("/0", "/7")], 1, &["no unit", "LUNs 0, 1"]);
    refused(&["inquiry", url.trim_end_matches("/0")], 2, &["does not name a unit", "lunette discover"]);
    daemon.stop();
}
