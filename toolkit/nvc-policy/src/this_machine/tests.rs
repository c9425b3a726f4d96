//! Tests that names denote what a container with them would get, and that no source of a request gives more than another
//! one allows, whatever the specifications' names are.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;

use libnvc::HostPath;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::image::devices::choice;
use crate::image::{Container, Devices, Environment, Mount, Policy};

const MINORS: [u32; 3] = [2, 0, 1];

/// The capabilities of the MIG devices of GPU 2, whose minor number is 1.
const MIGS: [[u32; 2]; 2] = [[21, 22], [31, 32]];

/// Returns three GPUs whose minor numbers are not their indices, the last one with two MIG devices.
fn gpus() -> Vec<Gpu> {
    let gpu = |(index, minor): (u32, u32)| Gpu {
        index,
        uuid: format!("GPU-aaaa{index}-x"),
        busid: format!("00000000:0{index}:00.0"),
        minor,
        ..Gpu::default()
    };
    let mut gpus: Vec<Gpu> = (0..).zip(MINORS).map(gpu).collect();
    gpus[2].mig_devices = [0, 1]
        .map(|index| MigDevice {
            index,
            uuid: format!("MIG-aaaa{index}-x"),
            gi: index + 1,
            ci: 0,
            gi_caps_path: HostPath::new("gi"),
            ci_caps_path: HostPath::new("ci"),
            graphics: None,
        })
        .to_vec();
    gpus
}

fn machine(specifications: &[Value], kind: Option<&str>) -> ThisMachine {
    let directory = tempfile::tempdir().unwrap();
    for (n, one) in specifications.iter().enumerate() {
        fs::write(directory.path().join(format!("{n}.json")), one.to_string()).unwrap();
    }
    let registry = Registry::load(&[directory.path()]);
    assert!(registry.problems().is_empty(), "{:?}", registry.problems());
    let info = DeviceInfo {
        gpus: gpus(),
        ..DeviceInfo::default()
    };
    let minors = "gpu1/gi1/access 21\ngpu1/gi1/ci0/access 22\n\
                  gpu1/gi2/access 31\ngpu1/gi2/ci0/access 32\n";
    ThisMachine {
        root: "/no-such".into(),
        specifications: Vec::new(),
        kind: kind.map(str::to_owned),
        devices: OnceCell::from(Ok(info)),
        registry: OnceCell::from(registry),
        minors: OnceCell::from(Some(MigMinors::from(minors))),
    }
}

/// A node of a specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Gpu(u32),
    /// At a path that says nothing.
    Elsewhere(u32),
    Capability(u32),
    /// The same at a path that is not clean.
    SameCapability(u32),
    Other,
    Control,
}

impl Node {
    fn json(self) -> Value {
        let (path, major, minor) = match self {
            Self::Gpu(minor) => (format!("/dev/nvidia{minor}"), 195, minor),
            Self::Elsewhere(minor) => (format!("/run/x/195:{minor}"), 195, minor),
            Self::Capability(minor) => (format!("/dev/nvidia-caps/nvidia-cap{minor}"), 511, minor),
            Self::SameCapability(minor) => (
                format!("/dev/x/..//nvidia-caps/./nvidia-cap{minor}"),
                511,
                minor,
            ),
            Self::Other => ("/dev/nvidia-nvswitch0".into(), 505, 0),
            Self::Control => ("/dev/nvidiactl".into(), 195, 255),
        };
        json!({"path": path, "type": "c", "major": major, "minor": minor})
    }
}

fn specification(kind: &str, devices: &[(&str, Vec<Node>)]) -> Value {
    let device = |(name, nodes): &(&str, Vec<Node>)| {
        let nodes: Vec<Value> = nodes.iter().map(|node| node.json()).collect();
        // A device without edits is invalid.
        json!({"name": name, "containerEdits": {"env": ["A=b"], "deviceNodes": nodes}})
    };
    let devices: Vec<Value> = devices.iter().map(device).collect();
    json!({"cdiVersion": "0.5.0", "kind": kind, "devices": devices})
}

