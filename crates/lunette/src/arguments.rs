//! The command line.

use crate::aoe::AoeArguments;
use crate::bench::BenchArguments;
use crate::ceiling::CeilingArguments;
use crate::copy::CopyArguments;
use crate::discover::DiscoverArguments;
use crate::drain::DrainArguments;
use crate::generate::GenerateArguments;
use crate::inquiry::InquiryArguments;
use crate::luns::LunsArguments;
use crate::manage::{
    ChangeArguments, ConfigCommand, GroupCommand, LunCommand, PortalGroupCommand, TargetCommand,
};
use crate::report::ReportArguments;
use crate::sessions::{DisconnectArguments, SessionsArguments};
use crate::status::StatusArguments;
use crate::top::TopArguments;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use config::ServeOptions;
use std::path::PathBuf;

/// Serves memory, files and block devices as SCSI disks over iSCSI, iSER and SRP.
///
/// `lunette serve` alone serves a 1 GiB disk in memory on 127.0.0.1:3260 and prints how to connect to it.
#[derive(Debug, Parser)]
#[command(name = "lunette", version = env!("LUNETTE_VERSION"), subcommand_required = true, arg_required_else_help = false)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve disks until Ctrl-C
    Serve(Box<Serve>),
    /// Verify a configuration file and print all errors
    Check {
        /// The file; docs/configuration.md explains its options
        file: PathBuf,
    },
    /// Make the running daemon reread its configuration file and apply the differences
    Reload(ChangeArguments),
    /// Show the configuration of the running daemon
    #[command(subcommand)]
    Config(ConfigCommand),
    /// List, add, change, resize or remove LUNs, in the running daemon and its file
    #[command(subcommand)]
    Lun(Box<LunCommand>),
    /// Add, change or remove targets, in the running daemon and its file
    #[command(subcommand)]
    Target(Box<TargetCommand>),
    /// Add, change or remove groups of targets, in the running daemon and its file
    #[command(subcommand)]
    Group(Box<GroupCommand>),
    /// List portal groups, or change the asymmetric access state (ALUA) of one, in the running daemon and its file
    #[command(subcommand)]
    PortalGroup(Box<PortalGroupCommand>),
    /// Move initiators off a portal: no new sessions; existing ones are asked to log out, then ended
    Drain(DrainArguments),
    /// Show an overview of the running daemon: cores, portals, LUNs that are not well, sessions, recent events
    Status(StatusArguments),
    /// List the LUNs of the running daemon: state, load and latency
    Luns(LunsArguments),
    /// Show live which LUNs and sessions are busiest, and the load of the cores
    Top(TopArguments),
    /// List the sessions of the running daemon: initiator, transport, load and latency
    Sessions(SessionsArguments),
    /// End a session of the running daemon; its initiator may log in again
    Disconnect(DisconnectArguments),
    /// Copy between iSCSI URLs, files and block devices
    Copy(CopyArguments),
    /// List the targets of a host
    Discover(DiscoverArguments),
    /// Show what a unit is and can do
    Inquiry(InquiryArguments),
    /// Show or change AoE's own properties of a unit: config string, lists of addresses, SMART
    Aoe(AoeArguments),
    /// Measure targets: IOPS, MB/s, latency, CPU of both sides
    Bench(Box<BenchArguments>),
    /// Serve a responder that does nothing, as a performance baseline
    Ceiling(CeilingArguments),
    /// List RDMA devices, their ports, and what they can do
    Rdma,
    /// Measure a plan and produce a page with charts
    Report(ReportArguments),
    /// Write manual pages, and completions for shells
    Generate(GenerateArguments),
}

const LUN_HELP: &str = "\
A LUN. Given several times, LUNs are numbered from 0 [default: ram:1G]

SPEC is one of
  ram:SIZE               memory, empty at every start
  null:SIZE              reads as zeros, discards writes
  file:PATH[,size=SIZE]  a file; size= creates it if it does not exist
  block:PATH             a block device
  rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]
                         a Ceph image; conf=PATH, client=NAME and keyring=PATH identify its cluster and client,
                         luks_passphrase_file=PATH decrypts it
  nbd://HOST/EXPORT      an NBD export; over a Unix domain socket nbd+unix:///EXPORT?socket=PATH
  iscsi://HOST/IQN/LUN   a unit of another target, over RDMA with iser://HOST/IQN/LUN or srp://HOST/GUID/LUN,
                         over Ethernet with aoe://IFACE/SHELF.SLOT
                         (docs/command-line.md describes these URLs)
