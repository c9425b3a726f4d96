//! Parses requests for other kinds of devices, each of which has its own variable.

use super::{Container, Environment, Origin, Policy};
use crate::config::keys::ACCEPT_FEATURES;

/// A kind of device other than GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Feature {
    /// GPUDirect Storage.
    Gds,
    /// Mellanox OFED: InfiniBand.
    Mofed,
    Gdrcopy,
    Nvswitch,
}

impl Feature {
    /// All of them, in the order in which they are added to a container.
    pub const ALL: [Self; 4] = [Self::Gds, Self::Mofed, Self::Gdrcopy, Self::Nvswitch];

    /// Returns the variable that requests it.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Gds => "NVIDIA_GDS",
            Self::Mofed => "NVIDIA_MOFED",
            Self::Gdrcopy => "NVIDIA_GDRCOPY",
            Self::Nvswitch => "NVIDIA_NVSWITCH",
        }
    }
}

/// Returns the features that a container may have, and a warning about ignored requests; `origin` is that of its GPUs.
///
/// Like a GPU, a feature is granted by the environment only if the environment of this container counts, or if the
/// administrator says so. A device plugin that grants GPUs by mounts can request features by variables only.
pub fn of(
    container: &Container,
    policy: &Policy,
    origin: &Origin,
) -> (Vec<Feature>, Option<String>) {
    let asked = requested(&container.environment);
    let by_mounts = are_mounts(origin);
    if asked.is_empty()
        || policy.accepts_environment_of(container)
        || (by_mounts && policy.accept_features)
    {
        return (asked, None);
    }
    let names: Vec<_> = asked.into_iter().map(|f| f.variable().to_owned()).collect();
    let mut warning = super::devices::ignoring(&names);
    if by_mounts {
        warning += &format!(
            " ({ACCEPT_FEATURES} = true in config.toml accepts them in containers whose GPUs came by mounts)"
        );
    }
    (Vec::new(), Some(warning))
}

/// Returns true if mounts decided about the GPUs.
fn are_mounts(origin: &Origin) -> bool {
    match origin {
        Origin::Mounts => true,
        Origin::Narrowed(_, by) => are_mounts(by),
        // Features are the runtime's, which has chosen itself then.
        Origin::Annotations(_) | Origin::Environment(_) | Origin::LegacyImage | Origin::Runtime => {
            false
        }
    }
}

fn requested(environment: &Environment) -> Vec<Feature> {
    let asked = |feature: &Feature| environment.get(feature.variable()) == Some("enabled");
    Feature::ALL.into_iter().filter(asked).collect()
}
