//! RECEIVE COPY RESULTS, RECEIVE COPY STATUS and VPD page 8Fh: what is known of copy operations.

use super::{CSCDS_MAX, DESCRIPTOR_BYTES_MAX, SEGMENTS_MAX};
use crate::commands::admission::Admission;
use crate::commands::answer::Answer;
use crate::commands::step::Env;
use crate::state::copies::{COPIES_MAX, Known, Outcome, Results};
use crate::vocabulary::sense::{Check, Failure};
use wire::scsi::command::{ReceiveCopyResults, ReceiveCopyStatusLid4};
use wire::scsi::copy::copy_descriptor::{BLOCK_TO_BLOCK, IDENTIFICATION};
use wire::scsi::copy::{
    CopyFailure, CopyParameters, CopyStatusLid1, CopyStatusLid4, NO_DATA, ThirdPartyGeneral,
    ThirdPartyHeader, ThirdPartyLimits, copy_manager_status, copy_operation_status, third_party,
};
use wire::scsi::opcode::service_action::{extended_copy, receive_copy_results};
use wire::scsi::{code, opcode, status};
use wire::{Cdb, Sense, SenseKey};

/// Types of CSCD and segment descriptors that are implemented.
const TYPES: [u8; 2] = [BLOCK_TO_BLOCK, IDENTIFICATION];

/// RECEIVE COPY RESULTS with any of its service actions.
pub(crate) fn receive<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    let build = match cdb.service_action() {
        receive_copy_results::COPY_STATUS_LID1 => copy_status,
        receive_copy_results::COPY_DATA_LID1 => receive_data,
        receive_copy_results::OPERATING_PARAMETERS => operating_parameters,
        receive_copy_results::FAILURE_DETAILS_LID1 => failed_segment_details,
        _ => copy_status4,
    };
    Ok(P::from(Answer::new(*cdb, cdb.get(ReceiveCopyResults::ALLOCATION), build)))
}

/// The record of a list identifier; INVALID FIELD IN CDB if there is none.
fn known(env: &Env<'_>, list_id: u32) -> Result<Known, Failure> {
    Ok(env.nexus.copies.known(list_id).ok_or(Check::cdb_field(ReceiveCopyResults::LIST_ID))?)
}

/// COPY STATUS. Once the end of a successful operation has been reported, it is forgotten.
fn copy_status(env: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let list_id = u32::from(cdb.get(ReceiveCopyResults::LIST_ID));
    let known = known(env, list_id)?;
    let status = match known.outcome {
        None => copy_manager_status::IN_PROGRESS,
        Some(Outcome::Good) => copy_manager_status::GOOD,
        Some(Outcome::Failed(_) | Outcome::Aborted) => copy_manager_status::FAILED,
    };
    data.extend_from_slice(&CopyStatusLid1::new(status, known.segments, known.bytes).to_bytes());
    if known.outcome == Some(Outcome::Good) {
        env.nexus.copies.forget(list_id);
    }
    Ok(())
}

/// RECEIVE DATA: no segment descriptor type that is implemented holds data.
fn receive_data(env: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let known = known(env, cdb.get(ReceiveCopyResults::LIST_ID).into())?;
    if known.outcome.is_none() {
        return Err(Check::cdb_field(ReceiveCopyResults::LIST_ID).into());
    }
    data.extend_from_slice(&NO_DATA);
    Ok(())
}

/// OPERATING PARAMETERS: an operation need not have an identifier, and segments have any length in bytes.
fn operating_parameters(_: &mut Env<'_>, _: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let parameters = CopyParameters {
        can_omit_list_id: true,
        cscds_max: CSCDS_MAX,
        segments_max: SEGMENTS_MAX,
        descriptor_bytes_max: DESCRIPTOR_BYTES_MAX.into(),
        copies_max: COPIES_MAX,
        identified_copies_max: u8::try_from(Results::RECORDS_MAX).unwrap_or(u8::MAX),
        ..CopyParameters::ZERO
    };
    data.extend(parameters.with_types(&TYPES));
    Ok(())
}

