//! All input of nvidia-docker and its plugin: command lines, hosts, answers of docker and a remote plugin, requests.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nvc_docker::testing::parse(bytes));
