//! Instructions that the core executes in user space per command, at queue depth 1 and 32, counted by
//! valgrind's callgrind. `cargo xtask instructions` compares them with their limits, for the engine as it is
//! released: it builds `counted`, and passes its path. This program may be built like tests.

#[path = "../tests/support/mod.rs"]
mod support;

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Child;
use std::time::{Duration, Instant};
use support::daemon::Url;
use support::initiator::{Initiator, Login, write_cdb};
use support::tools::{must, read_text, spawn, tool};
use tempfile::TempDir;
use wire::scsi::command::Read16;

/// Commands before counting begins, and those that are counted.
const WARM_UP: u32 = 512;
const COUNTED: u32 = 2048;
/// Commands that arrive together at the higher depth.
const DEPTH: u32 = 32;
/// How long the daemon may take to listen under callgrind.
const PATIENCE: Duration = Duration::from_secs(60);
/// The range that is read and written.
const RANGE_BLOCKS: u64 = 4096;
const BLOCK_BYTES: u32 = 512;
/// The LUN in memory, and the one in a file on tmpfs.
const MEMORY: u16 = 0;
const TMPFS: u16 = 1;
const TARGET: &str = "iqn.2026-11.io.lunette:disk";

fn main() {
    let daemon = Counted::serve();
    let mut initiator = Initiator::login(&daemon.url, &Login::named("count")).expect("login");
    initiator.ready(0).expect("TEST UNIT READY");
    let singles = [
        ("read_4k", MEMORY, 8, false),
        ("write_4k", MEMORY, 8, true),
        ("read_512", MEMORY, 1, false),
        ("read_4k_tmpfs", TMPFS, 8, false),
        ("write_4k_tmpfs", TMPFS, 8, true),
    ];
    for (name, lun, blocks, is_write) in singles {
        let data = vec![0x5a; if is_write { (blocks * BLOCK_BYTES) as usize } else { 0 }];
        daemon.count(name, |commands| {
            for command in 0..commands {
                let lba = u64::from(command * blocks) % RANGE_BLOCKS;
                if is_write {
                    let cdb = write_cdb(lba, data.len(), BLOCK_BYTES, false);
                    assert_eq!(initiator.write(lun, cdb, &data).expect("an answer").status, 0);
                } else {
                    initiator.read_blocks(lun, lba, blocks, BLOCK_BYTES).expect("READ");
                }
            }
        });
    }
    for (name, lun, blocks) in
        [("read_4k_qd32", MEMORY, 8), ("read_512_qd32", MEMORY, 1), ("read_4k_tmpfs_qd32", TMPFS, 8)]
    {
        daemon.count(name, |commands| {
            for first in (0..commands).step_by(DEPTH as usize) {
                read_together(&mut initiator, lun, first, blocks);
            }
        });
    }
}

/// READs that arrive in one piece, so that one turn finds all of them.
fn read_together(initiator: &mut Initiator, lun: u16, first: u32, blocks: u32) {
    initiator.gather();
    for command in first..first + DEPTH {
        let cdb = Read16::new(u64::from(command * blocks) % RANGE_BLOCKS, blocks);
        initiator
            .issue(lun, cdb, (blocks * BLOCK_BYTES) as usize, Vec::new())
            .expect("a place in the window");
    }
    initiator.release().expect("sent");
    for _ in 0..DEPTH {
        let (_, response) = initiator.complete_any().expect("an answer");
        assert_eq!((response.status, response.data.len()), (0, (blocks * BLOCK_BYTES) as usize));
    }
}

/// A daemon under callgrind. It is killed at the end: valgrind 3.19 does not know that io_uring_enter may
/// block, and keeps its lock meanwhile, so that no other thread runs while the core sleeps, to print the
/// banner or to stop.
struct Counted {
    child: Child,
    url: Url,
    directory: TempDir,
    _disk: TempDir,
}

impl Counted {
    fn serve() -> Counted {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let disk = tempfile::tempdir_in("/dev/shm").expect("a temporary directory in memory");
        let file = disk.path().join("disk");
        let portal = free_port();
        let config = directory.path().join("lunette.toml");
        let text = format!(
            "cores = '0'\npoll = 'never'\nportal = [{{ listen = '{portal}' }}]\n\
             lun = [{{ ram = '64M' }}, {{ file = '{}', size = '64M' }}]\n\
             [[target]]\nname = '{TARGET}'\n",
            file.display()
        );
        std::fs::write(&config, text).expect("a configuration");
        let log = File::create(directory.path().join("log")).expect("a log file");
        let child = spawn(
            tool("valgrind")
                .args(["--tool=callgrind", "--combine-dumps=no"])
                .arg(format!("--callgrind-out-file={}", directory.path().join("out").display()))
                .arg(
                    std::env::var_os("LUNETTE_COUNTED")
                        .expect("`cargo xtask instructions` names the program"),
                )
                .arg(config),
            &log,
        );
        let url = Url { portal, target: TARGET.into(), lun: 0 };
        let mut daemon = Counted { child, url, directory, _disk: disk };
        daemon.wait_until_it_listens();
        daemon
    }

    fn wait_until_it_listens(&mut self) {
        let start = Instant::now();
        while TcpStream::connect(self.url.portal).is_err() {
            let has_ended = self.child.try_wait().expect("a child can be waited for").is_some();
            assert!(!has_ended && start.elapsed() < PATIENCE, "the daemon does not listen:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Prints the instructions per command, where `run` runs the given number of them.
    fn count(&self, name: &str, mut run: impl FnMut(u32)) {
        run(WARM_UP);
        let before = self.instructions();
        run(COUNTED);
        let instructions = self.instructions() - before;
        println!("{name} = {:.0}", instructions as f64 / f64::from(COUNTED));
    }

    /// Instructions of all threads so far; only the core does any work.
    fn instructions(&self) -> u64 {
        let output = must(tool("callgrind_control").arg("-e").arg(self.child.id().to_string()));
        let threads = output.lines().filter_map(|line| line.trim().strip_prefix("Th "));
        let counts =
            threads.filter_map(|line| line.split_whitespace().nth(1)?.replace(',', "").parse::<u64>().ok());
        let sum: u64 = counts.sum();
        assert!(sum > 0, "callgrind_control printed no totals:\n{output}\n{}", self.log());
        sum
    }

    fn log(&self) -> String {
        read_text(&self.directory.path().join("log"))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago.
fn free_port() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("a listener has an address")
}
