//! Makes serde's derived parsers refuse arrays: by default they accept `["rootfs"]` for an object with one field.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

/// A value that was an object in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Members(PhantomData))
    }
}

struct Members<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(members)).map(Object)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq, serde::Deserialize)]
    struct Named {
        name: Option<String>,
    }

    #[test]
    fn only_objects_are_taken() {
        let parse = serde_json::from_str::<Object<Named>>;
        let name = Some("n".to_owned());
        let named = Object(Named { name });
        assert_eq!(parse(r#"{"other": [], "name": "n"}"#).unwrap(), named);
        assert_eq!(parse("{}").unwrap(), Object(Named { name: None }));
        for text in [r#"["n"]"#, "[]", "null", r#""n""#] {
            assert!(parse(text).is_err(), "{text}");
        }
        let twice = parse(r#"{"name": "n", "name": "n"}"#).unwrap_err();
        assert!(twice.to_string().contains("duplicate"), "{twice}");
        let array = parse(r#"["n"]"#).unwrap_err().to_string();
        assert!(array.contains("expected an object"), "{array}");
        assert!(serde_json::from_str::<Named>(r#"["n"]"#).is_ok());
    }
}
