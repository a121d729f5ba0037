//! The login phase (RFC 7143 section 6).
