//! What all exports of a unit by ATA over Ethernet share: the configuration string and the MAC mask list (AoEr11 sections
//! 3.2 and 3.3). The reserve list is one of the unit's reservations.

mod order;

pub(crate) use order::{Ordered, begin};

use crate::home::{Draft, HomeReply, Identity};
use crate::reservation::keep;
use crate::sense::Check;
use std::sync::Arc;
use wire::SenseKey;
use wire::aoe::{
    CONFIG_BYTES_MAX, Directive, DirectiveCommand, ErrorCode, MACS_MAX, Mac, MaskError, Refusal,
};
use zerocopy::{FromBytes, IntoBytes};

/// What all exports of a unit share. It is published to every core, and kept across a restart.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Export {
    /// The configuration string.
    pub config: Vec<u8>,
    /// The MAC mask list: who is answered, each once. Empty: everybody is.
    pub masks: Vec<Mac>,
}

/// A change of what exports share, or of the reserve list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Set the configuration string.
    Config {
        /// The new one.
        config: Vec<u8>,
        /// Whatever is there.
        force: bool,
    },
    /// Edit the MAC mask list.
    Masks(Vec<Directive>),
    /// Set the reserve list.
    Reserve {
        /// Whose commands are let in.
        list: Arc<[Mac]>,
        /// Whoever has reserved the unit.
        force: bool,
    },
}

impl Change {
    /// Whether it decides for itself what reservations of others mean to it.
    pub(crate) fn judges_reservations(&self) -> bool {
        match self {
            Change::Reserve { .. } => true,
            Change::Config { .. } | Change::Masks(_) => false,
        }
    }
}

impl Export {
    /// First bytes of what is kept; the rest of what is kept of the unit follows, and a checksum.
    const MAGIC: &[u8] = b"LuneAoE\x01";

    /// Whether an initiator with this address is answered.
    pub fn may_see(&self, mac: Mac) -> bool {
        self.masks.is_empty() || self.masks.contains(&mac)
    }

    /// What is kept of this and of the rest.
    pub(crate) fn keep(&self, rest: Vec<u8>) -> Vec<u8> {
        if *self == Export::default() {
            return rest;
        }
        let mut bytes = Export::MAGIC.to_vec();
        keep::push_sized(&mut bytes, &self.config);
        keep::push_sized(&mut bytes, self.masks.as_bytes());
        bytes.extend(rest);
        keep::seal(bytes)
    }

    /// This and the rest of what was kept; `None` when it was not kept so.
    pub(crate) fn restore(kept: &[u8]) -> Option<(Export, &[u8])> {
        if !kept.starts_with(Export::MAGIC) {
            return Some((Export::default(), kept));
        }
        let mut rest = keep::unseal(kept)?.strip_prefix(Export::MAGIC)?;
        let config = keep::take_sized(&mut rest)?.to_vec();
        let masks = <[Mac]>::ref_from_bytes(keep::take_sized(&mut rest)?).ok()?.to_vec();
        let is_sound = config.len() <= usize::from(CONFIG_BYTES_MAX) && masks.len() <= usize::from(MACS_MAX);
        is_sound.then_some((Export { config, masks }, rest))
    }

    /// The MAC mask list after an edit, of which all is done or nothing.
    fn edited(&self, directives: &[Directive]) -> Result<Vec<Mac>, MaskError> {
        let mut masks = self.masks.clone();
        for Directive { command, mac, .. } in directives {
            match *command {
                DirectiveCommand::NONE => {}
                DirectiveCommand::ADD if masks.contains(mac) => {}
                DirectiveCommand::ADD if masks.len() < usize::from(MACS_MAX) => masks.push(*mac),
                DirectiveCommand::ADD => return Err(MaskError::LIST_FULL),
                DirectiveCommand::DELETE => masks.retain(|known| known != mac),
                _ => return Err(MaskError::BAD_DIRECTIVE),
            }
        }
        Ok(masks)
    }
}

impl Draft {
    pub(crate) fn change_export(&mut self, from: &Identity, change: Change) -> HomeReply {
        let export = &self.policy.export;
        match change {
            Change::Config { config, force } => {
                if !force && !export.config.is_empty() && export.config != config {
                    return refused(Refusal::Error(ErrorCode::CONFIG_STRING_PRESENT));
                }
                self.set_export(Export { config, masks: export.masks.clone() })
            }
            Change::Masks(directives) => match export.edited(&directives) {
                Ok(masks) => self.set_export(Export { config: export.config.clone(), masks }),
                Err(error) => refused(Refusal::Mask { error, done: 0 }),
            },
            Change::Reserve { list, force } => self.set_reserve_list(from, list, force),
        }
    }

    fn set_export(&mut self, export: Export) -> HomeReply {
        if *self.policy.export == export {
            return HomeReply::Done;
        }
        self.policy.export = Arc::new(export);
        self.changed()
    }
}

/// A refusal as the home tells it.
fn refused(refusal: Refusal) -> HomeReply {
    let check = Check::new(SenseKey::AbortedCommand, 0);
    HomeReply::Check(Check { command_specific: Some(refusal.command_specific()), ..check })
}
