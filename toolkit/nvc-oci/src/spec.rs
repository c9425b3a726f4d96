//! Edits single members of config.json and tracks whether anything changed.

use libnvc::Result;
use serde_json::{Map, Value};

use super::lenient;

/// The tree of config.json.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec(Value);

impl Spec {
    /// Wraps a parsed tree.
    pub fn new(value: Value) -> Self {
        match value {
            // A file with only null is an empty specification.
            Value::Null => Self(Value::Object(Map::new())),
            other => Self(other),
        }
    }

    /// Returns the tree.
    pub fn value(&self) -> &Value {
        &self.0
    }

    /// Serialises the tree on one line.
    pub fn text(&self) -> Vec<u8> {
        let mut text = self.0.to_string().into_bytes();
        text.push(b'\n');
        text
    }

    /// Returns true if the member at this path exists.
    pub fn has(&self, path: &[&str]) -> bool {
        let mut value = &self.0;
        for name in path {
            let member = value
                .as_object()
                .and_then(|object| lenient::member(object, name));
            match member {
                Some(member) => value = member,
                None => return false,
            }
        }
        true
    }

    /// Returns the list at this path; creates it and its parents if missing.
    ///
    /// # Errors
    /// A member in the path has another type.
    pub fn list(&mut self, path: &[&str]) -> Result<&mut Vec<Value>> {
        let Some((last, parents)) = path.split_last() else {
            return Err(lenient::malformed("no path"));
        };
        let member = member_of(self.object(parents)?, last);
        if member.is_null() {
            *member = Value::Array(Vec::new());
        }
        member
            .as_array_mut()
            .ok_or_else(|| lenient::mismatch(&path.join("."), "a list"))
    }

    /// Returns the object at this path; creates it and its parents if missing.
    ///
    /// # Errors
    /// A member in the path has another type.
    pub fn object(&mut self, path: &[&str]) -> Result<&mut Map<String, Value>> {
        let wrong = || lenient::mismatch(&path.join("."), "an object");
        let mut object = self.0.as_object_mut().ok_or_else(wrong)?;
        for name in path {
            let member = member_of(object, name);
            if member.is_null() {
                *member = Value::Object(Map::new());
            }
            object = member.as_object_mut().ok_or_else(wrong)?;
        }
        Ok(object)
    }
}

/// Returns the member of this name, in any case: the last one, which is the one that counts. A new one is null.
fn member_of<'a>(object: &'a mut Map<String, Value>, name: &str) -> &'a mut Value {
    let found = object
        .keys()
        .rev()
        .find(|key| key.eq_ignore_ascii_case(name));
    let key = found.map_or(name, String::as_str).to_owned();
    object.entry(key).or_insert(Value::Null)
}
