//! Adds devices by their CDI names: those of specification files, or this machine's own.

use nvc_generate::csv::Driver;
use nvc_policy::image::qualified;
use nvc_policy::this_machine::ThisMachine;

use super::jit_cdi;
use crate::error::{Result, refused};
use crate::job::Job;
use crate::spec_edits;

/// Adds the devices of the request; a name without a kind has the default kind. Returns a Jetson's driver if the mode is
/// automatic and its lists must add them.
pub(super) fn serve(job: &mut Job<'_>, default_kind: &str) -> Result<Option<Driver>> {
    let (own, others) = qualified::split(&job.request.choice.devices, default_kind);
    match (own.is_empty(), others.is_empty()) {
        (true, _) => from_files(job, &others).map(|()| None),
        (false, true) => jit_cdi::serve(job, &own),
        (false, false) => Err(refused(
            "requesting a CDI device with vendor 'runtime.nvidia.com' is not supported when requesting other CDI devices",
        )
        .hint(format!("{} has no kind: give each name one, as {}, or none", own[0], others[0]))),
    }
}

fn from_files(job: &mut Job<'_>, names: &[String]) -> Result<()> {
    let failed = "failed to inject CDI devices";
    let machine = ThisMachine::new(job.config);
    let registry = machine.registry();
    let names = names.iter().map(|name| machine.specified(name));
    let names = names.collect::<libnvc::Result<Vec<_>>>();
    let (edits, warnings) = names
        .and_then(|names| registry.edits(&names))
        .map_err(|error| {
            for problem in registry.problems() {
                let (file, what) = (problem.path.display(), problem.error.message());
                job.warn(&format!("{file}: {what}"));
            }
            error.context(failed)
        })?;
    warnings.iter().for_each(|warning| job.warn(warning));
    spec_edits::apply(job, &mut [edits]).map_err(|error| error.context(failed))
}
