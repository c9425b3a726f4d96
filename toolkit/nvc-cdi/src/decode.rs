//! Converts a tree of values to a [`Spec`], and rejects anything outside the schema, which [`super::model`] has.
//!
//! Like Go's decoder, it ignores the case of keys, keeps a field's default for null, and accepts a number or boolean
//! where the schema has a string. Errors name the position, for instance `devices[0].containerEdits.mounts[2]: unknown
//! key "from"`.

use std::fmt;

use libnvc::{Error, Result};
use serde::Deserialize;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::Value;

use super::malformed;
use super::model::Spec;
use super::scalar::{integer, into_text, kind};

/// Types that are only in lists, in which null is no default.
const LISTED: [&str; 4] = ["DeviceNode", "NetDevice", "Hook", "Mount"];

/// Decodes the top level.
pub(super) fn spec(value: Value) -> Result<Spec> {
    if value.is_null() {
        return Err(malformed("the file has no content"));
    }
    let at = String::new();
    Spec::deserialize(PlacedValue { value, at }).map_err(|Mistake(error)| error)
}

/// A value and its position.
struct PlacedValue {
    value: Value,
    at: String,
}

/// The error in serde's form.
#[derive(Debug)]
struct Mistake(Error);

impl std::error::Error for Mistake {}

impl fmt::Display for Mistake {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0.message())
    }
}

impl serde::de::Error for Mistake {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Self(malformed(text.to_string()))
    }
}

fn located(at: &str, text: &str) -> Mistake {
    let error = malformed(text);
    Mistake(match at {
        "" => error,
        at => error.context(at),
    })
}

impl PlacedValue {
    fn is_not(&self, wanted: &str) -> Mistake {
        located(&self.at, &format!("{}, not {wanted}", kind(&self.value)))
    }

    /// Returns the members with their positions.
    fn members(self) -> Result<Vec<(String, Self)>, Mistake> {
        let dot = if self.at.is_empty() { "" } else { "." };
        match self.value {
            Value::Null => Ok(Vec::new()),
            Value::Object(members) => {
                let members = members.into_iter().map(|(key, value)| {
                    let at = format!("{}{dot}{key}", self.at);
                    (key, Self { value, at })
                });
                Ok(members.collect())
            }
            _ => Err(self.is_not("an object")),
        }
    }

    fn integer<T: TryFrom<i128>>(&self, too_large: &str) -> Result<T, Mistake> {
        if self.value.is_null() {
            return T::try_from(0).map_err(|_| self.is_not("a number"));
        }
        let value = integer(&self.value);
        let value = value.ok_or_else(|| self.is_not("a whole number"))?;
        T::try_from(value).map_err(|_| located(&self.at, &format!("{value} {too_large}")))
    }
}

impl IntoDeserializer<'_, Mistake> for PlacedValue {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for PlacedValue {
    type Error = Mistake;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        if self.value.is_null() && LISTED.contains(&name) {
            return Err(located(&self.at, "null"));
        }
        let at = self.at.clone();
        let known = |(key, value): (String, Self)| {
            let mut fields = fields.iter();
            match fields.find(|field| field.eq_ignore_ascii_case(&key)) {
                Some(field) => Ok((*field, value)),
                None => Err(located(&at, &format!("unknown key \"{key}\""))),
            }
        };
        // A key that is written twice, in different cases: the last one counts.
        let mut members: Vec<(&str, Self)> = Vec::new();
        for member in self.members()?.into_iter().map(known) {
            let member = member?;
            members.retain(|(key, _)| *key != member.0);
            members.push(member);
        }
        visitor.visit_map(MapDeserializer::new(members.into_iter()))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        visitor.visit_map(MapDeserializer::new(self.members()?.into_iter()))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        let values = match self.value {
            Value::Null => Vec::new(),
            Value::Array(values) => values,
            _ => return Err(self.is_not("a list")),
        };
        let values = values.into_iter().enumerate().map(|(n, value)| {
            let at = format!("{}[{n}]", self.at);
            Self { value, at }
        });
        visitor.visit_seq(SeqDeserializer::new(values))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        let Self { value, at } = self;
        match value {
            Value::Null => visitor.visit_string(String::new()),
            value => match into_text(value) {
                Ok(text) => visitor.visit_string(text),
                Err(value) => Err(Self { value, at }.is_not("text")),
            },
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        match self.value {
            Value::Null => visitor.visit_bool(false),
            Value::Bool(value) => visitor.visit_bool(value),
            _ => Err(self.is_not("a boolean")),
        }
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        visitor.visit_i64(self.integer("is too large")?)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        visitor.visit_u32(self.integer("does not fit 32 bits")?)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Mistake> {
        Err(self.is_not("of a type of the schema"))
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i128 u8 u16 u64 u128 f32 f64 char str bytes byte_buf unit unit_struct newtype_struct tuple
        tuple_struct enum identifier ignored_any
    }
}
