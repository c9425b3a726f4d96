use nvc_testkit::systemd::message;

use super::*;

/// The bytes by D-Bus's specification.
#[test]
fn a_call_is_written_as_the_standard_says() {
    let call = Call {
        serial: 7,
        destination: None,
        path: "/a",
        interface: "b.c",
        member: "Get",
        body: Body::property("x", "yz"),
    };
    let expected = b"l\x01\x02\x01\x0f\0\0\0\x07\0\0\0\x38\0\0\0\
        \x01\x01o\0\x02\0\0\0/a\0\0\0\0\0\0\
        \x02\x01s\0\x03\0\0\0b.c\0\0\0\0\0\
        \x03\x01s\0\x03\0\0\0Get\0\0\0\0\0\
        \x08\x01g\0\x02ss\0\
        \x01\0\0\0x\0\0\0\x02\0\0\0yz\0";
    let message = call.message();
    assert_eq!(message, expected);
    assert_eq!(
        message_length(message.first_chunk().unwrap()),
        Ok(message.len())
    );
}

#[test]
fn names_of_units_become_paths() {
    let path = unit_path("1docker-a_é.scope");
    assert_eq!(
        path,
        "/org/freedesktop/systemd1/unit/_31docker_2da_5f_c3_a9_2escope"
    );
}

#[test]
fn values_are_read_in_both_byte_orders() {
    let little = message(2, 5, "s", b"\x02\0\0\0hi\0");
    let text = Ok(Some(Reply {
        to: 5,
        outcome: Ok(Value::Text("hi".into())),
    }));
    assert_eq!(parse(&little), text);
    let big = b"B\x02\0\x01\0\0\0\x07\0\0\0\x01\0\0\0\x0f\
        \x05\x01u\0\0\0\0\x05\x08\x01g\0\x01s\0\0\0\0\0\x02hi\0";
    assert_eq!(parse(big), text);
}

#[test]
fn what_is_no_reply_is_passed_over_or_refused() {
    assert_eq!(parse(&message(4, 1, "", &[])), Ok(None));
    assert_eq!(parse(&message(1, 1, "", &[])), Ok(None));
    for bad in [
        b"".to_vec(),
        message(2, 1, "", &[])[..20].to_vec(),
        [message(2, 1, "", &[]), vec![0]].concat(),
        message(2, 1, "s", b"\xff\xff\xff\xff"),
        message(2, 1, "s", b"\x02\0\0\0hix"),
        message(2, 1, "a(ss)", b"\x10\0\0\0\0\0\0\0"),
        message(2, 1, "v", &[]),
        // An error without a name.
        message(3, 1, "", &[]),
    ] {
        assert_eq!(parse(&bad), Err(Malformed), "{bad:?}");
    }
    let too_long = b"l\x02\0\x01\0\0\x10\0\x01\0\0\0\0\0\0\0";
    assert_eq!(message_length(too_long), Err(Malformed));
    let overflowing = b"l\x02\0\x01\xff\xff\xff\xff\x01\0\0\0\xff\xff\xff\xff";
    assert_eq!(message_length(overflowing), Err(Malformed));
}
