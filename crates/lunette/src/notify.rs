//! Notifications for the service manager that started the daemon (sd_notify(3)): it is ready, reloading or
//! stopping, a line of status, and that all cores are responsive. Without a service manager nothing here has
//! an effect.

use config::Config;
use engine::Turns;
use sd_notify::NotifyState;
use std::io;
use std::thread;

/// Everything is served.
pub(crate) fn ready(config: &Config) {
    send(&[NotifyState::Ready, NotifyState::Status(&serves(config))]);
}

/// A reload begins, which ends with [`reloaded`].
pub(crate) fn reloading() {
    // The manager must see that this is newer than its request (systemd.service(5), Type=notify-reload).
    match NotifyState::monotonic_usec_now() {
        Ok(now) => {
            send(&[NotifyState::Reloading, now, NotifyState::Status("reading the configuration file again")])
        }
        Err(error) => {
            tracing::warn!(%error, "the clock cannot be read: the service manager is not notified of the reload")
        }
    }
}

/// A reload was completed, or refused.
pub(crate) fn reloaded(config: &Config, is_accepted: bool) {
    let refused = if is_accepted { "" } else { "; the last reload was refused, see the log" };
    send(&[NotifyState::Ready, NotifyState::Status(&format!("{}{refused}", serves(config)))]);
}

/// What is served has changed.
pub(crate) fn changed(config: &Config) {
    send(&[NotifyState::Status(&serves(config))]);
}

/// The daemon is stopping.
pub(crate) fn stopping() {
    let status = "stopping: asking initiators to log out, finishing commands, flushing stores";
    send(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// Feeds the manager's watchdog, if it has one, as long as all cores respond: twice per period each core is
/// pinged, and it is fed when all have answered.
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
