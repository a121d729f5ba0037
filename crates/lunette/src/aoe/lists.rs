//! `lunette aoe mask` and `lunette aoe reserve`: lists of Ethernet addresses.

use super::UnitArguments;
use super::unit::Unit;
use crate::Failure;
use crate::inquiry::Rows;
use clap::Args;
use serde::Serialize;
use std::str::FromStr;
use wire::aoe::{Directive, DirectiveCommand, MACS_MAX, Mac, OrderKind};
use wire::iwarp::Layout;

#[derive(Debug, Args)]
#[command(after_help = "Example: lunette aoe mask aoe://eth0/1.1 --add ours --add 02:00:00:00:00:09")]
pub(super) struct MaskArguments {
    #[command(flatten)]
    asked: UnitArguments,
    /// Add this address (may be repeated); `ours` is the interface's own
    #[arg(long, value_name = "MAC")]
    add: Vec<Name>,
    /// Remove this address (may be repeated)
    #[arg(long, value_name = "MAC")]
    remove: Vec<Name>,
    /// Edit it even if that shuts this interface out
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: lunette aoe reserve aoe://eth0/1.1 --set ours,02:00:00:00:00:09")]
pub(super) struct ReserveArguments {
    #[command(flatten)]
    asked: UnitArguments,
    /// Reserve the unit for these addresses; `ours` is the interface's own
    #[arg(long, value_name = "MAC,...", value_delimiter = ',', num_args = 1, conflicts_with = "release")]
    set: Vec<Name>,
    /// Release it
    #[arg(long)]
    release: bool,
    /// Do so even if others have reserved it, in whatever way
    #[arg(long)]
    force: bool,
}

/// An address as a user writes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Name {
    Ours,
    Mac(Mac),
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Name, String> {
        if text == "ours" {
            return Ok(Name::Ours);
        }
        match text.parse::<Mac>() {
            Ok(mac) if mac.is_group() => Err("a multicast address; give the address of one interface".into()),
            Ok(mac) => Ok(Name::Mac(mac)),
            Err(error) => Err(format!("{error}, and not `ours`")),
        }
    }
}

#[derive(Serialize)]
struct Output {
    url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mask: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved: Option<Vec<String>>,
}

pub(super) fn mask(arguments: &MaskArguments) -> Result<String, Failure> {
    let MaskArguments { asked, add, remove, force } = arguments;
    few(add.len().saturating_add(remove.len()))?;
    let mut unit = Unit::connect(&asked.url)?;
    let (add, remove) = (macs(&unit, add), macs(&unit, remove));
    let mut list = listed(&unit.order(OrderKind::ReadMask, &[])?, Directive::BYTES);
    if !add.is_empty() || !remove.is_empty() {
        let left: Vec<Mac> = list.iter().chain(&add).filter(|mac| !remove.contains(mac)).copied().collect();
        if !force && !left.is_empty() && !left.contains(&unit.ours()) {
            let text = "this would lock this interface out; use --add ours as well, or --force";
            return Err(Failure::wrong_input(format!("{}: {text}", unit.url())));
        }
        let directives = directives(DirectiveCommand::ADD, &add)
            .chain(directives(DirectiveCommand::DELETE, &remove))
            .collect::<Vec<_>>();
        list = listed(&unit.order(OrderKind::EditMask, &directives.concat())?, Directive::BYTES);
    }
    let output = Output { url: unit.url(), mask: Some(texts(&list)), reserved: None };
    Ok(asked.render(&output, |rows| write(rows, "answers", "everybody", &list, unit.ours())))
}

pub(super) fn reserve(arguments: &ReserveArguments) -> Result<String, Failure> {
    let ReserveArguments { asked, set, release, force } = arguments;
    let changes = *release || !set.is_empty();
    if *force && !changes {
        return Err(Failure::wrong_input("--force needs --set MAC,... or --release"));
    }
    few(set.len())?;
    let mut unit = Unit::connect(&asked.url)?;
    let kind = match (changes, force) {
        (false, _) => OrderKind::ReadReserve,
        (true, false) => OrderKind::SetReserve,
        (true, true) => OrderKind::ForceReserve,
    };
    let argument: Vec<u8> = macs(&unit, set).iter().flat_map(|Mac(bytes)| *bytes).collect();
    let list = listed(&unit.order(kind, &argument)?, size_of::<Mac>());
    let output = Output { url: unit.url(), mask: None, reserved: Some(texts(&list)) };
    Ok(asked.render(&output, |rows| write(rows, "reserved for", "nobody", &list, unit.ours())))
}

fn few(count: usize) -> Result<(), Failure> {
    if count <= usize::from(MACS_MAX) {
        return Ok(());
    }
    Err(Failure::wrong_input(format!("{count} addresses are too many; give {MACS_MAX} at most")))
}

fn macs(unit: &Unit, names: &[Name]) -> Vec<Mac> {
    let mac = |name: &Name| match name {
        Name::Ours => unit.ours(),
        Name::Mac(mac) => *mac,
    };
    names.iter().map(mac).collect()
}

fn directives(DirectiveCommand(command): DirectiveCommand, macs: &[Mac]) -> impl Iterator<Item = Vec<u8>> {
    macs.iter().map(move |Mac(bytes)| [&[0, command], &bytes[..]].concat())
}

/// Addresses at the end of entries of this length.
fn listed(answer: &[u8], entry_bytes: usize) -> Vec<Mac> {
    answer.chunks_exact(entry_bytes).filter_map(|entry| entry.last_chunk().copied().map(Mac)).collect()
}

fn texts(list: &[Mac]) -> Vec<String> {
    list.iter().map(Mac::to_string).collect()
}

fn write(rows: &mut Rows, label: &str, nobody: &str, list: &[Mac], ours: Mac) {
    if list.is_empty() {
        rows.add(label, nobody);
    }
    for (at, mac) in list.iter().enumerate() {
        let whose = if *mac == ours { " (this interface)" } else { "" };
        rows.add(if at == 0 { label } else { "" }, format!("{mac}{whose}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Mac = Mac([2, 0, 0, 0, 0, 1]);

    #[test]
    fn addresses_have_names() {
        assert_eq!("ours".parse(), Ok(Name::Ours));
        assert_eq!("02:00:00:00:00:01".parse(), Ok(Name::Mac(ONE)));
        for (wrong, text) in [("02:00", "Ethernet address"), ("ff:ff:ff:ff:ff:ff", "multicast")] {
            assert!(wrong.parse::<Name>().unwrap_err().contains(text), "{wrong}");
        }
    }

    #[test]
    fn lists_are_read_and_printed() {
        assert_eq!(listed(&[2, 0, 0, 0, 0, 1, 9], 6), [ONE]);
        assert_eq!(listed(&[0, 0, 2, 0, 0, 0, 0, 1], 8), [ONE]);
        let shown = |list: &[Mac]| {
            let mut rows = Rows::default();
            write(&mut rows, "reserved for", "nobody", list, ONE);
            rows.finish()
        };
        assert_eq!(shown(&[]), "  reserved for  nobody\n");
        assert_eq!(
            shown(&[Mac([2, 0, 0, 0, 0, 9]), ONE]),
            "  reserved for  02:00:00:00:00:09\n                02:00:00:00:00:01 (this interface)\n"
        );
    }
}
