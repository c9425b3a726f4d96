//! Parses YAML into a [`Value`], with the conventions of Go's YAML library.
//!
//! That library resolves plain scalars mostly as YAML 1.1 does: `yes` is a boolean and `0660` is octal. Only the first
//! document counts. Aliases are expanded up to a limit, so that a few lines cannot expand to gigabytes.

use std::collections::HashMap;

use libnvc::Result;
use saphyr_parser::{Event, Parser, ScalarStyle, StrInput, Tag};
use serde_json::{Map, Number, Value};

use super::malformed;
use super::scalar::{into_text, kind};

/// Nesting limit of collections. The schema needs eight levels.
const MAX_DEPTH: usize = 64;
/// Limit of values, counting repetitions by aliases.
const MAX_NODES: usize = 2_000_000;
/// Limit of values repeated by aliases.
const MAX_REPEATED: usize = 200_000;

/// Parses the first document; an empty text is null.
pub(super) fn parse(text: &str) -> Result<Value> {
    let mut composer = Composer {
        events: Parser::new_from_str(text),
        anchors: HashMap::new(),
        nodes: 0,
        repeated: 0,
    };
    loop {
        match composer.next()? {
            Event::StreamStart | Event::DocumentStart(_) | Event::Nothing => {}
            Event::StreamEnd | Event::DocumentEnd => return Ok(Value::Null),
            event => return composer.node(event, 0),
        }
    }
}

struct Composer<'a> {
    events: Parser<'a, StrInput<'a>>,
    /// Complete values by anchor, with the number of values in each.
    anchors: HashMap<usize, (Value, usize)>,
    nodes: usize,
    repeated: usize,
}

impl<'a> Composer<'a> {
    fn next(&mut self) -> Result<Event<'a>> {
        match self.events.next_event() {
            Some(Ok((event, _))) => Ok(event),
            Some(Err(error)) => Err(malformed(error.to_string())),
            None => Ok(Event::StreamEnd),
        }
    }

    /// Parses the value that starts with an event.
    fn node(&mut self, event: Event<'a>, depth: usize) -> Result<Value> {
        if depth > MAX_DEPTH {
            return Err(malformed(format!("nested more than {MAX_DEPTH} deep")));
        }
        let before = self.nodes;
        self.count(1)?;
        let (node, anchor) = match event {
            Event::Alias(anchor) => {
                // An alias inside its own anchor has no complete value.
                let (node, size) = self
                    .anchors
                    .get(&anchor)
                    .ok_or_else(|| malformed("unknown anchor"))?
                    .clone();
                self.repeated += size;
                if self.repeated > MAX_REPEATED {
                    return Err(malformed("aliases repeat too much"));
                }
                self.count(size)?;
                return Ok(node);
            }
            Event::Scalar(text, style, anchor, tag) => {
                let plain = matches!(style, ScalarStyle::Plain);
                (scalar(&text, plain, tag.as_deref())?, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                collection_tag(tag.as_deref(), "seq")?;
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        Event::SequenceEnd => break,
                        event => items.push(self.node(event, depth + 1)?),
                    }
                }
                (Value::Array(items), anchor)
            }
            Event::MappingStart(anchor, tag) => {
                collection_tag(tag.as_deref(), "map")?;
                (Value::Object(self.members(depth)?), anchor)
            }
            other => return Err(malformed(format!("unexpected {other:?}"))),
        };
        if anchor != 0 {
            self.anchors
                .insert(anchor, (node.clone(), self.nodes - before));
        }
        Ok(node)
    }

    /// Parses the members of a mapping after its start; `<<` adds members whose keys are missing.
    fn members(&mut self, depth: usize) -> Result<Map<String, Value>> {
        let mut members = Map::new();
        let mut merged = Vec::new();
        loop {
            let event = self.next()?;
            if matches!(event, Event::MappingEnd) {
                break;
            }
            let is_merge =
                matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, _) if text == "<<");
            let key = self.node(event, depth + 1)?;
            let event = self.next()?;
            let value = self.node(event, depth + 1)?;
            if is_merge {
                merged.push(value);
                continue;
            }
            let key =
                into_text(key).map_err(|key| malformed(format!("a key is {}", kind(&key))))?;
            if members.contains_key(&key) {
                return Err(malformed(format!("duplicate key \"{key}\"")));
            }
            members.insert(key, value);
        }
        for source in merged {
            let sources = match source {
                Value::Array(sources) => sources,
                one => vec![one],
            };
            for source in sources {
                let Value::Object(source) = source else {
                    return Err(malformed("<< merges something that is not a mapping"));
                };
                for (key, value) in source {
                    members.entry(key).or_insert(value);
                }
            }
        }
        Ok(members)
    }

    fn count(&mut self, size: usize) -> Result<()> {
        self.nodes = self.nodes.saturating_add(size);
        if self.nodes > MAX_NODES {
            return Err(malformed(format!("more than {MAX_NODES} values")));
        }
        Ok(())
    }
}

/// Rejects a tag that changes the type of a collection.
fn collection_tag(tag: Option<&Tag>, own: &str) -> Result<()> {
    match tag {
        Some(tag) if !(tag.is_yaml_core_schema() && tag.suffix == own) => {
            Err(malformed(format!("unknown tag {tag}")))
        }
        _ => Ok(()),
    }
}

