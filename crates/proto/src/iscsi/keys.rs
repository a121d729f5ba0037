//! Login and text keys (RFC 7143 section 13).
