//! Debian's tgt as a child process: one daemon per run, with its own control socket.

use crate::directory::Directory;
use crate::place::{AT_ONCE, Place};
use crate::process::{PATIENCE, Process};
use crate::tools::Tools;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::path::Path;
use std::time::Duration;

const TARGET: &str = "iqn.2026-11.io.lunette:peer";
/// The variable that names the control socket, for tgtd and tgtadm.
const SOCKET: &str = "TGT_IPC_SOCKET";
/// How many ports are tried while somebody else takes them.
const TRIES: usize = 5;

/// A running tgtd, stopped when this is dropped.
#[derive(Debug)]
pub struct Tgt {
    process: Process,
    portal: SocketAddrV4,
    /// The control socket's name, as passed to tgtd and tgtadm, which append a number.
    socket: String,
    /// Contains the socket.
    _directory: Directory,
    tools: Tools,
    commands: Vec<String>,
}

impl Tgt {
    /// Its version, as reported by `tgtd`.
    pub fn version(tools: &Tools) -> Result<String, String> {
        tools.run(&["tgtd", "--version"])
    }

    /// Starts it on these cores with these units: a path, or `None` for one that stores nothing. It has
    /// header digests and data digests, or refuses them.
    pub fn start(
        place: &Place,
        cores: &[usize],
        units: &[Option<String>],
        digests: (bool, bool),
    ) -> Result<Tgt, String> {
        for _ in 0..TRIES {
            if let Some(mut tgt) = Tgt::spawn(place, cores, free_port()?)? {
                let configured = tgt.configure(units, digests);
                return configured.map(|()| tgt);
            }
        }
        Err("tgtd does not get a port to listen on".into())
    }

    /// `None`: somebody else has taken the port.
    fn spawn(place: &Place, cores: &[usize], port: u16) -> Result<Option<Tgt>, String> {
        let portal = SocketAddrV4::new(place.address(), port);
        let directory = Directory::make(&std::env::temp_dir(), "tgt")?;
        let socket = directory.path().join("socket").display().to_string();
        let arguments = ["-f".into(), "--iscsi".into(), format!("portal={portal}")];
        // It ignores SIGTERM.
        let mut command = place.command(Path::new("tgtd"), cores, AT_ONCE);
        command.args(&arguments).env(SOCKET, &socket);
        let process = Process::start("tgtd", &mut command)?;
        let line = [place.prefix(cores), vec!["tgtd".into()], arguments.into()].concat().join(" ");
        let mut tgt = Tgt {
            process,
            portal,
            tools: place.tools().clone(),
            commands: vec![
                "# tgtd sleeps in epoll_wait whatever the scheduling says".into(),
                format!("export {SOCKET}={socket}"),
                line,
            ],
            socket,
            _directory: directory,
        };
        let listens = tgt.wait()?;
        Ok(listens.then_some(tgt))
    }

    /// Waits until it answers; `false`: it has no portal.
    fn wait(&mut self) -> Result<bool, String> {
        let Tgt { process, tools, socket, portal, .. } = self;
        let portals = process.serves(Duration::from_millis(5), || {
            tgtadm(tools, socket, "--lld iscsi --mode portal --op show").ok()
        });
        Ok(portals?.contains(&portal.to_string()))
    }

    fn configure(&mut self, units: &[Option<String>], digests: (bool, bool)) -> Result<(), String> {
        let new = "--lld iscsi --mode target --op new --tid 1";
        let mut steps = vec![format!("{new} --targetname {TARGET}")];
        for (name, _) in [("HeaderDigest", digests.0), ("DataDigest", digests.1)].iter().filter(|(_, on)| *on)
        {
            let update = "--lld iscsi --mode target --op update --tid 1";
            steps.push(format!("{update} --name {name} --value CRC32C"));
        }
        for (unit, lun) in units.iter().zip(1..) {
            let new = format!("--lld iscsi --mode logicalunit --op new --tid 1 --lun {lun}");
            steps.push(match unit {
                Some(path) if path.contains([',', ' ']) => {
                    return Err(format!(
                        "{path}: tgt does not accept paths with a comma or a space; choose another directory"
                    ));
                }
                Some(path) => format!("{new} --backing-store {path}"),
                None => format!("{new} --bstype null --backing-store null"),
            });
        }
        steps.push("--lld iscsi --mode target --op bind --tid 1 --initiator-address ALL".into());
        for step in steps {
            tgtadm(&self.tools, &self.socket, &step).map_err(|error| self.process.fault(&error))?;
            self.commands.push(format!("tgtadm {step}"));
        }
        Ok(())
    }

    /// The URLs of its units. LUN 0 is tgt's controller.
    pub fn units(&self, count: u32) -> Vec<String> {
        (1..=count).map(|lun| format!("iscsi://{}/{TARGET}/{lun}", self.portal)).collect()
    }

    /// The process ID.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The equivalent commands.
    pub fn commands(&self) -> &[String] {
        &self.commands
    }

    /// Stops it gracefully, and waits until it has ended.
    pub fn stop(&mut self) -> Result<(), String> {
        for step in ["--lld iscsi --mode target --op delete --force --tid 1", "--mode sys --op delete"] {
            tgtadm(&self.tools, &self.socket, step).map_err(|error| self.process.fault(&error))?;
        }
        self.process.stopped()
    }
}

/// Runs `tgtadm`.
fn tgtadm(tools: &Tools, socket: &str, step: &str) -> Result<String, String> {
    let socket = format!("{SOCKET}={socket}");
    let wait = PATIENCE.as_secs().to_string();
    let mut line = vec!["timeout", &wait, "env", &socket, "tgtadm"];
    line.extend(step.split(' '));
    tools.run(&line)
}

/// tgtd must be given a port.
pub(crate) fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| error.to_string())?;
    listener.local_addr().map(|address| address.port()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn start(units: &[Option<String>]) -> Result<Tgt, String> {
        Tgt::start(&Place::new(&Tools::here(), None)?, &[0], units, (false, false))
    }

    #[test]
    fn it_serves_on_its_cores_and_ends_without_a_trace() {
        let mut tgt = start(&[None, None]).unwrap_or_else(|error| panic!("{error}"));
        let units = tgt.units(2);
        assert!(units[1].starts_with("iscsi://127.0.0.1:") && units[1].ends_with(":peer/2"), "{units:?}");
        let status = fs::read_to_string(format!("/proc/{}/status", tgt.pid())).unwrap();
        assert!(status.contains("Name:\ttgtd\n") && status.contains("Cpus_allowed_list:\t0\n"), "{status}");
        tgt.stop().unwrap();
        let directory = tgt._directory.path().to_path_buf();
        assert!(directory.exists());
        drop(tgt);
        assert!(!directory.exists());
    }

    #[test]
    fn its_last_output_is_reported() {
        let fault = start(&[Some("/nothing/there".into())]).err().unwrap_or_default();
        assert!(fault.contains("Could not open /nothing/there"), "{fault}");
        let fault = start(&[Some("/a,b".into())]).err().unwrap_or_default();
        assert!(fault.contains("choose another directory"), "{fault}");
    }

    #[test]
    fn a_port_that_is_taken_is_seen() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let place = Place::new(&Tools::here(), None).unwrap();
        assert!(Tgt::spawn(&place, &[], port).unwrap_or_else(|error| panic!("{error}")).is_none());
    }
}
