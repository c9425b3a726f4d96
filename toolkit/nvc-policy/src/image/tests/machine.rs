//! Defines a machine for tables: three GPUs, the last of them with a MIG device.

use super::*;

/// A machine with three GPUs, the last of them with a MIG device, and a specification that names the first two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Three;

/// The UUIDs of the devices, with their indices.
const DEVICES: [(&str, &str); 4] = [
    ("0", "GPU-a"),
    ("1", "GPU-b"),
    ("2", "GPU-c"),
    ("2:0", "MIG-d"),
];

impl Machine for Three {
    fn denoted(&self, name: &str) -> libnvc::Result<Denoted> {
        let device = name.split_once('=').map_or(name, |(_, device)| device);
        let device = match device {
            // A kind with devices of its own numbers.
            "0" if name.contains("/slot=") => "2",
            "all" if name.contains("/slot=") => {
                return Ok(Denoted::Gpus(vec!["GPU-b".into(), "GPU-c".into()]));
            }
            "gpu1" => "1",
            "mig2:0" => "2:0",
            other => other,
        };
        let uuids: &[&str] = match device {
            "all" => &["GPU-a", "GPU-b", "GPU-c", "MIG-d"],
            "pair" => &["GPU-a", "GPU-b"],
            device => {
                let known = DEVICES
                    .iter()
                    .find(|(index, uuid)| *index == device || uuid.eq_ignore_ascii_case(device));
                let uuids = known.map(|(_, uuid)| uuid.to_string());
                return Ok(Denoted::gpus(uuids.into_iter().collect()));
            }
        };
        Ok(Denoted::Gpus(
            uuids.iter().map(ToString::to_string).collect(),
        ))
    }

    fn names(&self, kind: &str) -> Vec<String> {
        let devices: &[&str] = match kind {
            "nvidia.com/gpu" => &["0", "1", "all"],
            "k8s.gpu.nvidia.com/slot" => &["0", "1", "all"],
            "k8s.gpu.nvidia.com/device" => &["all", "pair", "GPU-b"],
            _ => &[],
        };
        let names = devices.iter().map(|device| format!("{kind}={device}"));
        names.collect()
    }
}
