//! `--user`: dropping root's privileges as soon as they are not needed any more.

use crate::admin_address;
use admin::Listener;
use config::Config;
use nix::unistd::{self, Gid, Uid};
use rustix::process::{Resource, Rlimit, getgid, getuid, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_keep_capabilities, set_no_new_privs,
};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::lchown;
use std::path::Path;

/// The user that the daemon becomes.
#[derive(Clone, Debug)]
pub(crate) struct User {
    name: String,
    uid: Uid,
    gid: Gid,
    /// A state directory that did not exist before is created for the user.
    had_state: bool,
    /// The same for the directory of the admin socket.
    had_directory: bool,
}

impl User {
    /// Finds the user, and makes sure that no program started from now on gets more privileges than we have:
    /// before any thread starts.
    pub(crate) fn find(name: &str) -> Result<User, String> {
        if !getuid().is_root() {
            return Err(format!("--user {name}: only root may become another user"));
        }
        let fault = |error: &dyn std::fmt::Display| format!("--user {name}: {error}");
        let found = unistd::User::from_name(name).map_err(|error| fault(&error))?;
        let found =
            found.ok_or_else(|| fault(&"there is no such user; create one with adduser --system --group"))?;
        set_no_new_privs(true).map_err(|error| fault(&error))?;
        Ok(User { name: name.into(), uid: found.uid, gid: found.gid, had_state: true, had_directory: true })
    }

    /// The name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Records what exists before the daemon creates anything.
    pub(crate) fn note_existing(&mut self, config: &Config) {
        self.had_state = config.state_dir.as_deref().is_none_or(Path::exists);
        self.had_directory = Path::new(admin_address::DIRECTORY).exists();
    }

    /// Becomes the user: once everything that root had to open is open, and before any serving thread starts.
    /// Only AoE keeps CAP_NET_RAW, on this thread and those that it starts: it opens interfaces that return.
    pub(crate) fn become_user(&self, config: &Config, admin: Option<&Listener>) -> Result<(), String> {
        if let Some(admin) = admin {
            self.give(admin);
        }
        self.drop_rights(config).map_err(|error| format!("--user {}: {error}", self.name))?;
        if let Some(state) = &config.state_dir
            && let Err(error) = rustix::fs::access(state, rustix::fs::Access::WRITE_OK)
        {
            let (name, state) = (&self.name, state.display());
            return Err(format!(
                "state directory {state}: {error} for the user {name} (--user); chown -R {name} {state}"
            ));
        }
        Ok(())
    }

    /// Gives the user the admin socket, and its directory if it was created for that. Root can use it in any
    /// case.
    fn give(&self, admin: &Listener) {
        if let Err(error) = admin.give_to(self.uid.as_raw()) {
            tracing::warn!("{error}");
        }
        if !self.had_directory
            && let Err(error) =
                lchown(admin_address::DIRECTORY, Some(self.uid.as_raw()), Some(self.gid.as_raw()))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "{} cannot be given to {} (--user)", admin_address::DIRECTORY, self.name);
        }
    }

    fn drop_rights(&self, config: &Config) -> io::Result<()> {
        if let (false, Some(state)) = (self.had_state, &config.state_dir) {
            let what = fs::read_dir(state)?.map(|entry| entry.map(|entry| entry.path()));
            for path in what.chain([Ok(state.clone())]) {
                lchown(path?, Some(self.uid.as_raw()), Some(self.gid.as_raw()))?;
            }
        }
        if let Err(error) = reactor::memory::page_map() {
            tracing::warn!(%error, "/proc/self/pagemap: all of a disk in memory counts as used");
        }
        // Rings and RDMA devices lock memory later. If this cannot be raised, the limit stays as it was.
        let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
        let keeps = if config.aoe.is_empty() { CapabilitySet::empty() } else { CapabilitySet::NET_RAW };
        set_keep_capabilities(!keeps.is_empty())?;
        let name = CString::new(self.name.as_str())?;
        unistd::initgroups(&name, self.gid)?;
        // These are the C library's, which change all threads; the kernel's change only the calling one. From
        // here on the files of this process in /proc belong to root, only root may trace it, and by default
        // it leaves no core dump (PR_SET_DUMPABLE in prctl(2)). It stays so: it has secrets, and open
        // devices, which do not belong to the user.
        unistd::setresgid(self.gid, self.gid, self.gid)?;
        unistd::setresuid(self.uid, self.uid, self.uid)?;
        set_keep_capabilities(false)?;
        let sets = CapabilitySets { effective: keeps, permitted: keeps, inheritable: CapabilitySet::empty() };
        set_capabilities(None, sets)?;
        assert!(getuid().as_raw() == self.uid.as_raw() && getgid().as_raw() == self.gid.as_raw());
        Ok(())
    }
}