fn text(denoted: Denoted) -> String {
    match denoted {
        Denoted::Gpus(uuids) => uuids.join(" "),
        Denoted::Nodes(nodes) => format!("nodes {nodes:?}"),
        Denoted::Unknown => String::new(),
    }
}

#[test]
fn names_denote_what_their_specification_gives() {
    use Node::{Capability, Control, Elsewhere, Gpu, Other, SameCapability};
    let mig = |[gi, ci]: [u32; 2]| vec![Gpu(1), Capability(gi), Capability(ci)];
    let devices = [
        ("0", vec![Gpu(0), Control]),
        ("all", vec![Gpu(0), Gpu(1)]),
        ("GPU-aaaa0-x", vec![Gpu(0)]),
        ("hidden", vec![Elsewhere(0)]),
        ("whole", vec![Gpu(1)]),
        ("a", mig(MIGS[0])),
        (
            "unclean",
            vec![Gpu(1), SameCapability(21), SameCapability(22)],
        ),
        ("both", [mig(MIGS[0]), mig(MIGS[1])].concat()),
        ("half", vec![Gpu(1), Capability(21)]),
        ("config", vec![Gpu(1), Capability(1)]),
        ("switch", vec![Gpu(0), Other]),
        ("unknown", vec![Gpu(7)]),
        ("none", vec![]),
    ];
    let machine = machine(&[specification("nvidia.com/slot", &devices)], None);
    let of = |name: &str| text(machine.denoted(name).unwrap());
    for (device, expected) in [
        ("0", "GPU-aaaa1-x"),
        ("all", "GPU-aaaa1-x GPU-aaaa2-x"),
        ("GPU-aaaa0-x", "GPU-aaaa1-x"),
        ("hidden", "GPU-aaaa1-x"),
        ("whole", "GPU-aaaa2-x"),
        ("a", "MIG-aaaa0-x"),
        ("unclean", "MIG-aaaa0-x"),
        ("both", "MIG-aaaa0-x MIG-aaaa1-x"),
        ("unknown", ""),
        ("none", ""),
        // No specification has them: NVML says what they are.
        ("1", "GPU-aaaa1-x"),
        ("2:1", ""),
        ("mig-AAAA0", "MIG-aaaa0-x"),
        ("0000:01:00.0", "GPU-aaaa1-x"),
        ("gpu1", ""),
        ("GPU-aaaa1-x", "GPU-aaaa1-x"),
        ("mig-aaaa1-x", "MIG-aaaa1-x"),
    ] {
        assert_eq!(
            of(&format!("nvidia.com/slot={device}")),
            expected,
            "{device}"
        );
    }
    let odd = ["half", "config", "switch"].map(|name| of(&format!("nvidia.com/slot={name}")));
    assert!(odd.iter().all(|id| id.starts_with("nodes ")), "{odd:?}");
    assert_eq!(BTreeSet::from(odd).len(), 3);
    for (name, expected) in [
        ("0", "GPU-aaaa0-x"),
        ("2:1", "MIG-aaaa1-x"),
        ("gpu-aaaa2-x", "GPU-aaaa2-x"),
        ("runtime.nvidia.com/gpu=0", "GPU-aaaa0-x"),
        (
            "all",
            "MIG-aaaa0-x MIG-aaaa1-x GPU-aaaa0-x GPU-aaaa1-x GPU-aaaa2-x",
        ),
        ("0,1", ""),
        ("GPU-aaaa1", "GPU-aaaa1-x"),
        ("mig-AAAA1-", "MIG-aaaa1-x"),
        ("runtime.nvidia.com/gpu=GPU-aaaa2", "GPU-aaaa2-x"),
        ("GPU-aaa", ""),
    ] {
        assert_eq!(of(name), expected, "{name}");
    }
}

