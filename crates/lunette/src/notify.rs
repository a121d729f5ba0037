//! What a service manager that started the daemon gets from it (sd_notify(3)): that it serves, reads its file again or ends,
//! a line of status, and that all cores turn. Without one nothing here does anything.

use config::Config;
use engine::Turns;
use sd_notify::NotifyState;
use std::io;
use std::thread;

/// Everything is served.
pub(crate) fn ready(config: &Config) {
    send(&[NotifyState::Ready, NotifyState::Status(&serves(config))]);
}

/// The configuration file is read again, until [`reloaded`].
pub(crate) fn reloading() {
    // The manager must see that this is newer than its request (systemd.service(5), Type=notify-reload).
    match NotifyState::monotonic_usec_now() {
        Ok(now) => {
            send(&[NotifyState::Reloading, now, NotifyState::Status("reading the configuration file again")])
        }
        Err(error) => tracing::warn!(%error, "the clock cannot be read: the service manager sees no reload"),
    }
}

/// The configuration was read again, or refused and left as it was.
pub(crate) fn reloaded(config: &Config, is_accepted: bool) {
    let refused = if is_accepted { "" } else { "; the last reload was refused, see the log" };
    send(&[NotifyState::Ready, NotifyState::Status(&format!("{}{refused}", serves(config)))]);
}

/// What is served has changed.
pub(crate) fn changed(config: &Config) {
    send(&[NotifyState::Status(&serves(config))]);
}

/// The end has begun.
pub(crate) fn stopping() {
    let status = "stopping: commands finish, stores are flushed, initiators are asked to log out";
    send(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// Feeds the manager's watchdog, if it has one, as long as all cores turn: twice in its time, each of them is asked for a sign
/// of life, and it is fed when all have given theirs.
pub(crate) fn feed_watchdog(turns: Turns) -> io::Result<()> {
    let Some(limit) = sd_notify::watchdog_enabled() else { return Ok(()) };
    let feed = move || {
        while turns.wait() {
            send(&[NotifyState::Watchdog]);
            thread::sleep(limit / 2);
        }
    };
    thread::Builder::new().name("watchdog".into()).spawn(feed).map(drop)
}

fn serves(config: &Config) -> String {
    let count = |number: usize, word: &str| format!("{number} {word}{}", if number == 1 { "" } else { "s" });
    let parts = [
        count(config.luns.len(), "LUN"),
        count(config.targets.len(), "target"),
        count(config.portals.len(), "portal"),
        count(config.cores.len(), "core"),
    ];
    let [luns, targets, portals, cores] = parts;
    format!("serving {luns} of {targets} at {portals} on {cores}")
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager cannot be notified");
    }
}
