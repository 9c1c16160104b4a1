#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_http::modules::fuzzing::grpc_health(data));
