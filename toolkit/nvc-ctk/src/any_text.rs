//! Generates any valid TOML and JSON, for tests of edits: all ways to write tables, keys and values.
//!
//! A text is made of random numbers, so that proptest can shrink it: fewer numbers make a shorter text.

use std::collections::BTreeMap;

use proptest::prelude::*;
use toml_edit::{DocumentMut, Item, TableLike, Value};

/// The random numbers that a text is made of.
pub(crate) fn numbers() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..160)
}

/// Names that no program knows: bare ones, and such that only quotes make a key of them.
const NAMES: [&str; 12] = [
    "a",
    "b-c",
    "7",
    "1979-05-27",
    "",
    "a b",
    "x.y",
    "#",
    "[t]",
    "=",
    "\u{e9}\"",
    "it's",
];

/// Values as they are written. Some look like comments, headers or settings.
const VALUES: [&str; 33] = [
    "1",
    "-17",
    "+9_000",
    "0xdead_BEEF",
    "0o755",
    "0b1101",
    "9223372036854775807",
    "1.5",
    "-0.0",
    "6.6e-34",
    "inf",
    "-nan",
    "true",
    "false",
    "1979-05-27T07:32:00Z",
    "1979-05-27T00:32:00.999-07:00",
    "1979-05-27T07:32:00",
    "1979-05-27 07:32:00",
    "1979-05-27",
    "07:32:00.5",
    "\"\"",
    "''",
    r#""a # b = \u00e9 \" [c]""#,
    r"'C:\d # [e]'",
    "\"\"\"\n[nvidia-container-cli]\n#root = \"\"1\\\n  x\"\"\"",
    "'''\n#no-cgroups = false\n[[x]]\n'''",
    "[]",
    "[1, 2,]",
    "[ # why\n  \"a\", # b\n\n  'c'\n]",
    "[[1], ['x', { y = 2 }]]",
    "{}",
    "{ a.b = 1, \"c d\" = [ ] }",
    "[ { x = 1 }, { x = 2 } ]",
];

/// Values of JSON as they are written.
const JSON_VALUES: [&str; 10] = [
    "1",
    "-0.5e+10",
    "12345678901234567890123",
    "true",
    "null",
    "\"\"",
    r#""a\u00e9\n\"{""#,
    "[]",
    "[1, {\"a\": [ ]}]",
    "{}",
];

/// How a table is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Header,
    Dotted,
    Braces,
}

enum Kind {
    Value,
    Table(Style),
    /// An array of tables.
    Tables,
}

/// Separates members with dotted keys; no text has it.
const SEPARATOR: char = '\u{1}';

