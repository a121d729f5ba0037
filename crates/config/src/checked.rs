//! A configuration that was parsed and verified, with warnings about it.

use super::access::AdminAccess;
use super::access_files::{Origin, Unusable};
use super::machine::Machine;
use super::model::Config;
use super::preflight::Preflight;
use super::problems::{Collector, Problem, Problems};
use super::raw::Raw;
use super::show::{self, Secrets};
use super::warnings;
use super::{file, verify};
use std::path::Path;
use std::sync::Arc;

impl Config {
    /// Parses and verifies a file's text; `path` names it in error messages, and relative paths in it start
    /// at its directory.
    pub fn from_toml(text: &str, path: &Path) -> Result<Config, Problems> {
        let mut problems = Collector::new(Some((path, text)));
        let raw = file::read(text, &mut problems);
        let machine = Machine::here(path.parent());
        let config = raw.and_then(|mut raw| verify::verify(&mut raw, &machine, &mut problems));
        problems.finish(config)
    }
}

/// A verified configuration, its text, and warnings about it.
pub struct Checked {
    /// The configuration.
    pub config: Config,
    /// The text of the file; without a file, the text of an equivalent one.
    pub text: String,
    /// The whole configuration as a file, without secrets, including options from the command line.
    pub shown: String,
    /// Things that do not prevent a start, but are hardly intended.
    pub warnings: Vec<Problem>,
    /// Where its certificate and key are configured.
    identity: Origin,
}

impl Checked {
    /// `preflight`: checks the machine, for warnings about what it lacks.
    pub(super) fn new(
        config: Config,
        raw: &Raw,
        machine: &Machine,
        file: Option<(&Path, &str)>,
        preflight: Option<&dyn Preflight>,
    ) -> Checked {
        let mut questions = Collector::new(file);
        warnings::lasting(raw, &config, &mut questions);
        if let Some(preflight) = preflight {
            warnings::absent(raw, &config, preflight, &mut questions);
        }
        let shown = show::file(raw, &config, &machine.base, Secrets::Hidden);
        let text = match file {
            Some((_, text)) => text.to_owned(),
            None => show::file(raw, &config, &machine.base, Secrets::Shown),
        };
        let identity = Origin::of(raw, file.map(|(path, _)| path));
        Checked { config, text, shown, warnings: questions.warnings(), identity }
    }

    /// The result of `make` for the access to the admin interface, if its certificate and key can be used.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn access<T>(
        &self,
        make: impl FnOnce(&Arc<AdminAccess>) -> Result<T, Unusable>,
    ) -> Result<T, Problems> {
        make(&self.config.admin_access).map_err(|unusable| self.identity.problems(&self.text, &unusable))
    }

    /// Parses and verifies a file; what the machine lacks becomes a warning.
    pub fn from_file(path: &Path, preflight: &dyn Preflight) -> Result<Checked, Problems> {
        let text = file::load(path)?;
        let mut problems = Collector::new(Some((path, &text)));
        let machine = Machine::here(path.parent());
        let mut raw = file::read(&text, &mut problems);
        let config = raw.as_mut().and_then(|raw| verify::verify(raw, &machine, &mut problems));
        let (config, raw) = problems.finish(config.zip(raw))?;
        Ok(Checked::new(config, &raw, &machine, Some((path, &text)), Some(preflight)))
    }
}
