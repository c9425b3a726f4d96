//! Reads which further kinds of devices a GPU container asks for by switches of their own.

use super::Environment;

/// A kind of device beside the GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Feature {
    /// GPUDirect Storage.
    Gds,
    /// Mellanox OFED: InfiniBand.
    Mofed,
    /// GDRCopy.
    Gdrcopy,
    /// NVSwitch.
    Nvswitch,
}

impl Feature {
    /// All of them, in the order in which they are put into a container.
    pub const ALL: [Self; 4] = [Self::Gds, Self::Mofed, Self::Gdrcopy, Self::Nvswitch];

    /// The variable that asks for it.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Gds => "NVIDIA_GDS",
            Self::Mofed => "NVIDIA_MOFED",
            Self::Gdrcopy => "NVIDIA_GDRCOPY",
            Self::Nvswitch => "NVIDIA_NVSWITCH",
        }
    }
}

/// The features that a container asks for.
pub fn of(environment: &Environment) -> Vec<Feature> {
    let asked = |feature: &Feature| environment.get(feature.variable()) == Some("enabled");
    Feature::ALL.into_iter().filter(asked).collect()
}
