#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunette_fuzz::targets::nbd_replies::run(data));
