//! The command line.

use clap::{Args, Parser, Subcommand};
use engine::config::Options;
use std::path::PathBuf;

/// Serves RAM, files and block devices as SCSI disks over iSCSI.
#[derive(Debug, Parser)]
#[command(name = "lunette", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve disks until SIGINT or SIGTERM. Without options: a 1 GiB RAM disk on 127.0.0.1:3260
    Serve(Serve),
    /// Verify a configuration file and print all that is wrong with it
    Check {
        /// The file
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Configuration file (TOML); see docs/configuration.md
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Listen here; may be given several times [default: 127.0.0.1:3260]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Vec<String>,
    /// Name of the target [default: iqn.2026-11.io.lunette:disk]
    #[arg(long, value_name = "IQN")]
    target: Option<String>,
    /// A disk: ram:SIZE, null:SIZE, file:PATH[,size=SIZE] or block:PATH, then options after commas: bs=, pbs=, ro,
    /// serial=, name=, wcache=on|off, thin=on|off, removable, id=; may be given several times [default: ram:1G]
    #[arg(long, value_name = "SPEC")]
    lun: Vec<String>,
    /// Cores to run on, like 0,2-3 [default: all]
    #[arg(long, value_name = "LIST|all")]
    cores: Option<String>,
    /// How idle cores wait: adaptive (spin briefly, then sleep), always (spin), never (sleep) [default: adaptive]
    #[arg(long, value_name = "MODE")]
    poll: Option<String>,
    /// Keep state that survives a restart here (persistent reservations) [default: nowhere]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// What is logged: error, warn, info, debug, trace
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = ["error", "warn", "info", "debug", "trace"])]
    pub(crate) log_level: String,
}

impl Serve {
    /// The options in the configuration's words.
    pub(crate) fn options(&self) -> Options {
        Options {
            listen: self.listen.clone(),
            target: self.target.clone(),
            luns: self.lun.clone(),
            cores: self.cores.clone(),
            poll: self.poll.clone(),
            state_dir: self.state_dir.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }
}