/// FAILED SEGMENT DETAILS; empty if nothing failed.
fn failed_segment_details(env: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let list_id = u32::from(cdb.get(ReceiveCopyResults::LIST_ID));
    let sense = match known(env, list_id)?.outcome {
        None => return Err(Check::cdb_field(ReceiveCopyResults::LIST_ID).into()),
        Some(outcome) => sense(env, outcome),
    };
    let Some(sense) = sense else {
        data.extend_from_slice(&NO_DATA);
        return Ok(());
    };
    data.extend(CopyFailure::with_sense(status::CHECK_CONDITION, sense.as_bytes()));
    env.nexus.copies.forget(list_id);
    Ok(())
}

/// RECEIVE COPY STATUS(LID4).
fn copy_status4(env: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let list_id = cdb.get(ReceiveCopyStatusLid4::LIST_ID);
    let known = known(env, list_id)?;
    let (operation, status) = match known.outcome {
        None => (copy_operation_status::IN_PROGRESS, status::GOOD),
        Some(Outcome::Good) => (copy_operation_status::GOOD, status::GOOD),
        Some(Outcome::Failed(_)) => (copy_operation_status::FAILED, status::CHECK_CONDITION),
        Some(Outcome::Aborted) => (copy_operation_status::ABORTED, status::CHECK_CONDITION),
    };
    let answer = CopyStatusLid4 {
        service_action: known.service_action,
        operation,
        update_delay: CopyStatusLid4::DELAY_NOT_KNOWN,
        status,
        count: known.bytes,
        segments: known.segments,
        ..CopyStatusLid4::ZERO
    };
    let sense = known.outcome.and_then(|outcome| sense(env, outcome));
    data.extend(answer.with_sense(sense.as_ref().map_or(&[], Sense::as_bytes)));
    if known.outcome == Some(Outcome::Good) {
        env.nexus.copies.forget(list_id);
    }
    Ok(())
}

/// The sense data for the end of an operation.
fn sense(env: &Env<'_>, outcome: Outcome) -> Option<Sense> {
    let check = match outcome {
        Outcome::Good => return None,
        Outcome::Failed(check) => check,
        Outcome::Aborted => Check::new(SenseKey::CopyAborted, code::NO_ADDITIONAL_SENSE),
    };
    Some(check.encode(&env.view.policy.modes))
}

/// Supported third-party copy commands: operation codes with their service actions.
const COMMANDS: &[(u8, &[u8])] = &[
    (opcode::EXTENDED_COPY, &[extended_copy::LID1, extended_copy::LID4, extended_copy::COPY_OPERATION_ABORT]),
    (
        opcode::RECEIVE_COPY_RESULTS,
        &[
            receive_copy_results::COPY_STATUS_LID1,
            receive_copy_results::COPY_DATA_LID1,
            receive_copy_results::OPERATING_PARAMETERS,
            receive_copy_results::FAILURE_DETAILS_LID1,
            receive_copy_results::COPY_STATUS_LID4,
        ],
    ),
];

/// Third-party copy descriptors (SPC-4 section 7.8.17): commands, limits, descriptor types and general
/// operations. No tokens are created or accepted, and no CSCD has a fixed number.
pub(crate) fn third_party_page(_: &Env<'_>, data: &mut Vec<u8>) {
    let mut commands = Vec::new();
    for (code, actions) in COMMANDS {
        commands.push(*code);
        commands.extend(counted(actions));
    }
    let limits = ThirdPartyLimits {
        cscds_max: CSCDS_MAX,
        segments_max: SEGMENTS_MAX,
        descriptor_bytes_max: DESCRIPTOR_BYTES_MAX.into(),
        ..ThirdPartyLimits::ZERO
    };
    let general = ThirdPartyGeneral {
        copies_max: COPIES_MAX.into(),
        identified_copies_max: u32::try_from(Results::RECORDS_MAX).unwrap_or(u32::MAX),
    };
    let no_ids = 0u16.to_be_bytes();
    data.extend(ThirdPartyHeader::with_body(third_party::COMMANDS, &counted(&commands)));
    data.extend(ThirdPartyHeader::with_body(third_party::LIMITS, &limits.to_bytes()));
    data.extend(ThirdPartyHeader::with_body(third_party::DESCRIPTORS, &counted(&TYPES)));
    data.extend(ThirdPartyHeader::with_body(third_party::CSCD_IDS, &no_ids));
    data.extend(ThirdPartyHeader::with_body(third_party::GENERAL, &general.to_bytes()));
}

/// A list after its length.
fn counted(list: &[u8]) -> Vec<u8> {
    [&[u8::try_from(list.len()).unwrap_or(u8::MAX)][..], list].concat()
}
