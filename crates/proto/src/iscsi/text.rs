//! Key=value text (RFC 7143 section 6.1).
