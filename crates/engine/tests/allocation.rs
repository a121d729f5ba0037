//! Once it runs, a core allocates nothing to serve READ and WRITE: the cost of the allocator, and its waits,
//! are paid at start.

/// What [`initiator`] uses of the tests that it was written for.
mod daemon {
    /// Where to log in.
    #[derive(Clone)]
    pub struct Url {
        /// Where the target listens.
        pub portal: std::net::SocketAddr,
        /// The target's name.
        pub target: String,
    }
}
#[allow(dead_code, reason = "other tests use the rest of it")]
#[path = "../../lunette/tests/support/initiator.rs"]
mod initiator;

use config::{Config, ServeOptions};
use daemon::Url;
use engine::Daemon;
use initiator::{Initiator, Login, write_cdb};
use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};
use wire::scsi::command::Read16;

/// Sessions at once, so that the core finds more than one thing to do in a turn.
const SESSIONS: usize = 2;
/// Commands that each keeps in flight.
const DEPTHS: [usize; 2] = [1, 32];
/// Sizes of commands, and how many of each session's are watched, after as many that are not: all data comes
/// with the command, or some of it is requested by R2T.
const LOAD: [(usize, usize); 2] = [(4096, 200), (131_072, 40)];
/// The LUN that is a file: the space that it takes is measured.
const FILE: u16 = 2;
const BLOCK_BYTES: usize = 512;
/// Each session's own range.
const RANGE_BYTES: usize = 4 << 20;

/// While this is set, the first allocation of a core is remembered.
static IS_WATCHING: AtomicBool = AtomicBool::new(false);
/// Thread number of the core.
static CORE: AtomicI32 = AtomicI32::new(0);
static FOUND: Mutex<Option<Backtrace>> = Mutex::new(None);

struct Watched;

#[global_allocator]
static ALLOCATOR: Watched = Watched;

impl Watched {
    fn look(&self) {
        if IS_WATCHING.load(Ordering::Relaxed)
            && rustix::thread::gettid().as_raw_nonzero().get() == CORE.load(Ordering::Relaxed)
            // Recording it allocates too.
            && IS_WATCHING.swap(false, Ordering::Relaxed)
        {
            *FOUND.lock().expect("nobody panics with it") = Some(Backtrace::force_capture());
        }
    }
}

// SAFETY: every call is left to the system's allocator.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.look();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.look();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.look();
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

/// The only test here, since all tests of a process share its allocator.
#[test]
fn reads_and_writes_allocate_nothing_on_the_core_that_serves_them() {
    for poll in ["never", "adaptive"] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = format!("file:{},size=17M", directory.path().join("disk").display());
        let (daemon, url) = serve(poll, &["ram:16M", "null:16M", &file]);
        CORE.store(thread_named("core-0"), Ordering::Relaxed);
        wait_for_the_prober(&daemon, None);
        for (lun, store) in (0..).zip(["ram", "null", "file"]) {
            for has_digests in [false, true] {
                for depth in DEPTHS {
                    watch(&url, lun, has_digests, depth);
                    let found = FOUND.lock().expect("nobody panics with it").take();
                    let case = format!("--poll {poll}, {store}, digests {has_digests}, depth {depth}");
                    assert!(found.is_none(), "{case}: the core allocated\n{}", found.expect("it is there"));
                }
            }
        }
        let mut initiator = login(&url, 0, FILE, false);
        let found = allocated_by(|| take_more_space(&daemon, &mut initiator));
        assert!(
            found.is_none(),
            "--poll {poll}, more space used: the core allocated\n{}",
            found.expect("it is there")
        );
        let found = allocated_by(|| drop(login(&url, 0, 0, false)));
        assert!(found.is_some(), "a login allocates, and is seen to");
        daemon.stop().expect("every core ends in order");
    }
}

/// Serves these units on one core, in this polling mode.
fn serve(poll: &str, luns: &[&str]) -> (Daemon, Url) {
    let options = ServeOptions {
        listen: vec!["127.0.0.1:0".into()],
        lun: luns.iter().map(ToString::to_string).collect(),
        cores: Some("0".into()),
        poll: Some(poll.into()),
        ..ServeOptions::default()
    };
    let config = Config::from_options(&options).unwrap_or_else(|problems| panic!("{problems}"));
    let target = config.targets[0].name.clone();
    let daemon = Daemon::start(config).expect("the daemon starts");
    let portal = daemon.addresses()[0];
    (daemon, Url { portal, target })
}

fn login(url: &Url, session: usize, lun: u16, has_digests: bool) -> Initiator {
    let named = Login::named(&format!("session-{session}"));
    let named = if has_digests { named.with_digests() } else { named };
    let mut initiator = Initiator::login(url, &named).expect("a session");
    initiator.ready(lun).expect("the unit is ready");
    initiator
}

