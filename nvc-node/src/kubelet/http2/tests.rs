use proptest::prelude::*;

use super::*;

/// What grpc-go sends for GetInfo, with the authority that h2 refuses.
fn call(path: &str, id: u32, message: &[u8]) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    // Literals with incremental indexing, of names in the static table.
    for (name, value) in [(0x44, path), (0x41, "%2Fvar%2Flib%2Fkubelet%2Fx-reg.sock")] {
        block = literal([block, vec![name]].concat(), value);
    }
    let mut body = vec![0];
    body.extend(number(message.len()).to_be_bytes());
    body.extend(message);
    let mut bytes = Vec::new();
    frame(&mut bytes, HEADERS, END_HEADERS, id, &block);
    frame(&mut bytes, DATA, END_STREAM, id, &body);
    bytes
}

fn greeted() -> Vec<u8> {
    let mut bytes = PREFACE.to_vec();
    frame(&mut bytes, SETTINGS, 0, 0, &[]);
    bytes
}

#[test]
fn calls_are_answered_whatever_their_pieces() {
    let bytes = [greeted(), call("/a.B/C", 1, b"x"), call("/a.B/D", 3, b"")].concat();
    for size in [1, 2, 7, 100, bytes.len()] {
        let (mut connection, mut output, mut calls) =
            (Connection::default(), Vec::new(), Vec::new());
        for part in bytes.chunks(size) {
            calls.extend(connection.receive(part, &mut output).unwrap());
        }
        let got: Vec<_> = calls
            .iter()
            .map(|call| (call.path.as_str(), call.message.as_slice()))
            .collect();
        assert_eq!(got, [("/a.B/C", &b"x"[..]), ("/a.B/D", b"")], "{size}");
        output.clear();
        connection
            .answer(&calls[0], Ok(b"yes".to_vec()), &mut output)
            .unwrap();
        assert!(output.windows(8).any(|window| window == b"\0\0\0\0\x03yes"));
        assert!(output.ends_with(b"grpc-status\x010"));
        connection
            .answer(&calls[1], Err(UNIMPLEMENTED), &mut output)
            .unwrap();
        assert!(output.ends_with(b"grpc-status\x0212"));
    }
}

#[test]
fn limits() {
    let broken = |bytes: &[u8]| {
        let mut output = Vec::new();
        let done = Connection::default().receive(bytes, &mut output);
        let code = done.err().map(|Broken(code)| code);
        // It says why.
        assert!(code.is_none_or(|code| output.ends_with(&code.to_be_bytes())));
        code
    };
    assert_eq!(broken(b"GET / HTTP/1.1\r\n"), Some(PROTOCOL_ERROR));
    let with = |frames: &[u8]| [&greeted(), frames].concat();
    assert_eq!(
        broken(&with(&[0, 0x40, 1, DATA, 0, 0, 0, 0, 1])),
        Some(FRAME_SIZE_ERROR)
    );
    let mut endless = Vec::new();
    frame(&mut endless, HEADERS, 0, 1, &[0; MAX_FRAME]);
    frame(&mut endless, CONTINUATION, 0, 1, &[0; MAX_FRAME]);
    assert_eq!(broken(&with(&endless)), Some(ENHANCE_YOUR_CALM));
    // The table may not grow beyond what was agreed.
    let mut table = Vec::new();
    frame(
        &mut table,
        HEADERS,
        END_HEADERS,
        1,
        &[0x3f, 0xff, 0xff, 0x7f, 0x83],
    );
    assert_eq!(broken(&with(&table)), Some(COMPRESSION_ERROR));
    // Nor is there any: no entry of 4 KiB can be had again by each byte that follows.
    for again in [0xbe, 0x7e] {
        let mut block = literal(vec![0x40], "a");
        block.extend([1, b'b', again, 0]);
        let mut bomb = Vec::new();
        frame(&mut bomb, HEADERS, END_HEADERS, 1, &block);
        assert_eq!(broken(&with(&bomb)), Some(COMPRESSION_ERROR));
    }
    assert!(
        Connection::greeting()
            .windows(6)
            .any(|part| part == [0, 1, 0, 0, 0, 0])
    );
    // More streams, or more bytes, than a registration has: that stream ends alone.
    let many: Vec<u8> = (0..8)
        .flat_map(|n| {
            let whole = call("/a.B/C", 2 * n + 1, b"");
            let end = whole.len() - HEAD_LEN - 5;
            whole[..end].to_vec()
        })
        .collect();
    assert_eq!(broken(&with(&many)), None);
    let mut long = call("/a.B/C", 1, &[0; 2 * MAX_MESSAGE]);
    long.extend(call("/a.B/C", 3, b""));
    let mut connection = Connection::default();
    let calls = connection.receive(&with(&long), &mut Vec::new()).unwrap();
    assert_eq!(calls.len(), 1);
    assert!(connection.streams.is_empty());
}

#[test]
fn nothing_is_sent_beyond_the_peers_window() {
    let mut settings = PREFACE.to_vec();
    frame(&mut settings, SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 9]);
    let mut connection = Connection::default();
    let bytes = [settings, call("/a.B/C", 1, b"")].concat();
    let calls = connection.receive(&bytes, &mut Vec::new()).unwrap();
    assert!(
        connection
            .answer(&calls[0], Ok(vec![0; 4]), &mut Vec::new())
            .is_ok()
    );
    assert!(
        connection
            .answer(&calls[0], Ok(vec![0; 5]), &mut Vec::new())
            .is_err()
    );
}

/// Frames of odd content, so that most of them reach the code behind the checks of lengths.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let one = (
        0..11u8,
        any::<u8>(),
        0..8u32,
        prop::collection::vec(any::<u8>(), 0..64),
    );
    prop::collection::vec(one, 0..32).prop_map(|frames| {
        let mut bytes = greeted();
        for (kind, flags, id, payload) in frames {
            frame(&mut bytes, kind, flags, id, &payload);
        }
        bytes
    })
}

proptest! {
    #[test]
    fn hostile_bytes_do_no_harm(bytes in prop_oneof![frames(), prop::collection::vec(any::<u8>(), 0..512)], size in 1..64usize) {
        let (mut whole, mut parts) = (Connection::default(), Connection::default());
        let (mut one, mut other) = (Vec::new(), Vec::new());
        let at_once = whole.receive(&bytes, &mut one);
        let mut calls = Ok(Vec::new());
        for part in bytes.chunks(size) {
            match (parts.receive(part, &mut other), &mut calls) {
                (Ok(more), Ok(calls)) => calls.extend(more),
                (Err(broken), _) => {
                    calls = Err(broken);
                    break;
                }
                _ => {}
            }
        }
        // How the bytes come makes no difference, and the answer is not much longer than they are.
        prop_assert_eq!(at_once, calls);
        prop_assert!(one.len() <= 4 * bytes.len() + 17);
        prop_assert_eq!(one, other);
        prop_assert!(whole.streams.len() <= MAX_STREAMS);
    }
}
