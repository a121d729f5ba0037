//! Debian's vblade as a child process, and AoE addresses.

use crate::place::{AT_ONCE, Place};
use crate::process::{PATIENCE, last_output};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;

/// All units share one shelf, each LUN has its own slot.
const SHELF: u16 = 1;
/// Part of the line that vblade prints before it serves.
const READY: &str = " sectors ";

/// A unit's address on a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address<'p> {
    /// The initiator's network device.
    outside: &'p str,
    /// The target's network device.
    pub inside: &'p str,
    /// `SHELF.SLOT`.
    pub unit: String,
}

impl Address<'_> {
    /// Its URL for an initiator.
    pub fn url(&self) -> String {
        format!("aoe://{}/{}", self.outside, self.unit)
    }
}

/// The addresses of this many units behind a place's link.
pub fn addresses(place: &Place, count: u32) -> Result<Vec<Address<'_>>, String> {
    let (outside, inside) = place.devices().ok_or("AoE needs a link")?;
    Ok((0..count).map(|lun| Address { outside, inside, unit: format!("{SHELF}.{lun}") }).collect())
}

/// A running vblade, stopped when this is dropped.
#[derive(Debug)]
pub struct Vblade {
    child: Child,
    line: String,
}

impl Vblade {
    /// Starts it on these cores with this file.
    pub fn start(
        place: &Place,
        cores: &[usize],
        address: &Address<'_>,
        file: &str,
    ) -> Result<Vblade, String> {
        let (shelf, slot) = address.unit.split_once('.').unwrap_or_default();
        let arguments = [shelf, slot, address.inside, file].map(String::from);
        let line = [place.prefix(cores), vec!["vblade".into()], arguments.to_vec()].concat().join(" ");
        let mut command = place.command(Path::new("vblade"), cores, AT_ONCE);
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{line}: {error}"))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (sender, receiver) = mpsc::channel();
        // Keeps reading until it ends, so that it never blocks on us.
        thread::spawn(move || {
            let lines = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines());
            lines.map_while(Result::ok).for_each(|line| drop(sender.send(line)));
        });
        let output = thread::spawn(move || last_output(stderr));
        let mut vblade = Vblade { child, line };
        loop {
            match receiver.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(READY) => return Ok(vblade),
                Ok(_) => {}
                Err(_) => {
                    let _ = vblade.child.kill();
                    let output = output.join().unwrap_or_default();
                    return Err(format!("{} does not serve: {}", vblade.line, output.trim()));
                }
            }
        }
    }

    /// The command that started it.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// The process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it, which is the only way to stop it; it must not have exited before.
    pub fn stop(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => self.child.kill().and_then(|()| self.child.wait()).map(drop),
            Ok(Some(status)) => return Err(format!("vblade ended with {status}")),
            Err(error) => Err(error),
        }
        .map_err(|error| format!("vblade: {error}"))
    }
}

impl Drop for Vblade {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Link;
    use crate::tools::Tools;
    use std::fs;

    /// Needs root, to create a network namespace.
    #[test]
    fn it_serves_behind_a_link_and_its_last_output_is_reported() {
        let place = Place::new(&Tools::here(), Some(Link::Plain)).unwrap_or_else(|error| panic!("{error}"));
        let (outside, inside) = place.devices().unwrap();
        let [_, address] = &*addresses(&place, 2).unwrap() else { panic!("two") };
        assert_eq!((address.url(), address.inside), (format!("aoe://{outside}/1.1"), inside));
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let path = file.path().display().to_string();
        let mut vblade =
            Vblade::start(&place, &[0], address, &path).unwrap_or_else(|error| panic!("{error}"));
        assert!(vblade.line().ends_with(&format!(" vblade 1 1 {inside} {path}")), "{}", vblade.line());
        let status = fs::read_to_string(format!("/proc/{}/status", vblade.pid())).unwrap();
        assert!(status.contains("Name:\tvblade\n") && status.contains("Cpus_allowed_list:\t0\n"), "{status}");
        vblade.stop().unwrap();
        assert!(vblade.stop().is_err());
        let fault = Vblade::start(&place, &[], address, "/nothing/there").err().unwrap_or_default();
        assert!(fault.contains("/nothing/there does not serve: "), "{fault}");
    }

    #[test]
    fn aoe_needs_a_link() {
        let place = Place::new(&Tools::here(), None).unwrap();
        assert!(addresses(&place, 1).is_err());
    }
}
