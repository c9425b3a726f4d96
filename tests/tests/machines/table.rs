//! Compares what modes give with a machine's table.
//!
//! A table has sections: the mode in a line of its own, what it gives in indented lines. `as MODE` is what that mode gives.

use std::fs;
use std::path::Path;

/// What one mode gives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Section {
    name: String,
    /// What must be done first, if the section says what is right but not so yet.
    waits_for: Option<String>,
    lines: Vec<String>,
}

impl Section {
    pub(crate) fn new(name: &str, lines: Vec<String>) -> Self {
        Self {
            name: name.into(),
            waits_for: None,
            lines,
        }
    }

    fn text(&self) -> String {
        let mut text = self.name.clone();
        if let Some(point) = &self.waits_for {
            text += &format!(" (waits for {point})");
        }
        text += "\n";
        for line in &self.lines {
            text += &format!("    {line}\n");
        }
        text
    }
}

/// Replaces what an earlier section gives, too, by its name.
pub(crate) fn shorten(sections: &mut [Section]) {
    for n in (1..sections.len()).rev() {
        let (earlier, rest) = sections.split_at_mut(n);
        let section = &mut rest[0];
        let same = earlier.iter().find(|other| other.lines == section.lines);
        if let Some(same) = same.filter(|_| section.lines.len() > 1) {
            section.lines = vec![format!("as {}", same.name)];
        }
    }
}

/// Compares sections with the table of a machine, or rewrites it.
pub(crate) fn compare(machine: &str, found: &[Section]) {
    let tables = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines/tables");
    let path = tables.join(machine);
    let table = fs::read_to_string(&path).unwrap_or_default();
    let table = parse(&table);
    let of_table = |name: &str| table.iter().find(|section| section.name == name);
    if std::env::var_os("UPDATE").is_some() {
        let sections = found.iter().map(|section| {
            let marked = of_table(&section.name).filter(|own| own.waits_for.is_some());
            marked.unwrap_or(section).text()
        });
        fs::write(&path, sections.collect::<Vec<_>>().join("\n")).unwrap();
        return;
    }
    let mut wrong = Vec::new();
    for section in found {
        match of_table(&section.name) {
            Some(own) if own.waits_for.is_some() || own.lines == section.lines => {}
            Some(own) => wrong.push(difference(own, section)),
            None => wrong.push(format!("the table lacks this:\n{}", section.text())),
        }
    }
    let names: Vec<&String> = found.iter().map(|section| &section.name).collect();
    let unknown = table.iter().filter(|own| !names.contains(&&own.name));
    wrong.extend(unknown.map(|own| format!("there is no mode `{}`", own.name)));
    assert!(
        wrong.is_empty(),
        "{}, compared with {}:\n{}",
        machine,
        path.display(),
        wrong.join("\n")
    );
}

/// Returns the lines that only the table has, with `-`, and those that only the machine gives, with `+`.
fn difference(table: &Section, found: &Section) -> String {
    let mut text = format!("{}\n", table.name);
    let only = |sign: char, these: &Section, others: &Section| -> String {
        let lines = these
            .lines
            .iter()
            .filter(|line| !others.lines.contains(line));
        lines.map(|line| format!("  {sign} {line}\n")).collect()
    };
    let lines = only('-', table, found) + &only('+', found, table);
    text += if lines.is_empty() {
        "  the order is another\n"
    } else {
        &lines
    };
    text
}

fn parse(text: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("    "), sections.last_mut()) {
            (Some(line), Some(section)) => section.lines.push(line.into()),
            _ if line.is_empty() || line.starts_with('#') => {}
            _ => {
                let (name, waits_for) = match line.split_once(" (waits for ") {
                    Some((name, point)) => (name, Some(point.trim_end_matches(')').to_owned())),
                    None => (line, None),
                };
                sections.push(Section {
                    name: name.into(),
                    waits_for,
                    lines: Vec::new(),
                });
            }
        }
    }
    sections
}
