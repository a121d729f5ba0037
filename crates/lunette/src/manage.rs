//! Commands that show and change what a running daemon serves.

use crate::Failure;
use crate::client::AdminArguments;
use clap::{Args, Subcommand};

/// `lunette reload`.
#[derive(Debug, Args)]
pub(crate) struct ReloadArguments {
    /// Only show the steps that it would take
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    admin: AdminArguments,
}

/// `lunette config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print what runs as a configuration file, without secrets
    Show(AdminArguments),
}

/// Has the daemon read its file again.
pub(crate) fn reload(arguments: &ReloadArguments) -> Result<String, Failure> {
    let path = with_dry_run("/v1/reload", arguments.dry_run);
    arguments.admin.change("POST", &path, None)?.done(arguments.dry_run)
}

/// Shows the configuration.
pub(crate) fn config(command: &ConfigCommand) -> Result<String, Failure> {
    match command {
        ConfigCommand::Show(admin) => admin.get("/v1/config")?.text(),
    }
}

fn with_dry_run(path: &str, dry_run: bool) -> String {
    if dry_run { format!("{path}?dry_run=true") } else { path.into() }
}
