//! Describes a simulated driver: its version, GPUs, MIG devices, and the faults of its NVML.
//!
//! The fake libnvidia-ml.so.1 reads the text form at run time (`c/nvml/state.c` has the grammar); users write it for
//! `nvc-simdriver build --profile FILE`. [`hardware`] has the statements that NVML skips.

pub mod hardware;
pub mod machines;

use std::fmt;

use hardware::Hardware;

/// A simulated driver's answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Driver version, also the libraries' version.
    pub driver: String,
    /// CUDA version in NVML's form: 12020 is 12.2.
    pub cuda: u32,
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
    /// Two GPUs, the second in MIG mode with two devices.
    fn default() -> Self {
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
                },
            ],
            mig_devices: vec![
                mig(0, 1, "MIG-7c5f2b9e-1d84-5a06-9b3c-e2f4a6d81030", "3g.40gb"),
                mig(1, 2, "MIG-0f8d6a3b-5e27-5c91-8a4d-b1c3d5e79f32", "2g.20gb"),
            ],
            links: Vec::new(),
            faults: Vec::new(),
            hardware: Hardware::default(),
        }
    }
}

impl Profile {
    /// Describes a working driver without GPUs.
    pub fn without_gpus() -> Self {
        Self {
            gpus: Vec::new(),
            mig_devices: Vec::new(),
            ..Self::default()
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
        };
        Self {
            cuda: 12060,
            gpus: vec![Self::orin(), discrete],
            mig_devices: Vec::new(),
            ..Self::default()
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

    /// Parses the text form; the error includes the line.
    ///
    /// # Errors
    /// A statement is unknown or incomplete.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut profile = Self {
            driver: String::new(),
            cuda: 0,
            ..Self::without_gpus()
        };
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_end();
            if !line.is_empty() && !line.starts_with('#') {
                profile
                    .statement(line)
                    .ok_or_else(|| format!("line {}: cannot understand `{line}`", number + 1))?;
            }
        }
        let gpus = profile.gpus.len();
        if profile.driver.is_empty() {
            return Err("no line driver=VERSION".into());
        }
        if let Some(mig) = profile.mig_devices.iter().find(|mig| mig.gpu >= gpus) {
            return Err(format!("{} is on GPU {} of {gpus}", mig.uuid, mig.gpu));
        }
        let mut displays = profile.hardware.displays.iter();
        match displays.find(|display| display.gpu >= gpus) {
            Some(display) => Err(format!("DRM nodes of GPU {} of {gpus}", display.gpu)),
            None => Ok(profile),
        }
    }

    fn statement(&mut self, line: &str) -> Option<()> {
        if let Some(words) = line.strip_prefix("gpu ") {
            self.gpus.push(parse_gpu(words)?);
        } else if let Some(words) = line.strip_prefix("mig ") {
            self.mig_devices.push(parse_mig(words)?);
        } else if let Some(words) = line.strip_prefix("nvlink ") {
            self.links.push(parse_link(words)?);
        } else if self.hardware.statement(line).is_none() {
            let (key, value) = line.split_once('=')?;
            match key {
                "driver" => self.driver = value.into(),
                "cuda" => self.cuda = value.parse().ok()?,
                _ => self.faults.push(parse_fault(key, value)?),
            }
        }
        Some(())
    }
}

/// Returns the value of `key=value`; `name` takes the rest of the line.
fn word<'a>(words: &'a str, key: &str) -> Option<&'a str> {
    let name = words.find("name=");
    if key == "name" {
        return words.get(name? + "name=".len()..);
    }
    let before = words.get(..name.unwrap_or(words.len()))?;
    before
        .split(' ')
        .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

fn parse_gpu(words: &str) -> Option<Gpu> {
    let (major, minor) = word(words, "cc")?.split_once('.')?;
    Some(Gpu {
        model: word(words, "name")?.into(),
        uuid: word(words, "uuid")?.into(),
        bus_id: word(words, "bus")?.into(),
        minor: match word(words, "minor")? {
            NONE => 0,
            minor => minor.parse().ok()?,
        },
        has_minor: word(words, "minor")? != NONE,
        compute_capability: (major.parse().ok()?, minor.parse().ok()?),
        brand: word(words, "brand")?.parse().ok()?,
        mig: match word(words, "mig")? {
            "unsupported" => MigMode::Unsupported,
            "off" => MigMode::Off,
            "on" => MigMode::On,
            _ => return None,
        },
    })
}

fn parse_mig(words: &str) -> Option<MigDevice> {
    Some(MigDevice {
        gpu: word(words, "gpu")?.parse().ok()?,
        slot: word(words, "slot")?.parse().ok()?,
        gpu_instance: word(words, "gi")?.parse().ok()?,
        compute_instance: word(words, "ci")?.parse().ok()?,
        uuid: word(words, "uuid")?.into(),
        name: word(words, "name")?.into(),
    })
}

