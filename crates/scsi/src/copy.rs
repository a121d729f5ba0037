//! EXTENDED COPY and RECEIVE COPY RESULTS (SPC-4 section 5.17, 6.4, 6.18).

/// Results of a nexus's copy operations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Results {}