/// Writes where nothing was written yet, until the prober has found that the file takes more space and has
/// notified the unit's home.
fn take_more_space(daemon: &Daemon, initiator: &mut Initiator) {
    let before = space_used(daemon);
    issue_at(initiator, FILE, SESSIONS * RANGE_BYTES, 4096, false);
    complete(initiator);
    wait_for_the_prober(daemon, before);
}

/// Waits until the prober has found a figure other than `before`, and has reported it.
fn wait_for_the_prober(daemon: &Daemon, before: Option<u64>) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while space_used(daemon) == before {
        assert!(Instant::now() < deadline, "nobody looked at the space that the file takes");
        std::thread::yield_now();
    }
}

fn space_used(daemon: &Daemon) -> Option<u64> {
    daemon.meters().units()[usize::from(FILE)].used_bytes
}

/// The first allocation of the core while this runs.
fn allocated_by(act: impl FnOnce()) -> Option<Backtrace> {
    IS_WATCHING.store(true, Ordering::Relaxed);
    act();
    IS_WATCHING.store(false, Ordering::Relaxed);
    FOUND.lock().expect("nobody panics with it").take()
}

/// Runs commands of all sessions twice; the second time, the core is watched.
fn watch(url: &Url, lun: u16, has_digests: bool, depth: usize) {
    let together = Barrier::new(SESSIONS + 1);
    std::thread::scope(|scope| {
        for session in 0..SESSIONS {
            let together = &together;
            scope.spawn(move || {
                let mut initiator = login(url, session, lun, has_digests);
                fill(&mut initiator, lun, session, depth);
                run(&mut initiator, lun, session, depth);
                together.wait();
                together.wait();
                run(&mut initiator, lun, session, depth);
                together.wait();
                together.wait();
            });
        }
        together.wait();
        IS_WATCHING.store(true, Ordering::Relaxed);
        together.wait();
        together.wait();
        IS_WATCHING.store(false, Ordering::Relaxed);
        together.wait();
    });
}

/// Brings a session's tables to their largest: this many reads that arrive together, and this many writes
/// that wait for their data at the same time. The tables grow with the commands in flight, which is allowed;
/// twice as many need a slot at once, since that of a completed command is free only when the core knows that
/// its response has been sent.
fn fill(initiator: &mut Initiator, lun: u16, session: usize, depth: usize) {
    let commands = 2 * depth;
    for (bytes, _) in LOAD {
        for is_read in [true, false] {
            initiator.gather();
            (0..commands).for_each(|command| issue(initiator, lun, session, command, bytes, is_read));
            initiator.release().expect("sent");
            (0..commands).for_each(|_| complete(initiator));
        }
    }
}

/// Writes and reads alternately, `depth` in flight at a time.
fn run(initiator: &mut Initiator, lun: u16, session: usize, depth: usize) {
    for (bytes, commands) in LOAD {
        for command in 0..commands {
            if command >= depth {
                complete(initiator);
            }
            issue(initiator, lun, session, command, bytes, command % 2 == 1);
        }
        (0..depth).for_each(|_| complete(initiator));
    }
}

fn issue(initiator: &mut Initiator, lun: u16, session: usize, command: usize, bytes: usize, is_read: bool) {
    issue_at(initiator, lun, session * RANGE_BYTES + command * bytes % RANGE_BYTES, bytes, is_read);
}

fn issue_at(initiator: &mut Initiator, lun: u16, at: usize, bytes: usize, is_read: bool) {
    let lba = (at / BLOCK_BYTES) as u64;
    let issued = if is_read {
        initiator.issue(lun, Read16::new(lba, (bytes / BLOCK_BYTES) as u32), bytes, Vec::new())
    } else {
        let cdb = write_cdb(lba, bytes, BLOCK_BYTES as u32, false);
        initiator.issue(lun, cdb, 0, vec![0x5a; bytes])
    };
    issued.expect("sent");
}

fn complete(initiator: &mut Initiator) {
    let (_, response) = initiator.complete_any().expect("a response");
    assert_eq!(response.status, 0, "{:02x?}", response.sense);
}

/// The id of this process's thread of that name.
fn thread_named(name: &str) -> i32 {
    let threads = std::fs::read_dir("/proc/self/task").expect("this process has threads");
    threads
        .filter_map(Result::ok)
        .find(|thread| {
            std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|found| found.trim_end() == name)
        })
        .and_then(|thread| thread.file_name().to_str()?.parse().ok())
        .unwrap_or_else(|| panic!("no thread {name}"))
}
