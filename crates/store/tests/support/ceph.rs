//! A Ceph of one monitor and one OSD, on loopback by default.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "every test crate uses its own part of this")]

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The pool of images.
pub const POOL: &str = "rbd";
/// How long starting may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Ends with its processes when it is dropped.
pub struct Ceph {
    directory: TempDir,
    monitor: Child,
    osd: Option<Child>,
}

impl Ceph {
    /// Starts it, with all data in memory; it is up, and has a pool.
    pub fn start() -> Ceph {
        Ceph::on("memstore", false, Ipv4Addr::LOCALHOST)
    }

    /// The same, whose clients need a key.
    pub fn guarded() -> Ceph {
        Ceph::on("memstore", true, Ipv4Addr::LOCALHOST)
    }

    /// The same, with data that survives a restart of its OSD.
    pub fn persistent() -> Ceph {
        Ceph::persistent_at(Ipv4Addr::LOCALHOST)
    }

    /// The same at an address that other machines reach.
    pub fn persistent_at(address: Ipv4Addr) -> Ceph {
        Ceph::on("bluestore", false, address)
    }

    fn on(store: &str, is_guarded: bool, address: Ipv4Addr) -> Ceph {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let fsid = read("/proc/sys/kernel/random/uuid");
        let monitor = SocketAddrV4::new(address, free_port(address));
        let text = configuration(&directory, &fsid, monitor, store, is_guarded);
        std::fs::write(directory.path().join("ceph.conf"), text).expect("written");
        for name in ["mon", "osd.0", "run"] {
            std::fs::create_dir(directory.path().join(name)).expect("made");
        }
        let monitors = directory.path().join("monmap");
        let monitors = monitors.to_str().expect("UTF-8");
        tool("monmaptool", &["--create", "--add", "a", &monitor.to_string(), "--fsid", &fsid, monitors]);
        let conf = directory.path().join("ceph.conf");
        let conf = conf.to_str().expect("UTF-8");
        let keys = directory.path().join("keys");
        let keys = keys.to_str().expect("UTF-8");
        let mut make = vec!["-c", conf, "-i", "a", "--mkfs", "--monmap", monitors];
        if is_guarded {
            make_keys(&directory, keys);
            make.extend(["--keyring", keys]);
        }
        tool("ceph-mon", &make);
        let monitor = daemon(&["ceph-mon", "-f", "-c", conf, "-i", "a"]);
        let mut ceph = Ceph { directory, monitor, osd: None };
        let uuid = read("/proc/sys/kernel/random/uuid");
        ceph.command("ceph", &["osd", "new", &uuid]);
        if is_guarded {
            ceph.command("ceph", &["auth", "add", "osd.0", "-i", &ceph.path("osd.0/keyring")]);
        }
        tool("ceph-osd", &["-c", &ceph.conf(), "-i", "0", "--mkfs", "--osd-uuid", &uuid, "--no-mon-config"]);
        ceph.start_osd();
        ceph.command("ceph", &["osd", "pool", "create", POOL, "8", "8", "replicated"]);
        ceph.command("rbd", &["pool", "init", POOL]);
        ceph
    }

