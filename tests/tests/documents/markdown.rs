//! Checks the form of all documents: tables are whole, and links lead to a file and a heading that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use nvc_testkit::harness::Test;
use nvc_testkit::tests;

use super::world::repository;

pub(crate) fn tests() -> Vec<Test> {
    tests![&[]; tables_are_whole, links_lead_somewhere]
}

/// Returns each document with its lines, those of blocks left out.
fn documents() -> Vec<(PathBuf, Vec<String>)> {
    let directories = [repository().to_owned(), repository().join("docs")];
    let entries = directories
        .iter()
        .flat_map(|directory| fs::read_dir(directory).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path());
    let paths = paths.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    let found: Vec<_> = paths.map(|path| (path.clone(), lines(&path))).collect();
    assert!(found.len() > 8, "{found:?}");
    found
}

fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let mut is_text = true;
    let mut found = Vec::new();
    for line in text.lines() {
        is_text ^= line.starts_with("```");
        if is_text {
            found.push(line.to_owned());
        }
    }
    found
}

/// A row without a head above it is shown as text: an empty line has cut the table in two.
fn tables_are_whole() {
    for (path, lines) in documents() {
        let is_row = |line: &str| line.starts_with('|');
        for (number, line) in lines.iter().enumerate() {
            let begins = is_row(line) && (number == 0 || !is_row(&lines[number - 1]));
            let has_rule = lines
                .get(number + 1)
                .is_some_and(|next| next.starts_with("| --"));
            assert!(!begins || has_rule, "{}: {line}", path.display());
        }
    }
}

/// Returns the name by which a link finds a heading.
fn anchor(heading: &str) -> String {
    let is_kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let kept: String = heading.chars().filter(is_kept).collect();
    kept.to_lowercase().replace(' ', "-")
}

fn anchors(path: &Path) -> BTreeSet<String> {
    let headings = lines(path).into_iter().filter(|line| line.starts_with('#'));
    headings
        .map(|line| anchor(line.trim_start_matches('#').trim()))
        .collect()
}

fn links_lead_somewhere() {
    for (path, lines) in documents() {
        let text = lines.join("\n");
        let targets = text.split("](").skip(1);
        let targets = targets.filter_map(|rest| Some(rest.split_once(')')?.0));
        for target in targets.filter(|target| !target.contains("://")) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let to = match file {
                "" => path.clone(),
                file => path.parent().unwrap().join(file),
            };
            let place = path.display();
            assert!(to.exists(), "{place}: {target}");
            let is_there = heading.is_empty() || anchors(&to).contains(heading);
            assert!(is_there, "{place}: {target}: {:?}", anchors(&to));
        }
    }
}
