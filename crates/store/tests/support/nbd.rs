//! Other NBD servers, on a Unix domain socket or on loopback.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "every test crate uses its own part of this")]

use config::NbdUrl;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long starting may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The export's name.
const EXPORT: &str = "disk";

/// A server of one export; it is killed when it is dropped.
pub struct NbdServer {
    directory: TempDir,
    program: &'static str,
    arguments: Vec<String>,
    port: Option<u16>,
    child: Child,
}

impl NbdServer {
    /// qemu-nbd with a raw image and these options.
    pub fn qemu(image: &Path, options: &[&str]) -> NbdServer {
        NbdServer::start("qemu-nbd", None, |socket| {
            [vec![format!("--socket={socket}")], qemu_arguments(image, options)].concat()
        })
    }

    /// The same over TCP.
    pub fn qemu_tcp(image: &Path, options: &[&str]) -> NbdServer {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("its address").port();
        drop(listener);
        NbdServer::start("qemu-nbd", Some(port), |_| {
            let place = vec!["--bind=127.0.0.1".to_owned(), format!("--port={port}")];
            [place, qemu_arguments(image, options)].concat()
        })
    }

    /// qemu-storage-daemon with a raw image.
    pub fn storage_daemon(image: &Path) -> NbdServer {
        NbdServer::start("qemu-storage-daemon", None, |socket| {
            let file = format!("driver=file,node-name=file,filename={},discard=unmap", text(image));
            [
                ["--blockdev", &file],
                ["--blockdev", "driver=raw,node-name=disk,file=file,discard=unmap"],
                ["--nbd-server", &format!("addr.type=unix,addr.path={socket}")],
                ["--export", &format!("type=nbd,id=export,node-name=disk,name={EXPORT},writable=on")],
            ]
            .concat()
            .into_iter()
            .map(String::from)
            .collect()
        })
    }

    /// nbdkit with this plugin, its parameters and filters.
    pub fn nbdkit(arguments: &[&str]) -> NbdServer {
        NbdServer::start("nbdkit", None, |socket| {
            let place = ["--foreground".to_owned(), format!("--unix={socket}")];
            place.into_iter().chain(arguments.iter().map(|argument| (*argument).to_owned())).collect()
        })
    }

    fn start(
        program: &'static str,
        port: Option<u16>,
        arguments: impl FnOnce(&str) -> Vec<String>,
    ) -> NbdServer {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let arguments = arguments(text(&directory.path().join("socket")));
        let child = launch(&directory, program, &arguments);
        NbdServer { directory, program, arguments, port, child }
    }

    /// Its URL.
    pub fn url(&self) -> NbdUrl {
        NbdUrl::parse(&self.text()).expect("a URL")
    }

    /// The same as text.
    pub fn text(&self) -> String {
        match self.port {
            Some(port) => format!("nbd://127.0.0.1:{port}/{EXPORT}"),
            None => format!("nbd+unix:///{EXPORT}?socket={}", self.directory.path().join("socket").display()),
        }
    }

    /// Kills it (SIGKILL).
    pub fn kill(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("it ends");
    }

    /// Starts it again.
    pub fn restart(&mut self) {
        // Some do not replace a socket that another process has left behind.
        let _ = std::fs::remove_file(self.directory.path().join("socket"));
        self.child = launch(&self.directory, self.program, &self.arguments);
    }

    /// Suspends it (STOP), or resumes it (CONT).
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([&format!("-{signal}"), &self.child.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -{signal}");
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn qemu_arguments(image: &Path, options: &[&str]) -> Vec<String> {
    let usual = ["--persistent", "--format=raw", "--discard=unmap", "--export-name", EXPORT];
    usual.iter().chain(options).copied().chain([text(image)]).map(String::from).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Starts it so that it dies with the thread that started it, and waits until it listens.
fn launch(directory: &TempDir, program: &str, arguments: &[String]) -> Child {
    let ready = directory.path().join("pid");
    let _ = std::fs::remove_file(&ready);
    let option = if program == "qemu-nbd" { "--pid-file" } else { "--pidfile" };
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", program, option]).arg(&ready).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.spawn().unwrap_or_else(|error| {
        panic!(
            "setpriv (util-linux) and {program} (qemu-utils, qemu-system-common or nbdkit) are needed: {error}"
        )
    });
    let start = Instant::now();
    while !ready.exists() {
        let ended = child.try_wait().expect("a child can be waited for");
        assert!(ended.is_none() && start.elapsed() < PATIENCE, "{program} does not serve: {ended:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}
