//! Recognises containers whose hooks have standard output or standard error in a file of the image's choice.
//!
//! crun opens the file that an annotation names, of the host and for appending, and gives it to all hooks. Old versions
//! of podman copy an image's annotations into the container.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// The annotations that name such a file.
pub const STREAM_ANNOTATIONS: [&str; 2] = ["run.oci.hooks.stdout", "run.oci.hooks.stderr"];

/// The standard error of crun, which opens the file in the host's /proc.
pub const STDERR: &str = "/proc/self/fd/2";

/// Returns true if the value of such an annotation keeps the messages with the caller of the runtime.
pub fn is_stderr(value: &Value) -> bool {
    [STDERR, "/dev/stderr"].iter().any(|own| value == own)
}

/// Returns true if the JSON text of a container's state or config.json has such an annotation with another value.
///
/// Of several annotations with the same name each counts. A text that is not JSON counts as far as it is JSON: the
/// hooks, which parse it as strictly as this function or more so, use nothing of it.
pub fn are_streams_redirected(json: &[u8]) -> bool {
    let mut found = false;
    let text = String::from_utf8_lossy(json);
    let mut parser = serde_json::Deserializer::from_str(&text);
    let _ = Members(Part::Container, &mut found).deserialize(&mut parser);
    found
}

/// The object whose members are read.
#[derive(Clone, Copy)]
enum Part {
    Container,
    Annotations,
}

struct Members<'a>(Part, &'a mut bool);

impl<'de> DeserializeSeed<'de> for Members<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, parser: D) -> Result<(), D::Error> {
        parser.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Members<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let Self(part, found) = self;
        while let Some(name) = members.next_key::<String>()? {
            match part {
                Part::Container if name.eq_ignore_ascii_case("annotations") => {
                    members.next_value_seed(Members(Part::Annotations, &mut *found))?;
                }
                Part::Annotations if STREAM_ANNOTATIONS.contains(&name.as_str()) => {
                    *found |= !is_stderr(&members.next_value()?);
                }
                _ => drop(members.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::are_streams_redirected;

    #[test]
    fn files_of_the_image_are_found() {
        for annotations in [
            r#"{"run.oci.hooks.stderr": "/etc/profile.d/x.sh"}"#,
            r#"{"a": "b", "run.oci.hooks.stdout": "/x"}"#,
            r#"{"run.oci.hooks.stderr": "/x", "run.oci.hooks.stderr": "/dev/stderr"}"#,
            r#"{"run.oci.hooks.stderr": "/dev/stderr", "run.oci.hooks.stderr": "/x"}"#,
            r#"{"run.oci.hooks.stdout": "/dev/stderr", "run.oci.hooks.stderr": "//dev/stderr"}"#,
            r#"{"run.oci.hooks.stderr": "/dev/stderr/"}"#,
            r#"{"run.oci.hooks.stderr": "/proc/self/fd/../fd/2"}"#,
            r#"{"run.oci.hooks.stderr": "/dev/null"}"#,
            r#"{"run.oci.hooks.stderr": ""}"#,
            r#"{"run.oci.hooks.stderr": null}"#,
            r#"{"run.oci.hooks.stderr": ["/dev/stderr"]}"#,
            r#"{"run.oci.hooks.stderr": "/x"}, "pid": 1e999"#,
        ] {
            for name in ["annotations", "Annotations"] {
                let state = format!(r#"{{"pid": 1, "x": [{{}}], "{name}": {annotations}}} more"#);
                assert!(are_streams_redirected(state.as_bytes()), "{state}");
            }
        }
    }

    #[test]
    fn others_are_not() {
        for state in [
            "",
            "null",
            "7",
            "[]",
            "{",
            "{}",
            r#"{"annotations": null}"#,
            r#"{"annotations": []}"#,
            r#"{"annotations": {"a": "b", "c": 1}, "pid": 1}"#,
            r#"{"annotations": {"run.oci.hooks.stderr": "/dev/stderr"}}"#,
            r#"{"annotations": {"run.oci.hooks.stdout": "/proc/self/fd/2"}}"#,
            r#"{"process": {"annotations": {"run.oci.hooks.stderr": "/x"}}}"#,
            r#"{"root": "run.oci.hooks.stderr"}"#,
        ] {
            assert!(!are_streams_redirected(state.as_bytes()), "{state}");
        }
    }

    #[test]
    fn odd_bytes_hide_nothing() {
        let state = b"{\"a\": \"\xff\", \"annotations\": {\"run.oci.hooks.stderr\": \"/x\"}}";
        assert!(are_streams_redirected(state));
    }
}
