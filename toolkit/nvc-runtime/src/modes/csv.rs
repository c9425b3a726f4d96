//! Adds a Jetson's GPUs to a container, by the file lists of its operating system.

use std::path::Path;

use libnvc::ContainerPath;
use libnvc::host::DriverRoot;
use libnvc::host::query::QueryProgram;
use libnvc::plan::{Intent, Place, What};
use nvc_generate::csv::{self, Choice, Driver, RequestedGpus, Tree, list, requirements};
use nvc_hostfile::cause;
use nvc_policy::config::Config;
use nvc_policy::image;

use crate::error::{Result, refused};
use crate::job::{GpuRequest, Job, SINGLE_CSV_DEVICE, nodes};
use crate::spec_edits;

/// The start of an error about devices.
const WHAT: &str = "failed to generate CDI spec for mode \"csv\"";

/// The variable by which an image requests more lists.
const JETPACK: &str = "NVIDIA_REQUIRE_JETPACK";

/// Adds the files in the lists, and the nodes of the requested GPUs.
pub(super) fn serve(job: Job<'_>) -> Result<()> {
    let environment = &job.request.container.environment;
    let demands = image::requirements::of(environment, job.config.disable_require);
    let demands = demands.map_err(refused)?;
    let root = nodes(job.config).root;
    let driver = if RequestedGpus::of(job.ids()?) == RequestedGpus::None && demands.is_empty() {
        Driver::unasked(&root, &QueryProgram::ThisProcess)
    } else {
        Driver::ask(&root, &QueryProgram::ThisProcess)
    };
    with_driver(job, &driver)
}

/// Works like [`serve`], with the driver's answers.
pub(super) fn with_driver(mut job: Job<'_>, driver: &Driver) -> Result<()> {
    let GpuRequest {
        container, policy, ..
    } = job.request;
    let (config, environment) = (job.config, &container.environment);
    let demands = image::requirements::of(environment, config.disable_require).map_err(refused)?;
    let wanted = RequestedGpus::of(job.ids()?);
    let choice = choose(&wanted, driver, config);
    if !demands.is_empty() {
        let (all, problem) = driver.facts(choice.as_ref().ok());
        if let Some(problem) = problem {
            job.warn(&problem);
        }
        for facts in all {
            requirements::check(&demands, &facts)
                .map_err(|error| error.context("requirements not met"))?;
        }
    }
    let choice = choice?;
    // More lists mean more files and nodes of the host.
    let wants_all = environment.get(JETPACK) == Some("csv-mounts=all");
    let all = wants_all && policy.accepts_environment_of(container);
    if wants_all && !all {
        let text =
            format!("Ignoring {JETPACK} of an unprivileged container: only the usual lists count");
        job.warn(&text);
    }
    let files = files(&mut job, all, &choice, driver)?;
    let mut intents = job.gated_features();
    intents.extend(files);
    intents.push(Intent::void());
    spec_edits::give(&mut job, &intents, None)
}

fn choose(wanted: &RequestedGpus, driver: &Driver, config: &Config) -> Result<Choice> {
    let flags = &config.runtime.jit_feature_flags;
    let several = !flags.iter().any(|flag| flag == SINGLE_CSV_DEVICE);
    csv::choose(wanted, driver.listing(), several).map_err(|refusal| {
        let error = refused(format!("no device {}", refusal.id));
        error.hint(refusal.hint).context(WHAT)
    })
}

/// Returns true if there is a node, or a file that does more than to tell programs that this is a Tegra system.
fn has_something(intents: &[Intent]) -> bool {
    intents.iter().any(|intent| match &intent.what {
        What::Device(_) => true,
        What::Mount(mount) => mount.place != Place::At(ContainerPath::new(csv::RELEASE)),
        _ => false,
    })
}

/// Returns the intents for the files in the lists, and for the chosen GPUs.
fn files(job: &mut Job<'_>, all: bool, choice: &Choice, driver: &Driver) -> Result<Vec<Intent>> {
    let config = job.config;
    let directory = Path::new(&config.runtime.csv_mount_spec_path);
    let failed = |error: std::io::Error, path: &Path| {
        refused(format!(
            "failed to read {}: {}",
            path.display(),
            cause::text(&error)
        ))
    };
    let lists = list::in_directory(directory, all).map_err(|error| failed(error, directory))?;
    if lists.is_empty() && !choice.devices.is_empty() {
        let text = format!("there are no file lists in {}", directory.display());
        let hint = "they are of the package nvidia-l4t-init, or in modes.csv.mount-spec-path of config.toml";
        return Err(refused(text).hint(hint).context(WHAT));
    }
    if lists.is_empty() {
        if let Some(warning) = &choice.warning {
            job.warn(warning);
        }
        return Ok(Vec::new());
    }
    let mut entries = Vec::new();
    for file in &lists {
        entries.extend(list::read(file).map_err(|error| failed(error, file))?);
    }
    let nodes = nodes(config);
    let has_compat = !choice.devices.is_empty() && !config.features.disable_cuda_compat_lib_hook;
    let tree = Tree {
        root: DriverRoot::open(&nodes.root).map_err(|error| error.context(WHAT))?,
        nodes,
        compat: if has_compat {
            driver.compat(&config.runtime.csv_compat_container_root)
        } else {
            None
        },
    };
    let found = csv::find(&tree, &entries, choice, driver);
    let found = found.map_err(|error| error.context(WHAT))?;
    let warnings = found.warnings.clone();
    let intents = found.into_intents();
    if !choice.devices.is_empty() && !has_something(&intents) {
        let text = format!("nothing of the lists in {} exists", directory.display());
        let cause = warnings.join("; ");
        return Err(refused(text).with_cause(cause).context(WHAT));
    }
    for warning in &warnings {
        job.warn(warning);
    }
    Ok(intents)
}
