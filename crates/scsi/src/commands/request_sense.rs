//! REQUEST SENSE (SPC-4 section 6.39).

use crate::commands::admission::Admission;
use crate::commands::answer::Answer;
use crate::commands::step::Env;
use crate::state::port_groups::Accepted;
use crate::vocabulary::sense::{Check, Failure};
use wire::Cdb;
use wire::scsi::command::RequestSense;

/// REQUEST SENSE.
pub(crate) fn begin<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    Ok(P::from(Answer::new(*cdb, cdb.get(RequestSense::ALLOCATION).into(), build)))
}

/// A pending unit attention, which this clears; otherwise the reason that the port or the unit is not ready;
/// otherwise NO SENSE.
fn build(env: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let check = match env.nexus.take_attention() {
        Some(attention) => attention.check(),
        None => {
            let inactive = env.view.policy.groups.refusal(env.nexus.target_port, Accepted::WhileActive);
            inactive.or_else(|| env.view.not_ready()).unwrap_or(Check::NO_SENSE)
        }
    };
    data.extend_from_slice(check.encode_as(cdb.get(RequestSense::DESCRIPTOR)).as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::state::attention::UnitAttention;
    use crate::state::home::HomeRequest;
    use crate::testing::Bench;
    use wire::scsi::command::RequestSense;

    #[test]
    fn sense_data_reports_what_is_pending() {
        let mut bench = Bench::new();
        assert_eq!(bench.read(RequestSense::new(252)).assert_good().data[..3], [0x70, 0, 0]);
        assert_eq!(
            bench.read(RequestSense { descriptor: true, ..RequestSense::new(252) }).assert_good().data,
            [0x72, 0, 0, 0, 0, 0, 0, 0]
        );
        bench.nexuses[0].establish(UnitAttention::CapacityChanged);
        assert_eq!(
            bench.read(RequestSense { descriptor: true, ..RequestSense::new(4) }).assert_good().data,
            [0x72, 6, 0x2a, 9]
        );
        bench.ask(HomeRequest::StoreFailed("gone".into()));
        assert_eq!(
            bench.read(RequestSense { descriptor: true, ..RequestSense::new(4) }).assert_good().data,
            [0x72, 2, 4, 0]
        );
    }
}
