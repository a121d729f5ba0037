//! Parses the command line into the raw form: a file with overrides, or a complete configuration.

use super::access::AdminAccess;
use super::checked::Checked;
use super::machine::Machine;
use super::model::{ByDevice, Config};
use super::problems::{Collector, Fault, Problems};
use super::raw::*;
use super::{file, lun_spec, scalar, verify};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const DEFAULT_TARGET: &str = "iqn.2026-11.io.lunette:disk";
const DEFAULT_LUN: &str = "ram:1G";
/// The name used in messages when there is no file.
const RUNNING: &str = "running configuration";

/// The options of `lunette serve`, as written.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ServeOptions {
    /// `--config`
    pub config: Option<PathBuf>,
    /// `--listen`, repeatable
    pub listen: Vec<String>,
    /// `--srp`, repeatable
    pub srp: Vec<String>,
    /// `--rdma`
    pub rdma: bool,
    /// `--srp-guid`
    pub srp_guid: Option<String>,
    /// `--aoe`, repeatable
    pub aoe: Vec<String>,
    /// `--target`
    pub target: Option<String>,
    /// `--lun`, repeatable
    pub lun: Vec<String>,
    /// `--cores`
    pub cores: Option<String>,
    /// `--poll`
    pub poll: Option<String>,
    /// `--state-dir`
    pub state_dir: Option<PathBuf>,
    /// `--admin`
    pub admin: Option<String>,
    /// `--admin-token-file`
    pub admin_token_file: Option<String>,
    /// `--admin-certificate`
    pub admin_certificate: Option<String>,
    /// `--admin-key`
    pub admin_key: Option<String>,
}

impl ServeOptions {
    /// Whether they name files that are read again while the daemon runs.
    pub fn name_files(&self) -> bool {
        let files = [&self.admin_token_file, &self.admin_certificate, &self.admin_key];
        self.config.is_some() || files.iter().any(|file| file.is_some())
    }
}

impl Config {
    /// The configuration that the command line specifies.
    pub fn from_options(options: &ServeOptions) -> Result<Config, Problems> {
        Checked::from_options(options).map(|checked| checked.config)
    }
}

impl Checked {
    /// From command-line options. What this machine lacks is reported only when the daemon starts.
    pub fn from_options(options: &ServeOptions) -> Result<Checked, Problems> {
        match &options.config {
            Some(path) => {
                let text = file::load(path)?;
                with_file(options, path, &text, &Machine::here(path.parent()))
            }
            None => without_file(options, &Machine::here(None)),
        }
    }

    /// The same with a different text for the file. If the options name no file, the text, once a
    /// [`Checked::text`], replaces all options. With `access` the files of tokens, certificate and key are
    /// not read again: who may make changes over TCP stays the same.
    pub fn from_text(
        options: &ServeOptions,
        text: &str,
        access: Option<Arc<AdminAccess>>,
    ) -> Result<Checked, Problems> {
        let machine = |base| Machine { access, ..Machine::here(base) };
        match &options.config {
            Some(path) => with_file(options, path, text, &machine(path.parent())),
            None => with_file(&ServeOptions::default(), Path::new(RUNNING), text, &machine(None)),
        }
    }
}

fn with_file(
    options: &ServeOptions,
    path: &Path,
    text: &str,
    machine: &Machine,
) -> Result<Checked, Problems> {
    let mut problems = Collector::new(Some((path, text)));
    let raw = file::read(text, &mut problems);
    let disks = [("--target", options.target.is_some()), ("--lun", !options.lun.is_empty())];
    for (name, _) in disks.iter().filter(|(_, given)| *given) {
        let fix = "add it to the file, or leave --config out";
        problems.add(&Place::option(name), Fault::new("this cannot be combined with --config", fix));
    }
    let config = raw.and_then(|mut raw| {
        overrides(options, &mut raw);
        let config = verify::verify(&mut raw, machine, &mut problems);
        config.map(|config| Checked::new(config, &raw, machine, Some((path, text)), None))
    });
    problems.finish(config)
}

