//! A file system whose write-back fails on demand: FUSE (Linux's include/uapi/linux/fuse.h), implemented by
//! the test itself, with one file and the kernel's page cache over it. Needs root and /dev/fuse.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use tempfile::TempDir;

const ROOT: u64 = 1;
const DISK: u64 = 2;
const NAME: &str = "disk";

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const DESTROY: u32 = 38;
const BATCH_FORGET: u32 = 42;

const ENOENT: i32 = 2;
const ENOSYS: i32 = 38;

const ASYNC_READ: u32 = 1;
const BIG_WRITES: u32 = 1 << 5;
const WRITEBACK_CACHE: u32 = 1 << 16;
const KEEP_CACHE: u32 = 2;
const MAX_WRITE: u32 = 128 << 10;

const IN_HEADER_BYTES: usize = 40;
const WRITE_HEADER_BYTES: usize = 40;

/// A mounted file system; unmounted when dropped.
pub struct Fuse {
    directory: TempDir,
    shared: Arc<Shared>,
    server: Option<JoinHandle<()>>,
}

struct Shared {
    device: File,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    medium: Vec<u8>,
    /// The error of writes and syncs.
    write_fault: Option<i32>,
    sync_fault: Option<i32>,
    holds: bool,
    held: Vec<Request>,
}

struct Request {
    opcode: u32,
    unique: u64,
    node: u64,
    body: Vec<u8>,
}

