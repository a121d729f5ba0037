//! Where the admin interface is, for the daemon that opens it and for commands that connect to it.

use admin::{BindError, Listener};
use config::{AdminAddress, AdminPlace, Config, parse_admin};
use rustix::process::geteuid;
use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The variable with the place, if nothing else names one.
pub(crate) const VARIABLE: &str = "LUNETTE_ADMIN";
/// The socket of the system's daemon, and its directory.
pub(crate) const DIRECTORY: &str = "/run/lunette";
const SOCKET: &str = "lunette.sock";

/// The default place: the system's for root, a user's own for users.
pub(crate) fn usual() -> Option<PathBuf> {
    if geteuid().is_root() {
        return Some(Path::new(DIRECTORY).join(SOCKET));
    }
    let directory = std::env::var_os("XDG_RUNTIME_DIR").filter(|directory| !directory.is_empty())?;
    Some(PathBuf::from(directory).join(SOCKET))
}

/// Where commands connect: the system's daemon may admit a user who has none.
pub(crate) fn to_ask() -> Option<PathBuf> {
    let system = || Some(Path::new(DIRECTORY).join(SOCKET)).filter(|path| path.exists());
    usual().filter(|path| path.exists()).or_else(system).or_else(usual)
}

/// Opens the place that the configuration names. Where it names none, failing to open the default costs only
/// the interface.
pub(crate) fn open(config: &Config) -> Result<Option<Listener>, BindError> {
    let listener = open_place(&config.admin)?;
    if let (Some(listener), Some(group)) = (&listener, &config.admin_group) {
        listener.admit(group)?;
    }
    Ok(listener)
}

fn open_place(place: &AdminPlace) -> Result<Option<Listener>, BindError> {
    let without = |why: &str| {
        tracing::warn!("the daemon serves without its admin interface: {why}");
        Ok(None)
    };
    let place = match place {
        AdminPlace::Usual => match from_environment() {
            Ok(place) => place,
            Err(why) => return without(&why),
        },
        given => given.clone(),
    };
    match place {
        AdminPlace::Nowhere => Ok(None),
        AdminPlace::At(address) => Listener::bind(&address).map(Some),
        AdminPlace::Usual => {
            let Some(path) = usual() else {
                return without("XDG_RUNTIME_DIR is not set; name a place with --admin");
            };
            if path.starts_with(DIRECTORY) {
                // If it cannot be created, opening the socket reports that. The socket's mode applies,
                // whatever the umask.
                if DirBuilder::new().create(DIRECTORY).is_ok() {
                    let _ = std::fs::set_permissions(DIRECTORY, Permissions::from_mode(0o755));
                }
            }
            match Listener::bind(&AdminAddress::Unix(path)) {
                Ok(listener) => Ok(Some(listener)),
                Err(error) => without(&error.to_string()),
            }
        }
    }
}

/// The value of LUNETTE_ADMIN for a daemon: a URL is meant for commands only.
fn from_environment() -> Result<AdminPlace, String> {
    match std::env::var(VARIABLE) {
        Ok(text) if text == "none" || (text.contains('/') && !text.contains("://")) => {
            parse_admin(&text).map_err(|why| format!("{VARIABLE}: {why}"))
        }
        Ok(_) | Err(_) => Ok(AdminPlace::Usual),
    }
}