and then, after commas,
  bs=BYTES       block size: 512 (the default) to 65536, a power of two
  pbs=BYTES      physical block size (default: 4096 over 512, else like bs)
  huge=WHEN      memory on huge pages: always, never, or auto (the default: if all disks in memory fit)
  ro             read-only
  wcache=on|off  write cache at start (default: on)
  thin=on|off    thin provisioned: UNMAP releases space (default: on)
  removable      a removable medium
  serial=TEXT    unit serial number (default: derived from machine and path)
  name=NAME      name in the log (default: lun0, lun1, ...)
  id=NUMBER      LUN number
  aoe=SHELF.SLOT address on interfaces that --aoe serves (default: not served there)
Sizes take K, M, G and T. A comma in a path is written `\\,`.";

#[derive(Debug, Args)]
#[command(
    after_help = "Example: lunette serve --listen 0.0.0.0 --lun file:/srv/disk.img,size=10G --lun ram:1G,ro"
)]
// Its fields are the options of the command line, one for each.
pub(crate) struct Serve {
    /// Configuration file (TOML); docs/configuration.md explains its options
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Listen here (may be repeated); replaces the file's portals [default: 127.0.0.1:3260]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Vec<String>,
    /// Listen here for SRP over iWARP, in addition to other portals (may be repeated)
    #[arg(long, value_name = "ADDR:PORT")]
    srp: Vec<String>,
    /// Also listen on RDMA devices, wherever iSER or SRP is offered (see lunette rdma)
    #[arg(long)]
    rdma: bool,
    /// Name of the SRP target ports, both id_ext and ioc_guid [default: generated once, kept in the state
    /// directory]
    #[arg(long, value_name = "16HEX")]
    srp_guid: Option<String>,
    /// Serve LUNs that have an AoE address (aoe=SHELF.SLOT) over ATA over Ethernet on this interface (may be repeated)
    #[arg(long, value_name = "IFACE")]
    aoe: Vec<String>,
    /// Name of the target [default: iqn.2026-11.io.lunette:disk]
    #[arg(long, value_name = "IQN")]
    target: Option<String>,
    #[arg(long, value_name = "SPEC", help = LUN_HELP)]
    lun: Vec<String>,
    /// Cores to run on, such as 0,2-3 [default: all]
    #[arg(long, value_name = "LIST|all")]
    cores: Option<String>,
    /// How idle cores wait: adaptive (spin a little, then sleep), always (spin), never (sleep) [default: adaptive]
    #[arg(long, value_name = "adaptive|always|never")]
    poll: Option<String>,
    /// Directory for state that must survive a restart, such as persistent reservations [default: none]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// The admin interface: the path of a Unix socket (with a slash), an address and port, or none
    /// [default: /run/lunette/lunette.sock, for users $XDG_RUNTIME_DIR/lunette.sock, if it is free]
    #[arg(long, value_name = "PATH|ADDR:PORT|none")]
    admin: Option<String>,
    /// File with tokens for changes over TCP, a line NAME TOKEN for each administrator [default: no changes over TCP]
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<String>,
    /// Certificate (PEM) of the admin interface over TCP, which then speaks https
    #[arg(long, value_name = "FILE")]
    admin_certificate: Option<String>,
    /// Private key (PEM) of that certificate
    #[arg(long, value_name = "FILE")]
    admin_key: Option<String>,
    /// Started by root: become this user once sockets, devices and files are open
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Level of the log on stderr; overrides RUST_LOG [default: info]
    #[arg(long, value_name = "LEVEL", value_parser = ["off", "error", "warn", "info", "debug", "trace"])]
    pub(crate) log_level: Option<String>,
}

impl Serve {
    /// The options in the configuration's form.
    pub(crate) fn options(self) -> ServeOptions {
        ServeOptions {
            config: self.config,
            listen: self.listen,
            srp: self.srp,
            rdma: self.rdma,
            srp_guid: self.srp_guid,
            aoe: self.aoe,
            target: self.target,
            lun: self.lun,
            cores: self.cores,
            poll: self.poll,
            state_dir: self.state_dir,
            admin: self.admin,
            admin_token_file: self.admin_token_file,
            admin_certificate: self.admin_certificate,
            admin_key: self.admin_key,
        }
    }
}

