//! Parses JSON into a [`Value`], and rejects objects with a key that is there twice.
//!
//! Readers disagree about such a key: crun takes the first value, others the last, Go merges both. A request could be
//! lost between them.

use std::fmt;

use libnvc::ErrorKind;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A value in which no object has a key twice.
#[derive(Debug)]
pub(crate) struct Unique(pub(crate) Value);

/// Parses one value without anything behind it. serde_json limits the nesting to 128 levels.
///
/// # Errors
/// The parser's message, with line and column.
pub fn parse(text: &str) -> libnvc::Result<Value> {
    let parsed = serde_json::from_str(text).map(|Unique(value)| value);
    parsed.map_err(|error| libnvc::Error::new(ErrorKind::Malformed, error.to_string()))
}

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any).map(Self)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Unique(item)) = access.next_element()? {
            items.push(item);
        }
        Ok(items.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if members.contains_key(&key) {
                return Err(A::Error::custom(format!(
                    "the key \"{key}\" is there twice"
                )));
            }
            let Unique(value) = access.next_value()?;
            members.insert(key, value);
        }
        Ok(members.into())
    }
}
