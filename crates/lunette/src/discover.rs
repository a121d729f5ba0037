//! `lunette discover`: the targets that a host offers, and their portals.

use crate::Failure;
use crate::inquiry::printable;
use clap::Args;
use config::Url;
use initiator::{Options, discover};
use serde::Serialize;
use std::fmt::Write as _;

#[derive(Debug, Args)]
#[command(after_help = "Example: lunette discover iscsi://storage1")]
pub(crate) struct DiscoverArguments {
    /// The host: iscsi://[USER%SECRET@]HOST[:PORT], or the same with iser://; or aoe://IFACE, a network interface
    url: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Target {
    name: String,
    portals: Vec<Portal>,
}

#[derive(Serialize)]
struct Portal {
    address: String,
    /// Portal group tag (RFC 7143 section 13.9), if it was given.
    group: Option<u16>,
}

/// Runs the discovery; returns what to print, or what is wrong.
pub(crate) fn run(arguments: &DiscoverArguments) -> Result<String, Failure> {
    if !Url::is_meant(&arguments.url) {
        return Err(no_url(&arguments.url));
    }
    let url = Url::given(&arguments.url).map_err(|error| Failure::wrong_input(format!("URL: {error}")))?;
    let found = discover(&url, &Options::default()).map_err(Failure::failed)?;
    let targets: Vec<Target> = found
        .iter()
        .map(|(name, addresses)| Target {
            name: printable(name.as_bytes()),
            portals: addresses.iter().map(|address| portal(address)).collect(),
        })
        .collect();
    Ok(match arguments.json {
        true => format!("{}\n", serde_json::to_string_pretty(&targets).unwrap_or_default()),
        false => text(&targets, &url),
    })
}

/// A host without a scheme, most likely. Text with other characters may contain a secret.
fn no_url(text: &str) -> Failure {
    let is_host = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-.:[]".contains(c));
    Failure::wrong_input(match is_host {
        true => {
            format!("`{text}` is not a URL; write iscsi://{text}, or aoe://{text} for a network interface")
        }
        false => "this is not a URL; write iscsi://HOST[:PORT], iser://HOST[:PORT] or aoe://IFACE".into(),
    })
}

/// `192.0.2.1:3260,1`.
fn portal(text: &str) -> Portal {
    let text = printable(text.as_bytes());
    match text.rsplit_once(',').and_then(|(address, group)| Some((address, group.parse().ok()?))) {
        Some((address, group)) => Portal { address: address.to_owned(), group: Some(group) },
        None => Portal { address: text, group: None },
    }
}

fn text(targets: &[Target], url: &Url) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    if targets.is_empty() {
        let _ = writeln!(text, "{url} offers no targets to this initiator.");
    }
    for target in targets {
        let _ = writeln!(text, "{}", target.name);
        for Portal { address, group } in &target.portals {
            let group = group.map_or(String::new(), |group| format!(" (portal group {group})"));
            let _ = writeln!(text, "  {address}{group}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_have_a_portal_group() {
        let read = |text| {
            let Portal { address, group } = portal(text);
            (address, group)
        };
        assert_eq!(read("192.0.2.1:3260,1"), ("192.0.2.1:3260".into(), Some(1)));
        assert_eq!(read("[::1]:3260,65535"), ("[::1]:3260".into(), Some(65535)));
        assert_eq!(read("storage1:3260"), ("storage1:3260".into(), None));
        assert_eq!(read("a,b\x1b"), ("a,b\\x1b".into(), None));
    }
}
