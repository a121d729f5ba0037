//! Block devices as operands of commands: loop devices, which need root.

use crate::support::Noise;
use crate::support::daemon::Daemon;
use crate::support::tools::{LoopDevice, Outcome, run};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const BLOCK_BYTES: [u32; 2] = [512, 4096];

fn lunette(arguments: &[&str]) -> Outcome {
    run(Daemon::command().args(arguments), Duration::from_secs(60))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn a_device_is_copied_to_a_file_and_to_a_unit() {
    let directory = tempfile::tempdir().expect("a directory");
    let (backing, copy) = (directory.path().join("backing"), directory.path().join("copy"));
    // Not a round size, with data up to the last byte, and a hole.
    let mut content = Noise(3).bytes((8 << 20) + 4096);
    content[1 << 20..3 << 20].fill(0);
    std::fs::write(&backing, &content).expect("a file");
    let daemon = Daemon::serve(["--lun", "ram:9M"]);
    for block_bytes in BLOCK_BYTES {
        let device = LoopDevice::over(&backing, block_bytes);
        for destination in [text(&copy), &daemon.lun(0).to_string()] {
            let said = lunette(&["copy", text(&device.path), destination, "--verify", "--yes"]);
            let said = said.expect_success(destination);
            assert!(said.contains("no byte differs"), "{said}");
        }
        assert!(std::fs::read(&copy).expect("a file") == content);
        std::fs::remove_file(&copy).expect("it was made");
    }
    daemon.stop();
}

#[test]
fn a_device_is_measured_and_verified_and_its_data_is_guarded() {
    let directory = tempfile::tempdir().expect("a directory");
    let backing = directory.path().join("backing");
    for block_bytes in BLOCK_BYTES {
        std::fs::write(&backing, vec![7; 8 << 20]).expect("a file");
        let is_untouched = || std::fs::read(&backing).expect("a file").iter().all(|byte| *byte == 7);
        let device = LoopDevice::over(&backing, block_bytes);
        let brief = ["bench", text(&device.path), "--bs", "4K", "--runtime", "200ms", "--ramp", "0"];
        let write = [&brief[..], &["--rw", "randrw", "--verify"]].concat();
        let refused = lunette(&write);
        assert_eq!(refused.status.and_then(|status| status.code()), Some(2), "{}", refused.text);
        assert!(refused.text.contains("it holds data at byte 0"), "{}", refused.text);
        lunette(&brief).expect_success("reads");
        assert!(is_untouched());
        let json = directory.path().join("result");
        let json_option = format!("--json={}", text(&json));
        lunette(&[&write[..], &["--yes", &json_option]].concat()).expect_success("verified reads and writes");
        let result: Value = serde_json::from_slice(&std::fs::read(&json).expect("a file")).expect("JSON");
        let result = &result["lunette"]["result"];
        let checked = &result["verify"]["checked"];
        assert!(checked.as_u64() > Some(0) && result["write"]["operations"].as_u64() > Some(0), "{result}");
        assert!(!is_untouched());
    }
}