fn parse_link(words: &str) -> Option<Link> {
    Some(Link {
        gpu: word(words, "gpu")?.parse().ok()?,
        number: word(words, "link")?.parse().ok()?,
        to: match word(words, "to")? {
            "switch" => None,
            gpu => Some(gpu.parse().ok()?),
        },
    })
}

fn parse_fault(kind: &str, value: &str) -> Option<Fault> {
    Some(match kind {
        "fail" => {
            let mut parts = value.split(':');
            Fault::Fail {
                symbol: parts.next()?.into(),
                code: parts.next()?.parse().ok()?,
                gpu: match parts.next() {
                    Some(gpu) => Some(gpu.parse().ok()?),
                    None => None,
                },
            }
        }
        "crash-at" => Fault::CrashAt(value.into()),
        "hang-at" => Fault::HangAt(value.into()),
        "garbage" => Fault::Garbage(value.into()),
        "missing" => Fault::Missing(value.into()),
        "lost" => Fault::Lost(value.parse().ok()?),
        "lost-later" => Fault::LostLater(value.parse().ok()?),
        _ => return None,
    })
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "driver={}\ncuda={}", self.driver, self.cuda)?;
        for gpu in &self.gpus {
            let (major, minor) = gpu.compute_capability;
            let mig = match gpu.mig {
                MigMode::Unsupported => "unsupported",
                MigMode::Off => "off",
                MigMode::On => "on",
            };
            if gpu.has_minor {
                write!(f, "gpu minor={} ", gpu.minor)?;
            } else {
                write!(f, "gpu minor={NONE} ")?;
            }
            write!(f, "bus={} ", gpu.bus_id)?;
            write!(f, "cc={major}.{minor} brand={} mig={mig} ", gpu.brand)?;
            writeln!(f, "uuid={} name={}", gpu.uuid, gpu.model)?;
        }
        for mig in &self.mig_devices {
            write!(f, "mig gpu={} slot={} ", mig.gpu, mig.slot)?;
            write!(f, "gi={} ci={} ", mig.gpu_instance, mig.compute_instance)?;
            writeln!(f, "uuid={} name={}", mig.uuid, mig.name)?;
        }
        for Link { gpu, number, to } in &self.links {
            write!(f, "nvlink gpu={gpu} link={number} ")?;
            match to {
                Some(to) => writeln!(f, "to={to}")?,
                None => writeln!(f, "to=switch")?,
            }
        }
        self.hardware.fmt(f)?;
        for fault in &self.faults {
            match fault {
                Fault::Fail { symbol, code, gpu } => match gpu {
                    Some(gpu) => writeln!(f, "fail={symbol}:{code}:{gpu}")?,
                    None => writeln!(f, "fail={symbol}:{code}")?,
                },
                Fault::CrashAt(symbol) => writeln!(f, "crash-at={symbol}")?,
                Fault::HangAt(symbol) => writeln!(f, "hang-at={symbol}")?,
                Fault::Garbage(symbol) => writeln!(f, "garbage={symbol}")?,
                Fault::Missing(symbol) => writeln!(f, "missing={symbol}")?,
                Fault::Lost(gpu) => writeln!(f, "lost={gpu}")?,
                Fault::LostLater(gpu) => writeln!(f, "lost-later={gpu}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn written_profiles_parse() {
        let fail = |gpu| Fault::Fail {
            symbol: "nvmlDeviceGetName".into(),
            code: 15,
            gpu,
        };
        let mut profile = Profile::default()
            .fault(fail(None))
            .fault(fail(Some(1)))
            .fault(Fault::CrashAt("load".into()))
            .fault(Fault::HangAt("nvmlInit_v2".into()))
            .fault(Fault::Garbage("nvmlDeviceGetUUID".into()))
            .fault(Fault::Missing("nvmlDeviceGetMigMode".into()))
            .fault(Fault::Lost(0))
            .fault(Fault::LostLater(1));
        profile.links = [Some(1), None]
            .map(|to| Link {
                gpu: 0,
                number: 2,
                to,
            })
            .to_vec();
        for profile in [
            profile,
            Profile::orin_pair(),
            Profile::thor_pair(),
            machines::machine(1),
        ] {
            assert_eq!(Profile::parse(&profile.to_string()), Ok(profile));
        }
    }

    #[test]
    fn nonsense_is_refused_with_its_line() {
        let error = |text: &str| Profile::parse(text).unwrap_err();
        assert_eq!(error("cuda=1"), "no line driver=VERSION");
        assert!(error("driver=1\nfrob=2").starts_with("line 2: "));
        assert!(error("driver=1\n\ngpu name=x").starts_with("line 3: "));
        let node = "node type=x major=1 minor=1 path=/x";
        assert!(error(&format!("driver=1\n{node}")).starts_with("line 2: "));
        assert_eq!(
            error("driver=1\ndrm gpu=0 card=0 render=1"),
            "DRM nodes of GPU 0 of 0"
        );
        let mig = "mig gpu=0 slot=0 gi=1 ci=0 uuid=MIG-1 name=1g";
        assert_eq!(error(&format!("driver=1\n{mig}")), "MIG-1 is on GPU 0 of 0");
    }
}
