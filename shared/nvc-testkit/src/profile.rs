//! Describes a simulated driver: its version, GPUs, MIG devices, and the faults of its NVML.
//!
//! The fake libnvidia-ml.so.1 reads the text form at run time (`c/nvml/state.c` has the grammar); users write it for
//! `nvc-simdriver build --profile FILE`. `text` reads and writes it, [`hardware`] and [`layout`] have the statements that NVML skips.

pub mod hardware;
pub mod layout;
pub mod machines;
mod text;

use hardware::Hardware;
use layout::Layout;
use text::word;

/// A simulated driver's answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Driver version, also the libraries' version.
    pub driver: String,
    /// CUDA version in NVML's form: 12020 is 12.2.
    pub cuda: u32,
    /// How long NVML's initialisation takes, in milliseconds.
    pub init_ms: u32,
    /// How long the first handle of a GPU takes, in milliseconds.
    pub attach_ms: u32,
    /// GPUs in NVML's order.
    pub gpus: Vec<Gpu>,
    /// MIG devices of all GPUs.
    pub mig_devices: Vec<MigDevice>,
    /// NVLinks.
    pub links: Vec<Link>,
    /// Faults of NVML.
    pub faults: Vec<Fault>,
    /// What the machine has beside the GPUs.
    pub hardware: Hardware,
    /// Where its files are.
    pub layout: Layout,
}

/// The PCI address of a GPU that has none.
pub const NONE: &str = "none";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Name of the product.
    pub model: String,
    /// `GPU-…`.
    pub uuid: String,
    /// `0000:3b:00.0`: domain, bus, device, function; [`NONE`] for a GPU that is no PCI device.
    pub bus_id: String,
    /// Minor number of its device node.
    pub minor: u32,
    /// NVML knows the minor number.
    pub has_minor: bool,
    pub compute_capability: (u32, u32),
    /// NVML's number of the brand.
    pub brand: u32,
    pub mig: MigMode,
    /// The kernel module was told to leave it out: NVML does not list it.
    pub excluded: bool,
}

/// MIG mode of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigMode {
    /// MIG is not supported.
    Unsupported,
    /// MIG is supported, but off.
    Off,
    /// MIG is on.
    On,
}

/// A MIG device: a compute instance of a GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigDevice {
    /// Index of its GPU in NVML's order.
    pub gpu: usize,
    /// NVML's index of the device; there may be gaps.
    pub slot: u32,
    pub gpu_instance: u32,
    pub compute_instance: u32,
    /// `MIG-…`.
    pub uuid: String,
    /// Its name in `nvidia-smi -L`: `3g.20gb`.
    pub name: String,
}

/// An NVLink of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Index of the GPU in NVML's order.
    pub gpu: usize,
    /// Number of the link.
    pub number: u32,
    /// The GPU at its other end; None for a switch.
    pub to: Option<usize>,
}

/// A fault of an NVML entry point; the symbol `load` stands for loading the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It returns an error, for all GPUs or one.
    Fail {
        /// Entry point.
        symbol: String,
        /// NVML's error number.
        code: u32,
        /// Only for this GPU.
        gpu: Option<usize>,
    },
    /// It aborts the process.
    CrashAt(String),
    /// It never returns.
    HangAt(String),
    /// It takes so many milliseconds: `SYMBOL:MS`, or `SYMBOL:MS:GPU` for one GPU.
    SlowAt(String),
    /// It succeeds with garbage.
    Garbage(String),
    /// It is missing from the library.
    Missing(String),
    /// This GPU has fallen off the bus.
    Lost(usize),
    /// This GPU falls off the bus as soon as there is a handle to it.
    LostLater(usize),
}

impl Default for Profile {
    /// Two GPUs, the second in MIG mode with two devices, on the machine of [`Layout::of_this_suite`].
    fn default() -> Self {
        Self {
            layout: Layout::of_this_suite(),
            ..Self::of_two_gpus()
        }
    }
}

impl Profile {
    fn of_two_gpus() -> Self {
        let mig = |slot, gpu_instance, uuid: &str, name: &str| MigDevice {
            gpu: 1,
            slot,
            gpu_instance,
            compute_instance: 0,
            uuid: uuid.into(),
            name: name.into(),
        };
        Self {
            driver: "570.124.06".into(),
            cuda: 12080,
            init_ms: 0,
            attach_ms: 0,
            gpus: vec![
                Gpu {
                    model: "NVIDIA L4 (simulated)".into(),
                    uuid: "GPU-51a2d1c0-64a7-4f6e-8d3b-0c9c5e2f7a10".into(),
                    bus_id: "0000:3b:00.0".into(),
                    minor: 0,
                    has_minor: true,
                    compute_capability: (8, 9),
                    brand: 14,
                    mig: MigMode::Unsupported,
                    excluded: false,
                },
                Gpu {
                    model: "NVIDIA H100 PCIe (simulated)".into(),
                    uuid: "GPU-9e0b7d54-2c3f-4b18-a6d9-7f1e8c4a5b21".into(),
                    bus_id: "0000:af:00.0".into(),
                    minor: 1,
                    has_minor: true,
                    compute_capability: (9, 0),
                    brand: 14,
                    mig: MigMode::On,
                    excluded: false,
                },
            ],
            mig_devices: vec![
                mig(0, 1, "MIG-7c5f2b9e-1d84-5a06-9b3c-e2f4a6d81030", "3g.40gb"),
                mig(1, 2, "MIG-0f8d6a3b-5e27-5c91-8a4d-b1c3d5e79f32", "2g.20gb"),
            ],
            links: Vec::new(),
            faults: Vec::new(),
            hardware: Hardware::default(),
            layout: Layout::default(),
        }
    }

