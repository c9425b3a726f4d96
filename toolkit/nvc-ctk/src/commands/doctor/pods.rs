//! Checks what containerd and CRI-O share: the runtimes that their files register, and whether the daemon knows them.

use std::collections::BTreeMap;
use std::path::Path;

use super::Finding;
use super::engines::{RUNTIME, configuration, is_program, name_option, registration};
use crate::ask::find;
use crate::commands::repair::{command, step};
use crate::engine::Text;
use crate::engine::edits::Engine;

pub(super) const NO_PODS: &str = "pods with the runtime class nvidia do not start";

/// An engine of Kubernetes with the files that it reads: the main file, and those after it, in its order.
#[derive(Debug)]
pub(super) struct Pods {
    engine: Engine,
    name: &'static str,
    pub(super) files: Vec<Text>,
}

/// NVIDIA's runtimes by name, with their programs and files.
pub(super) type Runtimes<'a> = BTreeMap<String, (String, &'a Text)>;

impl Pods {
    pub(super) fn read(engine: Engine, name: &'static str) -> Result<Self, Finding> {
        let lines = engine.command_lines();
        let read = engine.files_of(&lines);
        let mut pods = Self {
            engine,
            name,
            files: Vec::new(),
        };
        let text = configuration(&read.config, NO_PODS)?.unwrap_or_default();
        let others = engine.others(&read.config, &text, read.drop_in.as_deref());
        let others = others.map_err(|error| pods.broken(&read.config, &error))?;
        pods.files.push(Text {
            path: read.config,
            text,
        });
        for path in others {
            if let Some(text) = configuration(&path, NO_PODS)? {
                pods.files.push(Text { path, text });
            }
        }
        Ok(pods)
    }

    fn broken(&self, path: &Path, error: &libnvc::Error) -> Finding {
        let restart = format!("systemctl restart {}", self.engine.name());
        let repair = step(format!("correct {}", path.display())).and(&restart);
        Finding::wrong(error.message(), "the engine does not start", repair)
    }

    /// Returns NVIDIA's runtimes. The last file that has one counts.
    pub(super) fn runtimes(&self) -> Result<Runtimes<'_>, Finding> {
        let mut all = BTreeMap::new();
        for file in &self.files {
            let own = self.engine.registered(&file.path, &file.text);
            for (name, program) in own.map_err(|error| self.broken(&file.path, &error))? {
                if program.contains(RUNTIME) {
                    all.insert(name, (program, file));
                } else {
                    all.remove(&name);
                }
            }
        }
        Ok(all)
    }

    /// Returns the runtimes whose program is missing; `option` is a further one of `configure` for a file.
    pub(super) fn missing(
        &self,
        runtimes: &Runtimes<'_>,
        option: impl Fn(&Text) -> String,
    ) -> Vec<Finding> {
        let missing = runtimes
            .iter()
            .filter(|(_, (program, _))| !is_program(program));
        let finding = |(name, (program, file)): (&String, &(String, &Text))| {
            let (path, engine) = (file.path.display(), self.name);
            let what = format!("{path}: {engine}'s runtime {name} is {program}, which is missing");
            let options = name_option(name) + &option(file);
            Finding::wrong(what, NO_PODS, registration(self.engine.name(), &options))
        };
        missing.map(finding).collect()
    }

    /// Advises to register the runtime with an engine that does not know it.
    pub(super) fn not_registered(&self) -> Vec<Finding> {
        if find(self.engine.daemon()).is_none() || find(RUNTIME).is_none() {
            return Vec::new();
        }
        let what = format!("{} does not know the runtime nvidia", self.name);
        let symptom = "pods with the runtime class nvidia: there is no runtime, or handler, nvidia";
        vec![Finding::advice(
            what,
            symptom,
            registration(self.engine.name(), ""),
        )]
    }

    /// Checks that the running daemon knows the runtimes that its files have: it reads them when it starts.
    pub(super) fn unknown(&self, runtimes: &Runtimes<'_>, known: &[String]) -> Option<Finding> {
        let (name, (_, file)) = runtimes.iter().find(|(name, _)| !known.contains(name))?;
        let what = format!(
            "{} does not know the runtime {name} that {} registers: the file was changed after it was read",
            self.name,
            file.path.display()
        );
        let repair = command(format!("systemctl restart {}", self.engine.name()));
        Some(Finding::wrong(what, NO_PODS, repair))
    }
}