/// A specification gives the device that NVML knows by the start of a UUID, whatever its name there.
#[test]
fn starts_of_uuids_denote_what_a_container_gets() {
    let devices = [
        ("GPU-aaaa0-x", vec![Node::Gpu(0)]),
        ("GPU-aaaa1-x", vec![Node::Gpu(1)]),
        ("GPU-bbbb", vec![Node::Gpu(2)]),
    ];
    let machine = machine(&[specification("nvidia.com/slot", &devices)], None);
    let of = |name: &str| machine.denoted(name).map(text);
    for (name, expected) in [
        ("nvidia.com/slot=GPU-aaaa0", "GPU-aaaa0-x"),
        ("nvidia.com/slot=GPU-bbbb", "GPU-aaaa0-x"),
        ("nvidia.com/slot=GPU-aaaa2", "GPU-aaaa2-x"),
        // No container is created with it.
        ("nvidia.com/slot=MIG-aaaa0", ""),
        ("nvidia.com/gpu=GPU-aaaa0", ""),
        ("other.com/slot=GPU-aaaa0", ""),
    ] {
        assert_eq!(of(name).unwrap(), expected, "{name}");
    }
    for name in [
        "GPU-aaaa",
        "MIG-aaaa",
        "runtime.nvidia.com/gpu=GPU-aaaa",
        "nvidia.com/slot=GPU-aaaa",
    ] {
        let error = of(name).unwrap_err();
        assert!(
            error.message().contains("several devices"),
            "{name}: {error}"
        );
    }
}

/// What the user allows by the start of a UUID is that device and no other, and the image's choice is compared with it.
#[test]
fn starts_of_uuids_narrow() {
    let machine = machine(&[], None);
    let policy = Policy {
        swarm_resources: vec!["SWARM".into()],
        ..Policy::new(&Config::default()).unwrap()
    };
    let given = |visible: &str, swarm: &str| {
        let env = [
            format!("NVIDIA_VISIBLE_DEVICES={visible}"),
            format!("SWARM={swarm}"),
        ];
        let container = Container {
            environment: Environment::new(env.to_vec()).unwrap(),
            ..Container::default()
        };
        match choice(&container, &policy, &machine) {
            Ok((Some(choice), _)) => choice.devices.to_string(),
            Ok((None, _)) => String::new(),
            Err(error) => format!("error: {error}"),
        }
    };
    for (visible, swarm, expected) in [
        ("0", "GPU-aaaa0", "0"),
        ("GPU-aaaa0-x", "GPU-aaaa0", "GPU-aaaa0-x"),
        ("GPU-aaaa0", "gpu-aaaa0-", "GPU-aaaa0"),
        ("GPU-aaaa0", "GPU-aaaa0-x,GPU-aaaa1-x", "GPU-aaaa0"),
        ("GPU-aaaa1", "GPU-aaaa0", "error: no GPU is left"),
        ("GPU-aaaa0,1", "2,1", "1"),
        ("2", "MIG-aaaa1", "error: no GPU is left"),
    ] {
        let given = given(visible, swarm);
        let given = given.split(": NVIDIA").next().unwrap();
        assert_eq!(given, expected, "{visible} {swarm}");
    }
    for (visible, swarm) in [("GPU-aaaa", "0"), ("0", "GPU-aaaa")] {
        let error = given(visible, swarm);
        assert!(
            error.contains("GPU-aaaa0-x, GPU-aaaa1-x, GPU-aaaa2-x"),
            "{error}"
        );
    }
}

#[test]
fn names_without_a_kind_are_of_the_default_one_in_mode_cdi() {
    let files = [specification(
        "nvidia.com/slot",
        &[("0", vec![Node::Gpu(0)])],
    )];
    let machine = machine(&files, Some("nvidia.com/slot"));
    for (name, expected) in [
        ("0", "GPU-aaaa1-x"),
        ("GPU-aaaa0-x", "GPU-aaaa0-x"),
        ("1", "GPU-aaaa1-x"),
        ("MIG-GPU-aaaa1-x/1/0", ""),
        // A container with these is not created.
        ("2", ""),
        ("all", ""),
        ("0,1", ""),
        ("0 ", ""),
    ] {
        assert_eq!(text(machine.denoted(name).unwrap()), expected, "{name}");
    }
}

