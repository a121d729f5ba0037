//! Two network namespaces joined by a cable, for a test that runs as root.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The interface at both ends.
pub(crate) const INTERFACE: &str = "aoe0";

/// Both ends of a cable; removed when this is dropped.
pub(crate) struct Cable {
    pub(crate) ends: [End; 2],
}

/// A network namespace with one end of the cable.
pub(crate) struct End {
    name: String,
}

impl Cable {
    /// With an MTU, both ends up and ready.
    pub(crate) fn new(mtu: u32) -> Cable {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = |end: &str| format!("reactor-{}-{number}{end}", std::process::id());
        let cable = Cable { ends: ["a", "b"].map(|end| End { name: name(end) }) };
        let [a, b] = &cable.ends;
        ip(&format!("netns add {}", a.name));
        ip(&format!("netns add {}", b.name));
        let peer = format!("peer name {INTERFACE} mtu {mtu} netns {}", b.name);
        ip(&format!("-n {} link add {INTERFACE} mtu {mtu} type veth {peer}", a.name));
        a.ip(&format!("link set {INTERFACE} up"));
        b.ip(&format!("link set {INTERFACE} up"));
        cable.ends.iter().for_each(End::wait_until_ready);
        cable
    }
}

impl End {
    /// Runs `ip` in it.
    pub(crate) fn ip(&self, words: &str) {
        ip(&format!("-n {} {words}", self.name));
    }

    /// The kernel discards what is sent until it has noticed the carrier, which it does some time after both ends are
    /// up.
    fn wait_until_ready(&self) {
        let link = format!("-n {} link show {INTERFACE}", self.name);
        let is_up = || {
            let shown = command(&link).output().expect("`ip` runs").stdout;
            String::from_utf8_lossy(&shown).contains("state UP")
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_up() {
            assert!(Instant::now() < deadline, "{} does not get ready", self.name);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Runs `tc` in it.
    pub(crate) fn tc(&self, words: &str) {
        let mut command = Command::new("tc");
        must(command.args(["-n", &self.name]).args(words.split(' ')));
    }

    /// Calls `act` on a thread inside it; what that opens stays there.
    pub(crate) fn inside<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let space = File::open(format!("/run/netns/{}", self.name)).expect("the namespace is there");
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let network = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(space.as_fd(), network).expect("root may enter it");
                act()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        // Removing either end removes the other.
        let [a, b] = &self.ends;
        let _ = command(&format!("-n {} link delete {INTERFACE}", a.name)).output();
        for end in [a, b] {
            let _ = command(&format!("netns delete {}", end.name)).output();
        }
    }
}

fn ip(words: &str) {
    must(&mut command(words));
}

fn must(command: &mut Command) {
    let done = command.output().expect("the tests need ip and tc (iproute2)");
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

fn command(words: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(words.split(' '));
    command
}
