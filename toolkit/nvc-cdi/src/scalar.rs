//! Reads scalars as Go's decoder does: as what the schema has in their place.

use serde_json::Value;

/// Returns a value's type for error messages.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Returns a scalar as a string, for fields that are strings in the schema: numbers and booleans are formatted.
pub(crate) fn into_text(value: Value) -> Result<String, Value> {
    match value {
        Value::String(text) => Ok(text),
        Value::Bool(value) => Ok(value.to_string()),
        Value::Number(number) => Ok(match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) => float_text(float),
            None => number.to_string(),
        }),
        Value::Null | Value::Array(_) | Value::Object(_) => Err(value),
    }
}

/// Returns a whole number's value, including one written as a float.
pub(crate) fn integer(value: &Value) -> Option<i128> {
    let number = value.as_number()?;
    let whole = number.as_i64().map(i128::from);
    let whole = whole.or_else(|| number.as_u64().map(i128::from));
    whole.or_else(|| {
        let float = number.as_f64()?;
        #[allow(clippy::cast_possible_truncation)] // whole and small
        (float.fract() == 0.0 && float.abs() < 9e15).then_some(float as i128)
    })
}

/// Formats a float like Go's `%g` with the shortest precision: with an exponent below -4 or from 6 on.
fn float_text(value: f64) -> String {
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
