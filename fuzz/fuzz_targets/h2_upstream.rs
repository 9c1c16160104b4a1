#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_http::upstream::h2::fuzzing::response(data));
