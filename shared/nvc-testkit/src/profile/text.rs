//! Reads and writes the text form of a profile, which `c/nvml/state.c` describes.

use std::fmt;

use super::{Fault, Gpu, Link, MigDevice, MigMode, NONE, Profile};

impl Profile {
    /// Parses the text form; the error includes the line.
    ///
    /// # Errors
    /// A statement is unknown or incomplete.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut profile = Self {
            driver: String::new(),
            cuda: 0,
            gpus: Vec::new(),
            mig_devices: Vec::new(),
            ..Self::of_two_gpus()
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
        } else if self.hardware.statement(line).is_none() && self.layout.statement(line).is_none() {
            let (key, value) = line.split_once('=')?;
            match key {
                "driver" => self.driver = value.into(),
                "cuda" => self.cuda = value.parse().ok()?,
                "init-ms" => self.init_ms = value.parse().ok()?,
                "attach-ms" => self.attach_ms = value.parse().ok()?,
                _ => self.faults.push(parse_fault(key, value)?),
            }
        }
        Some(())
    }
}

/// Returns the value of `key=value`; `name` takes the rest of the line.
pub(super) fn word<'a>(words: &'a str, key: &str) -> Option<&'a str> {
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
        excluded: word(words, "excluded") == Some("yes"),
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
        "slow-at" => Fault::SlowAt(value.into()),
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
        for (key, time) in [("init-ms", self.init_ms), ("attach-ms", self.attach_ms)] {
            if time > 0 {
                writeln!(f, "{key}={time}")?;
            }
        }
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
            if gpu.excluded {
                write!(f, "excluded=yes ")?;
            }
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
        self.layout.fmt(f)?;
        for fault in &self.faults {
            match fault {
                Fault::Fail { symbol, code, gpu } => match gpu {
                    Some(gpu) => writeln!(f, "fail={symbol}:{code}:{gpu}")?,
                    None => writeln!(f, "fail={symbol}:{code}")?,
                },
                Fault::CrashAt(symbol) => writeln!(f, "crash-at={symbol}")?,
                Fault::HangAt(symbol) => writeln!(f, "hang-at={symbol}")?,
                Fault::SlowAt(fault) => writeln!(f, "slow-at={fault}")?,
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
    use super::super::machines;
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
            .fault(Fault::SlowAt("nvmlDeviceGetName:5:1".into()))
            .fault(Fault::Garbage("nvmlDeviceGetUUID".into()))
            .fault(Fault::Missing("nvmlDeviceGetMigMode".into()))
            .fault(Fault::Lost(0))
            .fault(Fault::LostLater(1));
        (profile.init_ms, profile.attach_ms) = (10, 7);
        profile.gpus[0].excluded = true;
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
            Profile::real("h100").unwrap(),
            Profile::real("h200").unwrap(),
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
