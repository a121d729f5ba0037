//! The desired state. TOML (or the command line) is parsed, then verified into a [`Config`], in which every
//! reference resolves and every value is in range; after that, nothing can fail because of syntax.
//!
//! `model` defines a [`Config`]. `file` and `options` parse the two sources into one `raw` form, `verify` and
//! `targets` make it a [`Config`], `warnings` finds what is questionable about it, and all of that together
//! is a [`Checked`]. [`diff`] computes the steps from one [`Config`] to another. [`Url`] identifies a unit of
//! a target, [`NbdUrl`] an export of an NBD server; [`redact`] removes possible secrets from text that is
//! displayed.
//!
//! The crate reads files, and nothing else of the machine; [`Preflight`] checks what else the machine has.
#![forbid(unsafe_code)]

mod access;
mod access_files;
mod aoe;
mod checked;
mod checks;
mod cluster;
mod diff;
mod document;
mod edit;
mod file;
mod groups;
mod limits;
mod lun_spec;
mod machine;
pub mod memory;
mod model;
pub mod names;
mod nbd;
mod options;
mod place;
mod portal_groups;
mod ports;
mod preflight;
mod private;
mod problems;
mod protocol;
mod raw;
mod rbd;
mod redact;
mod scalar;
mod secrets;
mod show;
mod steps;
mod targets;
mod url;
mod verify;
mod warnings;

pub use access::{AdminAccess, CertifiedKey, FileRead, Token};
pub use access_files::{Unusable, token_of};
pub use checked::Checked;
pub use diff::{StepOfChange, diff};
pub use document::{Table, read_document};
pub use edit::{Action, Edit, EditError, ShownIn, Subject};
pub use lun_spec::LunSpec;
pub use model::*;
pub use nbd::{NbdServer, NbdTls, NbdUrl};
pub use options::ServeOptions;
pub use place::Place;
pub use ports::TargetPort;
pub use preflight::Preflight;
pub use problems::{Collector, Fault, Problem, Problems, suggest};
pub use protocol::Protocol;
pub use rbd::{ImageFault, RbdImage};
pub use redact::{redact, redact_all};
pub use scalar::{
    format_size, parse_admin, parse_cores, parse_duration, parse_guid, parse_listen, parse_size, show_cores,
};
pub use url::{SecretFiles, Url, UrlError};
pub use verify::hashed_serial;

#[cfg(test)]
mod tests;