/// The most options of a command that one line lists.
const OPTIONS_LISTED: usize = 16;

/// What is wrong with the arguments and how to fix it, in one line. `arguments`: without the program's name.
pub(crate) fn one_line(error: &clap::Error, arguments: impl IntoIterator<Item = String>) -> String {
    let text = error.to_string();
    let is_message = |line: &&str| !line.starts_with("Usage:") && !line.starts_with("For more information");
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty()).take_while(is_message);
    // Tips are phrased better below.
    let what = lines.filter(|line| !line.starts_with("tip:")).collect::<Vec<_>>().join(" ");
    let (name, command) = asked(arguments);
    let remedy = remedy(error, &command).map_or(String::new(), |remedy| format!("; {remedy}"));
    format!("{}{remedy}; see {name} --help", what.strip_prefix("error: ").unwrap_or(&what))
}

/// The command that the arguments are for, by its full name.
fn asked(arguments: impl IntoIterator<Item = String>) -> (String, clap::Command) {
    let mut command = Arguments::command();
    let mut name = command.get_name().to_owned();
    for argument in arguments {
        let Some(inner) = command.find_subcommand(&argument) else { break };
        name = format!("{name} {argument}");
        command = inner.clone();
    }
    (name, command)
}

/// What may have been meant.
fn remedy(error: &clap::Error, command: &clap::Command) -> Option<String> {
    let meant = |kind| match error.get(kind)? {
        ContextValue::String(word) => Some(word.clone()),
        ContextValue::Strings(words) => words.first().cloned(),
        _ => None,
    };
    let similar = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    if let Some(word) = similar.into_iter().find_map(meant) {
        return Some(format!("did you mean `{word}`?"));
    }
    let word = meant(ContextKind::InvalidArg)?;
    let options: Vec<String> =
        command.get_opts().filter_map(|option| Some(format!("--{}", option.get_long()?))).collect();
    match (error.kind(), word.strip_prefix("--")) {
        (ErrorKind::UnknownArgument, Some(_)) if (1..=OPTIONS_LISTED).contains(&options.len()) => {
            Some(format!("known here: {}", options.join(", ")))
        }
        (ErrorKind::UnknownArgument, None) if word.starts_with('-') => {
            Some("options begin with two dashes".into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(arguments: &[&str]) -> String {
        let program = ["lunette"].iter().chain(arguments);
        let error = Arguments::try_parse_from(program).expect_err("wrong on purpose");
        one_line(&error, arguments.iter().map(|argument| argument.to_string()))
    }

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn wrong_arguments_are_answered_with_one_line() {
        for (arguments, named) in [
            (&[][..], "generate, help]; see lunette --help"),
            (&["serv"], "; did you mean `serve`?; see lunette --help"),
            (
                &["serve", "--luns", "ram:1G"],
                "'--luns' found; did you mean `--lun`?; see lunette serve --help",
            ),
            (&["inquiry", "x", "--jsn"], "; did you mean `--json`?; see lunette inquiry --help"),
            (&["bench", "ram:1M", "--jobs", "2"], "'--jobs' found; see lunette bench --help"),
            (&["inquiry", "x", "--verify"], "; known here: --json, --raw; see"),
            (&["aoe", "config", "x", "--tst"], "; did you mean `--test`?; see lunette aoe config --help"),
            (&["serve", "-lun", "ram:1G"], "; options begin with two dashes; see lunette serve --help"),
            (&["bench", "ram:1M", "--rw", "randrea"], "; did you mean `randread`?; see lunette bench --help"),
            (&["serve", "--lun"], "--lun"),
            (&["serve", "--cores", "0", "--cores", "1"], "--cores"),
            (&["serve", "--log-level", "loud"], "possible values: off, error"),
            (&["check"], "<FILE>; see lunette check --help"),
        ] {
            let line = refusal(arguments);
            assert!(line.contains(named) && line.ends_with(" --help"), "{line}");
            assert_eq!(line.lines().count(), 1, "{line}");
        }
    }
}
