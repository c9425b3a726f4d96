//! Asks docker's own help about options that came after this program.

use super::docker::Docker;
use super::options::{Scope, Takes, in_help, known};
use crate::failure::Result;
use crate::log_line::say;

/// Docker's help, which is asked for options that came after this program.
#[derive(Debug)]
pub(super) struct Help<'a> {
    nv_docker: &'a str,
    texts: [Option<String>; 2],
}

impl<'a> Help<'a> {
    /// The help of the docker that NV_DOCKER names.
    pub(super) fn new(nv_docker: &'a str) -> Self {
        Self {
            nv_docker,
            texts: [None, None],
        }
    }

    /// What an option takes, by the tables or else by docker's help.
    ///
    /// # Errors
    /// That docker cannot be asked.
    pub(super) fn takes(&mut self, scope: Scope, name: &str) -> Result<Takes> {
        if let Some(takes) = known(scope, name) {
            return Ok(takes);
        }
        let (question, [global, run]) = match scope {
            Scope::Global => (&["--help"][..], &mut self.texts),
            Scope::Run => (&["run", "--help"][..], &mut self.texts),
        };
        let text = match scope {
            Scope::Global => global,
            Scope::Run => run,
        };
        if text.is_none() {
            let answer = Docker::bare(self.nv_docker).ask(question)?.answer()?;
            *text = Some(String::from_utf8_lossy(&answer).into_owned());
        }
        let takes = text.as_deref().and_then(|help| in_help(help, name));
        if takes.is_none() {
            say(&format!(
                "Warning: docker's help has no option {name}; it is taken for one without a value"
            ));
        }
        Ok(takes.unwrap_or(Takes::Nothing))
    }
}
