//! Decides how the engine adds GPUs to a container. Pure.

use super::docker::Engine;
use super::image::Image;
use super::line::Line;
use crate::driver_volume::VOLUME;
use crate::failure::{Failure, Result};

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
                Failure::new(format!("unknown back end: {text}"))
                    .hint("NV_BACKEND can be cdi, runtime, gpus or volume")
            })
    }
}

/// Returns the option by which the user already selects GPUs, if there is one.
pub(super) fn users_own(line: &Line) -> Option<&'static str> {
    let given = |name: &str| line.options.iter().any(|given| given.name == name);
    if given("gpus") {
        Some("--gpus")
    } else if given("runtime") {
        Some("--runtime")
    } else if line.values("device").any(is_cdi_name) {
        Some("a CDI device")
    } else {
        None
    }
}

/// Returns true if a value of `--device` is a CDI device, `vendor.com/class=name`.
fn is_cdi_name(value: &str) -> bool {
    !value.starts_with('/')
        && value
            .split_once('=')
            .is_some_and(|(kind, name)| kind.contains('/') && !name.is_empty())
}

/// Chooses the back end for an image; `specified` returns whether CDI specifications of the kind are in these
/// directories, for engines that do not list their devices.
pub(super) fn choose(
    engine: &Engine,
    image: &Image,
    specified: impl Fn(&[String]) -> bool,
) -> Choice {
    let choice = |backend, reason: String| Choice { backend, reason };
    let prefix = format!("{CDI_KIND}=");
    if engine
        .cdi_devices
        .iter()
        .any(|name| name.starts_with(&prefix))
    {
        return choice(Backend::Cdi, format!("the engine lists {CDI_KIND} devices"));
    }
    if engine.cdi_devices.is_empty()
        && !engine.cdi_directories.is_empty()
        && specified(&engine.cdi_directories)
    {
        let where_ = engine.cdi_directories.join(", ");
        return choice(
            Backend::Cdi,
            format!("the engine reads CDI specifications from {where_}, which have {CDI_KIND}"),
        );
    }
    if engine.runtimes.iter().any(|name| name == RUNTIME) {
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
    let reason = match wants_volume && engine.api >= GPUS_SINCE {
        true => format!(
            "the image asks for the volume {VOLUME}, and the engine has neither CDI devices nor a runtime {RUNTIME}"
        ),
        false => format!("the engine's interface is {major}.{minor}, which has no other way"),
    };
    choice(Backend::Volume, reason)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::line::Given;
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
        choose(engine, &image, |directories| directories == ["/has"])
            .backend
            .name()
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
            users_own(&Line {
                options: vec![Given {
                    name: name.into(),
                    value: Some(value.into()),
                }],
                ..Line::default()
            })
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
