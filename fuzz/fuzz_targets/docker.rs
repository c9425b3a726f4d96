//! All that nvidia-docker and its plugin read: command lines, hosts, docker's answers, a far plugin's, requests.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nvc_docker::testing::parse(bytes));