/// A setting that a reader knows: its path, and values of its type.
pub(crate) type Known<'k> = (&'k [&'k str], &'k [&'k str]);

/// Writes a document.
pub(crate) struct Writer<'n> {
    numbers: std::slice::Iter<'n, u8>,
    newline: &'static str,
    names: Vec<String>,
    known: BTreeMap<Vec<String>, Vec<String>>,
}

impl<'n> Writer<'n> {
    pub(crate) fn new(numbers: &'n [u8], known: &[Known<'_>]) -> Self {
        let owned = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let mut names = owned(&NAMES);
        for (path, _) in known {
            names.extend(owned(path));
        }
        names.sort();
        names.dedup();
        let mut numbers = numbers.iter();
        let newline = match numbers.next() {
            Some(number) if number % 3 == 2 => "\r\n",
            _ => "\n",
        };
        let known = known.iter();
        Self {
            numbers,
            newline,
            names,
            known: known
                .map(|(path, values)| (owned(path), owned(values)))
                .collect(),
        }
    }

    fn pick(&mut self, count: usize) -> usize {
        usize::from(self.numbers.next().copied().unwrap_or_default()) % count
    }

    pub(crate) fn toml(mut self) -> String {
        let mut text = String::new();
        self.table(&[], Style::Header, &mut text);
        text.replace('\n', self.newline)
    }

    /// Writes the members of a table: those without headers first.
    fn table(&mut self, path: &[String], style: Style, out: &mut String) {
        let (mut later, mut is_first) = (String::new(), true);
        for name in self.members(path) {
            let path = [path, &[name]].concat();
            let key = self.key(&path[path.len() - 1]);
            if style == Style::Header {
                self.decorate(out);
            }
            match self.kind(&path) {
                Kind::Table(Style::Header) if style == Style::Header => {
                    let (before, after) = (["", "  "][self.pick(2)], ["", " # why"][self.pick(2)]);
                    let full = self.full(&path);
                    later.push_str(&format!("{before}[{full}]{after}\n"));
                    self.table(&path, Style::Header, &mut later);
                }
                Kind::Tables if style == Style::Header => {
                    for _ in 0..=self.pick(2) {
                        let full = self.full(&path);
                        later.push_str(&format!("[[{full}]]\n"));
                        self.table(&path, Style::Header, &mut later);
                    }
                }
                Kind::Table(Style::Dotted) => {
                    let mut inner = String::new();
                    self.table(&path, Style::Dotted, &mut inner);
                    for member in inner.split(SEPARATOR).filter(|member| !member.is_empty()) {
                        self.member(style, &mut is_first, &format!("{key}.{member}"), out);
                    }
                }
                Kind::Table(_) => {
                    let mut inner = String::new();
                    self.table(&path, Style::Braces, &mut inner);
                    let text = format!("{key} = {{ {inner} }}");
                    self.member(style, &mut is_first, &text, out);
                }
                Kind::Value | Kind::Tables => {
                    let text = format!("{key} = {}", self.value(&path));
                    self.member(style, &mut is_first, &text, out);
                }
            }
        }
        out.push_str(&later);
    }

    fn member(&mut self, style: Style, is_first: &mut bool, text: &str, out: &mut String) {
        match style {
            Style::Header => {
                let end = ["", "", " # why [x] = 1"][self.pick(3)];
                out.push_str(&format!("{text}{end}\n"));
            }
            Style::Dotted => out.push_str(&format!("{text}{SEPARATOR}")),
            Style::Braces => {
                out.push_str(if *is_first { "" } else { ", " });
                out.push_str(text);
                *is_first = false;
            }
        }
    }

    /// Adds blank lines and comments, which may look like settings.
    fn decorate(&mut self, out: &mut String) {
        let lines = [
            "",
            "",
            "\n",
            "# mine\n",
            "#root = \"/x\"\n",
            "  #debug = 'y'\n",
        ];
        out.push_str(lines[self.pick(lines.len())]);
        out.push_str(["", "", "\t"][self.pick(3)]);
    }

    /// Returns different names of members: often known ones.
    fn members(&mut self, path: &[String]) -> Vec<String> {
        let known = self.known.keys();
        let below: Vec<String> = known
            .filter(|key| key.len() > path.len() && key.starts_with(path))
            .map(|key| key[path.len()].clone())
            .collect();
        let mut names: Vec<String> = Vec::new();
        for _ in 0..self.pick(5) {
            let from = if below.is_empty() || self.pick(3) == 0 {
                self.names.clone()
            } else {
                below.clone()
            };
            let name = from[self.pick(from.len())].clone();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    fn kind(&mut self, path: &[String]) -> Kind {
        let style = [Style::Header, Style::Dotted, Style::Braces][self.pick(3)];
        let is_above = self.known.keys().any(|key| key.starts_with(path));
        match self.pick(8) {
            _ if self.known.contains_key(path) => Kind::Value,
            _ if is_above => Kind::Table(style),
            0..=2 if path.len() < 5 => Kind::Table(style),
            3 if path.len() < 5 => Kind::Tables,
            _ => Kind::Value,
        }
    }

    fn full(&mut self, path: &[String]) -> String {
        let keys: Vec<String> = path.iter().map(|name| self.key(name)).collect();
        keys.join(".")
    }

    /// Returns a name as a key, in one of the ways to write it.
    fn key(&mut self, name: &str) -> String {
        let is_bare = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        match self.pick(4) {
            0 | 1 if !name.is_empty() && name.chars().all(is_bare) => name.to_owned(),
            2 if !name.contains('\'') => format!("'{name}'"),
            _ => format!("\"{}\"", name.replace('"', "\\\"")),
        }
    }

    fn value(&mut self, path: &[String]) -> String {
        let number = self.pick(256);
        match self.known.get(path) {
            Some(values) => values[number % values.len()].clone(),
            None => VALUES[number % VALUES.len()].to_owned(),
        }
    }

    /// Writes an object in JSON.
    pub(crate) fn json(mut self) -> String {
        let gaps = ["", "\n", " \r\n\t"];
        let text = self.object(&[]);
        format!("{}{text}{}", gaps[self.pick(3)], gaps[self.pick(3)])
    }

    fn object(&mut self, path: &[String]) -> String {
        let gap = ["", " ", "\n    ", "\r\n\t"][self.pick(4)];
        let mut members = Vec::new();
        for name in self.members(path) {
            let path = [path, &[name]].concat();
            let value = match self.kind(&path) {
                Kind::Value if self.known.contains_key(&path) => self.value(&path),
                Kind::Value => JSON_VALUES[self.pick(JSON_VALUES.len())].to_owned(),
                _ => self.object(&path),
            };
            let name = path[path.len() - 1].replace('"', "\\\"");
            members.push(format!("{gap}\"{name}\":{gap}{value}"));
        }
        let members = members.join(&format!("{gap},"));
        format!("{{{members}{gap}}}")
    }
}

/// The values of a document, each with its path.
pub(crate) type Values = BTreeMap<Vec<String>, String>;

/// Returns all values of a document; empty tables are none. It is another comparison than that of the programs.
pub(crate) fn toml_values(text: &str) -> Values {
    let document: DocumentMut = text
        .parse()
        .unwrap_or_else(|error| panic!("{error}: {text}"));
    let mut found = Values::new();
    of_table(document.as_table(), &[], &mut found);
    found
}

/// Returns all values of a JSON document.
pub(crate) fn json_values(text: &str) -> Values {
    let value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let mut found = Values::new();
    of_json(&value, &[], &mut found);
    found
}

/// Removes the values at and below a path.
pub(crate) fn without(mut values: Values, path: &[&str]) -> Values {
    values.retain(|known, _| {
        let is_same = known.iter().zip(path).all(|(one, other)| one == other);
        known.len() < path.len() || !is_same
    });
    values
}

fn of_table(table: &dyn TableLike, path: &[String], found: &mut Values) {
    for (key, item) in table.iter() {
        let path = [path, &[key.to_owned()]].concat();
        match item {
            Item::None => {}
            Item::Value(value) => of_value(value, &path, found),
            Item::Table(inner) => of_table(inner, &path, found),
            Item::ArrayOfTables(list) => {
                for (at, one) in list.iter().enumerate() {
                    let path = [&path[..], &[format!("[{at}]")]].concat();
                    of_table(one, &path, found);
                    found.insert(path, "table".into());
                }
            }
        }
    }
}

fn of_value(value: &Value, path: &[String], found: &mut Values) {
    let text = match value {
        Value::String(text) => format!("text {}", text.value()),
        Value::Integer(number) => format!("number {}", number.value()),
        Value::Float(number) => format!("float {:?}", number.value()),
        Value::Boolean(word) => format!("boolean {}", word.value()),
        Value::Datetime(date) => format!("date {}", date.value()),
        Value::Array(list) => {
            for (at, one) in list.iter().enumerate() {
                of_value(one, &[path, &[format!("[{at}]")]].concat(), found);
            }
            format!("list of {}", list.len())
        }
        Value::InlineTable(inner) => return of_table(inner, path, found),
    };
    found.insert(path.to_vec(), text);
}

fn of_json(value: &serde_json::Value, path: &[String], found: &mut Values) {
    match value {
        serde_json::Value::Object(members) => {
            for (key, value) in members {
                of_json(value, &[path, std::slice::from_ref(key)].concat(), found);
            }
        }
        value => drop(found.insert(path.to_vec(), value.to_string())),
    }
}

proptest! {
    /// What is generated is valid, and most of it is not trivial.
    #[test]
    fn texts_are_valid(numbers in numbers()) {
        let known: [Known<'_>; 1] = [(&["a", "known"], &["1"])];
        toml_values(&Writer::new(&numbers, &known).toml());
        json_values(&Writer::new(&numbers, &known).json());
    }
}
