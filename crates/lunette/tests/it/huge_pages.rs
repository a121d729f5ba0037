//! Disks in memory on huge pages and on small ones: their content, the memory they take, and what UNMAP
//! frees.

use crate::support::daemon::Daemon;
use crate::support::initiator::{Initiator, Login};
use wire::scsi::command::{GetLbaStatus, Unmap};

const HUGE: u64 = 2 << 20;
const DISK: u64 = 64 << 20;
const BLOCK: u64 = 512;
/// The margin for the resident memory of a daemon that does other things, too.
const OTHERS: u64 = 6 << 20;

struct Scene {
    daemon: Daemon,
    initiator: Initiator,
    before: u64,
}

impl Scene {
    fn start(spec: &str) -> Scene {
        let daemon = Daemon::serve(["--cores", "0", "--lun", spec]);
        let mut initiator = Initiator::login(&daemon.lun(0), &Login::named("huge")).expect("login");
        initiator.ready(0).expect("TEST UNIT READY");
        // Other memory that the first write takes is the daemon's.
        initiator.write_blocks(0, 0, 512, &pattern(0), false).expect("WRITE");
        unmap(&mut initiator, 0, 4096);
        Scene { before: daemon.resident_bytes(), daemon, initiator }
    }

    fn grown(&self) -> u64 {
        self.daemon.resident_bytes().saturating_sub(self.before)
    }

    /// Writes 4 KiB to every 2 MiB.
    fn write_thinly(&mut self) {
        for at in (0..DISK).step_by(HUGE as usize) {
            self.initiator.write_blocks(0, at / BLOCK, 512, &pattern(at), false).expect("WRITE");
        }
    }

    fn assert_reads(&mut self, at: u64, expected: &[u8]) {
        let read = self.initiator.read_blocks(0, at / BLOCK, 8, 512).expect("READ");
        assert!(read == expected, "4 KiB at {at}");
    }

    /// Whether the first block of the range is mapped, and for how many bytes that applies (GET LBA STATUS,
    /// SBC-4 section 5.7).
    fn extent(&mut self, at: u64) -> (bool, u64) {
        let data = self.initiator.read(0, GetLbaStatus::new(at / BLOCK, 24), 24).expect("an answer").data;
        let blocks = u32::from_be_bytes(data[16..20].try_into().expect("4 bytes"));
        (data[20] & 0x0F == 0, u64::from(blocks) * BLOCK)
    }
}

fn pattern(at: u64) -> Vec<u8> {
    vec![(at / HUGE) as u8 + 1; 4096]
}

fn unmap(initiator: &mut Initiator, at: u64, len: u64) {
    let blocks = u32::try_from(len / BLOCK).expect("few");
    let list = [&[0, 22, 0, 16, 0, 0, 0, 0][..], &(at / BLOCK).to_be_bytes(), &blocks.to_be_bytes(), &[0; 4]]
        .concat();
    let response = initiator.write(0, Unmap::new(24), &list).expect("an answer");
    assert_eq!(response.status, 0, "{response:?}");
}

#[test]
fn a_disk_on_small_pages_takes_what_is_written() {
    // Too large for any machine that runs this: thin by default.
    for spec in ["ram:64M,huge=never", "ram:1T"] {
        let mut scene = Scene::start(spec);
        scene.write_thinly();
        assert!(scene.grown() < OTHERS, "{spec}: {} bytes", scene.grown());
        scene.assert_reads(DISK - HUGE, &pattern(DISK - HUGE));
        assert_eq!((scene.extent(HUGE), scene.extent(HUGE + 4096).0), ((true, 4096), false));
        scene.daemon.stop();
    }
}

#[test]
fn a_disk_on_huge_pages_takes_them_whole_and_unmap_frees_them() {
    let mut scene = Scene::start("ram:64M,huge=always");
    scene.write_thinly();
    for at in [0, HUGE, DISK - HUGE] {
        scene.assert_reads(at, &pattern(at));
        scene.assert_reads(at + 4096, &[0; 4096]);
    }
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let setting = setting.unwrap_or_else(|error| error.to_string());
    let maps =
        std::fs::read_to_string(format!("/proc/{}/smaps_rollup", scene.daemon.pid())).expect("its memory");
    let line = maps.lines().find_map(|line| line.strip_prefix("AnonHugePages:")).unwrap_or_default().trim();
    let huge: u64 = line.trim_end_matches(" kB").parse().expect("a number");
    if !setting.contains("[madvise]") && !setting.contains("[always]") {
        eprintln!("not tested here: huge pages are {}", setting.trim());
        assert_eq!(huge, 0);
        scene.daemon.stop();
        return;
    }
    // A machine that is short of contiguous memory gives fewer.
    assert!(huge * 1024 >= DISK / 2, "{huge} KiB on huge pages, of {DISK} bytes");
    assert!(scene.grown() >= DISK / 2, "{} bytes", scene.grown());
    assert!(scene.extent(0).0 && scene.extent(0).1 >= HUGE, "what takes memory is mapped");

    // Parts of huge pages.
    for at in (0..DISK).step_by(HUGE as usize) {
        unmap(&mut scene.initiator, at + HUGE / 2, HUGE / 2);
    }
    assert!(scene.grown() < DISK / 2 + OTHERS, "{} bytes", scene.grown());
    assert!(!scene.extent(HUGE / 2).0);
    scene.assert_reads(HUGE, &pattern(HUGE));
    unmap(&mut scene.initiator, 0, DISK);
    assert!(scene.grown() < OTHERS, "{} bytes", scene.grown());
    assert_eq!(scene.extent(0), (false, DISK));
    scene.assert_reads(HUGE, &[0; 4096]);
    scene.daemon.stop();
}
