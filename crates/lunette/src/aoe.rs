//! `lunette aoe`: features that a unit has only over ATA over Ethernet.

mod lists;
mod smart;
mod string;
mod unit;

use crate::Failure;
use crate::inquiry::Rows;
use clap::{Args, Subcommand, ValueEnum};
use lists::{MaskArguments, ReserveArguments};
use serde::Serialize;
use string::ConfigArguments;
use unit::Unit;
use wire::ata::smart::Function;
use wire::ata::{Command, IdentifyData, Registers, set_features};

#[derive(Debug, Args)]
pub(crate) struct AoeArguments {
    #[command(subcommand)]
    command: AoeCommand,
}

#[derive(Debug, Subcommand)]
enum AoeCommand {
    /// Show, test or set the config string
    Config(ConfigArguments),
    /// Show or edit the mask list: unless it is empty, only the listed addresses are answered
    Mask(MaskArguments),
    /// Show or set the reserve list: unless it is empty, only the listed addresses may use the unit
    Reserve(ReserveArguments),
    /// Show the health of the disk, by SMART
    Smart(UnitArguments),
    /// Show or switch a feature
    Feature(FeatureArguments),
}

/// A unit, and how to show it.
#[derive(Debug, Args)]
struct UnitArguments {
    /// The unit: aoe://IFACE/SHELF.SLOT
    url: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct FeatureArguments {
    #[command(flatten)]
    asked: UnitArguments,
    /// The feature
    feature: Feature,
    /// On or off [default: show the current state]
    state: Option<State>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Feature {
    /// The volatile write cache; off returns once its contents are on the medium
    WriteCache,
    /// Read look-ahead
    LookAhead,
    /// SMART
    Smart,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum State {
    On,
    Off,
}

/// Runs the command; returns what to print, or what is wrong.
pub(crate) fn run(arguments: &AoeArguments) -> Result<String, Failure> {
    match &arguments.command {
        AoeCommand::Config(arguments) => string::run(arguments),
        AoeCommand::Mask(arguments) => lists::mask(arguments),
        AoeCommand::Reserve(arguments) => lists::reserve(arguments),
        AoeCommand::Smart(asked) => smart::run(asked),
        AoeCommand::Feature(arguments) => switch(arguments),
    }
}

/// `lunette aoe feature`.
fn switch(arguments: &FeatureArguments) -> Result<String, Failure> {
    #[derive(Serialize)]
    struct Switched {
        url: String,
        feature: &'static str,
        supported: bool,
        enabled: bool,
    }
    let FeatureArguments { asked, feature, state } = arguments;
    let mut unit = Unit::connect(&asked.url)?;
    let (name, text) = match feature {
        Feature::WriteCache => ("write-cache", "write cache"),
        Feature::LookAhead => ("look-ahead", "look-ahead"),
        Feature::Smart => ("smart", "SMART"),
    };
    let how_it_is = |unit: &mut Unit| {
        unit.identify().map(|IdentifyData { write_cache, look_ahead, smart, .. }| match feature {
            Feature::WriteCache => write_cache,
            Feature::LookAhead => look_ahead,
            Feature::Smart => smart,
        })
    };
    if let Some(state) = state {
        if !how_it_is(&mut unit)?.supported {
            return Err(unit.failed(format!("its {text} cannot be switched")));
        }
        let set = |code: u8| {
            let registers = Registers::new(Command::SetFeatures, 0, 0);
            (Registers { feature: u16::from(code), ..registers }, "SET FEATURES")
        };
        let (registers, command) = match (feature, state) {
            (Feature::WriteCache, State::On) => set(set_features::WRITE_CACHE_ON),
            (Feature::WriteCache, State::Off) => set(set_features::WRITE_CACHE_OFF),
            (Feature::LookAhead, State::On) => set(set_features::LOOK_AHEAD_ON),
            (Feature::LookAhead, State::Off) => set(set_features::LOOK_AHEAD_OFF),
            (Feature::Smart, State::On) => (Function::Enable.registers(0), "SMART ENABLE OPERATIONS"),
            (Feature::Smart, State::Off) => (Function::Disable.registers(0), "SMART DISABLE OPERATIONS"),
        };
        unit.ata(registers, command)?;
    }
    let is = how_it_is(&mut unit)?;
    let output = Switched { url: unit.url(), feature: name, supported: is.supported, enabled: is.enabled };
    Ok(asked.render(&output, |rows| {
        rows.add(
            text,
            match (output.supported, output.enabled) {
                (false, _) => "cannot be switched",
                (true, true) => "on",
                (true, false) => "off",
            },
        );
    }))
}

impl UnitArguments {
    /// The answer, as text under the unit's name or as JSON.
    fn render(&self, output: &impl Serialize, write: impl FnOnce(&mut Rows)) -> String {
        if self.json {
            return format!("{}\n", serde_json::to_string_pretty(output).unwrap_or_default());
        }
        let mut rows = Rows::default();
        rows.title(&self.url);
        write(&mut rows);
        rows.finish()
    }
}
