//! Runs containers after another container, which has the host's /dev and may make nodes there, has replaced some; and
//! on a machine whose numbers do not agree. What a container gets is compared in config.json.

use std::fs;

use nvc_testkit::driver::Driver;
use nvc_testkit::profile::Profile;
use nvc_testkit::profile::hardware::{Display, Hardware, Node};
use nvc_tests::bundle::Bundle;
use nvc_tests::world::{complaint, printed};
use serde_json::Value;

use super::machines::world;
use super::runtimes::Body;

/// Name and body of each test; the argument is the low-level runtime.
pub(crate) const TESTS: &[(&str, Body)] = &[
    ("gives_displays_of_the_resolved_gpu", displays),
    ("gives_no_displays_that_are_not_supported", supported_only),
    ("links_all_displays_by_one_hook", one_hook),
    ("gives_no_other_device_as_a_feature", features),
    ("gives_no_other_device_by_a_specification", specifications),
];

const ALL: &str = "NVIDIA_DRIVER_CAPABILITIES=all";

/// Two GPUs: index, minor number and DRM nodes are in three orders.
fn crossed() -> Profile {
    let mut profile = Profile::default().on_debian();
    profile.mig_devices.clear();
    for (gpu, minor) in profile.gpus.iter_mut().zip([1, 0]) {
        gpu.minor = minor;
        gpu.mig = nvc_testkit::profile::MigMode::Off;
    }
    let display = |gpu, card, render| Display { gpu, card, render };
    profile.hardware = Hardware {
        displays: vec![display(0, 2, 128), display(1, 1, 129)],
        modules: vec!["nvidia-fs".into()],
        ..Hardware::default()
    };
    profile
}

/// Returns the sorted paths of the nodes and of the mounts for graphics in config.json.
fn given(bundle: &Bundle) -> Vec<String> {
    let spec = bundle.spec();
    let texts = |list: &str, key: &str| -> Vec<String> {
        let entries = spec.pointer(list).and_then(Value::as_array);
        let texts = entries
            .into_iter()
            .flatten()
            .filter_map(|entry| entry[key].as_str());
        texts.map(String::from).collect()
    };
    let mut found = texts("/linux/devices", "path");
    let hooks = spec["hooks"]["createContainer"].as_array();
    let words = hooks
        .into_iter()
        .flatten()
        .filter_map(|hook| hook["args"].as_array());
    for word in words.flatten().filter_map(Value::as_str) {
        let plan = word.strip_prefix("--plan=").unwrap_or("{}");
        let plan: Value = serde_json::from_str(plan).unwrap_or_default();
        let intents = plan["intents"].as_array().into_iter().flatten();
        let places = intents.filter_map(|intent| intent["place"]["at"].as_str());
        found.extend(
            places
                .filter(|path| path.contains("vulkan"))
                .map(String::from),
        );
    }
    found.sort();
    found
}

fn displays(runtime: &str) {
    let dri = |numbers: [u32; 2]| {
        let [card, render] = numbers;
        vec![
            format!("/dev/dri/card{card}"),
            format!("/dev/dri/renderD{render}"),
        ]
    };
    let (first, second) = (dri([2, 128]), dri([1, 129]));
    let both = || first.iter().chain(&second).cloned().collect();
    let uuid = crossed().gpus[1].uuid.clone();
    let address = crossed().gpus[1].bus_id.clone();
    for (device, expected) in [
        ("0", first.clone()),
        ("1", second.clone()),
        (&uuid, second.clone()),
        (&address, second.clone()),
        ("none", Vec::new()),
        ("all", both()),
    ] {
        let bundle = Bundle::new(
            world(runtime, "legacy", &crossed()),
            &[&format!("NVIDIA_VISIBLE_DEVICES={device}"), ALL],
            "true",
        );
        // nvidia-container-cli knows all of these names.
        printed(&mut bundle.run());
        let mut found = given(&bundle);
        found.retain(|path| path.starts_with("/dev/dri/"));
        let mut expected = expected;
        expected.sort();
        assert_eq!(found, expected, "{device}: {}", bundle.world.log());
    }
}

/// Each hook is a process at every start.
fn one_hook(runtime: &str) {
    for mode in ["legacy", "jit-cdi", "cdi"] {
        let world = world(runtime, mode, &crossed());
        let device = if mode == "cdi" {
            "nvidia.com/gpu=all"
        } else {
            "all"
        };
        let bundle = Bundle::new(
            world,
            &[&format!("NVIDIA_VISIBLE_DEVICES={device}"), ALL],
            "true",
        );
        printed(&mut bundle.run());
        let spec = bundle.spec();
        let hooks = spec["hooks"]["createContainer"].as_array().into_iter();
        let hooks: Vec<String> = hooks
            .flatten()
            .map(|hook| hook["args"].to_string())
            .filter(|words| words.contains("by-path"))
            .collect();
        assert_eq!(hooks.len(), 1, "{mode}: {hooks:?}");
        for gpu in &crossed().gpus {
            let address = gpu.bus_id.to_lowercase();
            let address = &address[address.len() - 12..];
            assert!(hooks[0].contains(address), "{mode}: {address}: {hooks:?}");
        }
    }
}

