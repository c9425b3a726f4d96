//! Looks up options newer than this program in docker's own help.

use libnvc::Result;

use super::docker::Docker;
use super::options::{Scope, in_help};
use crate::log_line::log_text;

/// Docker's help, for options newer than this program.
#[derive(Debug)]
pub(super) struct Help<'a> {
    nv_docker: &'a str,
    texts: [Option<String>; 2],
}

impl<'a> Help<'a> {
    /// Uses the help of the docker named by NV_DOCKER.
    pub(super) fn new(nv_docker: &'a str) -> Self {
        Self {
            nv_docker,
            texts: [None, None],
        }
    }

    /// Returns true if an option takes a value.
    ///
    /// # Errors
    /// If docker cannot be called.
    pub(super) fn takes(&mut self, scope: Scope, name: &str) -> Result<bool> {
        let [global, run] = &mut self.texts;
        let (question, text) = match scope {
            Scope::Global => (&["--help"][..], global),
            Scope::Run => (&["run", "--help"][..], run),
        };
        if text.is_none() {
            let answer = Docker::new(self.nv_docker, &[]).ask(question)?.answer()?;
            *text = Some(String::from_utf8_lossy(&answer).into_owned());
        }
        let takes = text.as_deref().and_then(|help| in_help(help, name));
        if takes.is_none() {
            log_text(&format!(
                "Warning: docker's help does not list the option {name}; it is treated as an option without a value"
            ));
        }
        Ok(takes.unwrap_or(false))
    }
}
