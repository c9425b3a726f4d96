//! Checks CRI-O's configuration, and what the running CRI-O knows of it.

use std::path::Path;

use nvc_cdi::Registry;

use super::pods::Pods;
use super::{Finding, specifications};
use crate::ask::ask;
use crate::engine::edits::Engine;

const SOCKETS: [&str; 2] = ["/run/crio/crio.sock", "/var/run/crio/crio.sock"];

pub(super) fn all(registry: &Registry) -> Vec<Finding> {
    findings(registry).unwrap_or_else(|finding| vec![finding])
}

fn findings(registry: &Registry) -> Result<Vec<Finding>, Finding> {
    let pods = Pods::read(Engine::Crio, "CRI-O")?;
    let runtimes = pods.runtimes()?;
    if runtimes.is_empty() {
        return Ok(pods.not_registered());
    }
    let mut findings = pods.missing(&runtimes, |_| String::new());
    findings.extend(specifications::unread_of(registry, "CRI-O", &pods.files));
    if findings.is_empty() {
        findings.extend(known().and_then(|known| pods.unknown(&runtimes, &known)));
    }
    Ok(findings)
}

/// Returns the names of the runtimes that the running CRI-O knows.
fn known() -> Option<Vec<String>> {
    SOCKETS.iter().find(|socket| Path::new(socket).exists())?;
    let text = ask("crio", &["status", "config"]).ok()?;
    let known = Engine::Crio
        .registered(Path::new("crio status config"), &text)
        .ok()?;
    Some(known.into_keys().collect())
}