    /// The configuration of its clients.
    pub fn conf(&self) -> String {
        self.path("ceph.conf")
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    /// The file with the key of a new client.
    pub fn key(&self, client: &str, monitors: &str, osds: &str) -> PathBuf {
        let (client, file) = (format!("client.{client}"), self.path("client.keyring"));
        self.ceph(&["auth", "get-or-create", &client, "mon", monitors, "osd", osds, "-o", &file]);
        file.into()
    }

    /// Creates an image.
    pub fn create(&self, image: &str, size_bytes: u64) {
        self.rbd(&["create", "--size", &format!("{size_bytes}B"), &format!("{POOL}/{image}")]);
    }

    /// Creates an image that gateways can share, one at a time.
    pub fn create_shared(&self, image: &str, size_bytes: u64) {
        let (size, image) = (format!("{size_bytes}B"), format!("{POOL}/{image}"));
        self.rbd(&["create", "--size", &size, "--image-feature", "layering,exclusive-lock", &image]);
    }

    /// Runs `rbd`.
    pub fn rbd(&self, arguments: &[&str]) -> String {
        self.command("rbd", arguments)
    }

    /// Starts `rbd`; it dies with the thread that started it.
    pub fn start_rbd(&self, arguments: &[&str]) -> Child {
        daemon(&[&["rbd", "-c", &self.conf()], arguments].concat())
    }

    /// Runs `ceph`.
    pub fn ceph(&self, arguments: &[&str]) -> String {
        self.command("ceph", arguments)
    }

    /// Starts the OSD, and waits until it is up.
    pub fn start_osd(&mut self) {
        self.osd = Some(daemon(&["ceph-osd", "-f", "-c", &self.conf(), "-i", "0"]));
        let deadline = Instant::now() + PATIENCE;
        while !self.command("ceph", &["osd", "stat"]).contains("1 up") {
            assert!(Instant::now() < deadline, "the OSD does not come up");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Kills the OSD (SIGKILL).
    pub fn kill_osd(&mut self) {
        let mut osd = self.osd.take().expect("it runs");
        osd.kill().and_then(|()| osd.wait()).expect("it ends");
    }

    /// Suspends the OSD (SIGSTOP), or resumes it (SIGCONT).
    pub fn signal_osd(&self, signal: &str) {
        let osd = self.osd.as_ref().expect("it runs").id().to_string();
        tool("kill", &[&format!("-{signal}"), &osd]);
    }

    /// Runs one of its tools.
    pub fn command(&self, program: &str, arguments: &[&str]) -> String {
        tool(program, &[&["-c", &self.conf()], arguments].concat())
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        for child in self.osd.iter_mut().chain([&mut self.monitor]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The keys of the monitor, the administrator and the OSD.
fn make_keys(directory: &TempDir, keys: &str) {
    let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    let (admin, osd) = (path("client.admin.keyring"), path("osd.0/keyring"));
    let make = |file: &str, name: &str, caps: &[&str]| {
        tool("ceph-authtool", &[&[file, "--create-keyring", "--gen-key", "-n", name], caps].concat());
    };
    make(keys, "mon.", &["--cap", "mon", "allow *"]);
    make(&admin, "client.admin", &["--cap", "mon", "allow *", "--cap", "osd", "allow *"]);
    make(&osd, "osd.0", &["--cap", "mon", "profile osd", "--cap", "osd", "allow *"]);
    tool("ceph-authtool", &[keys, "--import-keyring", &admin]);
}

fn configuration(
    directory: &TempDir,
    fsid: &str,
    monitor: SocketAddrV4,
    store: &str,
    is_guarded: bool,
) -> String {
    let method = if is_guarded { "cephx" } else { "none" };
    let address = monitor.ip();
    let directory = directory.path().display();
    format!(
        "[global]
fsid = {fsid}
mon host = {monitor}
public addr = {address}
cluster addr = {address}
auth cluster required = {method}
auth service required = {method}
auth client required = {method}
run dir = {directory}/run
admin socket = {directory}/run/$cluster-$name.$pid.asok
log file = {directory}/$name.log
pid file = {directory}/run/$name.pid
crash dir = {directory}
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
osd pool default pg num = 8
osd crush chooseleaf type = 0
mon warn on pool no redundancy = false
setuser =
setgroup =
[client.admin]
keyring = {directory}/client.admin.keyring
[mon]
mon data = {directory}/mon
# A monitor refuses to start on a disk that is 95 % full, with some gigabytes left.
mon data avail crit = 0
[osd]
osd data = {directory}/osd.0
osd objectstore = {store}
memstore device bytes = 1073741824
# Else each small write copies its object.
memstore page set = true
bluestore block size = 2147483648
bluefs allocator = avl
osd memory target = 939524096
osd op num shards = 2
"
    )
}

/// A daemon that dies with the thread that started it, however that ends.
fn daemon(command: &[&str]) -> Child {
    let mut child = Command::new("setpriv");
    child.args(["--pdeathsig", "KILL", "--"]).args(command);
    child.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    child.spawn().unwrap_or_else(|error| panic!("setpriv (util-linux) is needed by this test: {error}"))
}

fn tool(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{program} is needed by this test: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).expect(path).trim().to_owned()
}

fn free_port(address: Ipv4Addr) -> u16 {
    let listener = TcpListener::bind((address, 0)).expect("a port");
    listener.local_addr().expect("its address").port()
}
