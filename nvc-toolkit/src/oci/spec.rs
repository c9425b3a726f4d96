//! Edits single members of config.json and knows whether anything changed.

use serde_json::{Map, Value};

use super::lenient;

/// The tree of config.json.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec(Value);

impl Spec {
    /// A tree that was read.
    pub fn new(value: Value) -> Self {
        match value {
            // A file with nothing but null is an empty specification.
            Value::Null => Self(Value::Object(Map::new())),
            other => Self(other),
        }
    }

    /// The tree.
    pub fn value(&self) -> &Value {
        &self.0
    }

    /// The text to be written: one line.
    pub fn text(&self) -> Vec<u8> {
        let mut text = self.0.to_string().into_bytes();
        text.push(b'\n');
        text
    }

    /// Whether the member at this path is there.
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

    /// The list at this path; it and what leads to it is made where it is missing.
    ///
    /// # Errors
    /// A member on the way is something else.
    pub fn list(&mut self, path: &[&str]) -> Result<&mut Vec<Value>, String> {
        let Some((last, parents)) = path.split_last() else {
            return Err("no path".into());
        };
        let member = member_of(self.object(parents)?, last);
        if member.is_null() {
            *member = Value::Array(Vec::new());
        }
        member
            .as_array_mut()
            .ok_or_else(|| format!("{}: expected a list", path.join(".")))
    }

    /// The object at this path; it and what leads to it is made where it is missing.
    ///
    /// # Errors
    /// A member on the way is something else.
    pub fn object(&mut self, path: &[&str]) -> Result<&mut Map<String, Value>, String> {
        let wrong = || format!("{}: expected an object", path.join("."));
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

/// The member of this name, in any case: the last one, which is the one that counts. A new one is null.
fn member_of<'a>(object: &'a mut Map<String, Value>, name: &str) -> &'a mut Value {
    let found = object
        .keys()
        .rev()
        .find(|key| key.eq_ignore_ascii_case(name));
    let key = found.map_or(name, String::as_str).to_owned();
    object.entry(key).or_insert(Value::Null)
}