const KINDS: [&str; 3] = ["nvidia.com/gpu", "nvidia.com/slot", "team.nvidia.com/gpu"];
/// The last ones are starts of UUIDs, one of them of several.
const NAMES: [&str; 13] = [
    "0",
    "1",
    "2",
    "all",
    "left",
    "gpu0",
    "2:0",
    "mig2:0",
    "GPU-aaaa0-x",
    "MIG-aaaa1-x",
    "GPU-aaaa0",
    "MIG-aaaa1",
    "GPU-aaaa",
];

fn any_nodes() -> impl Strategy<Value = Vec<Node>> {
    use Node::{Capability, Control, Elsewhere, Gpu, Other};
    let all = vec![
        Gpu(0),
        Gpu(1),
        Gpu(2),
        Elsewhere(1),
        Capability(1),
        Other,
        Control,
    ];
    let mig = |[gi, ci]: [u32; 2]| vec![Gpu(1), Capability(gi), Capability(ci)];
    prop_oneof![
        3 => proptest::sample::subsequence(vec![Gpu(0), Gpu(1), Gpu(2)], 1..=3),
        1 => proptest::sample::subsequence(all, 0..4),
        1 => proptest::sample::select(vec![mig(MIGS[0]), mig(MIGS[1])]),
    ]
}

fn any_specifications() -> impl Strategy<Value = Vec<Value>> {
    let devices =
        proptest::sample::subsequence(NAMES.to_vec(), 1..=NAMES.len()).prop_flat_map(|names| {
            let nodes = proptest::collection::vec(any_nodes(), names.len());
            nodes.prop_map(move |nodes| names.iter().copied().zip(nodes).collect::<Vec<_>>())
        });
    let devices = proptest::collection::vec(devices, KINDS.len());
    devices.prop_map(|all| {
        let files = KINDS.iter().zip(&all);
        files
            .map(|(kind, devices)| specification(kind, devices))
            .collect()
    })
}

fn qualified() -> impl Strategy<Value = String> {
    let kinds = [&KINDS[..], &["runtime.nvidia.com/gpu"]].concat();
    let kind = proptest::sample::select(kinds);
    let name = proptest::sample::select(NAMES.to_vec());
    (kind, name).prop_map(|(kind, name)| format!("{kind}={name}"))
}

fn list() -> impl Strategy<Value = Vec<String>> {
    let bare = proptest::sample::select(NAMES.to_vec()).prop_map(str::to_owned);
    proptest::collection::vec(prop_oneof![2 => qualified(), 1 => bare], 1..4)
}

/// What a container can do: use a node, use a GPU as a whole, use anything else.
type Rights = BTreeSet<String>;

impl ThisMachine {
    /// Returns the rights that a container with this name gets; none if it is not created.
    fn rights(&self, name: &str) -> Rights {
        let gpu = |gpu: &Gpu| {
            [
                format!("node {}", gpu.minor),
                format!("whole {}", gpu.minor),
            ]
        };
        let mig = |[gi, ci]: [u32; 2]| {
            [
                format!("node {}", MINORS[2]),
                format!("cap {gi}"),
                format!("cap {ci}"),
            ]
        };
        let nvml = |device: &str| -> Rights {
            let all = device == "all";
            let is_start = device.len() > "GPU-aaaa".len();
            let is_one = |index: &str, uuid: &str| {
                all || device == index || device == uuid || is_start && uuid.starts_with(device)
            };
            let gpus = gpus();
            let gpus = gpus
                .iter()
                .filter(|gpu| is_one(&gpu.index.to_string(), &gpu.uuid));
            let migs = (0..).zip(MIGS);
            let migs = migs
                .filter(|(n, _): &(u32, _)| is_one(&format!("2:{n}"), &format!("MIG-aaaa{n}-x")));
            gpus.flat_map(gpu)
                .chain(migs.flat_map(|(_, minors)| mig(minors)))
                .collect()
        };
        let name = match (names::parse(name), &self.kind) {
            (None, Some(kind)) => format!("{kind}={name}"),
            (None, None) => return nvml(name),
            (Some(_), _) => name.to_owned(),
        };
        let Ok(name) = self.specified(&name) else {
            return Rights::new();
        };
        let parsed = names::parse(&name).unwrap();
        if parsed.kind == AUTOMATIC {
            return nvml(parsed.device);
        }
        let Some((_, device)) = self.registry().device(&name) else {
            let is_uuid = parsed.device.ends_with("-x");
            return if is_uuid {
                nvml(parsed.device)
            } else {
                Rights::new()
            };
        };
        let nodes = &device.container_edits.device_nodes;
        let has_capabilities = nodes.iter().any(|node| node.major == 511);
        let rights = nodes
            .iter()
            .flat_map(|node| match (node.major, node.minor) {
                (195, 255) => vec![],
                (195, 1) if has_capabilities => vec!["node 1".into()],
                (195, minor) => vec![format!("node {minor}"), format!("whole {minor}")],
                (511, minor) => vec![format!("cap {minor}")],
                (major, minor) => vec![format!("{major}:{minor}")],
            });
        rights.collect()
    }
}