    /// Moves the GPUs to a machine with an ordinary package in Debian's directories: 32-bit libraries, all services,
    /// /dev/nvidia-modeset and IMEX channels.
    #[must_use]
    pub fn on_debian(mut self) -> Self {
        self.layout = Layout::default();
        self
    }

    /// Describes a working driver without GPUs.
    pub fn without_gpus() -> Self {
        Self {
            gpus: Vec::new(),
            mig_devices: Vec::new(),
            ..Self::default()
        }
    }

    /// Returns a real machine, `h100` or `h200`, which differ in the GPU's name alone.
    pub fn real(name: &str) -> Option<Self> {
        let text = include_str!("../machines/h100");
        match name {
            "h100" => Self::parse(text).ok(),
            "h200" => Self::parse(&text.replace("H100 80GB HBM3", "H200")).ok(),
            _ => None,
        }
    }

    /// Describes a Jetson Orin with a discrete GPU.
    pub fn orin_pair() -> Self {
        let discrete = Gpu {
            model: "NVIDIA RTX A6000 (simulated)".into(),
            uuid: "GPU-7d21c3aa-93b5-4e8e-b7f6-10e4c59a2f33".into(),
            bus_id: "0005:09:00.0".into(),
            minor: 1,
            has_minor: true,
            compute_capability: (8, 6),
            brand: 13,
            mig: MigMode::Unsupported,
            excluded: false,
        };
        Self {
            cuda: 12060,
            gpus: vec![Self::orin(), discrete],
            mig_devices: Vec::new(),
            ..Self::of_two_gpus()
        }
    }

    /// Describes a Jetson Thor with a discrete GPU: its integrated GPU looks like a PCI device.
    pub fn thor_pair() -> Self {
        let mut profile = Self::orin_pair();
        if let Some(first) = profile.gpus.first_mut() {
            *first = Gpu {
                model: "NVIDIA Thor (simulated)".into(),
                uuid: "GPU-0b9f6e1c-3a58-4c47-9d20-6f2b7c81d5e4".into(),
                bus_id: "0000:01:00.0".into(),
                has_minor: true,
                compute_capability: (11, 0),
                ..first.clone()
            };
        }
        profile
    }

    /// Returns the GPU of an Orin. NVML knows neither a PCI address nor a minor number of it, and its UUID has no prefix.
    fn orin() -> Gpu {
        Gpu {
            model: "Orin (nvgpu)".into(),
            uuid: "3f6c5d0e-52b1-5f9a-8e47-c2d90a7b1846".into(),
            bus_id: NONE.into(),
            minor: 0,
            has_minor: false,
            compute_capability: (8, 7),
            brand: 0,
            mig: MigMode::Unsupported,
            excluded: false,
        }
    }

    /// Describes a machine with many GPUs of one model, each with many MIG devices.
    pub fn of_size(gpus: u32, migs_each: u32) -> Self {
        let gpu = |n| Gpu {
            model: "NVIDIA H100 PCIe (simulated)".into(),
            uuid: format!("GPU-9e0b7d54-2c3f-4b18-a6d9-{n:012x}"),
            bus_id: format!("{:04x}:{:02x}:00.0", n / 128, 2 * (n % 128)),
            minor: n,
            has_minor: true,
            compute_capability: (9, 0),
            brand: 14,
            mig: if migs_each > 0 {
                MigMode::On
            } else {
                MigMode::Off
            },
            excluded: false,
        };
        let mig = |n, slot| MigDevice {
            gpu: n as usize,
            slot,
            // The driver's numbers for instances of the smallest profile.
            gpu_instance: 7 + slot,
            compute_instance: 0,
            uuid: format!("MIG-7c5f2b9e-1d84-5a06-{slot:04x}-{n:012x}"),
            name: "1g.10gb".into(),
        };
        Self {
            gpus: (0..gpus).map(gpu).collect(),
            mig_devices: (0..gpus)
                .flat_map(|n| (0..migs_each).map(move |slot| mig(n, slot)))
                .collect(),
            ..Self::default()
        }
    }

    /// Adds a fault.
    #[must_use]
    pub fn fault(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }
}
