//! Unit attention conditions (SAM-5 section 5.14).
