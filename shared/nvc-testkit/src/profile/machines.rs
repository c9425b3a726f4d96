//! Generates machines: profiles in which nothing is where one expects it.
//!
//! Index, PCI address, minor number and DRM nodes of the GPUs are permuted against each other, some GPUs are in MIG
//! mode, there are IMEX channels and other drivers, and names without a device have nodes of other kinds. A seed gives
//! the same machine each time; `nvc-simdriver profile machine SEED` prints it.

use fastrand::Rng;

use super::hardware::{Display, Hardware, Node};
use super::{Gpu, MigDevice, MigMode, Profile};

/// Drivers with devices that containers get only by their own variable.
const MODULES: [&str; 3] = ["nvidia-fs", "nvidia-nvswitch", "gdrdrv"];

/// Returns the machine of a seed.
pub fn machine(seed: u64) -> Profile {
    let mut rng = Rng::with_seed(seed);
    let count = rng.u32(2..=4);
    let mut minors = permuted(count, &mut rng);
    // A number that no index has.
    if rng.bool() {
        minors.iter_mut().for_each(|minor| *minor += 1);
    }
    let buses = permuted(count, &mut rng);
    let gpus: Vec<Gpu> = (0..count)
        .zip(minors.iter().zip(&buses))
        .map(|(n, (minor, bus))| Gpu {
            model: format!("NVIDIA Generated {n}"),
            uuid: format!("GPU-0e9a7c54-2c3f-4b18-a6d9-{:012x}", rng.u32(..)),
            bus_id: format!("{:04x}:{:02x}:00.0", bus % 2, 16 + bus * 16),
            minor: *minor,
            has_minor: true,
            compute_capability: (9, 0),
            brand: 14,
            // The first one stays whole, so that there is one to request.
            excluded: false,
            mig: if n > 0 && rng.bool() {
                MigMode::On
            } else {
                MigMode::Off
            },
        })
        .collect();
    let mig_devices = instances(&gpus, &mut rng);
    let hardware = hardware(&gpus, &mut rng);
    Profile {
        gpus,
        mig_devices,
        hardware,
        // With all nodes that there are.
        ..Profile::default().on_debian()
    }
}

/// Returns a Jetson with a discrete GPU, whose minor number is any.
pub fn pair(seed: u64) -> Profile {
    let mut rng = Rng::with_seed(seed);
    let mut profile = Profile::thor_pair();
    if let Some(discrete) = profile.gpus.last_mut() {
        discrete.minor = rng.u32(1..=4);
    }
    profile.hardware = hardware(&profile.gpus, &mut rng);
    profile
}

/// Returns a change that a container with the host's /dev can make: one node of this machine is replaced by another.
/// Replaced nodes are no node of the machine any more.
pub fn replacement(profile: &Profile, seed: u64) -> Node {
    let mut rng = Rng::with_seed(seed);
    let mut paths: Vec<String> = [
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia-modeset",
    ]
    .map(|name| format!("/dev/{name}"))
    .to_vec();
    paths.extend(
        profile
            .gpus
            .iter()
            .map(|gpu| format!("/dev/nvidia{}", gpu.minor)),
    );
    let displays = profile.hardware.displays.iter().flat_map(Display::nodes);
    paths.extend(displays.map(|(name, _)| format!("/dev/dri/{name}")));
    let at = rng.usize(..paths.len());
    odd_node(paths.swap_remove(at), &mut rng)
}

/// Returns numbers from zero in any order.
fn permuted(count: u32, rng: &mut Rng) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..count).collect();
    rng.shuffle(&mut numbers);
    numbers
}

fn instances(gpus: &[Gpu], rng: &mut Rng) -> Vec<MigDevice> {
    let mut found = Vec::new();
    for (n, _) in (0..).zip(gpus).filter(|(_, gpu)| gpu.mig == MigMode::On) {
        let ids = permuted(7, rng);
        for (slot, id) in (0..rng.u32(1..=3)).zip(ids) {
            found.push(MigDevice {
                gpu: n,
                slot,
                gpu_instance: 7 + id,
                compute_instance: rng.u32(0..2),
                uuid: format!("MIG-7c5f2b9e-1d84-5a06-{slot:04x}-{n:012x}"),
                name: "1g.10gb".into(),
            });
        }
    }
    found
}

fn hardware(gpus: &[Gpu], rng: &mut Rng) -> Hardware {
    let count = u32::try_from(gpus.len()).unwrap_or(0);
    // The machine's own display adapter may be the first card.
    let (first, cards, renders) = (rng.u32(0..2), permuted(count, rng), permuted(count, rng));
    let displays = cards.iter().zip(renders).enumerate();
    let displays = displays.map(|(gpu, (card, render))| Display {
        gpu,
        card: first + card,
        render: 128 + first + render,
    });
    let mut hardware = Hardware {
        displays: displays.collect(),
        channels: vec![rng.u32(0..4), 4 + rng.u32(0..2000)],
        modules: MODULES.map(String::from).to_vec(),
        nodes: Vec::new(),
    };
    for (path, driver, minor) in [
        ("/dev/nvidia-fs0", "nvidia-fs", 0),
        ("/dev/nvidia-nvswitchctl", "nvidia-nvswitch", 255),
        ("/dev/nvidia-nvswitch0", "nvidia-nvswitch", 0),
        ("/dev/gdrdrv", "gdrdrv", 0),
    ] {
        hardware.nodes.push(Node {
            path: path.into(),
            kind: 'c',
            major: driver.into(),
            minor,
        });
    }
    // Nodes that a user made at names without a device.
    for name in [
        "nvidia-fs7",
        "nvidia-fs8",
        "nvidia-nvswitch5",
        "nvidia9",
        "infiniband/uverbs3",
    ] {
        let node = odd_node(format!("/dev/{name}"), rng);
        hardware.nodes.push(node);
    }
    hardware
}

/// Returns a node that is not the device of its name.
fn odd_node(path: String, rng: &mut Rng) -> Node {
    let (kind, major) = [
        ('b', "7"),
        ('p', "0"),
        ('f', "0"),
        // The memory of the machine, and another driver's device.
        ('c', "1"),
        ('c', "nvidia"),
        ('c', "nvidia-fs"),
    ][rng.usize(..6)];
    // No device of these drivers has the number.
    let minor = 200 + rng.u32(0..50);
    Node {
        path,
        kind,
        major: major.into(),
        minor,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_permuted_and_reproducible() {
        let machines: Vec<Profile> = (0..50).map(machine).collect();
        let is_permuted = |number: fn(usize, &Profile) -> usize| {
            let differs =
                |profile: &&Profile| (0..profile.gpus.len()).any(|n| number(n, profile) != n);
            machines.iter().filter(differs).count()
        };
        assert!(is_permuted(|n, profile| profile.gpus[n].minor as usize) > 25);
        assert!(is_permuted(|n, profile| profile.hardware.displays[n].card as usize) > 25);
        assert!(
            machines
                .iter()
                .any(|profile| !profile.mig_devices.is_empty())
        );
        for (seed, profile) in (0..).zip(&machines) {
            assert_eq!(machine(seed), *profile);
            assert_eq!(Profile::parse(&profile.to_string()).as_ref(), Ok(profile));
        }
    }
}
