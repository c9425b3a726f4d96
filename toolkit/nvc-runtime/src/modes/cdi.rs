//! Adds devices by their CDI names: those of specification files, or this machine's own.

use nvc_cdi::Registry;
use nvc_policy::image::qualified;

use super::jit_cdi;
use crate::error::{Result, refused};
use crate::job::Job;
use crate::spec_edits;

/// Adds the devices of the request; a name without a kind has the default kind.
pub(super) fn serve(job: Job<'_>, default_kind: &str) -> Result<()> {
    let (own, others) = qualified::split(&job.request.choice.devices, default_kind);
    match (own.is_empty(), others.is_empty()) {
        (true, _) => from_files(job, &others),
        (false, true) => jit_cdi::serve(job, &own),
        (false, false) => Err(refused(
            "requesting a CDI device with vendor 'runtime.nvidia.com' is not supported when requesting other CDI devices",
        )),
    }
}

fn from_files(mut job: Job<'_>, names: &[String]) -> Result<()> {
    let failed = "failed to inject CDI devices";
    let registry = Registry::load(&job.config.runtime.cdi_spec_dirs);
    let edits = registry.edits(names).map_err(|error| {
        for problem in registry.problems() {
            let (file, what) = (problem.path.display(), problem.error.message());
            job.warn(&format!("{file}: {what}"));
        }
        error.context(failed)
    })?;
    spec_edits::apply(job.spec, &mut [edits]).map_err(|error| error.context(failed))
}
