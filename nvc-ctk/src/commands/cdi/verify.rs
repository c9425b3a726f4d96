//! Compares specifications with this machine.
//!
//! A file that `cdi generate` made is compared with what the same command line makes now; of any other it is checked that
//! what it names is there.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use libnvc::Result;
use nvc_toolkit::cdi::registry::SpecFile;
use nvc_toolkit::cdi::{Registry, compare, file};
use nvc_toolkit::generate::generate;
use serde_json::json;

use super::{generate as command, spec_directories};
use crate::commands::invalid;
use crate::line::{self, Line, Read};
use crate::logging::print;

/// Something that is not as it should be.
#[derive(Clone, Debug)]
pub(in crate::commands) struct Finding {
    /// The file.
    pub(in crate::commands) file: PathBuf,
    /// What is wrong.
    pub(in crate::commands) text: String,
    /// How it is repaired.
    pub(in crate::commands) repair: Option<String>,
}

/// The exit status is 1 if anything differs.
pub(in crate::commands) fn run(line: &Line) -> Result<u8> {
    let as_json = match line.text("format") {
        "text" => false,
        "json" => true,
        other => return Err(invalid(format!("invalid --format value: {other}"))),
    };
    let findings = findings(&Registry::load(&spec_directories(line)));
    print(&match as_json {
        true => to_json(&findings),
        false => to_text(&findings),
    })?;
    Ok(u8::from(!findings.is_empty()))
}

/// What is wrong with the specifications of a registry.
pub(in crate::commands) fn findings(registry: &Registry) -> Vec<Finding> {
    let mut findings = Vec::new();
    for problem in registry.problems() {
        findings.push(Finding {
            file: problem.path.clone(),
            text: problem.error.message(),
            repair: problem.error.advice().map(String::from),
        });
    }
    for found in registry.files() {
        let words = std::fs::read_to_string(&found.path).ok();
        let words = words.and_then(|text| file::command_of(&text));
        match words {
            Some(words) => ours(found, &words, &mut findings),
            None => others(found, &mut findings),
        }
    }
    findings
}

/// A file of ours: what would be written now?
fn ours(found: &SpecFile, words: &[String], findings: &mut Vec<Finding>) {
    let repair = Some(words.join(" "));
    let mut add = |text: String| {
        findings.push(Finding {
            file: found.path.clone(),
            text,
            repair: repair.clone(),
        });
    };
    let line: Vec<OsString> = words.iter().map(OsString::from).collect();
    let Read::Line(line) = line::read(&line, &|_| None) else {
        return add("the command line in its comment is not understood".into());
    };
    let options = command::options(&line).inspect(|options| {
        if options.hooks.merged
            && let Err(error) = command::check_merged(&options.hooks.program.path)
        {
            add(error.message());
        }
    });
    let made = options.and_then(|options| generate(&options));
    let made = match made {
        Ok(made) => made,
        Err(error) => return add(format!("cannot be compared: {}", error.message())),
    };
    let part = made
        .parts
        .iter()
        .map(|(_, spec)| spec)
        .find(|spec| spec.kind == found.spec.kind);
    let fresh = part.unwrap_or(&made.spec);
    for difference in compare::differences(&found.spec, fresh) {
        add(difference);
    }
    for missing in compare::missing(&found.spec) {
        if missing.starts_with("hook program") {
            add(missing);
        }
    }
}

/// A file of somebody else: is there what it names?
fn others(found: &SpecFile, findings: &mut Vec<Finding>) {
    for text in compare::missing(&found.spec) {
        findings.push(Finding {
            file: found.path.clone(),
            text,
            repair: None,
        });
    }
}

fn to_text(findings: &[Finding]) -> String {
    let mut text = String::new();
    let mut last: Option<&Path> = None;
    for (n, finding) in findings.iter().enumerate() {
        if last != Some(&finding.file) {
            text += &format!("{}:\n", finding.file.display());
            last = Some(&finding.file);
        }
        text += &format!("  {}\n", finding.text);
        let is_last = findings
            .get(n + 1)
            .is_none_or(|next| next.file != finding.file);
        if let (true, Some(repair)) = (is_last, &finding.repair) {
            text += &format!("  repair: {repair}\n");
        }
    }
    text
}

fn to_json(findings: &[Finding]) -> String {
    let list: Vec<_> = findings
        .iter()
        .map(|finding| json!({ "file": finding.file, "finding": finding.text, "repair": finding.repair }))
        .collect();
    format!("{:#}\n", json!({ "findings": list }))
}
