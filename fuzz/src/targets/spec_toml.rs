//! What an administrator writes: a configuration file or, after a byte 0xff, a LUN SPEC, a size and other
//! options.

use config::{Config, Problems, ServeOptions};
use std::path::Path;

/// Feeds one input.
pub fn run(data: &[u8]) {
    if let Some(options) = data.strip_prefix(&[0xff]) {
        let mut texts =
            options.split(|byte| *byte == 0xff).map(|text| String::from_utf8_lossy(text).into_owned());
        let mut next = || texts.next().unwrap_or_default();
        let options = ServeOptions {
            lun: vec![next(), next()],
            listen: vec![next()],
            target: Some(next()).filter(|text| !text.is_empty()),
            cores: Some(next()).filter(|text| !text.is_empty()),
            admin: Some(next()).filter(|text| !text.is_empty()),
            ..ServeOptions::default()
        };
        check(Config::from_options(&options));
    } else if let Ok(text) = std::str::from_utf8(data) {
        check(Config::from_toml(text, Path::new("lunette.toml")));
    }
}

/// Accepted input is consistent; rejected input has a reason.
fn check(outcome: Result<Config, Problems>) {
    match outcome {
        Ok(config) => {
            assert!(!config.cores.is_empty() && !config.portals.is_empty() && !config.targets.is_empty());
            for target in &config.targets {
                assert!(target.portals.iter().all(|portal| *portal < config.portals.len()));
                assert!(target.luns.iter().all(|(_, lun)| *lun < config.luns.len()));
            }
        }
        Err(problems) => assert!(problems.iter().next().is_some()),
    }
}