fn without_file(options: &ServeOptions, machine: &Machine) -> Result<Checked, Problems> {
    let mut problems = Collector::new(None);
    let mut raw = Raw::default();
    overrides(options, &mut raw);
    let place = Place::option("--target");
    let name = options.target.as_deref().unwrap_or(DEFAULT_TARGET).to_string();
    let mut references = Vec::new();
    let default = [DEFAULT_LUN.to_string()];
    let specs = if options.lun.is_empty() { &default[..] } else { &options.lun };
    for (index, text) in specs.iter().enumerate() {
        let (mut lun, number) = lun_spec::parse(text, &mut problems);
        let name = lun.name.get_or_insert_with(|| verify::default_lun_name(index, &lun.place)).clone();
        references.push(RawLunRef { place: lun.place.clone(), lun: Some(name), number });
        raw.luns.push(lun);
    }
    let name = Some(At::new(name, &place));
    raw.targets = vec![RawTarget { place, name, luns: Some(references), ..RawTarget::default() }];
    let config = verify::verify(&mut raw, machine, &mut problems);
    problems.finish(config.map(|config| Checked::new(config, &raw, machine, None, None)))
}

/// Options that are allowed together with a file.
fn overrides(options: &ServeOptions, raw: &mut Raw) {
    let text = |name: &str, text: &String| At::new(text.clone(), &Place::option(name));
    if let Some(cores) = &options.cores {
        raw.cores = Some(text("--cores", cores));
    }
    if let Some(poll) = &options.poll {
        raw.poll = Some(text("--poll", poll));
    }
    if let Some(path) = &options.state_dir {
        // Unlike a path in the file, this one is relative to where the command was run.
        let is_url = path.to_str().is_some_and(scalar::looks_like_url);
        let path = std::path::absolute(path).ok().filter(|_| !is_url).unwrap_or_else(|| path.clone());
        raw.state_dir = Some(At::new(path, &Place::option("--state-dir")));
    }
    if let Some(address) = &options.admin {
        let is_path = address.contains('/') && !scalar::looks_like_url(address);
        let address = if is_path { from_here(address) } else { address.clone() };
        raw.admin = Some(text("--admin", &address));
    }
    let files = [
        ("--admin-token-file", &options.admin_token_file, &mut raw.admin_token_file),
        ("--admin-certificate", &options.admin_certificate, &mut raw.admin_certificate),
        ("--admin-key", &options.admin_key, &mut raw.admin_key),
    ];
    for (name, given, named) in files {
        if let Some(path) = given {
            *named = Some(text(name, &from_here(path)));
        }
    }
    if !options.listen.is_empty() {
        raw.portals = options.listen.iter().map(|address| RawPortal::at(address)).collect();
    }
    if !options.aoe.is_empty() {
        raw.aoe = options.aoe.iter().map(|name| interface(name)).collect();
    }
    if let Some(guid) = &options.srp_guid {
        raw.srp_guid = Some(text("--srp-guid", guid));
    }
    if !options.srp.is_empty() {
        verify::complete_portals(raw);
        options.srp.iter().for_each(|address| add_srp(address, raw));
    }
    if options.rdma {
        verify::complete_portals(raw);
        for portal in &mut raw.portals {
            if portal.rdma.as_ref().is_none_or(|at| at.value == ByDevice::No) {
                portal.rdma = Some(At::new(ByDevice::Too, &Place::option("--rdma")));
            }
        }
    }
}

/// A path relative to the current directory.
fn from_here(path: &str) -> String {
    let absolute = std::path::absolute(path).ok().and_then(|path| path.into_os_string().into_string().ok());
    absolute.unwrap_or_else(|| path.to_owned())
}

/// Adds SRP to the portal with this address, or a new portal.
fn add_srp(address: &str, raw: &mut Raw) {
    let place = Place::option("--srp");
    let parsed = scalar::listen(address).ok();
    let is_same = |portal: &&mut RawPortal| {
        portal.listen.as_ref().is_some_and(|at| parsed.is_some() && scalar::listen(&at.value).ok() == parsed)
    };
    let all = |names: &[&str]| names.iter().map(|name| At::new((*name).into(), &place)).collect();
    match raw.portals.iter_mut().find(is_same) {
        Some(portal) => {
            let transports = portal.transports.get_or_insert_with(|| all(&["iscsi", "iser"]));
            transports.push(At::new("srp".into(), &place));
        }
        None => {
            let transports = Some(all(&["srp"]));
            let listen = Some(At::new(address.into(), &place));
            raw.portals.push(RawPortal { listen, transports, place, ..RawPortal::default() });
        }
    }
}

/// An interface as given by `--aoe`.
fn interface(name: &str) -> RawAoe {
    let place = Place::option("--aoe");
    RawAoe { interface: Some(At::new(name.into(), &place)), place, ..RawAoe::default() }
}
