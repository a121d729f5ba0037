//! What all exports of a unit by ATA over Ethernet share: the configuration string and the MAC mask list (AoEr11 sections
//! 3.2 and 3.3). The reserve list is one of the unit's reservations.

use crate::state::encoding;
use crate::state::home::{Draft, HomeReply, NexusIdentity};
use crate::vocabulary::sense::Check;
use std::sync::Arc;
use wire::SenseKey;
use wire::aoe::{
    CONFIG_BYTES_MAX, Directive, DirectiveCommand, ErrorCode, MACS_MAX, Mac, MaskError, Refusal,
};
use wire::scsi::code;
use zerocopy::{FromBytes, IntoBytes};

/// What all exports of a unit share. It is published to every core, and saved across restarts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Export {
    /// The configuration string.
    pub config: Vec<u8>,
    /// The MAC mask list: initiators that are answered, without duplicates. Empty: all are.
    pub masks: Vec<Mac>,
}

/// A change of what exports share, or of the reserve list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Set the configuration string.
    Config {
        /// The new one.
        config: Vec<u8>,
        /// Replace any existing string.
        force: bool,
    },
    /// Edit the MAC mask list.
    Masks(Vec<Directive>),
    /// Set the reserve list.
    Reserve {
        /// The initiators whose commands are accepted.
        list: Arc<[Mac]>,
        /// Even if others have reserved the unit.
        force: bool,
    },
}

impl Change {
    /// Whether it applies reservations of others itself.
    pub(crate) fn decides_reservations(&self) -> bool {
        match self {
            Change::Reserve { .. } => true,
            Change::Config { .. } | Change::Masks(_) => false,
        }
    }
}

impl Export {
    /// The first bytes of the saved state; the rest of the unit's state follows, and a checksum.
    const MAGIC: &[u8] = b"LuneAoE\x01";

    /// Whether an initiator with this address is answered.
    pub fn may_see(&self, mac: Mac) -> bool {
        self.masks.is_empty() || self.masks.contains(&mac)
    }

    /// The saved form of this and the rest.
    pub(crate) fn save(&self, rest: Vec<u8>) -> Vec<u8> {
        if *self == Export::default() {
            return rest;
        }
        let mut bytes = Export::MAGIC.to_vec();
        encoding::push_sized(&mut bytes, &self.config);
        encoding::push_sized(&mut bytes, self.masks.as_bytes());
        bytes.extend(rest);
        encoding::seal(bytes)
    }

    /// This and the rest of the saved state; `None` if it was not saved like this.
    pub(crate) fn restore(saved: &[u8]) -> Option<(Export, &[u8])> {
        if !saved.starts_with(Export::MAGIC) {
            return Some((Export::default(), saved));
        }
        let mut rest = encoding::unseal(saved)?.strip_prefix(Export::MAGIC)?;
        let config = encoding::take_sized(&mut rest)?.to_vec();
        let masks = <[Mac]>::ref_from_bytes(encoding::take_sized(&mut rest)?).ok()?.to_vec();
        let is_sound = config.len() <= usize::from(CONFIG_BYTES_MAX) && masks.len() <= usize::from(MACS_MAX);
        is_sound.then_some((Export { config, masks }, rest))
    }

