//! Commands that end with an error: counted, and logged at the next tick.

use super::Core;
use crate::events::Event;
use reactor::io::Io;
use scsi::Ending;
use wire::SenseKey;

impl<I: Io> Core<I> {
    /// A command has ended with CHECK CONDITION. Unit attentions are not errors, nor are fields and commands
    /// that a unit does not support: initiators probe.
    #[cold]
    pub(super) fn note_error(&mut self, unit: u32, ending: &Ending) {
        let Some(sense) = ending.sense else { return };
        let is_error = matches!(
            sense.key(),
            Some(
                SenseKey::NotReady
                    | SenseKey::MediumError
                    | SenseKey::HardwareError
                    | SenseKey::DataProtect
                    | SenseKey::AbortedCommand
            )
        );
        if let Some(unit) = self.units.get_mut(unit).filter(|_| is_error) {
            let before = unit.errors.map_or(0, |(count, _)| count);
            unit.errors = Some((before + 1, sense));
            self.agenda.has_errors = true;
        }
    }

    /// Logs what was counted since the last tick.
    pub(super) fn report_errors(&mut self) {
        if !std::mem::take(&mut self.agenda.has_errors) {
            return;
        }
        for unit in self.units.iter_mut() {
            if let Some((count, last)) = unit.errors.take() {
                let lun = unit.name.clone();
                self.shared.events.report(|| Event::Errors { lun, count, last: last.to_string() });
            }
        }
    }
}