fn supported_only(runtime: &str) {
    for (supported, has_displays) in [("compute,utility", false), ("compute,display", true)] {
        let world = world(runtime, "legacy", &crossed());
        world.set_at_top(&format!("supported-driver-capabilities = \"{supported}\""));
        let icd = world.driver.path("/usr/share/vulkan/icd.d/nvidia_icd.json");
        nvc_testkit::files::file(&icd, "{}", 0o644).unwrap_or_else(|error| panic!("{error}"));
        let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=0", ALL], "true");
        printed(&mut bundle.run());
        let found = given(&bundle);
        let count = |part: &str| found.iter().filter(|path| path.contains(part)).count();
        let expected = if has_displays { (2, 1) } else { (0, 0) };
        assert_eq!(
            (count("/dev/dri/"), count("vulkan")),
            expected,
            "{supported}: {found:?}"
        );
    }
}

/// Replaces a node by one of these types and numbers.
fn replace(driver: &Driver, path: &str, (kind, major, minor): (char, &str, u32)) {
    let node = Node {
        path: path.into(),
        kind,
        major: major.into(),
        minor,
    };
    driver
        .replace(&node)
        .unwrap_or_else(|error| panic!("{error}"));
}

/// A disk, a fifo, a file, and character devices: the machine's memory, another GPU.
const OTHERS: [(char, &str, u32); 5] = [
    ('b', "8", 0),
    ('p', "0", 0),
    ('f', "0", 0),
    ('c', "1", 1),
    ('c', "nvidia", 0),
];

fn features(runtime: &str) {
    for mode in ["legacy", "jit-cdi"] {
        let world = world(runtime, mode, &crossed());
        let names = [
            "nvidia-fs4",
            "nvidia-fs5",
            "nvidia-fs6",
            "nvidia-fs7",
            "nvidia-fs8",
        ];
        for (name, other) in names.iter().zip(OTHERS) {
            replace(world.driver, &format!("/dev/{name}"), other);
        }
        // Of the driver, but with a number of another name.
        replace(world.driver, "/dev/nvidia-fs9", ('c', "nvidia-fs", 3));
        replace(world.driver, "/dev/nvidia-fs2", ('c', "nvidia-fs", 2));
        let env = ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GDS=enabled"];
        let bundle = Bundle::new(world, &env, "true");
        printed(&mut bundle.run());
        let mut found = given(&bundle);
        found.retain(|path| path.starts_with("/dev/nvidia-fs"));
        let log = bundle.world.log();
        assert_eq!(found, ["/dev/nvidia-fs2"], "{mode}: {log}");
        let said = |text: &str| assert!(log.contains(text), "{mode}: {text}: {log}");
        said("NVIDIA_GDS: left out: /dev/nvidia-fs4 is not a character device");
        said("NVIDIA_GDS: left out: /dev/nvidia-fs8 is 195:0, and the driver's major number is ");
    }
}

/// The host's nodes are replaced after the specification was generated; older ones record no types.
fn specifications(runtime: &str) {
    for has_types in [true, false] {
        let world = world(runtime, "cdi", &crossed());
        let file = world.path("cdi/nvidia.yaml");
        if !has_types {
            let text = fs::read_to_string(&file).unwrap_or_default();
            let lines = text.lines().filter(|line| line.trim() != "type: c");
            let text: String = lines.flat_map(|line| [line, "\n"]).collect();
            fs::write(&file, text).unwrap_or_else(|error| panic!("{error}"));
        }
        let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=0"], "true");
        let driver = bundle.world.driver;
        let fresh = bundle.spec();
        let uvm = driver.majors().uvm.to_string();
        for (path, own) in [
            ("/dev/nvidia1", ("nvidia", 1)),
            ("/dev/nvidiactl", ("nvidia", 255)),
            ("/dev/nvidia-uvm", (uvm.as_str(), 0)),
            ("/dev/nvidia-modeset", ("nvidia", 254)),
            ("/dev/dri/card2", ("226", 2)),
        ] {
            for other in OTHERS {
                replace(driver, path, other);
                let said = complaint(&mut bundle.run());
                let what = format!("{path} as {other:?}, types: {has_types}: {said}");
                assert!(said.contains(path), "{what}");
                let is_same = bundle.spec() == fresh || given(&bundle).is_empty();
                assert!(is_same, "{what}");
                bundle.write(&fresh);
            }
            replace(driver, path, ('c', own.0, own.1));
        }
        printed(&mut bundle.run());
        assert!(given(&bundle).contains(&"/dev/nvidia1".to_owned()));
    }
}
