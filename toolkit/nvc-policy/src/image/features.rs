//! Parses requests for other kinds of devices, each of which has its own variable.

use super::{Container, Environment, Policy};

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

/// Returns the features that a container may have, and a warning about ignored requests. Like a GPU, a feature is
/// granted by the environment only if the environment of this container counts.
pub fn of(container: &Container, policy: &Policy) -> (Vec<Feature>, Option<String>) {
    let asked = requested(&container.environment);
    if asked.is_empty() || policy.accepts_environment_of(container) {
        return (asked, None);
    }
    let names: Vec<_> = asked.into_iter().map(|f| f.variable().to_owned()).collect();
    (Vec::new(), Some(super::devices::ignoring(&names)))
}

fn requested(environment: &Environment) -> Vec<Feature> {
    let asked = |feature: &Feature| environment.get(feature.variable()) == Some("enabled");
    Feature::ALL.into_iter().filter(asked).collect()
}