impl Fuse {
    /// With a file of this many zeros.
    pub fn mount(size: usize) -> Fuse {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let device = device.unwrap_or_else(|error| panic!("/dev/fuse is needed by this test: {error}"));
        let stdin = Stdio::from(device.try_clone().expect("a file can be shared"));
        let options = "fd=0,rootmode=40000,user_id=0,group_id=0,allow_other";
        let arguments = ["--internal-only", "--types", "fuse", "--options", options, "lunette-test"];
        let mut mount = Command::new("mount");
        let output = mount.args(arguments).arg(directory.path()).stdin(stdin).output();
        let output = output.unwrap_or_else(|error| panic!("mount is needed by this test: {error}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "a FUSE file system cannot be mounted, which needs root: {errors}");
        let state = State {
            medium: vec![0; size],
            write_fault: None,
            sync_fault: None,
            holds: false,
            held: Vec::new(),
        };
        let shared = Arc::new(Shared { device, state: Mutex::new(state), changed: Condvar::new() });
        let serves = shared.clone();
        let server = Some(std::thread::spawn(move || serves.serve()));
        Fuse { directory, shared, server }
    }

    /// Its file.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join(NAME)
    }

    /// Writes to the medium fail with this error from now on, or succeed.
    pub fn fail_writes(&self, errno: Option<i32>) {
        self.shared.lock().write_fault = errno;
    }

    /// The same for syncs.
    pub fn fail_syncs(&self, errno: Option<i32>) {
        self.shared.lock().sync_fault = errno;
    }

    /// Writes and syncs are not answered until [`Fuse::release`].
    pub fn hold(&self) {
        self.shared.lock().holds = true;
    }

    /// Waits until one is held.
    pub fn wait_until_held(&self) {
        let held = |state: &mut State| state.held.is_empty();
        let state = self.shared.lock();
        let _held = self.shared.changed.wait_while(state, held).expect("nobody panics with this lock");
    }

    /// Answers what was held, and holds nothing more.
    pub fn release(&self) {
        let mut state = self.shared.lock();
        state.holds = false;
        for request in std::mem::take(&mut state.held) {
            self.shared.answer(&mut state, &request);
        }
    }

    /// The kernel writes back what it has; an error is reported to no other user of the open file.
    pub fn write_back(&self) -> std::io::Result<()> {
        File::open(self.path())?.sync_all()
    }

    /// A byte of the medium.
    pub fn byte(&self, at: usize) -> u8 {
        self.shared.lock().medium[at]
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        self.release();
        let _ = Command::new("umount").arg("--lazy").arg(self.directory.path()).status();
        // It ends once the file is no longer open.
        if !std::thread::panicking() {
            self.server.take().map(JoinHandle::join);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with this lock")
    }

    fn serve(&self) {
        let mut buffer = vec![0; MAX_WRITE as usize + 8192];
        loop {
            let length = match (&self.device).read(&mut buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // ENOENT: a request was cancelled before it was read.
                Err(error) if error.raw_os_error() == Some(ENOENT) => continue,
                // ENODEV: it was unmounted.
                Err(_) => return,
            };
            let header = &buffer[..length];
            let request = Request {
                opcode: u32_at(header, 4),
                unique: u64_at(header, 8),
                node: u64_at(header, 16),
                body: header[IN_HEADER_BYTES..].to_vec(),
            };
            let mut state = self.lock();
            if state.holds && matches!(request.opcode, WRITE | FSYNC) {
                state.held.push(request);
                self.changed.notify_all();
            } else {
                self.answer(&mut state, &request);
            }
        }
    }

    fn answer(&self, state: &mut State, request: &Request) {
        let body = &request.body;
        let size = state.medium.len() as u64;
        let answer = match request.opcode {
            FORGET | BATCH_FORGET | INTERRUPT | DESTROY => return,
            INIT => Ok(init()),
            LOOKUP if body.starts_with(NAME.as_bytes()) => Ok(entry(size)),
            LOOKUP => Err(ENOENT),
            GETATTR | SETATTR => Ok(attributes(request.node, size)),
            OPEN => Ok([0u64.to_le_bytes(), u64::from(KEEP_CACHE).to_le_bytes()].concat()),
            STATFS => Ok([&[0; 40][..], &4096u32.to_le_bytes(), &[0; 36]].concat()),
            RELEASE => Ok(Vec::new()),
            READ => {
                let begin = state.medium.len().min(u64_at(body, 8) as usize);
                let end = state.medium.len().min(begin + u32_at(body, 16) as usize);
                Ok(state.medium[begin..end].to_vec())
            }
            WRITE => state.write_fault.map_or_else(
                || {
                    let (at, length) = (u64_at(body, 8) as usize, u32_at(body, 16) as usize);
                    state.medium[at..at + length].copy_from_slice(&body[WRITE_HEADER_BYTES..][..length]);
                    Ok(u64::from(u32_at(body, 16)).to_le_bytes().to_vec())
                },
                Err,
            ),
            FSYNC => state.sync_fault.map_or(Ok(Vec::new()), Err),
            _ => Err(ENOSYS),
        };
        let (error, payload) = answer.map_or_else(|errno| (-errno, Vec::new()), |payload| (0, payload));
        let length = 16 + payload.len() as u32;
        let header = [length.to_le_bytes(), error.to_le_bytes()].concat();
        // The requester may be gone.
        let _ = (&self.device).write(&[header, request.unique.to_le_bytes().to_vec(), payload].concat());
    }
}

fn init() -> Vec<u8> {
    let flags = ASYNC_READ | BIG_WRITES | WRITEBACK_CACHE;
    let words = [7, 31, MAX_WRITE, flags, 0, MAX_WRITE, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect()
}

/// An inode's attributes: the root's, or the file's.
fn attribute(node: u64, size: u64) -> Vec<u8> {
    let (size, mode, links) = if node == ROOT { (0, 0o40755, 2) } else { (size, 0o100_600, 1) };
    let longs = [node, size, size / 512, 0, 0, 0];
    let words: [u32; 10] = [0, 0, 0, mode, links, 0, 0, 0, 4096, 0];
    let longs = longs.iter().flat_map(|long| long.to_le_bytes());
    longs.chain(words.iter().flat_map(|word| word.to_le_bytes())).collect()
}

fn attributes(node: u64, size: u64) -> Vec<u8> {
    [vec![0; 16], attribute(node, size)].concat()
}

fn entry(size: u64) -> Vec<u8> {
    [DISK.to_le_bytes().to_vec(), vec![0; 32], attribute(DISK, size)].concat()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