/// Resolves a scalar by its tag, or, without tag and quotes, by its form.
fn scalar(text: &str, plain: bool, tag: Option<&Tag>) -> Result<Value> {
    let Some(tag) = tag else {
        return Ok(if plain {
            resolve(text)
        } else {
            Value::String(text.into())
        });
    };
    if tag.handle.is_empty() && tag.suffix == "!" || tag.handle == "!" && tag.suffix.is_empty() {
        return Ok(Value::String(text.into()));
    }
    let node = resolve(text);
    let fits = match (tag.is_yaml_core_schema(), tag.suffix.as_str()) {
        (true, "str") => return Ok(Value::String(text.into())),
        (true, "null") => matches!(node, Value::Null),
        (true, "bool") => matches!(node, Value::Bool(_)),
        (true, "int") => node.is_i64() || node.is_u64(),
        (true, "float") => node.is_number(),
        _ => return Err(malformed(format!("unknown tag {tag}"))),
    };
    match (fits, node) {
        (false, _) => Err(malformed(format!("\"{text}\" does not fit its tag {tag}"))),
        (true, node) => Ok(node),
    }
}

/// Resolves a plain scalar like Go's library.
pub(super) fn resolve(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "true" | "True" | "TRUE" => {
            return Value::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "false" | "False" | "FALSE" => {
            return Value::Bool(false);
        }
        // JSON has no such numbers, and the schema no field for them: this is how the decoder writes them as text.
        ".nan" | ".NaN" | ".NAN" => return "NaN".into(),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return "+Inf".into(),
        "-.inf" | "-.Inf" | "-.INF" => return "-Inf".into(),
        _ => {}
    }
    number(text).unwrap_or_else(|| Value::String(text.into()))
}

/// Parses a number: decimal, `0x`, `0o`, `0b`, a leading zero for octal, or a float; `_` is skipped.
fn number(text: &str) -> Option<Value> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return None;
    }
    let bare = text.replace('_', "");
    let whole = integer(&bare).and_then(Number::from_i128);
    let float = || {
        let float = is_float(&bare).then(|| bare.parse().ok())?;
        Number::from_f64(float?)
    };
    whole.or_else(float).map(Value::Number)
}

fn integer(text: &str) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = if let Some(rest) = lower.strip_prefix("0x") {
        (16, rest)
    } else if let Some(rest) = lower.strip_prefix("0b") {
        (2, rest)
    } else if let Some(rest) = lower.strip_prefix("0o") {
        (8, rest)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..])
    } else {
        (10, lower.as_str())
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    let value = i128::from_str_radix(digits, radix).ok()?;
    Some(if negative { -value } else { value })
}

/// Returns true if a text is a float for Go's library: `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`.
fn is_float(text: &str) -> bool {
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let whole = digits(text);
    let mut rest = &text[whole..];
    if let Some(fraction) = rest.strip_prefix('.') {
        let count = digits(fraction);
        if whole == 0 && count == 0 {
            return false;
        }
        rest = &fraction[count..];
    } else if whole == 0 {
        return false;
    }
    match rest.strip_prefix(['e', 'E']) {
        None => rest.is_empty(),
        Some(exponent) => {
            let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
            !exponent.is_empty() && digits(exponent) == exponent.len()
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plain_scalars_are_read_as_go_does() {
        for (text, node) in [
            ("0660", json!(0o660)),
            ("0o17", json!(15)),
            ("0x1F", json!(31)),
            ("-0b11", json!(-3)),
            ("1_000", json!(1000)),
            ("18446744073709551615", json!(u64::MAX)),
            ("0999", json!(999.0)),
            ("1.10", json!(1.1)),
            ("1e3", json!(1000.0)),
            ("yes", Value::Bool(true)),
            ("off", Value::Bool(false)),
            ("~", Value::Null),
            ("1:0", Value::String("1:0".into())),
            ("2026-01-02", Value::String("2026-01-02".into())),
            ("0.5.0", Value::String("0.5.0".into())),
            ("-x", Value::String("-x".into())),
            ("--link", Value::String("--link".into())),
            (".", Value::String(".".into())),
            (".nan", Value::String("NaN".into())),
            ("1e999", Value::String("1e999".into())),
        ] {
            assert_eq!(resolve(text), node, "{text}");
        }
    }

    #[test]
    fn aliases_and_merges() {
        let text = "a: &x {k: 1, l: 2}\nb: *x\nc: {<<: *x, k: 3}\n";
        let members = parse(text).unwrap();
        assert_eq!(members["a"], members["b"]);
        assert_eq!(members["c"], json!({ "k": 3, "l": 2 }));
    }

    #[test]
    fn aliases_depth_and_repeated_keys_are_limited() {
        let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..9 {
            let below = level - 1;
            let items = vec![format!("*a{below}"); 10].join(", ");
            text += &format!("a{level}: &a{level} [{items}]\n");
        }
        assert!(parse(&text).is_err_and(|error| error.message().contains("aliases")));
        assert!(parse(&"[".repeat(10_000)).is_err());
        assert!(parse("a: 1\na: 2\n").is_err());
        assert!(parse("a: &x [*x]\n").is_err());
        assert!(parse("a: !!python/object x\n").is_err());
    }

    #[test]
    fn only_the_first_document_counts() {
        assert_eq!(
            parse("---\na\n---\nb\n").unwrap(),
            Value::String("a".into())
        );
        assert_eq!(parse("").unwrap(), Value::Null);
    }
}
