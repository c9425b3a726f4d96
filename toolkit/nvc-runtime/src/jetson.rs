//! Adds a Jetson's GPUs to a container, by the file lists of its operating system.

use std::path::Path;

use libnvc::host::query::QueryProgram;
use libnvc::messages::Level;
use nvc_cdi::Edits;
use nvc_generate::csv::{self, Choice, Driver, Tree, Wanted, list, requirements};
use nvc_hostfile::cause;
use nvc_oci::spec::Spec;
use nvc_policy::config::Config;
use nvc_policy::image::{self, Container, Policy, Wish};

use crate::automatic::{SINGLE_CSV_DEVICE, VOID};
use crate::create::EditError;
use crate::give::give;
use crate::hook_program;
use crate::legacy::tree_of_nodes;
use crate::log::Log;

/// The start of an error about devices.
const WHAT: &str = "failed to generate CDI spec for mode \"csv\": ";

/// The variable by which an image requests more lists.
const JETPACK: &str = "NVIDIA_REQUIRE_JETPACK";

/// Adds the files in the lists, and the nodes of the requested GPUs.
pub(crate) fn modify(
    spec: &mut Spec,
    wish: &Wish,
    container: &Container,
    policy: &Policy,
    config: &Config,
    log: &mut Log,
) -> Result<(), EditError> {
    let environment = &container.environment;
    let demands = image::requirements::of(environment, config.disable_require)
        .map_err(|error| error.to_string())?;
    let wanted = Wanted::of_devices(&wish.devices);
    let root = tree_of_nodes(config).root;
    let driver = match wanted == Wanted::None && demands.is_empty() {
        true => Driver::unasked(&root, &QueryProgram::ThisProcess),
        false => Driver::ask(&root, &QueryProgram::ThisProcess),
    };
    let choice = choose(&wanted, &driver, config);
    if !demands.is_empty() {
        let (all, problem) = driver.facts(choice.as_ref().ok());
        if let Some(problem) = problem {
            log.write(Level::Warning, &problem);
        }
        for facts in all {
            requirements::check(&demands, &facts)
                .map_err(|error| EditError::of("requirements not met: ", &error))?;
        }
    }
    let choice = choice?;
    if let Some(warning) = &choice.warning {
        log.write(Level::Warning, warning);
    }
    let mut given = crate::legacy::gated_features(container, policy, config, log);
    for edits in &mut given {
        edits.env.push(VOID.into());
    }
    // More lists mean more files and nodes of the host.
    let wants_all = environment.get(JETPACK) == Some("csv-mounts=all");
    let all = wants_all && policy.accepts_environment_of(container);
    if wants_all && !all {
        let text =
            format!("Ignoring {JETPACK} of an unprivileged container: only the usual lists count");
        log.write(Level::Warning, &text);
    }
    given.push(files(config, all, &choice, &driver, log)?);
    give(spec, &mut given).map_err(Into::into)
}

fn choose(wanted: &Wanted, driver: &Driver, config: &Config) -> Result<Choice, EditError> {
    let flags = &config.runtime.jit_feature_flags;
    let several = !flags.iter().any(|flag| flag == SINGLE_CSV_DEVICE);
    csv::choose(wanted, driver.listing(), several).map_err(|refusal| {
        EditError::with_hint(format!("{WHAT}no device {}", refusal.id), &refusal.hint)
    })
}

/// Returns the edits for the files in the lists, and for the chosen GPUs.
fn files(
    config: &Config,
    all: bool,
    choice: &Choice,
    driver: &Driver,
    log: &mut Log,
) -> Result<Edits, EditError> {
    let directory = Path::new(&config.runtime.csv_mount_spec_path);
    let failed = |error: std::io::Error, path: &Path| {
        format!("failed to read {}: {}", path.display(), cause::text(&error))
    };
    let lists = list::in_directory(directory, all).map_err(|error| failed(error, directory))?;
    if lists.is_empty() {
        return Ok(Edits {
            env: vec![VOID.into()],
            ..Edits::default()
        });
    }
    let mut entries = Vec::new();
    for file in &lists {
        entries.extend(list::read(file).map_err(|error| failed(error, file))?);
    }
    let nodes = tree_of_nodes(config);
    let has_compat = !choice.devices.is_empty() && !config.features.disable_cuda_compat_lib_hook;
    let tree = Tree {
        root: nodes.root.clone(),
        nodes,
        hook: hook_program::of(config),
        compat: match has_compat {
            true => driver.compat(&config.runtime.csv_compat_container_root),
            false => Vec::new(),
        },
    };
    let mut edits = Edits::default();
    let mut warnings = Vec::new();
    for chosen in &choice.devices {
        let found = tree.device(&entries, chosen, driver.gpus());
        let (device, more) = found.map_err(|error| EditError::of(WHAT, &error))?;
        edits.append(&device);
        warnings.extend(more);
    }
    let (common, more) = tree.common(&entries);
    edits.append(&common);
    warnings.extend(more);
    // Two GPUs share the nodes of the SoC.
    csv::once(&mut edits.device_nodes, |node| node.path.clone());
    csv::once(&mut warnings, String::clone);
    for warning in warnings {
        log.write(Level::Warning, &warning);
    }
    Ok(edits)
}