/// Returns the rights of a source; None if it says `all`, which allows everything.
fn limit(machine: &ThisMachine, names: &[String], has_words: bool) -> Option<Rights> {
    let is_all = has_words && names.iter().any(|name| name == "all");
    (!is_all).then(|| names.iter().flat_map(|name| machine.rights(name)).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn nodes_are_within_every_source(
        files in any_specifications(),
        cdi in proptest::option::of(proptest::sample::select(KINDS.to_vec())),
        visible in proptest::option::of(list()),
        swarm in proptest::option::of(list()),
        annotated in proptest::option::of(proptest::collection::vec(qualified(), 1..4)),
        mounted in proptest::option::of(list()),
    ) {
        let machine = machine(&files, cdi);
        let mut config = Config::default();
        if let Some(kind) = cdi {
            config.runtime.cdi_default_kind = kind.into();
        }
        let policy = Policy {
            accept_mounts: true,
            swarm_resources: vec!["SWARM".into()],
            ..Policy::new(&config).unwrap().with_annotations(&config)
        };
        let pair = |name: &str, list: &Option<Vec<String>>| {
            list.as_ref().map(|list| format!("{name}={}", list.join(",")))
        };
        let env = pair("NVIDIA_VISIBLE_DEVICES", &visible).into_iter().chain(pair("SWARM", &swarm));
        let mounts = mounted.iter().flatten().map(|name| Mount {
            source: "/dev/null".into(),
            destination: if name.contains('=') { format!("/var/run/nvidia-container-devices/cdi/{name}") } else { format!("/var/run/nvidia-container-devices/{name}") },
        });
        let container = Container {
            environment: Environment::new(env.collect::<Vec<_>>()).unwrap(),
            annotations: annotated.iter().map(|list| ("cdi.k8s.io/x".into(), list.join(","))).collect(),
            mounts: mounts.collect(),
            privileged: false,
        };
        let Ok((Some(choice), _)) = choice(&container, &policy, &machine) else {
            return Ok(());
        };
        let given = match &choice.devices {
            Devices::Names(names) => limit(&machine, names, false).unwrap(),
            _ => return Ok(()), // every source says `all`
        };
        let mut limits = vec![("annotation", limit(&machine, annotated.as_deref().unwrap_or_default(), false))];
        if annotated.is_none() {
            limits.clear();
        }
        if let Some(mounted) = &mounted {
            limits.push(("mounts", limit(&machine, mounted, false)));
        } else {
            let lists = [("visible", &visible), ("swarm", &swarm)];
            let lists = lists.into_iter().filter_map(|(name, list)| Some((name, list.as_ref()?)));
            limits.extend(lists.map(|(name, list)| (name, limit(&machine, list, true))));
        }
        for (source, limit) in limits {
            let Some(limit) = limit else { continue };
            prop_assert!(given.is_subset(&limit), "{choice:?}: {given:?} is not within {source}: {limit:?}");
        }
    }
}
