//! Decides how the engine adds GPUs to a container. Pure.

use libnvc::{Error, ErrorKind, Result};
use nvc_cdi::names;

use super::docker::Engine;
use super::image::Image;
use super::line::CommandLine;
use super::selection::Selection;
use crate::driver_volume::VOLUME;

/// The ways to add GPUs to a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    /// The engine supports CDI devices: `--device=nvidia.com/gpu=…`.
    Cdi,
    /// It has a runtime that adds GPUs: `--runtime=nvidia`.
    Runtime,
    /// It adds GPUs itself: `--gpus`.
    Gpus,
    /// The plugin's volume and device nodes.
    Volume,
}

/// The CDI kind to use.
pub(super) const CDI_KIND: &str = "nvidia.com/gpu";

/// The name of the runtime.
pub(super) const RUNTIME: &str = "nvidia";

/// The first version of the engine's API with `--gpus`.
const GPUS_SINCE: (u32, u32) = (1, 40);

/// A back end and the reason for its choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) backend: Backend,
    pub(super) reason: String,
}

impl Backend {
    /// Returns its name in NV_BACKEND.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cdi => "cdi",
            Self::Runtime => "runtime",
            Self::Gpus => "gpus",
            Self::Volume => "volume",
        }
    }

    /// Parses NV_BACKEND.
    ///
    /// # Errors
    /// `unknown back end: <text>`.
    pub(super) fn parse(text: &str) -> Result<Self> {
        [Self::Cdi, Self::Runtime, Self::Gpus, Self::Volume]
            .into_iter()
            .find(|backend| backend.name() == text)
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidArgument,
                    format!("unknown back end: {text}"),
                )
                .hint("NV_BACKEND can be cdi, runtime, gpus or volume")
            })
    }
}

/// Returns the option by which the user already selects GPUs, if there is one.
pub(super) fn users_own(line: &CommandLine) -> Option<&'static str> {
    if line.options.has("gpus") {
        Some("--gpus")
    } else if line.options.has("runtime") {
        Some("--runtime")
    } else if line.options.list("device").any(names::is_qualified) {
        Some("a CDI device")
    } else {
        None
    }
}

/// Returns the name of a CDI device of [`CDI_KIND`] without its kind.
pub(super) fn of_kind(name: &str) -> Option<String> {
    let name = names::parse(name)?;
    (name.kind == CDI_KIND).then(|| name.device.to_owned())
}

/// Chooses the back end for an image and the GPUs it gets; `names_in` returns the names of the kind in the CDI
/// specifications of these directories, for engines that do not list their devices.
pub(super) fn choose(
    engine: &Engine,
    image: &Image,
    wanted: &Selection,
    names_in: impl Fn(&[String]) -> Vec<String>,
) -> Choice {
    let choice = |backend, reason: String| Choice { backend, reason };
    let has_runtime = engine.runtimes.iter().any(|name| name == RUNTIME);
    if let Some((names, reason)) = cdi_names(engine, names_in) {
        return match wanted.missing_in(&names) {
            // A GPU with MIG devices is no CDI device itself.
            Some(name) if has_runtime => choice(
                Backend::Runtime,
                format!("the engine has a runtime {RUNTIME} and no device {CDI_KIND}={name}"),
            ),
            _ => choice(Backend::Cdi, reason),
        };
    }
    if has_runtime {
        return choice(
            Backend::Runtime,
            format!("the engine has a runtime {RUNTIME} and lists no {CDI_KIND} device"),
        );
    }
    let (major, minor) = engine.api;
    let wants_volume = image.volumes.iter().any(|name| name == VOLUME);
    if engine.api >= GPUS_SINCE && !wants_volume {
        return choice(
            Backend::Gpus,
            format!(
                "the engine's interface is {major}.{minor}, and it has neither CDI devices nor a runtime {RUNTIME}"
            ),
        );
    }
    let reason = if wants_volume && engine.api >= GPUS_SINCE {
        format!(
            "the image requests the volume {VOLUME}, and the engine has neither CDI devices nor a runtime {RUNTIME}"
        )
    } else {
        format!("the engine's interface is {major}.{minor}, which offers no other way")
    };
    choice(Backend::Volume, reason)
}

