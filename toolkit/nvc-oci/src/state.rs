//! Parses the state of a container, which a runtime passes to its hooks on standard input.

use libnvc::Result;
use serde_json::{Number, Value};

use super::lenient::{first_value, malformed, member, mismatch, text};

/// What hooks need of a state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The process in whose namespaces the container is; 0 if unknown.
    pub pid: i64,
    /// The directory of config.json; empty for the current one.
    pub bundle: String,
    /// The container's id, for messages; empty if unknown.
    pub id: String,
    /// The container's root, which crun and later versions of runc say; else empty.
    pub root: String,
}

/// Parses a state.
///
/// # Errors
/// The text is not a JSON object, or a member has the wrong type.
pub fn read(bytes: &[u8]) -> Result<State> {
    let value = first_value(bytes)?;
    let state = match &value {
        Value::Object(state) => state,
        Value::Null => return Ok(State::default()),
        _ => return Err(malformed("expected an object")),
    };
    let pid = match member(state, "pid") {
        None => 0,
        Some(pid) => pid
            .as_number()
            .and_then(Number::as_i64)
            .ok_or_else(|| mismatch("pid", "an integer"))?,
    };
    // Old versions of runc spell it differently.
    let (bundle, old) = (text(state, "bundle")?, text(state, "bundlePath")?);
    let bundle = if bundle.is_empty() { old } else { bundle };
    let id = member(state, "id").and_then(Value::as_str);
    Ok(State {
        pid,
        bundle: bundle.to_owned(),
        id: id.unwrap_or_default().to_owned(),
        root: text(state, "root")?.to_owned(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn state(pid: i64, bundle: &str) -> State {
        State {
            pid,
            bundle: bundle.into(),
            ..State::default()
        }
    }

    #[test]
    fn states_are_read_leniently() {
        let table = [
            (r#"{"pid":42,"bundle":"/b"}"#, state(42, "/b")),
            (r#"{"PID":42,"Bundle":"/b"} and more"#, state(42, "/b")),
            (r#"{"pid":-1,"bundlePath":"/old"}"#, state(-1, "/old")),
            (r#"{"bundle":"/b","bundlePath":"/old"}"#, state(0, "/b")),
            (r#"{"bundle":"","bundlePath":"/old"}"#, state(0, "/old")),
            (r#"{"pid":null}"#, state(0, "")),
            ("null", state(0, "")),
            (r#"{"pid":1,"pid":2}"#, state(2, "")),
        ];
        for (text, expected) in table {
            assert_eq!(read(text.as_bytes()).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn some_runtimes_say_the_root() {
        let root = |text: &str| read(text.as_bytes()).unwrap().root;
        assert_eq!(root(r#"{"bundle":"/b","root":"r"} trailing"#), "r");
        for none in ["{}", r#"{"root":null}"#, r#"{"root":""}"#] {
            assert_eq!(root(none), "", "{none}");
        }
    }

    #[test]
    fn an_id_is_no_condition() {
        let id = |text: &str| read(text.as_bytes()).unwrap().id;
        assert_eq!(id(r#"{"id":"c1"}"#), "c1");
        for none in ["{}", r#"{"id":7}"#, r#"{"id":null}"#] {
            assert_eq!(id(none), "", "{none}");
        }
    }

    #[test]
    fn other_things_are_errors() {
        let texts = [
            "",
            " \n",
            "{",
            "[]",
            "7",
            r#"{"pid":"1"}"#,
            r#"{"pid":1.0}"#,
            r#"{"pid":1e2}"#,
            r#"{"pid":9223372036854775808}"#,
            r#"{"bundle":1}"#,
            r#"{"bundle":["/b"]}"#,
        ];
        for text in texts {
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
    }
}
