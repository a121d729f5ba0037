//! EXTENDED COPY and RECEIVE COPY RESULTS (SPC-4 sections 5.17, 6.4 to 6.6 and 6.17 to 6.24), between units of this
//! daemon.

mod list;
mod program;
mod report;
#[cfg(test)]
mod tests;

pub(crate) use program::{ExtendedCopy, abort, extended_copy1, extended_copy4};
pub(crate) use report::{receive, third_party_page};

/// CSCD descriptors in one parameter list.
const CSCDS_MAX: u16 = 16;
/// Segment descriptors in one parameter list.
const SEGMENTS_MAX: u16 = 256;
/// Bytes of CSCD and segment descriptors in one parameter list.
const DESCRIPTOR_BYTES_MAX: u16 = 7680;
