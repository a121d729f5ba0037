//! The target opens units of the second daemon: like the engine does on threads, but in the world's time.

use super::chain::{CALLER, Unit};
use crate::directory::Directory;
use crate::kernel::Kernel;
use crate::net::Shared;
use engine::world::SavedPorts;
use initiator::InitiatorPort;
use initiator::remote::Takeover;
use reactor::io::{Io as _, Wait};
use std::path::Path;
use std::time::Duration;

/// How soon opening is retried.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// How often deadlines are checked.
const TICK: Duration = Duration::from_millis(1);

pub(super) struct Opening {
    pub(super) host: usize,
    pub(super) kernel: Kernel,
    net: Shared,
    directory: Directory,
    cores: usize,
    /// The remaining units, and the ports of the target's lanes to the units already open.
    left: Vec<Unit>,
    pub(super) ports: Vec<Vec<InitiatorPort>>,
    /// The ports whose earlier sessions it ends.
    takeover: Option<(Takeover, Vec<InitiatorPort>)>,
}

impl Opening {
    /// For these units, and a target with this many cores.
    pub(super) fn new(
        host: usize,
        kernel: Kernel,
        net: &Shared,
        directory: &Directory,
        cores: usize,
        mut units: Vec<Unit>,
    ) -> Opening {
        units.reverse();
        let (net, directory) = (net.clone(), directory.clone());
        Opening { host, kernel, net, directory, cores, left: units, ports: Vec::new(), takeover: None }
    }

    /// Whether all are open.
    pub(super) fn is_done(&self) -> bool {
        self.left.is_empty()
    }

    pub(super) fn turn(&mut self) {
        let mut completions = Vec::new();
        self.kernel.turn(Wait::No, &mut completions);
        for completion in completions {
            if let Some((takeover, _)) = &mut self.takeover {
                takeover.completed(&mut self.kernel, completion);
            }
        }
        let after = loop {
            match self.open() {
                Ok(true) if self.is_done() => return,
                Ok(true) => {}
                Ok(false) => break TICK,
                Err(problem) => {
                    let net = &mut *self.net.borrow_mut();
                    net.trace.note(net.now, &[3], || format!("a unit behind is not opened: {problem}"));
                    break RETRY_EVERY;
                }
            }
        };
        let mut net = self.net.borrow_mut();
        let at = net.now.after(after);
        net.wake(self.host, at);
    }

    /// Continues with the next unit; returns whether it is open.
    fn open(&mut self) -> Result<bool, String> {
        let Some(unit) = self.left.last() else { return Ok(true) };
        let file = SavedPorts::new(Path::new("/state"), &unit.serial);
        if self.takeover.is_none() {
            let earlier = file.read(&self.directory)?;
            let (addresses, ports) = (unit.addresses.clone(), earlier.clone());
            self.takeover = Some((Takeover::new(&unit.url, addresses, &unit.options, ports), earlier));
        }
        let Some((takeover, earlier)) = &mut self.takeover else { return Ok(false) };
        match takeover.turn(&mut self.kernel) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(problem) => {
                self.takeover = None;
                return Err(problem);
            }
        }
        let ports = SavedPorts::choose::<Kernel>(earlier, CALLER, self.cores);
        file.replace(Box::new(self.directory.clone()), &ports).map_err(|error| error.to_string())?;
        self.ports.push(ports);
        self.takeover = None;
        self.left.pop();
        Ok(true)
    }
}
