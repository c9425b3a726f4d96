//! Applies `NVIDIA_DRIVER_CAPABILITIES` and `NVIDIA_REQUIRE_*` in mode jit-cdi.
//!
//! Upstream's specifications ignore both: every container gets all of the driver's files, and nothing is checked. Two
//! keys of the configuration change that.

use std::collections::HashSet;
use std::path::Path;

use libnvc::host::{Gpu, catalogue};
use libnvc::messages::Level;
use libnvc::request::{Capabilities, Capability};
use libnvc::require::{self, Requirement, Target};
use nvc_cdi::{Edits, Hook};
use nvc_generate::Driver;
use nvc_policy::config::Config;
use nvc_policy::image::{Container, Policy, capabilities, requirements};

use crate::create::EditError;
use crate::log::Log;

const CAPABILITIES: &str = "nvidia-container-runtime.modes.jit-cdi.driver-capabilities";
const REQUIREMENTS: &str = "nvidia-container-runtime.modes.jit-cdi.requirements";

/// Describes an unknown word of a key.
fn unknown(config: &Config, key: &str, word: &str, known: &str) -> EditError {
    let origin = config.origin(key);
    EditError::from(format!("{key} ({origin}): \"{word}\" must be {known}"))
}

/// Returns the parts of the driver that the container is limited to; None if it gets all of them.
pub(crate) fn limit(
    container: &Container,
    config: &Config,
) -> Result<Option<Capabilities>, EditError> {
    match config.runtime.jit_driver_capabilities.as_str() {
        "ignore" => return Ok(None),
        "honour" => {}
        word => return Err(unknown(config, CAPABILITIES, word, "ignore or honour")),
    }
    let text = |error: nvc_policy::image::Error| error.to_string();
    let supported = Policy::new(config).map_err(text)?.supported;
    capabilities::of(&container.environment, supported)
        .map(Some)
        .map_err(|error| text(error).into())
}

/// Removes driver files that belong to capabilities outside the limit, with their links and DRM nodes. Files without a
/// capability stay.
pub(crate) fn restrict(edits: &mut Edits, limit: Capabilities) {
    let graphics = limit.include(Capability::Graphics);
    edits.mounts.retain(|mount| {
        let path = Path::new(&mount.container_path);
        if is_graphics_file(path) {
            return graphics;
        }
        is_wanted(path, limit)
    });
    edits
        .device_nodes
        .retain(|node| graphics || !node.path.starts_with("/dev/dri/"));
    for hook in &mut edits.hooks {
        restrict_links(hook, graphics, limit);
    }
    // A hook that creates links is useless without any.
    edits.hooks.retain(|hook| {
        hook.args.get(1).map(String::as_str) != Some("create-symlinks") || hook.args.len() > 2
    });
}

fn is_wanted(path: &Path, limit: Capabilities) -> bool {
    let name = path.file_name().unwrap_or_default();
    let library = catalogue::library_of(name).and_then(|pattern| pattern.capability);
    let program = catalogue::program_of(name).and_then(|pattern| pattern.capability);
    let fits = |capability: Option<Capability>, fits: &dyn Fn(Capability) -> bool| {
        capability.is_none_or(fits)
    };
    fits(library, &|capability| limit.include(capability))
        && fits(program, &|capability| limit.include_programs(capability))
}

/// Returns true if a file is part of the driver's graphics configuration or modules.
fn is_graphics_file(path: &Path) -> bool {
    const DIRECTORIES: [&str; 8] = [
        "/glvnd/",
        "/vulkan/",
        "/egl_external_platform.d/",
        "/xorg/",
        "/X11/",
        "/gbm/",
        "/drirc.d/",
        "/nvoptix.bin",
    ];
    let text = path.to_string_lossy();
    let is_egl = path
        .file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("libnvidia-egl-"));
    is_egl || DIRECTORIES.iter().any(|part| text.contains(part))
}

/// Removes links to missing files, and those of displays.
fn restrict_links(hook: &mut Hook, graphics: bool, limit: Capabilities) {
    if hook.args.get(1).map(String::as_str) != Some("create-symlinks") {
        return;
    }
    let mut kept = Vec::new();
    let mut words = std::mem::take(&mut hook.args).into_iter();
    while let Some(word) = words.next() {
        if word != "--link" {
            kept.push(word);
            continue;
        }
        let Some(link) = words.next() else { break };
        let (target, at) = link.split_once("::").unwrap_or(("", &link));
        let is_display = at.starts_with("/dev/dri/") || is_graphics_file(Path::new(at));
        if (graphics || !is_display) && is_wanted(Path::new(target), limit) {
            kept.extend([word, link]);
        }
    }
    hook.args = kept;
}

