//! Recognises the programs that are being removed in the text of a file.

use std::fs;
use std::path::{Path, PathBuf};

use nvc_hostfile::programs;

/// Programs that are going to be removed.
#[derive(Debug)]
pub(super) struct Programs<'a> {
    /// Their directory.
    directory: &'a Path,
    names: &'a [&'a str],
    /// Other directories in which engines find a program by its bare name.
    others: Vec<PathBuf>,
}

impl<'a> Programs<'a> {
    pub(super) fn new(directory: &'a Path, names: &'a [&'a str]) -> Self {
        let is_other = |path: &PathBuf| fs::canonicalize(path).is_ok_and(|path| path != directory);
        let others = programs::directories(None);
        Self {
            directory,
            names,
            others: others.into_iter().filter(is_other).collect(),
        }
    }

    /// Returns true if a program is one of them, and no other one of its name takes its place.
    pub(super) fn include(&self, program: &str) -> bool {
        let path = Path::new(program);
        let name = path.file_name().unwrap_or_default();
        let is_same = |parent: &Path| {
            parent == self.directory
                || fs::canonicalize(parent).is_ok_and(|parent| parent == self.directory)
        };
        self.names.iter().any(|known| name == *known)
            && match path.parent().filter(|parent| parent.is_absolute()) {
                Some(parent) => is_same(parent),
                None => !program.contains('/') && programs::find(program, &self.others).is_none(),
            }
    }

    /// Returns the first of them that a text names in quotes, or as a word of YAML, outside of comments.
    pub(super) fn named_in(&self, text: &str) -> Option<String> {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.starts_with('#') && line.contains("nvidia-"));
        let separators = |c: char| c.is_whitespace() || "\"'=,[]{}".contains(c);
        lines
            .flat_map(|line| line.split(separators))
            .find(|word| self.include(word))
            .map(Into::into)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const NAMES: [&str; 2] = ["nvidia-container-runtime", "nvidia-cdi-hook"];

    #[test]
    fn only_our_own_programs_count() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().canonicalize().unwrap();
        let programs = Programs::new(&directory, &NAMES);
        let own = directory.join(NAMES[0]);
        let own = own.to_str().unwrap();
        assert!(programs.include(own));
        assert!(programs.include(&own.replace("/nvidia", "/./nvidia")));
        for other in ["/opt/nvidia/nvidia-container-runtime", "runc", "", "/"] {
            assert!(!programs.include(other), "{other}");
        }
        for (text, found) in [
            (format!("{{\"path\": \"{own}\"}}"), true),
            (format!("BinaryName = '{own}'"), true),
            (format!("  - path: {own}\n"), true),
            (format!("# BinaryName = \"{own}\""), false),
            (format!("BinaryName = \"{own}.experimental\""), false),
            (
                "BinaryName = \"/opt/nvidia-container-runtime\"".into(),
                false,
            ),
        ] {
            assert_eq!(programs.named_in(&text).is_some(), found, "{text}");
        }
    }
}
