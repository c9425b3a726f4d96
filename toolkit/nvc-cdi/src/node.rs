//! Defines data without a schema: the common model of JSON and YAML.

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Null,
    Bool(bool),
    Int(i64),
    /// Only for values too large for [`Node::Int`].
    Uint(u64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    /// In text order, without duplicate keys.
    Map(Vec<(String, Node)>),
}

impl Node {
    /// Returns the type's name for error messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Int(_) | Self::Uint(_) | Self::Float(_) => "a number",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Map(_) => "an object",
        }
    }

    /// Returns a scalar as a string, for fields that are strings in the schema: Go's decoder formats numbers and
    /// booleans.
    pub(crate) fn into_text(self) -> Result<String, Self> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Bool(value) => Ok(value.to_string()),
            Self::Int(value) => Ok(value.to_string()),
            Self::Uint(value) => Ok(value.to_string()),
            Self::Float(value) => Ok(float_text(value)),
            Self::Null | Self::List(_) | Self::Map(_) => Err(self),
        }
    }

    /// Returns a whole number's value, including one written as a float.
    pub(crate) fn integer(&self) -> Option<i128> {
        match *self {
            Self::Int(value) => Some(value.into()),
            Self::Uint(value) => Some(value.into()),
            #[allow(clippy::cast_possible_truncation)] // whole and small
            Self::Float(value) if value.fract() == 0.0 && value.abs() < 9e15 => Some(value as i128),
            _ => None,
        }
    }
}

/// Formats a float like Go's `%g` with the shortest precision: with an exponent below -4 or from 6 on.
fn float_text(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.into();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.abs())
    } else {
        format!("{value}")
    }
}

#[cfg(test)]
mod tests {
    use super::float_text;

    #[test]
    fn floats_are_written_as_go_does() {
        assert_eq!(float_text(1.1), "1.1");
        assert_eq!(float_text(1.0), "1");
        assert_eq!(float_text(-0.5), "-0.5");
        assert_eq!(float_text(1_234_567.0), "1.234567e+06");
        assert_eq!(float_text(123_456.0), "123456");
        assert_eq!(float_text(1.5e-7), "1.5e-07");
    }
}
