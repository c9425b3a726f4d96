//! Runs containers on generated machines, in which no two numbers agree: each sees exactly the nodes of what it asked
//! for, by the simulated driver's word, also after a container with the host's /dev has replaced one.
//!
//! `NVC_TEST_SEED=7` begins with another machine; a failure names its seed, and `nvc-simdriver profile machine SEED`
//! prints it.

use std::collections::BTreeSet;

use nvc_testkit::driver::{Builder, Driver, compute_instance_minor, gpu_instance_minor};
use nvc_testkit::harness;
use nvc_testkit::profile::hardware::Display;
use nvc_testkit::profile::{MigMode, Profile, machines};
use nvc_tests::bundle::Bundle;
use nvc_tests::world::World;
use serde_json::{Value, json};

use super::runtimes::Body;

/// Name and body of each test; the argument is the low-level runtime.
pub(crate) const TESTS: &[(&str, Body)] = &[
    ("isolates_on_any_machine_in_legacy_mode", |runtime| {
        each(runtime, "legacy");
    }),
    ("isolates_on_any_machine_in_cdi_mode", |runtime| {
        each(runtime, "cdi");
    }),
    ("isolates_on_any_machine_in_jit_cdi_mode", |runtime| {
        each(runtime, "jit-cdi");
    }),
    ("isolates_on_any_machine_in_csv_mode", |runtime| {
        each(runtime, "csv");
    }),
];

/// Prints every node that a driver's can be, with its number, and the links to displays.
const LOOK: &str = "for n in /dev/nvidia* /dev/nvidia-caps/* /dev/nvidia-caps-imex-channels/* /dev/dri/* /dev/gdrdrv \
                    /dev/infiniband/*; do [ -d $n ] || [ ! -e $n ] || stat -c '%n %F %t:%T' $n; done; \
                    for n in /dev/dri/by-path/*; do [ ! -e $n ] || echo $n; done";

/// What an operating system would list for the integrated GPU; the patterns match nodes of all GPUs.
const LIST: &str = "dev, /dev/nvidia[0-9]*\ndev, /dev/nvidiactl\ndev, /dev/dri/card*\ndev, /dev/dri/render*\n\
                    lib, /usr/lib/*-linux-gnu/libcuda.so.*\n";

const FEATURES: [&str; 4] = [
    "NVIDIA_GDS",
    "NVIDIA_MOFED",
    "NVIDIA_GDRCOPY",
    "NVIDIA_NVSWITCH",
];