    /// The MAC mask list after an edit, which is applied as a whole or not at all.
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
    pub(crate) fn change_export(&mut self, from: &NexusIdentity, change: Change) -> HomeReply {
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

/// A refusal as the home reports it.
fn refused(refusal: Refusal) -> HomeReply {
    let check = Check::new(SenseKey::AbortedCommand, code::NO_ADDITIONAL_SENSE);
    HomeReply::Check(Check { command_specific: Some(refusal.command_specific()), ..check })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::home::{Home, HomeRequest};
    use crate::state::policy::Policy;
    use crate::testing::raw;
    use crate::testing::{Bench, MACS, Outcome, unit};
    use crate::vocabulary::command::Status;
    use crate::vocabulary::modes::EraseKind;
    use crate::vocabulary::storage::Traits;
    use proptest::prelude::*;
    use wire::Cdb;
    use wire::aoe::OrderKind;
    use wire::ata::{Command, Registers};
    use wire::scsi::command::Read10;

    /// Nexuses that use ATA.
    const ATA: usize = 2;
    const OTHER: usize = 3;

    fn add(mac: Mac) -> Directive {
        Directive { reserved: 0, command: DirectiveCommand::ADD, mac }
    }

    fn delete(mac: Mac) -> Directive {
        Directive { reserved: 0, command: DirectiveCommand::DELETE, mac }
    }

    fn many(count: u8) -> Vec<Mac> {
        (0..count).map(|last| Mac([2, 0, 0, 1, 0, last])).collect()
    }

    fn edit(bench: &mut Bench, nexus: usize, directives: &[Directive]) -> Outcome {
        bench.order(nexus, OrderKind::EditMask, directives.as_bytes())
    }

    fn read(bench: &mut Bench, nexus: usize) -> Status {
        bench.ata(nexus, Registers::new(Command::ReadDmaExt, 0, 1), &[]).ending.status
    }

    fn assert_refused(outcome: &Outcome, refusal: Refusal) {
        assert_eq!(outcome.ending.status, Status::CheckCondition);
        assert_eq!(Refusal::from_sense(&outcome.ending.sense.unwrap()), Some(refusal));
        assert!(outcome.data.is_empty());
    }

    const BAD_ARGUMENT: Refusal = Refusal::Error(ErrorCode::BAD_ARGUMENT);

    #[test]
    fn a_config_string_is_set_once_or_by_force() {
        let mut bench = Bench::with_ata();
        let set = |bench: &mut Bench, kind, text: &[u8]| bench.order(ATA, kind, text);
        assert_eq!(set(&mut bench, OrderKind::SetConfig, b"one").assert_good().data, b"one");
        assert_eq!(set(&mut bench, OrderKind::SetConfig, b"one").assert_good().data, b"one", "sent again");
        let present = Refusal::Error(ErrorCode::CONFIG_STRING_PRESENT);
        assert_refused(&set(&mut bench, OrderKind::SetConfig, b"two"), present);
        assert_eq!(bench.view.policy.export.config, b"one");
        assert_eq!(set(&mut bench, OrderKind::ForceConfig, b"two").assert_good().data, b"two");
        let long = [7; CONFIG_BYTES_MAX as usize + 1];
        assert_eq!(set(&mut bench, OrderKind::ForceConfig, &long[1..]).assert_good().data, long[1..]);
        assert_refused(&set(&mut bench, OrderKind::ForceConfig, &long), BAD_ARGUMENT);
        assert_eq!(set(&mut bench, OrderKind::ForceConfig, b"").assert_good().data, b"");
        assert_eq!(set(&mut bench, OrderKind::SetConfig, b"three").assert_good().data, b"three");
    }

    #[test]
    fn a_refusal_is_reported_alike_whatever_format_the_mode_page_sets() {
        let mut bench = Bench::with_ata();
        bench.order(ATA, OrderKind::SetConfig, b"one").assert_good();
        let outcome = bench.order(ATA, OrderKind::SetConfig, b"two");
        let refusal = Refusal::Error(ErrorCode::CONFIG_STRING_PRESENT);
        assert!(!bench.view.policy.modes.descriptor_sense);
        assert_eq!(outcome.ending.sense, Some(refusal.sense()));
    }

    #[test]
    fn a_host_that_is_not_on_the_mask_list_gets_no_answer() {
        let mut bench = Bench::with_ata();
        let [first, second] = MACS;
        let listed = edit(&mut bench, ATA, &[add(first), add(first)]);
        assert_eq!(listed.assert_good().data, [&[0, 0][..], &first.0].concat());
        assert_eq!((read(&mut bench, ATA), read(&mut bench, OTHER)), (Status::Good, Status::Busy));
        assert_eq!(bench.order(OTHER, OrderKind::ReadMask, &[]).ending.status, Status::Busy);
        assert!(bench.view.policy.export.may_see(first) && !bench.view.policy.export.may_see(second));
        bench.read(Read10::new(0, 1)).assert_good();
        edit(&mut bench, ATA, &[add(second), delete(first)]).assert_good();
        assert_eq!((read(&mut bench, ATA), read(&mut bench, OTHER)), (Status::Busy, Status::Good));
        assert_eq!(edit(&mut bench, OTHER, &[delete(second)]).assert_good().data, b"");
        assert_eq!(read(&mut bench, ATA), Status::Good);
        assert_eq!(bench.order(ATA, OrderKind::ReadMask, &[]).assert_good().data, b"");
    }

    #[test]
    fn an_edit_is_done_whole_or_not_at_all() {
        let mut bench = Bench::with_ata();
        let strange = Directive { command: DirectiveCommand(3), ..add(MACS[0]) };
        let outcome = edit(&mut bench, ATA, &[add(MACS[0]), strange]);
        assert_refused(&outcome, Refusal::Mask { error: MaskError::BAD_DIRECTIVE, done: 0 });
        let full: Vec<Directive> = many(MACS_MAX).into_iter().map(add).collect();
        let outcome = edit(&mut bench, ATA, &[&full[..], &[add(MACS[0])]].concat());
        assert_refused(&outcome, Refusal::Mask { error: MaskError::LIST_FULL, done: 0 });
        assert!(bench.view.policy.export.masks.is_empty() && bench.published.is_none());
        let nothing = Directive { command: DirectiveCommand::NONE, ..strange };
        edit(&mut bench, ATA, &[&full[1..], &[add(MACS[0]), nothing]].concat()).assert_good();
        let listed = bench.order(ATA, OrderKind::ReadMask, &[]).assert_good().data.clone();
        assert_eq!(listed.len(), 8 * usize::from(MACS_MAX));
        edit(&mut bench, ATA, &[&full[1..], &full[1..]].concat()).assert_good();
    }

    #[test]
    fn arguments_that_are_none_are_refused() {
        let mut bench = Bench::with_ata();
        let directives = [0u8; 8 * 256];
        for (kind, argument) in [
            (OrderKind::EditMask, &directives[..7]),
            (OrderKind::EditMask, &directives),
            (OrderKind::ReadMask, &directives[..8]),
            (OrderKind::SetReserve, &directives[..8]),
            (OrderKind::ForceReserve, &directives[..6 * 129]),
            (OrderKind::ReadReserve, &directives[..6]),
        ] {
            assert_refused(&bench.order(ATA, kind, argument), BAD_ARGUMENT);
        }
        for cdb in
            [Cdb::from(&[0xc0, 1, 0]), Cdb::from(&[0xc0, 4, 0]), Cdb::from(&[0xc0, 1, 3, 0, 0, 0, 0, 1])]
        {
            assert_refused(&bench.run(ATA, cdb, &[], 512), BAD_ARGUMENT);
        }
    }

    proptest! {
        /// Orders with any arguments, one after another: each is answered or refused, and the lists keep
        /// their limits.
        #[test]
        fn every_order_ends(
            orders in prop::collection::vec(
                (any::<bool>(), any::<u8>(), 0u8..4, prop::collection::vec(0u8..3, 0..300)),
                1..12,
            ),
        ) {
            let mut bench = Bench::with_ata();
            for (is_other, command, subcommand, argument) in orders {
                let nexus = if is_other { OTHER } else { ATA };
                let len = (argument.len() as u32).to_be_bytes();
                let cdb = [&[0xc0, command % 4, subcommand, 0][..], &len].concat();
                let ending = bench.run(nexus, raw(&cdb), &argument, 2048).ending;
                let refusal = ending.sense.map(|sense| Refusal::from_sense(&sense));
                prop_assert_eq!(ending.status == Status::CheckCondition, refusal.is_some());
                prop_assert!(refusal.is_none_or(|refusal| refusal.is_some()));
                let policy = bench.home.policy();
                prop_assert!(policy.export.masks.len() <= usize::from(MACS_MAX));
                prop_assert!(policy.export.config.len() <= usize::from(CONFIG_BYTES_MAX));
                prop_assert!(policy.reservations.list().len() <= usize::from(MACS_MAX));
                let saved = policy.saved(&unit().ports);
                let again = if saved.is_empty() { Some(Arc::default()) } else { restored(&saved).map(|p| p.export.clone()) };
                prop_assert_eq!(again, Some(policy.export.clone()));
            }
        }
    }

    fn restored(saved: &[u8]) -> Option<Arc<Policy>> {
        let mut home = Home::new(Arc::new(unit()), Traits::NONE);
        home.restore(saved).ok().map(|()| home.policy())
    }

    #[test]
    fn what_is_shared_outlives_a_restart() {
        let mut bench = Bench::with_ata();
        bench.order(ATA, OrderKind::SetConfig, b"kept").assert_good();
        edit(&mut bench, ATA, &[add(MACS[0])]).assert_good();
        let saved = bench.published.as_ref().unwrap().persist.clone().unwrap();
        let expected = Export { config: b"kept".to_vec(), masks: vec![MACS[0]] };
        assert_eq!(*restored(&saved).unwrap().export, expected);
        for at in 0..saved.len() {
            assert!(restored(&saved[..at]).is_none(), "cut at {at}");
            let mut damaged = saved.clone();
            damaged[at] ^= 0x20;
            assert!(restored(&damaged).is_none(), "damaged at {at}");
        }
        let from = bench.nexuses[0].identity();
        bench.ask(HomeRequest::EraseBegin { from, kind: EraseKind::Sanitize { unrestricted: true } });
        let policy = restored(bench.published.as_ref().unwrap().persist.as_ref().unwrap()).unwrap();
        assert!(policy.erasure.is_some() && *policy.export == expected);
        bench.ask(HomeRequest::EraseEnd { ok: true, kind: EraseKind::Sanitize { unrestricted: true } });
        edit(&mut bench, ATA, &[delete(MACS[0])]).assert_good();
        bench.order(ATA, OrderKind::ForceConfig, b"").assert_good();
        assert_eq!(bench.published.unwrap().persist, Some(Vec::new()), "nothing is left to keep");
    }

    #[test]
    fn state_saved_before_there_were_exports_is_still_read() {
        let mut bench = Bench::with_ata();
        let from = bench.nexuses[0].identity();
        bench.ask(HomeRequest::EraseBegin { from, kind: EraseKind::Sanitize { unrestricted: true } });
        let saved = bench.published.unwrap().persist.unwrap();
        assert!(saved.starts_with(b"LuneSan\x02"));
        let policy = restored(&saved).unwrap();
        assert!(policy.erasure.is_some() && *policy.export == Export::default());
    }

    #[test]
    fn saved_state_of_any_length_and_count_is_validated() {
        let sealed = |config: usize, masks: usize| {
            let mut bytes = Export::MAGIC.to_vec();
            encoding::push_sized(&mut bytes, &vec![1; config]);
            encoding::push_sized(&mut bytes, &vec![2; masks]);
            restored(&encoding::seal(bytes)).is_some()
        };
        let full = 6 * usize::from(MACS_MAX);
        assert!(sealed(1024, full) && sealed(0, 6) && sealed(1, 0));
        assert!(!sealed(1025, 0) && !sealed(1, 7) && !sealed(1, full + 6) && !sealed(0, 0));
    }
}
