//! Operations on the hosts of a [`Network`].

use super::daemon::Daemon;
use super::initiator::{Initiator, Login};
use super::net::{INTERFACE, Namespace, Network, TARGET};
use super::tools::{Outcome, run};
use std::time::Duration;

/// A daemon that serves these units over AoE, and over iSCSI on the cable.
pub fn serve(network: &Network, units: &[&str], options: &[&str]) -> Daemon {
    let listen = format!("{TARGET}:0");
    let units = units.iter().flat_map(|unit| ["--lun", unit]);
    let arguments = ["--listen", &listen, "--aoe", INTERFACE].into_iter().chain(units);
    Daemon::serve_within(&network.target, arguments.chain(options.iter().copied()))
}

/// The command line of Lunette on a host.
pub fn lunette(host: &Namespace, arguments: &[&str]) -> Outcome {
    run(&mut host.within(Daemon::command().args(arguments)), Duration::from_secs(300))
}

/// A session over iSCSI from the initiator's host.
pub fn session(network: &Network, daemon: &Daemon) -> Initiator {
    let url = daemon.lun(0);
    let session = network.initiator.inside(|| Initiator::login(&url, &Login::named("scsi")));
    let mut session = session.expect("login");
    session.ready(0).expect("the unit is ready");
    session
}
