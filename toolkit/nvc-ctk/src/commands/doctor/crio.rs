//! Checks CRI-O's configuration, and what the running CRI-O knows of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nvc_cdi::Registry;

use super::engines::{RUNTIME, configuration, find, is_program, name_option, registration};
use super::{Finding, specifications};
use crate::ask::ask;
use crate::commands::repair::{command, step};
use crate::engine::crio::{self, DROP_IN};
use crate::engine::daemon::command_lines;
use crate::engine::edits::Engine;
use crate::engine::{Text, matching};

const NO_PODS: &str = "pods with the runtime class nvidia do not start";
const SOCKETS: [&str; 2] = ["/run/crio/crio.sock", "/var/run/crio/crio.sock"];

pub(super) fn all(registry: &Registry) -> Vec<Finding> {
    let files = match files() {
        Ok(files) => files,
        Err(finding) => return vec![finding],
    };
    let runtimes = match registered(&files) {
        Ok(runtimes) => runtimes,
        Err(finding) => return vec![finding],
    };
    if runtimes.is_empty() {
        return not_registered().into_iter().collect();
    }
    let mut findings = Vec::from_iter(specifications::unread_of(registry, "CRI-O", &files));
    for (name, (program, file)) in &runtimes {
        if !is_program(program) {
            let file = file.display();
            let what = format!("{file}: CRI-O's runtime {name} is {program}, which is missing");
            let repair = registration("crio", &name_option(name));
            findings.push(Finding::wrong(what, NO_PODS, repair));
        }
    }
    if findings.is_empty() {
        findings.extend(unknown(&runtimes));
    }
    findings
}

/// NVIDIA's runtimes by name, with their programs and files.
type Runtimes = BTreeMap<String, (String, PathBuf)>;

/// Reads CRI-O's files: the main one, then those of the directory in order.
fn files() -> Result<Vec<Text>, Finding> {
    let read = Engine::Crio.files_of(&command_lines("crio", "crio.service"));
    let directory = read.drop_in.unwrap_or_else(|| DROP_IN.into());
    let mut files = Vec::new();
    for path in std::iter::once(read.config).chain(matching(&directory.with_file_name("*"))) {
        if let Some(text) = configuration(&path, NO_PODS)? {
            files.push(Text { path, text });
        }
    }
    Ok(files)
}

/// Returns NVIDIA's runtimes. The last file that has one counts.
fn registered(files: &[Text]) -> Result<Runtimes, Finding> {
    let mut all = BTreeMap::new();
    for Text { path, text } in files {
        let own = crio::registered(path, text).map_err(|error| {
            let repair = step(format!("correct {}", path.display())).and("systemctl restart crio");
            Finding::wrong(error.message(), "CRI-O does not start", repair)
        })?;
        for (name, program) in own {
            if program.contains(RUNTIME) {
                all.insert(name, (program, path.clone()));
            } else {
                all.remove(&name);
            }
        }
    }
    Ok(all)
}

fn not_registered() -> Option<Finding> {
    let has_both = find("crio").is_some() && find(RUNTIME).is_some();
    has_both.then(|| {
        Finding::advice(
            "CRI-O does not know the runtime nvidia",
            "pods with the runtime class nvidia: failed to find runtime handler nvidia",
            registration("crio", ""),
        )
    })
}

/// Asks the running CRI-O whether it knows the runtimes that its files have: it reads them when it starts.
fn unknown(runtimes: &Runtimes) -> Option<Finding> {
    if !SOCKETS.iter().any(|socket| Path::new(socket).exists()) {
        return None;
    }
    let text = ask("crio", &["status", "config"]).ok()?;
    let known = crio::registered(Path::new("crio status config"), &text).ok()?;
    let (name, (_, file)) = runtimes
        .iter()
        .find(|(name, _)| !known.contains_key(*name))?;
    let what = format!(
        "CRI-O does not know the runtime {name} that {} registers: the file was changed after it was read",
        file.display()
    );
    Some(Finding::wrong(
        what,
        NO_PODS,
        command("systemctl restart crio"),
    ))
}
