//! Parses YAML into a [`Node`], with the conventions of Go's YAML library.
//!
//! That library resolves plain scalars mostly as YAML 1.1 does: `yes` is a boolean and `0660` is octal. Only the first
//! document counts. Aliases are expanded up to a limit, so that a few lines cannot expand to gigabytes.

use std::collections::{HashMap, HashSet};

use libnvc::Result;
use saphyr_parser::{Event, Parser, ScalarStyle, StrInput, Tag};

use super::malformed;
use super::node::Node;

/// Nesting limit of collections. The schema needs eight levels.
const MAX_DEPTH: usize = 64;
/// Limit of values, counting repetitions by aliases.
const MAX_NODES: usize = 2_000_000;
/// Limit of values repeated by aliases.
const MAX_REPEATED: usize = 200_000;

/// Parses the first document; an empty text is null.
pub(super) fn parse(text: &str) -> Result<Node> {
    let mut composer = Composer {
        events: Parser::new_from_str(text),
        anchors: HashMap::new(),
        nodes: 0,
        repeated: 0,
    };
    loop {
        match composer.next()? {
            Event::StreamStart | Event::DocumentStart(_) | Event::Nothing => {}
            Event::StreamEnd | Event::DocumentEnd => return Ok(Node::Null),
            event => return composer.node(event, 0),
        }
    }
}

struct Composer<'a> {
    events: Parser<'a, StrInput<'a>>,
    /// Complete values by anchor, with the number of values in each.
    anchors: HashMap<usize, (Node, usize)>,
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
    fn node(&mut self, event: Event<'a>, depth: usize) -> Result<Node> {
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
                (Node::List(items), anchor)
            }
            Event::MappingStart(anchor, tag) => {
                collection_tag(tag.as_deref(), "map")?;
                (Node::Map(self.members(depth)?), anchor)
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
    fn members(&mut self, depth: usize) -> Result<Vec<(String, Node)>> {
        let mut members: Vec<(String, Node)> = Vec::new();
        let mut seen = HashSet::new();
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
            let key = key
                .into_text()
                .map_err(|key| malformed(format!("a key is {}", key.kind())))?;
            if !seen.insert(key.clone()) {
                return Err(malformed(format!("duplicate key \"{key}\"")));
            }
            members.push((key, value));
        }
        for source in merged {
            let sources = match source {
                Node::List(sources) => sources,
                one => vec![one],
            };
            for source in sources {
                let Node::Map(source) = source else {
                    return Err(malformed("<< merges something that is not a mapping"));
                };
                for (key, value) in source {
                    if seen.insert(key.clone()) {
                        members.push((key, value));
                    }
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
fn scalar(text: &str, plain: bool, tag: Option<&Tag>) -> Result<Node> {
    let Some(tag) = tag else {
        return Ok(if plain {
            resolve(text)
        } else {
            Node::Text(text.into())
        });
    };
    if tag.handle.is_empty() && tag.suffix == "!" || tag.handle == "!" && tag.suffix.is_empty() {
        return Ok(Node::Text(text.into()));
    }
    let node = resolve(text);
    let fits = match (tag.is_yaml_core_schema(), tag.suffix.as_str()) {
        (true, "str") => return Ok(Node::Text(text.into())),
        (true, "null") => matches!(node, Node::Null),
        (true, "bool") => matches!(node, Node::Bool(_)),
        (true, "int") => matches!(node, Node::Int(_) | Node::Uint(_)),
        (true, "float") => matches!(node, Node::Float(_) | Node::Int(_) | Node::Uint(_)),
        _ => return Err(malformed(format!("unknown tag {tag}"))),
    };
    match (fits, node) {
        (false, _) => Err(malformed(format!("\"{text}\" does not fit its tag {tag}"))),
        (true, node) => Ok(node),
    }
}

/// Resolves a plain scalar like Go's library.
pub(super) fn resolve(text: &str) -> Node {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Node::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "true" | "True" | "TRUE" => {
            return Node::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "false" | "False" | "FALSE" => {
            return Node::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Node::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return Node::Float(f64::INFINITY);
        }
        "-.inf" | "-.Inf" | "-.INF" => return Node::Float(f64::NEG_INFINITY),
        _ => {}
    }
    number(text).unwrap_or_else(|| Node::Text(text.into()))
}

/// Parses a number: decimal, `0x`, `0o`, `0b`, a leading zero for octal, or a float; `_` is skipped.
fn number(text: &str) -> Option<Node> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return None;
    }
    let bare = text.replace('_', "");
    if let Some(value) = integer(&bare) {
        return i64::try_from(value)
            .map(Node::Int)
            .ok()
            .or_else(|| u64::try_from(value).map(Node::Uint).ok())
            .or_else(|| is_float(&bare).then(|| bare.parse().ok().map(Node::Float))?);
    }
    is_float(&bare).then(|| bare.parse().ok().map(Node::Float))?
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
    use super::*;

    #[test]
    fn plain_scalars_are_read_as_go_does() {
        for (text, node) in [
            ("0660", Node::Int(0o660)),
            ("0o17", Node::Int(15)),
            ("0x1F", Node::Int(31)),
            ("-0b11", Node::Int(-3)),
            ("1_000", Node::Int(1000)),
            ("18446744073709551615", Node::Uint(u64::MAX)),
            ("0999", Node::Float(999.0)),
            ("1.10", Node::Float(1.1)),
            ("1e3", Node::Float(1000.0)),
            ("yes", Node::Bool(true)),
            ("off", Node::Bool(false)),
            ("~", Node::Null),
            ("1:0", Node::Text("1:0".into())),
            ("2026-01-02", Node::Text("2026-01-02".into())),
            ("0.5.0", Node::Text("0.5.0".into())),
            ("-x", Node::Text("-x".into())),
            ("--link", Node::Text("--link".into())),
            (".", Node::Text(".".into())),
        ] {
            assert_eq!(resolve(text), node, "{text}");
        }
    }

    #[test]
    fn aliases_and_merges() {
        let text = "a: &x {k: 1, l: 2}\nb: *x\nc: {<<: *x, k: 3}\n";
        let Ok(Node::Map(members)) = parse(text) else {
            panic!("no mapping")
        };
        assert_eq!(members[0].1, members[1].1);
        let expected = vec![
            ("k".to_string(), Node::Int(3)),
            ("l".to_string(), Node::Int(2)),
        ];
        assert_eq!(members[2].1, Node::Map(expected));
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
        assert_eq!(parse("---\na\n---\nb\n").unwrap(), Node::Text("a".into()));
        assert_eq!(parse("").unwrap(), Node::Null);
    }
}
