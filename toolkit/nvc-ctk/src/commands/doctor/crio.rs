//! Checks CRI-O's configuration, and what the running CRI-O knows of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Finding;
use super::engines::{RUNTIME, configuration, find, is_program, name_option, registration};
use crate::ask::ask;
use crate::commands::repair::{command, step};
use crate::engine::crio::{self, CONFIG, DROP_IN};
use crate::engine::matching;

const NO_PODS: &str = "pods with the runtime class nvidia do not start";
const SOCKETS: [&str; 2] = ["/run/crio/crio.sock", "/var/run/crio/crio.sock"];

pub(super) fn all() -> Vec<Finding> {
    let runtimes = match registered() {
        Ok(runtimes) => runtimes,
        Err(finding) => return vec![finding],
    };
    if runtimes.is_empty() {
        return not_registered().into_iter().collect();
    }
    let mut findings = Vec::new();
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

/// Reads CRI-O's files: the main one, then those of the directory in order. The last one that has a runtime counts.
fn registered() -> Result<Runtimes, Finding> {
    let drop_ins = matching(&Path::new(DROP_IN).with_file_name("*"));
    let mut all = BTreeMap::new();
    for path in std::iter::once(CONFIG.into()).chain(drop_ins) {
        let Some(text) = configuration(&path, NO_PODS)? else {
            continue;
        };
        let own = crio::registered(&path, &text).map_err(|error| {
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
