//! Formats the arguments to add to a `docker run`. Pure.

use nvc_hostfile::shell;

use super::backend::{Backend, CDI_KIND, RUNTIME};
use super::selection::Selection;
use crate::VOLUME_DRIVER;
use crate::driver_volume;

/// The devices and volumes of the classic back end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Classic {
    /// Device nodes, the common ones first.
    pub(super) devices: Vec<String>,
    /// The driver version whose volume is mounted, once per name.
    pub(super) volumes: Vec<String>,
}

/// Returns the arguments for an engine that finds the GPUs itself; `set_visible` is the value for
/// NVIDIA_VISIBLE_DEVICES.
pub(super) fn of_engine(
    backend: Backend,
    selection: &Selection,
    sets_visible: bool,
) -> Vec<String> {
    match (backend, selection) {
        (Backend::Runtime, selection) => {
            let mut arguments = vec![format!("--runtime={RUNTIME}")];
            if sets_visible {
                let value = match selection {
                    Selection::All => "all".to_owned(),
                    Selection::Nothing => "void".to_owned(),
                    Selection::These(names) => names.join(","),
                };
                arguments.push(format!("--env=NVIDIA_VISIBLE_DEVICES={value}"));
            }
            arguments
        }
        (_, Selection::Nothing) => Vec::new(),
        (Backend::Cdi, Selection::All) => vec![format!("--device={CDI_KIND}=all")],
        (Backend::Cdi, Selection::These(names)) => names
            .iter()
            .map(|name| format!("--device={CDI_KIND}={name}"))
            .collect(),
        (_, Selection::All) => vec!["--gpus=all".to_owned()],
        // The inner quotes keep docker from splitting the field at commas.
        (_, Selection::These(names)) => vec![format!("--gpus=\"device={}\"", names.join(","))],
    }
}

/// Returns the arguments of the classic back end, in upstream's order for this machine; `by_mount` as for [`volumes`].
pub(super) fn of_this_machine(classic: &Classic, by_mount: bool) -> Vec<String> {
    [devices(classic), volumes(classic, by_mount)].concat()
}

/// Returns the arguments of the classic back end, in the order of another machine's plugin.
pub(super) fn of_other_machine(classic: &Classic, by_mount: bool) -> Vec<String> {
    [volumes(classic, by_mount), devices(classic)].concat()
}

fn devices(classic: &Classic) -> Vec<String> {
    let devices = classic.devices.iter();
    devices.map(|path| format!("--device={path}")).collect()
}

/// Returns the options for the volumes. Never --volume-driver, which is the driver of all volumes of the command: an
/// engine that knows `--mount` is told the driver there, for an older one the volume must exist.
fn volumes(classic: &Classic, by_mount: bool) -> Vec<String> {
    let option = |version: &String| {
        if !by_mount {
            return format!("--volume={}", driver_volume::bind(version));
        }
        format!(
            "--mount=type=volume,source={},target={},readonly,volume-driver={VOLUME_DRIVER}",
            driver_volume::name(version),
            driver_volume::MOUNT_POINT
        )
    };
    classic.volumes.iter().map(option).collect()
}

/// Quotes words for a shell.
pub(super) fn quoted(words: &[std::ffi::OsString]) -> String {
    shell::line(words.iter().map(|word| word.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn these(names: &[&str]) -> Selection {
        Selection::These(names.iter().map(|s| (*s).to_owned()).collect())
    }

    #[test]
    fn arguments_of_engines() {
        let two = these(&["0", "GPU-1"]);
        for (backend, selection, sets, expected) in [
            (
                Backend::Cdi,
                &Selection::All,
                false,
                "--device=nvidia.com/gpu=all",
            ),
            (
                Backend::Cdi,
                &two,
                false,
                "--device=nvidia.com/gpu=0 --device=nvidia.com/gpu=GPU-1",
            ),
            (Backend::Cdi, &Selection::Nothing, true, ""),
            (Backend::Runtime, &two, false, "--runtime=nvidia"),
            (
                Backend::Runtime,
                &two,
                true,
                "--runtime=nvidia --env=NVIDIA_VISIBLE_DEVICES=0,GPU-1",
            ),
            (
                Backend::Runtime,
                &Selection::All,
                true,
                "--runtime=nvidia --env=NVIDIA_VISIBLE_DEVICES=all",
            ),
            (Backend::Gpus, &Selection::All, false, "--gpus=all"),
            (Backend::Gpus, &two, false, "--gpus=\"device=0,GPU-1\""),
        ] {
            assert_eq!(of_engine(backend, selection, sets).join(" "), expected);
        }
    }

    #[test]
    fn classic_arguments() {
        let classic = Classic {
            devices: vec!["/dev/nvidiactl".into(), "/dev/nvidia0".into()],
            volumes: vec!["375.66".into()],
        };
        let (devices, bind) = (
            "--device=/dev/nvidiactl --device=/dev/nvidia0",
            "--volume=nvidia_driver_375.66:/usr/local/nvidia:ro",
        );
        let mount = "--mount=type=volume,source=nvidia_driver_375.66,target=/usr/local/nvidia,readonly,volume-driver=nvidia-docker";
        for (by_mount, volume) in [(true, mount), (false, bind)] {
            let here = of_this_machine(&classic, by_mount).join(" ");
            assert_eq!(here, format!("{devices} {volume}"));
            let there = of_other_machine(&classic, by_mount).join(" ");
            assert_eq!(there, format!("{volume} {devices}"));
        }
    }

    #[test]
    fn shells_parse_the_quoting() {
        let words = ["docker", "run", "--gpus=\"device=0\"", "", "it's", "a b"];
        let words: Vec<_> = words.iter().map(std::ffi::OsString::from).collect();
        assert_eq!(
            quoted(&words),
            r#"docker run '--gpus="device=0"' '' 'it'\''s' 'a b'"#
        );
    }
}
