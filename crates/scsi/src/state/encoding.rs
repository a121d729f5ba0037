//! How state is saved as bytes: values with their lengths, and a checksum at the end.

use crate::vocabulary::modes::Modes;

/// Stands for the threshold that the unit is configured with.
const NO_SETS: u32 = u32::MAX;

/// The bytes with a checksum appended.
pub(super) fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = crc32(&bytes);
    bytes.extend_from_slice(&sum.to_be_bytes());
    bytes
}

/// The bytes given to [`seal`]; `None` when the checksum does not match.
pub(super) fn unseal(sealed: &[u8]) -> Option<&[u8]> {
    let (body, sum) = sealed.split_last_chunk()?;
    (u32::from_be_bytes(*sum) == crc32(body)).then_some(body)
}

/// A value with its length before it.
pub(super) fn push_sized(bytes: &mut Vec<u8>, value: &[u8]) {
    push_u16(bytes, u16::try_from(value.len()).unwrap_or(u16::MAX));
    bytes.extend_from_slice(value);
}

/// Takes a value written by [`push_sized`]; `None` when the bytes end before it does.
pub(super) fn take_sized<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = u16::from_be_bytes(take(rest)?);
    let (value, left) = rest.split_at_checked(usize::from(len))?;
    *rest = left;
    Some(value)
}

pub(super) fn push_u16(bytes: &mut Vec<u8>, value: u16) {
    bytes.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, left) = rest.split_first_chunk()?;
    *rest = left;
    Some(*first)
}

/// Mode parameters.
pub(super) fn push_modes(bytes: &mut Vec<u8>, mut modes: Modes) {
    bytes.extend(flags(&mut modes).map(|flag| u8::from(*flag)));
    bytes.push(modes.queue_error);
    bytes.extend(modes.threshold_sets.unwrap_or(NO_SETS).to_be_bytes());
}

/// Takes a value written by [`push_modes`]; `None` when the bytes end before it does.
pub(super) fn take_modes(rest: &mut &[u8]) -> Option<Modes> {
    let mut modes = Modes::default();
    let bits = take::<FLAGS>(rest)?;
    flags(&mut modes).into_iter().zip(bits).for_each(|(flag, bit)| *flag = bit == 1);
    [modes.queue_error] = take(rest)?;
    let sets = u32::from_be_bytes(take(rest)?);
    modes.threshold_sets = (sets != NO_SETS).then_some(sets);
    Some(modes)
}

/// How many mode parameters are flags.
const FLAGS: usize = 7;

fn flags(modes: &mut Modes) -> [&mut bool; FLAGS] {
    [
        &mut modes.write_cache,
        &mut modes.software_write_protect,
        &mut modes.descriptor_sense,
        &mut modes.task_set_per_nexus,
        &mut modes.task_aborted_status,
        &mut modes.provisioning_errors,
        &mut modes.threshold,
    ]
}

/// CRC-32 (IEEE 802.3), bit by bit: a few kilobytes at most.
fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            let carry = sum & 1 != 0;
            sum = (sum >> 1) ^ if carry { 0xedb8_8320 } else { 0 };
        }
    }
    !sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_ieee_802_3() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
