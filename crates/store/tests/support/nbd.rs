//! qemu-nbd on a Unix domain socket or on loopback.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "every test crate uses its own part of this")]

use config::NbdUrl;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long starting may take on a machine that has much to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// The export's name.
const EXPORT: &str = "disk";

/// A server of one export; it is killed when it is dropped.
pub struct QemuNbd {
    folder: TempDir,
    arguments: Vec<String>,
    port: Option<u16>,
    child: Child,
}

impl QemuNbd {
    /// Serves a raw image, as these options say.
    pub fn serve(image: &Path, options: &[&str]) -> QemuNbd {
        QemuNbd::start(image, options, None)
    }

    /// The same over TCP.
    pub fn serve_tcp(image: &Path, options: &[&str]) -> QemuNbd {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("its address").port();
        drop(listener);
        QemuNbd::start(image, options, Some(port))
    }

    fn start(image: &Path, options: &[&str], port: Option<u16>) -> QemuNbd {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut arguments: Vec<String> =
            ["--persistent", "--format=raw", "--discard=unmap", "--export-name", EXPORT]
                .map(String::from)
                .into();
        match port {
            Some(port) => arguments.extend(["--bind=127.0.0.1".into(), format!("--port={port}")]),
            None => arguments.push(format!("--socket={}", folder.path().join("socket").display())),
        }
        arguments.extend(options.iter().map(|option| (*option).to_owned()));
        arguments.push(image.to_str().expect("UTF-8").to_owned());
        let child = launch(&folder, &arguments);
        QemuNbd { folder, arguments, port, child }
    }

    /// Where it is.
    pub fn url(&self) -> NbdUrl {
        NbdUrl::parse(&self.text()).expect("a URL")
    }

    /// The same as text.
    pub fn text(&self) -> String {
        match self.port {
            Some(port) => format!("nbd://127.0.0.1:{port}/{EXPORT}"),
            None => format!("nbd+unix:///{EXPORT}?socket={}", self.folder.path().join("socket").display()),
        }
    }

    /// Kills it (SIGKILL).
    pub fn kill(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("it ends");
    }

    /// Starts it again.
    pub fn restart(&mut self) {
        self.child = launch(&self.folder, &self.arguments);
    }

    /// Stops it where it is (STOP), or lets it continue (CONT).
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([&format!("-{signal}"), &self.child.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -{signal}");
    }
}

impl Drop for QemuNbd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts it so that it dies with the thread that started it, and waits until it listens.
fn launch(folder: &TempDir, arguments: &[String]) -> Child {
    let ready = folder.path().join("pid");
    let _ = std::fs::remove_file(&ready);
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "qemu-nbd"]).arg(format!("--pid-file={}", ready.display()));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("setpriv (util-linux) and qemu-nbd (qemu-utils) are needed: {error}"));
    let start = Instant::now();
    while !ready.exists() {
        let ended = child.try_wait().expect("a child can be waited for");
        assert!(ended.is_none() && start.elapsed() < PATIENCE, "qemu-nbd does not serve: {ended:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}
