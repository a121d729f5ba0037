#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunette_fuzz::targets::pdu_stream::run(data));