/// Checks the container's requirements on the driver and on the GPUs in `edits`.
pub(crate) fn check(
    container: &Container,
    config: &Config,
    driver: Option<&Driver>,
    edits: &Edits,
    log: &mut Log,
) -> Result<(), EditError> {
    let is_error = match config.runtime.jit_requirements.as_str() {
        "ignore" => return Ok(()),
        "warn" => false,
        "honour" => true,
        word => {
            return Err(unknown(
                config,
                REQUIREMENTS,
                word,
                "warn, honour or ignore",
            ));
        }
    };
    let checked = evaluate(container, config, driver, edits);
    match checked {
        Err(failure) if is_error => Err(failure),
        Err(failure) => {
            log.write(
                Level::Warning,
                &format!("{failure}; the container starts anyway ({REQUIREMENTS})"),
            );
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

fn evaluate(
    container: &Container,
    config: &Config,
    driver: Option<&Driver>,
    edits: &Edits,
) -> Result<(), EditError> {
    let demands = requirements::of(&container.environment, config.disable_require)
        .map_err(|error| error.to_string())?;
    // Only NVML provides the values to compare: Jetson and WSL have their own checks.
    let (Some(driver), false) = (driver, demands.is_empty()) else {
        return Ok(());
    };
    let demands: Vec<Requirement> = demands.into_iter().map(Requirement::new).collect();
    let nodes = edits.device_nodes.iter();
    let given: HashSet<&str> = nodes.map(|node| node.path.as_str()).collect();
    let is_given = |gpu: &&Gpu| given.contains(format!("/dev/nvidia{}", gpu.minor).as_str());
    let targets: Vec<Target<'_>> = driver
        .gpus
        .iter()
        .filter(is_given)
        .map(|gpu| Target {
            arch: &gpu.arch,
            brand: &gpu.brand,
        })
        .collect();
    require::check(&demands, &driver.versions, &targets)
        .map_err(|error| EditError::of("requirement error: ", &error))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nvc_cdi::{DeviceNode, Mount};
    use nvc_policy::image::Environment;

    use super::*;

    fn container(env: &[&str]) -> Container {
        Container {
            environment: Environment::new(env).unwrap(),
            ..Container::default()
        }
    }

    fn driver_edits() -> Edits {
        let mount = |path: &str| Mount {
            container_path: path.into(),
            ..Mount::default()
        };
        let node = |path: &str| DeviceNode {
            path: path.into(),
            ..DeviceNode::default()
        };
        let links = "nvidia-cdi-hook create-symlinks --link libcuda.so.1::/l/libcuda.so --link ../card1::/dev/dri/by-path/x";
        Edits {
            mounts: [
                "/l/libcuda.so.535.1",
                "/l/libnvidia-ml.so.535.1",
                "/l/libGLX_nvidia.so.535.1",
                "/usr/bin/nvidia-smi",
                "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
                "/lib/firmware/nvidia/535.1/gsp_ga10x.bin",
            ]
            .map(mount)
            .to_vec(),
            device_nodes: ["/dev/nvidia0", "/dev/dri/card1"].map(node).to_vec(),
            hooks: vec![Hook {
                hook_name: "createContainer".into(),
                path: "/x".into(),
                args: links.split(' ').map(String::from).collect(),
                env: Vec::new(),
                timeout: None,
            }],
            ..Edits::default()
        }
    }

    fn restricted(asked: &str) -> String {
        let mut config = Config::default();
        config.runtime.jit_driver_capabilities = "honour".into();
        let variable = format!("NVIDIA_DRIVER_CAPABILITIES={asked}");
        let limit = limit(&container(&[&variable]), &config).ok().flatten();
        let mut edits = driver_edits();
        restrict(&mut edits, limit.unwrap());
        let mounts = edits.mounts.iter().map(|mount| &mount.container_path);
        let nodes = edits.device_nodes.iter().map(|node| &node.path);
        let names = mounts
            .chain(nodes)
            .map(|path| path.rsplit('/').next().unwrap().to_owned());
        let links = edits.hooks.iter().flat_map(|hook| hook.args[2..].to_vec());
        names.chain(links).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn capabilities_limit_files() {
        assert_eq!(
            restricted("compute"),
            "libcuda.so.535.1 gsp_ga10x.bin nvidia0 --link libcuda.so.1::/l/libcuda.so"
        );
        assert_eq!(
            restricted("utility"),
            "libnvidia-ml.so.535.1 nvidia-smi gsp_ga10x.bin nvidia0"
        );
        assert_eq!(
            restricted("graphics"),
            "libGLX_nvidia.so.535.1 10_nvidia.json gsp_ga10x.bin nvidia0 card1 --link ../card1::/dev/dri/by-path/x"
        );
        let all = restricted("all");
        assert!(all.contains("libcuda") && all.contains("card1"), "{all}");
    }

    #[test]
    fn keys_know_their_words() {
        let mut config = Config::default();
        assert!(limit(&container(&[]), &config).ok().unwrap().is_none());
        config.runtime.jit_driver_capabilities = "honor".into();
        let failure = limit(&container(&[]), &config).err().unwrap();
        assert!(failure.to_string().contains("honour"), "{failure}");
    }

    #[test]
    fn requirements_are_those_of_given_gpus() {
        let gpu = |minor, arch: &str| Gpu {
            minor,
            arch: arch.into(),
            ..Gpu::default()
        };
        let driver = Driver {
            versions: libnvc::host::DriverVersions {
                driver: "535.1".into(),
                cuda: "12.2".into(),
            },
            gpus: vec![gpu(0, "8.0"), gpu(1, "9.0")],
        };
        let edits = driver_edits();
        let met = |demand: &str| {
            let variable = format!("NVIDIA_REQUIRE_X={demand}");
            let container = container(&[&variable]);
            evaluate(&container, &Config::default(), Some(&driver), &edits).is_ok()
        };
        assert!(met("cuda>=12.2"));
        assert!(!met("cuda>=12.3"));
        assert!(met("arch<9.0"), "the GPU that is not given does not count");
        assert!(!met("arch>=9.0"));
    }
}
