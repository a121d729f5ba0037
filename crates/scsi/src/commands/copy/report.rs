//! RECEIVE COPY RESULTS, RECEIVE COPY STATUS and VPD page 8Fh: what there is to know of copy operations.

use super::{CSCDS_MAX, DESCRIPTOR_BYTES_MAX, SEGMENTS_MAX};
use crate::commands::admission::Admission;
use crate::commands::answer::Answer;
use crate::commands::step::Env;
use crate::state::copies::{COPIES_MAX, Known, Outcome, Results};
use crate::vocabulary::sense::{Check, Failure};
use wire::scsi::command::{ReceiveCopyResults, ReceiveCopyStatusLid4};
use wire::scsi::opcode::service_action::{extended_copy, receive_copy_results};
use wire::scsi::parameters::copy_descriptor::{BLOCK_TO_BLOCK, IDENTIFICATION};
use wire::scsi::{code, opcode};
use wire::{Cdb, Sense, SenseKey};

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

/// What is known under a list identifier; INVALID FIELD IN CDB when there is nothing.
fn known(env: &Env<'_>, list_id: u32) -> Result<Known, Failure> {
    Ok(env.nexus.copies.known(list_id).ok_or(Check::cdb_field(ReceiveCopyResults::LIST_ID))?)
}

/// COPY STATUS. Once the end of an operation that went well is reported, it is forgotten.
fn copy_status(env: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let list_id = u32::from(cdb.get(ReceiveCopyResults::LIST_ID));
    let known = known(env, list_id)?;
    let status = match known.outcome {
        None => 0x00,
        Some(Outcome::Good) => 0x01,
        Some(Outcome::Failed(_) | Outcome::Aborted) => 0x02,
    };
    let (mut units, mut count) = (0u8, known.bytes);
    while u32::try_from(count).is_err() {
        (units, count) = (units.saturating_add(1), count >> 10);
    }
    data.extend_from_slice(&[0, 0, 0, 8, status]);
    push_u16(data, known.segments);
    data.push(units);
    data.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes());
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
    data.extend_from_slice(&[0; 4]);
    Ok(())
}

/// OPERATING PARAMETERS: SNLID (an operation need not have an identifier), segments of any length in bytes.
fn operating_parameters(_: &mut Env<'_>, _: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    data.extend_from_slice(&[0, 0, 0, 42, 0x01, 0, 0, 0]);
    push_u16(data, CSCDS_MAX);
    push_u16(data, SEGMENTS_MAX);
    push_u32(data, DESCRIPTOR_BYTES_MAX);
    // Maximum segment length, inline data, held data, stream transfer size.
    data.extend_from_slice(&[0; 16]);
    push_u32(data, COPIES_MAX);
    data.push(u8::try_from(Results::RECORDS_MAX).unwrap_or(u8::MAX));
    // Granularities, reserved.
    data.extend_from_slice(&[0; 6]);
    data.extend_from_slice(&[2, BLOCK_TO_BLOCK, IDENTIFICATION]);
    Ok(())
}

/// FAILED SEGMENT DETAILS; nothing when nothing failed.
fn failed_segment_details(env: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let list_id = u32::from(cdb.get(ReceiveCopyResults::LIST_ID));
    let sense = match known(env, list_id)?.outcome {
        None => return Err(Check::cdb_field(ReceiveCopyResults::LIST_ID).into()),
        Some(outcome) => sense(env, outcome),
    };
    let Some(sense) = sense else {
        data.extend_from_slice(&[0; 4]);
        return Ok(());
    };
    let sense = sense.as_bytes();
    push_u32(data, u16::try_from(sense.len().saturating_add(56)).unwrap_or(0));
    data.resize(56, 0);
    data.extend_from_slice(&[STATUS_CHECK, 0]);
    push_u16(data, u16::try_from(sense.len()).unwrap_or(0));
    data.extend_from_slice(sense);
    env.nexus.copies.forget(list_id);
    Ok(())
}