fn each(runtime: &str, mode: &str) {
    let seed = std::env::var("NVC_TEST_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok()).unwrap_or(20);
    for number in 0..harness::cases(3, 100) {
        check(runtime, mode, seed + number as u64);
    }
}

/// A request, and what it gives.
struct Asked {
    device: String,
    /// Lines that the container prints.
    expected: BTreeSet<String>,
}

fn check(runtime: &str, mode: &str, seed: u64) {
    let profile = match mode {
        "csv" => machines::pair(seed),
        _ => machines::machine(seed),
    };
    let world = world(runtime, mode, &profile);
    let driver = world.driver;
    let requests = requests(driver, mode);
    let bundle = Bundle::new(world, &[], LOOK);
    let fresh = bundle.spec();
    let place = |device: &str| format!("machine {seed}, device {device}, {mode} under {runtime}");
    for Asked { device, expected } in &requests {
        let seen = run(&bundle, &fresh, device);
        let seen = seen.unwrap_or_else(|said| panic!("{}: {said}", place(device)));
        assert_eq!(seen, *expected, "{}\n{profile}", place(device));
    }
    // From now on, one node is another device.
    let node = machines::replacement(&profile, seed);
    driver
        .replace(&node)
        .unwrap_or_else(|error| panic!("{error}"));
    for Asked { device, expected } in &requests {
        let place = format!("{}, after {node:?}", place(device));
        let concerns = |line: &&String| line.starts_with(&format!("{} ", node.path));
        let without: BTreeSet<String> = expected
            .iter()
            .filter(|line| !concerns(line))
            .cloned()
            .collect();
        match run(&bundle, &fresh, device) {
            // Its links are of no use, and do no harm.
            Ok(seen) if without.len() < expected.len() => {
                let more: Vec<&String> = seen.difference(&without).collect();
                assert!(more.is_empty(), "{place}: {more:?}\n{profile}");
            }
            Ok(seen) => assert_eq!(seen, *expected, "{place}\n{profile}"),
            Err(said) => assert!(without.len() < expected.len(), "{place}: {said}\n{profile}"),
        }
    }
}

/// Creates an environment on a machine with this profile.
pub(crate) fn world(runtime: &str, mode: &str, profile: &Profile) -> World {
    let profile = profile.clone();
    let (mut world, profile) = match mode {
        "csv" => (World::with_list(runtime, LIST), profile.on_debian()),
        mode => (World::new(runtime, mode, ""), profile),
    };
    world.use_driver(&Builder::new(profile));
    if mode == "cdi" {
        world.specify(&[]);
    }
    world
}

/// Runs a container; returns the lines that it prints, or the messages of a failure.
fn run(bundle: &Bundle, fresh: &Value, device: &str) -> Result<BTreeSet<String>, String> {
    let mut spec = fresh.clone();
    let channel = bundle.world.driver.profile().hardware.channels.first();
    let channel = channel.map_or_else(String::new, u32::to_string);
    let mut env = vec![
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        format!("NVIDIA_VISIBLE_DEVICES={device}"),
        "NVIDIA_DRIVER_CAPABILITIES=all".into(),
        format!("NVIDIA_IMEX_CHANNELS={channel}"),
    ];
    env.extend(FEATURES.map(|variable| format!("{variable}=enabled")));
    spec["process"]["env"] = json!(env);
    bundle.write(&spec);
    let output = bundle
        .run()
        .output()
        .unwrap_or_else(|error| panic!("{error}"));
    let [out, err] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if output.status.success() {
        Ok(out.lines().map(String::from).collect())
    } else {
        Err(err)
    }
}

/// Returns requests for some GPUs by index and UUID, and for MIG devices.
fn requests(driver: &Driver, mode: &str) -> Vec<Asked> {
    let profile = driver.profile();
    let mut all = Vec::new();
    let whole = profile.gpus.iter().enumerate();
    for (index, gpu) in whole.filter(|(_, gpu)| gpu.mig != MigMode::On) {
        let names = [index.to_string(), gpu.uuid.clone()];
        let device = names.into_iter().nth(index % 2).unwrap_or_default();
        let expected = lines(driver, mode, of_gpu(driver, mode, index));
        all.push(Asked { device, expected });
    }
    for mig in profile.mig_devices.iter().take(1) {
        let minor = profile.gpus[mig.gpu].minor;
        let (gi, ci) = (mig.gpu_instance, mig.compute_instance);
        let mut nodes = vec![(format!("nvidia{minor}"), 195, minor)];
        for minor in [
            gpu_instance_minor(minor, gi),
            compute_instance_minor(minor, gi, ci),
        ] {
            let name = format!("nvidia-caps/nvidia-cap{minor}");
            nodes.push((name, driver.majors().caps, minor));
        }
        let device = format!("{}:{}", mig.gpu, mig.slot);
        let expected = lines(driver, mode, nodes);
        all.push(Asked { device, expected });
    }
    all
}

/// A node's name below /dev, and its number.
type Numbered = (String, u32, u32);

/// Returns the nodes of a whole GPU.
fn of_gpu(driver: &Driver, mode: &str, index: usize) -> Vec<Numbered> {
    let profile = driver.profile();
    let minor = profile.gpus[index].minor;
    let mut nodes = vec![(format!("nvidia{minor}"), 195, minor)];
    let displays = profile
        .hardware
        .displays
        .iter()
        .filter(|display| display.gpu == index);
    for (name, minor) in displays.flat_map(Display::nodes) {
        nodes.push((format!("dri/{name}"), 226, minor));
    }
    let is_integrated = mode == "csv" && index == 0;
    if !is_integrated {
        for word in ["card", "render"] {
            let bus = &profile.gpus[index].bus_id;
            nodes.push((format!("dri/by-path/pci-{bus}-{word}"), 0, 0));
        }
    }
    nodes
}

/// Returns what a container prints that has these nodes, and those that every container of the mode has.
fn lines(driver: &Driver, mode: &str, mut nodes: Vec<Numbered>) -> BTreeSet<String> {
    let uvm = driver.majors().uvm;
    nodes.push(("nvidiactl".into(), 195, 255));
    // A Jetson's lists name what goes with the integrated GPU.
    let is_listed = mode == "csv" && nodes.iter().any(|(name, ..)| name == "nvidia0");
    if !is_listed {
        nodes.extend([
            ("nvidia-modeset".into(), 195, 254),
            ("nvidia-uvm".into(), uvm, 0),
            ("nvidia-uvm-tools".into(), uvm, 1),
        ]);
    }
    if mode != "cdi" {
        for (name, driver_name, minor) in [
            ("nvidia-fs0", "nvidia-fs", 0),
            ("nvidia-nvswitchctl", "nvidia-nvswitch", 255),
            ("nvidia-nvswitch0", "nvidia-nvswitch", 0),
            ("gdrdrv", "gdrdrv", 0),
        ] {
            let major = driver.major(driver_name);
            let major = major.unwrap_or_else(|| panic!("no {driver_name}"));
            nodes.push((name.into(), major, minor));
        }
    }
    if mode == "legacy" || mode == "jit-cdi" {
        let channel = driver.profile().hardware.channels[0];
        let name = format!("nvidia-caps-imex-channels/channel{channel}");
        nodes.push((name, driver.majors().imex, channel));
    }
    let line = |(name, major, minor): Numbered| match major {
        0 => format!("/dev/{name}"),
        _ => format!("/dev/{name} character special file {major:x}:{minor:x}"),
    };
    nodes.into_iter().map(line).collect()
}
