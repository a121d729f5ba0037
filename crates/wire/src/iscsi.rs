//! iSCSI PDUs (RFC 7143 section 11).
