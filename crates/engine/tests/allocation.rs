//! Once it runs, a core allocates nothing to serve READ and WRITE: what an allocator costs, and what it may wait for,
//! is paid at start.

#[path = "remote/support.rs"]
#[allow(dead_code, reason = "other tests use the rest of it")]
mod support;

use engine::initiator::{Client, Options, Url};
use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Barrier, Mutex};

/// Sessions at once, so that the core finds more than one thing to do in a turn.
const SESSIONS: usize = 4;
/// Commands of each kind and size of all sessions together, before the core is watched and then.
const WARM_UP: u32 = 200;
const COMMANDS: u32 = 1000;
/// Blocks of each session's own range.
const RANGE_BLOCKS: u32 = 8192;

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
            // Remembering it allocates too.
            && IS_WATCHING.swap(false, Ordering::Relaxed)
        {
            *FOUND.lock().expect("nobody panics with it") = Some(Backtrace::force_capture());
        }
    }
}

// SAFETY: everything is left to the system's allocator.
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
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = format!("file:{},size=64M", directory.path().join("disk").display());
    let daemon = support::serve(&["ram:64M", "null:64M", &file]);
    CORE.store(thread_named("core-0"), Ordering::Relaxed);
    for (lun, store) in ["ram", "null", "file"].iter().enumerate() {
        let url = support::url(&daemon, lun as u16);
        for digests in ["", "?header_digest=crc32c&data_digest=crc32c"] {
            let url = format!("{url}{digests}").parse().expect("a URL");
            watch(&url);
            let found = FOUND.lock().expect("nobody panics with it").take();
            assert!(found.is_none(), "{store}{digests}: the core allocated\n{}", found.expect("it is there"));
        }
    }
    IS_WATCHING.store(true, Ordering::Relaxed);
    drop(Client::connect(&support::url(&daemon, 0), &Options::default()).expect("a session"));
    IS_WATCHING.store(false, Ordering::Relaxed);
    assert!(FOUND.lock().expect("nobody panics with it").is_some(), "a login allocates, and is seen to");
    daemon.stop().expect("every core ends in order");
}

/// Runs commands of all sessions twice; the second time, the core is watched.
fn watch(url: &Url) {
    let together = Barrier::new(SESSIONS + 1);
    std::thread::scope(|scope| {
        for session in 0..SESSIONS as u32 {
            let together = &together;
            scope.spawn(move || {
                let mut client = Client::connect(url, &Options::default()).expect("a session");
                run(&mut client, session, WARM_UP);
                together.wait();
                together.wait();
                run(&mut client, session, COMMANDS);
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

fn run(client: &mut Client, session: u32, commands: u32) {
    for blocks in [8u16, 128] {
        let data = vec![0x5a; usize::from(blocks) * 512];
        for command in 0..commands / SESSIONS as u32 {
            let within = command * u32::from(blocks) % RANGE_BLOCKS;
            let lba = session * RANGE_BLOCKS + within;
            let reply = client.command(&cdb(0x2a, lba, blocks), 0, &data).expect("a reply");
            assert_eq!(reply.status, 0, "{:?}", reply.sense);
            let reply = client.command(&cdb(0x28, lba, blocks), data.len() as u32, &[]).expect("a reply");
            assert_eq!((reply.status, reply.data.len()), (0, data.len()), "{:?}", reply.sense);
        }
    }
}

/// READ(10) or WRITE(10).
fn cdb(opcode: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    cdb[0] = opcode;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// The number of this process's thread of that name.
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
