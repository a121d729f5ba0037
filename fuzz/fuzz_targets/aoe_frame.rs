#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunette_fuzz::targets::aoe_frame::run(data));
