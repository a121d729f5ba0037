//! Targets in this process.

use config::Url;
use config::{Config, ServeOptions};
use engine::Daemon;
use initiator::{Client, Options};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use wire::scsi::command::TestUnitReady;

/// The target's name when the command line gives none.
pub const TARGET: &str = "iqn.2026-11.io.lunette:disk";
/// Its name in SRP.
const GUID: &str = "024c750000000001";

/// Serves these LUNs on one core.
pub fn serve(luns: &[&str]) -> Daemon {
    serve_at("127.0.0.1:0", luns)
}

/// The same on this address.
pub fn serve_at(listen: &str, luns: &[&str]) -> Daemon {
    serve_on("0", listen, luns)
}

/// The same on these cores.
pub fn serve_on(cores: &str, listen: &str, luns: &[&str]) -> Daemon {
    let options = ServeOptions {
        listen: vec![listen.into()],
        srp: vec![listen.into()],
        srp_guid: Some(GUID.into()),
        lun: luns.iter().map(ToString::to_string).collect(),
        cores: Some(cores.into()),
        poll: Some(poll()),
        ..ServeOptions::default()
    };
    let config = Config::from_options(&options).unwrap_or_else(|problems| panic!("{problems}"));
    Daemon::start(config).expect("the daemon starts")
}

/// Two cores, if the machine has them.
pub fn two_cores() -> &'static str {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) { "0,1" } else { "0" }
}

/// Serves this configuration in TOML, which leaves the portal to us.
pub fn serve_toml(text: &str) -> Daemon {
    let poll = poll();
    let text = format!(
        "cores = \"0\"\npoll = \"{poll}\"\nsrp_guid = \"{GUID}\"\n{text}\n[[portal]]\nlisten = \"127.0.0.1:0\"\n\
         transports = [\"iscsi\", \"iser\", \"srp\"]\n"
    );
    let config =
        Config::from_toml(&text, Path::new("test.toml")).unwrap_or_else(|problems| panic!("{problems}"));
    Daemon::start(config).expect("the daemon starts")
}

/// The polling mode of targets: the same tests pass in each.
fn poll() -> String {
    std::env::var("LUNETTE_TEST_POLL").unwrap_or_else(|_| "adaptive".into())
}

/// The URL scheme of initiators: the same tests pass over every transport.
pub fn scheme() -> String {
    std::env::var("LUNETTE_TEST_SCHEME").unwrap_or_else(|_| "iscsi".into())
}

/// The target's name in such URLs.
pub fn target_of(scheme: &str) -> &'static str {
    if scheme == "srp" { GUID } else { TARGET }
}

/// The end of a URL that requests all digests.
pub fn sums() -> &'static str {
    if scheme() == "iscsi" { "?header_digest=crc32c&data_digest=crc32c" } else { "?crc=on" }
}

/// The URL of LUN 0 of the target at this address, with `options` after it.
pub fn url_at(address: SocketAddr, options: &str) -> String {
    let scheme = scheme();
    format!("{scheme}://{address}/{}/0{options}", target_of(&scheme))
}

/// The URL of a unit, with `login` before the address and `options` after it.
pub fn url_with(daemon: &Daemon, login: &str, lun: u16, options: &str) -> Url {
    let (scheme, address) = (scheme(), daemon.addresses()[0]);
    let url = format!("{scheme}://{login}{address}/{}/{lun}{options}", target_of(&scheme));
    url.parse().expect("a URL")
}

/// The URL of a unit.
pub fn url(daemon: &Daemon, lun: u16) -> Url {
    url_with(daemon, "", lun, "")
}

/// Waits until a LUN of this daemon is ready: on a busy machine, a remote unit may open only after the daemon
/// has stopped waiting for it.
pub fn wait_until_open(daemon: &Daemon, lun: u16) {
    let mut client = Client::connect(&url(daemon, lun), &Options::default()).expect("a session");
    while client.command(TestUnitReady {}, 0, &[]).expect("a reply").status != 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Options with short timeouts, but not too short for the answers that are to arrive.
pub fn short_timeouts() -> Options {
    Options {
        give_up_after: Duration::from_secs(5),
        keep_alive: Duration::from_secs(2),
        ..Options::default()
    }
}
