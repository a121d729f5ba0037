//! One module for each program in `fuzz_targets`: what it does with an input.

pub mod aoe_frame;
pub mod cdb;
pub mod iser_message;
pub mod iwarp_stream;
pub mod login_text;
pub mod nbd_replies;
pub mod pdu_stream;
pub mod spec_toml;
pub mod srp_iu;