/// RECEIVE COPY STATUS(LID4).
fn copy_status4(env: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let list_id = cdb.get(ReceiveCopyStatusLid4::LIST_ID);
    let known = known(env, list_id)?;
    let (operation, status) = match known.outcome {
        None => (0x10, 0),
        Some(Outcome::Good) => (0x01, 0),
        Some(Outcome::Failed(_)) => (0x02, STATUS_CHECK),
        Some(Outcome::Aborted) => (0x60, STATUS_CHECK),
    };
    let sense = known.outcome.and_then(|outcome| sense(env, outcome));
    let sense = sense.as_ref().map_or(&[][..], Sense::as_bytes);
    push_u32(data, u16::try_from(sense.len().saturating_add(28)).unwrap_or(0));
    // No operation counter; how long it will take is not known.
    data.extend_from_slice(&[known.service_action, operation, 0, 0, 0xff, 0xff, 0xff, 0xff, status]);
    let len = u8::try_from(sense.len()).unwrap_or(0);
    data.extend_from_slice(&[len, len, 0]);
    data.extend_from_slice(&known.bytes.to_be_bytes());
    push_u16(data, known.segments);
    data.extend_from_slice(&[0; 6]);
    data.extend_from_slice(sense);
    if known.outcome == Some(Outcome::Good) {
        env.nexus.copies.forget(list_id);
    }
    Ok(())
}

/// CHECK CONDITION.
const STATUS_CHECK: u8 = wire::scsi::status::CHECK_CONDITION;

/// The sense data that says why an operation ended.
fn sense(env: &Env<'_>, outcome: Outcome) -> Option<Sense> {
    let check = match outcome {
        Outcome::Good => return None,
        Outcome::Failed(check) => check,
        Outcome::Aborted => Check::new(SenseKey::CopyAborted, code::NO_ADDITIONAL_SENSE),
    };
    Some(check.encode(&env.view.policy.modes))
}

/// Third-party copy commands that are supported: operation codes with their service actions.
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

/// Third-party copy descriptors (SPC-4 section 7.8.17): commands, limits, descriptor types and general operations. No
/// token is made or taken, and no CSCD has a fixed number.
pub(crate) fn third_party_page(_: &Env<'_>, data: &mut Vec<u8>) {
    let mut commands = Vec::new();
    for (code, actions) in COMMANDS {
        commands.extend([*code, u8::try_from(actions.len()).unwrap_or(0)]);
        commands.extend_from_slice(actions);
    }
    commands.insert(0, u8::try_from(commands.len()).unwrap_or(0));
    descriptor(data, 0x0001, &commands);

    let mut limits = vec![0; 4];
    push_u16(&mut limits, CSCDS_MAX);
    push_u16(&mut limits, SEGMENTS_MAX);
    push_u32(&mut limits, DESCRIPTOR_BYTES_MAX);
    limits.resize(28, 0);
    descriptor(data, 0x0004, &limits);
    descriptor(data, 0x0008, &[2, BLOCK_TO_BLOCK, IDENTIFICATION]);
    descriptor(data, 0x000c, &[0, 0]);

    let mut general = Vec::new();
    push_u32(&mut general, COPIES_MAX);
    push_u32(&mut general, u16::try_from(Results::RECORDS_MAX).unwrap_or(u16::MAX));
    general.resize(32, 0);
    descriptor(data, 0x8001, &general);
}

/// One third-party copy descriptor, its body padded to whole words.
fn descriptor(data: &mut Vec<u8>, kind: u16, body: &[u8]) {
    let len = body.len().next_multiple_of(4);
    data.extend_from_slice(&kind.to_be_bytes());
    push_u16(data, u16::try_from(len).unwrap_or(u16::MAX));
    data.extend_from_slice(body);
    data.resize(data.len().saturating_add(len).saturating_sub(body.len()), 0);
}

fn push_u16(data: &mut Vec<u8>, value: impl TryInto<u16>) {
    data.extend_from_slice(&value.try_into().unwrap_or(u16::MAX).to_be_bytes());
}

fn push_u32(data: &mut Vec<u8>, value: impl Into<u32>) {
    data.extend_from_slice(&value.into().to_be_bytes());
}
