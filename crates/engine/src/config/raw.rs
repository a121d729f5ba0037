//! The configuration as it is written: TOML, or the command line's options in the same form.

use serde::Deserialize;
use std::path::PathBuf;
use toml::Spanned;

/// A whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    pub(super) cores: Option<String>,
    pub(super) poll: Option<String>,
    pub(super) state_dir: Option<PathBuf>,
    pub(super) login_timeout_s: Option<u64>,
    pub(super) keep_alive_s: Option<u64>,
    pub(super) logins_max: Option<usize>,
    #[serde(default, rename = "portal")]
    pub(super) portals: Vec<Spanned<RawPortal>>,
    #[serde(default, rename = "lun")]
    pub(super) luns: Vec<Spanned<RawLun>>,
    #[serde(default, rename = "target")]
    pub(super) targets: Vec<Spanned<RawTarget>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPortal {
    pub(super) name: Option<String>,
    pub(super) listen: String,
    pub(super) cores: Option<String>,
    pub(super) group: Option<u16>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLun {
    pub(super) name: Option<String>,
    pub(super) ram: Option<String>,
    pub(super) null: Option<String>,
    pub(super) file: Option<PathBuf>,
    pub(super) block: Option<PathBuf>,
    pub(super) size: Option<String>,
    pub(super) block_size: Option<String>,
    pub(super) physical_block_size: Option<String>,
    pub(super) serial: Option<String>,
    pub(super) product: Option<String>,
    pub(super) read_only: Option<bool>,
    pub(super) write_cache: Option<bool>,
    pub(super) thin: Option<bool>,
    pub(super) removable: Option<bool>,
    /// LUN number on the command line; in a file, targets number their LUNs.
    #[serde(skip)]
    pub(super) id: Option<u16>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTarget {
    pub(super) name: String,
    pub(super) alias: Option<String>,
    pub(super) sessions_max: Option<usize>,
    pub(super) portals: Option<Vec<String>>,
    #[serde(default)]
    pub(super) luns: Vec<RawMapping>,
    #[serde(default, rename = "group")]
    pub(super) groups: Vec<Spanned<RawGroup>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMapping {
    pub(super) number: u16,
    pub(super) lun: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawGroup {
    pub(super) name: String,
    #[serde(default)]
    pub(super) initiators: Vec<String>,
    #[serde(default)]
    pub(super) networks: Vec<String>,
    #[serde(default)]
    pub(super) deny: bool,
    #[serde(default)]
    pub(super) read_only: bool,
    pub(super) luns: Option<Vec<RawMapping>>,
    pub(super) chap: Option<RawChap>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawChap {
    pub(super) user: String,
    pub(super) secret: Option<String>,
    pub(super) secret_file: Option<PathBuf>,
    pub(super) mutual_user: Option<String>,
    pub(super) mutual_secret: Option<String>,
    pub(super) mutual_secret_file: Option<PathBuf>,
}
