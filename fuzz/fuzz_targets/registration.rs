//! HTTP/2 of a kubelet: it makes no difference in which pieces bytes come, and answers are not much longer than they are.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The crate has hundreds of dependencies that this file does not need.
#[allow(dead_code)] // what only its servers use
#[path = "../../nvc-node/src/kubelet/http2.rs"]
mod http2;

use http2::{Call, Connection, UNIMPLEMENTED};

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = input;
    let (at_once, output) = receive(bytes, bytes.len(), false);
    let (parts, other) = receive(bytes, size.into(), false);
    assert_eq!(output, other);
    assert!(output.len() <= 4 * bytes.len() + 17);
    if at_once.is_some() {
        assert_eq!(at_once, parts);
    }
    let (answered, output) = receive(bytes, size.into(), true);
    let calls = answered.unwrap_or_default().len();
    assert!(output.len() <= (4 + 500) * bytes.len() + 500 * calls + 17);
    assert!(!Connection::greeting().is_empty());
});

/// Returns the calls, unless the connection breaks, and what is sent.
fn receive(bytes: &[u8], size: usize, answers: bool) -> (Option<Vec<Call>>, Vec<u8>) {
    let (mut connection, mut output, mut calls) = (Connection::default(), Vec::new(), Vec::new());
    for part in bytes.chunks(size.max(1)) {
        let Ok(received) = connection.receive(part, &mut output) else {
            return (None, output);
        };
        for call in received {
            assert!(call.path.len() <= 256 && call.message.len() <= 4096);
            let answer = match calls.len() % 2 {
                0 => Ok(vec![0; 300]),
                _ => Err(UNIMPLEMENTED),
            };
            if answers && connection.answer(&call, answer, &mut output).is_err() {
                return (None, output);
            }
            calls.push(call);
        }
    }
    (Some(calls), output)
}