/// Returns the names of the engine's CDI devices of the kind, and how they are known; None if it has none.
fn cdi_names(
    engine: &Engine,
    names_in: impl Fn(&[String]) -> Vec<String>,
) -> Option<(Vec<String>, String)> {
    let listed = engine.cdi_devices.iter().filter_map(|name| of_kind(name));
    let listed: Vec<String> = listed.collect();
    if !listed.is_empty() {
        return Some((listed, format!("the engine lists {CDI_KIND} devices")));
    }
    if !engine.cdi_devices.is_empty() || engine.cdi_directories.is_empty() {
        return None;
    }
    let names = names_in(&engine.cdi_directories);
    let place = engine.cdi_directories.join(", ");
    (!names.is_empty()).then(|| {
        let reason =
            format!("the engine reads CDI specifications from {place}, which have {CDI_KIND}");
        (names, reason)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::line::read;
    use super::*;

    fn engine(api: u32, runtimes: &[&str], cdi: &[&str], directories: &[&str]) -> Engine {
        let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        Engine {
            api: (1, api),
            runtimes: owned(runtimes),
            cdi_devices: owned(cdi),
            cdi_directories: owned(directories),
            context: None,
        }
    }

    fn chosen(engine: &Engine, volumes: &[&str]) -> &'static str {
        let image = Image {
            volumes: volumes.iter().map(|s| (*s).to_owned()).collect(),
            ..Image::default()
        };
        let names_in = |directories: &[String]| {
            if directories == ["/has"] {
                vec!["0".to_owned()]
            } else {
                Vec::new()
            }
        };
        let wanted = Selection::These(vec!["0".into()]);
        choose(engine, &image, &wanted, names_in).backend.name()
    }

    #[test]
    fn a_gpu_that_is_no_cdi_device() {
        let gpus = [
            "nvidia.com/gpu=0",
            "nvidia.com/gpu=1:0",
            "nvidia.com/gpu=GPU-12",
        ];
        let backend = |runtimes: &[&str], wanted: &[&str]| {
            let wanted = match wanted {
                ["all"] => Selection::All,
                names => Selection::These(names.iter().map(|s| (*s).to_owned()).collect()),
            };
            let engine = engine(50, runtimes, &gpus, &[]);
            choose(&engine, &Image::default(), &wanted, |_| Vec::new())
                .backend
                .name()
        };
        for (wanted, expected) in [
            (&["0", "1:0"][..], "cdi"),
            (&["GPU-1"], "cdi"),
            (&["1"], "runtime"),
            (&["0", "1"], "runtime"),
            (&["all"], "runtime"),
        ] {
            assert_eq!(backend(&["nvidia"], wanted), expected, "{wanted:?}");
            // Its error for a missing device is clearer than that of --gpus without a hook.
            assert_eq!(backend(&[], wanted), "cdi");
        }
    }

    #[test]
    fn the_order_of_back_ends() {
        let gpu = "nvidia.com/gpu=0";
        for (engine, volumes, expected) in [
            (
                engine(50, &["nvidia"], &[gpu], &["/x"]),
                &["nvidia_driver"][..],
                "cdi",
            ),
            (
                engine(50, &["nvidia"], &["vendor.com/x=0"], &["/has"]),
                &[],
                "runtime",
            ),
            (engine(44, &["nvidia"], &[], &["/has"]), &[], "cdi"),
            (engine(44, &["nvidia"], &[], &["/x"]), &[], "runtime"),
            (
                engine(41, &["runc", "nvidia"], &[], &[]),
                &["nvidia_driver"],
                "runtime",
            ),
            (engine(41, &["runc"], &[], &[]), &[], "gpus"),
            (engine(41, &["runc"], &[], &[]), &["other"], "gpus"),
            (
                engine(41, &["runc"], &[], &[]),
                &["nvidia_driver"],
                "volume",
            ),
            (engine(39, &["runc"], &[], &[]), &[], "volume"),
            (
                engine(27, &["runc"], &[], &[]),
                &["nvidia_driver"],
                "volume",
            ),
        ] {
            assert_eq!(chosen(&engine, volumes), expected, "{engine:?}");
        }
    }

    #[test]
    fn options_of_the_user() {
        let own = |name: &str, value: &str| {
            let words = ["run", &format!("--{name}={value}"), "image"].map(Into::into);
            users_own(&read(&words, |_, _| Ok(true)).unwrap())
        };
        assert_eq!(own("gpus", "all"), Some("--gpus"));
        assert_eq!(own("runtime", "runc"), Some("--runtime"));
        assert_eq!(own("device", "nvidia.com/gpu=0"), Some("a CDI device"));
        assert_eq!(own("device", "vendor.com/net=x"), Some("a CDI device"));
        assert_eq!(own("device", "/dev/fuse"), None);
        assert_eq!(own("device", "/dev/x=y/z"), None);
        assert_eq!(own("volume", "a/b=c"), None);
    }

    #[test]
    fn names() {
        for name in ["cdi", "runtime", "gpus", "volume"] {
            assert_eq!(Backend::parse(name).unwrap().name(), name);
        }
        assert!(Backend::parse("CDI").is_err());
    }
}
