//! Runs bundles in which several sources name GPUs: Swarm's variables, mounts, other vendors' kinds.

use std::fs;

use nvc_testkit::machine;
use nvc_testkit::profile::{Fault, MigMode, Profile};
use nvc_tests::bundle::Bundle;
use nvc_tests::world::{World, both, complaint, look, printed, sight};
use serde_json::json;

use super::machines;
use super::runtimes::Body;

/// Name and body of each test.
pub(crate) const TESTS: &[(&str, Body)] = &[
    ("swarm_narrows", swarm_narrows),
    ("void_keeps_mounts_out", void_keeps_mounts_out),
    ("variables_name_known_kinds", variables_name_known_kinds),
    (
        "compares_other_names_by_nodes",
        compares_other_names_by_nodes,
    ),
    ("starts_of_uuids_name_gpus", starts_of_uuids_name_gpus),
];

const NOTHING: &str = "ls /dev";

/// A program that gives the GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// Our runtime in this mode.
    Runtime(&'static str),
    /// The hook alone, as docker's `--gpus` adds it.
    Hook,
}

const ALL: [By; 3] = [By::Runtime("legacy"), By::Runtime("jit-cdi"), By::Hook];

impl By {
    fn world(self, runtime: &str) -> World {
        match self {
            Self::Runtime(mode) => World::new(runtime, mode, ""),
            Self::Hook => World::new(runtime, "legacy", ""),
        }
    }

    /// Creates an environment on a machine with this profile.
    fn machine(self, runtime: &str, profile: &Profile) -> World {
        match self {
            Self::Runtime(mode) => machines::world(runtime, mode, profile),
            Self::Hook => machines::world(runtime, "legacy", profile),
        }
    }

    /// Prepares a run with what the bundle's specification says.
    fn run(self, runtime: &str, bundle: &Bundle) -> std::process::Command {
        if self != Self::Hook {
            return bundle.run();
        }
        let mut spec = bundle.spec();
        let config = bundle.world.path("config.toml");
        spec["hooks"]["prestart"] = json!([{
            "path": bundle.world.bin().join("nvidia-container-runtime-hook"),
            "args": ["nvidia-container-runtime-hook", "prestart"],
            "env": [format!("NVIDIA_CTK_CONFIG_FILE_PATH={}", config.display())],
        }]);
        bundle.write(&spec);
        bundle.run_with(&format!("sim-{runtime}"))
    }
}

/// A node's scheduler names UUIDs, an image or a user indices.
fn swarm_narrows(runtime: &str) {
    for by in ALL {
        let bundle = |visible: &str, resource: &str, script: &str| {
            let world = by.world(runtime);
            world.set_at_top("swarm-resource = \"DOCKER_RESOURCE_GPU\"");
            let uuid = &world.driver.profile().gpus[1].uuid;
            let env = [
                format!("NVIDIA_VISIBLE_DEVICES={visible}"),
                format!("DOCKER_RESOURCE_GPU={}", resource.replace("UUID", uuid)),
            ];
            Bundle::new(world, &[&env[0], &env[1]], script)
        };
        for (visible, resource, index) in [("0,1", "UUID", 1), ("all", "UUID", 1), ("0", "all", 0)]
        {
            let bundle = bundle(visible, resource, &look());
            let seen = printed(&mut by.run(runtime, &bundle));
            let expected = sight(bundle.world.driver, index);
            assert_eq!(seen, expected, "{by:?}: {visible} {resource}");
        }
        let bundle = bundle("0", "UUID", NOTHING);
        let mut said = complaint(&mut by.run(runtime, &bundle));
        said += &bundle.world.log();
        if (by, runtime) != (By::Hook, "crun") {
            // crun does not show what a hook prints.
            for word in [
                "no GPU is left",
                "NVIDIA_VISIBLE_DEVICES",
                "DOCKER_RESOURCE_GPU",
            ] {
                assert!(said.contains(word), "{by:?}: {word}: {said}");
            }
        }
    }
}

/// Each CDI specification sets `void`: what an engine has added by CDI, mounts do not extend.
fn void_keeps_mounts_out(runtime: &str) {
    for by in ALL {
        for (visible, is_given) in [("void", false), ("/var/run/nvidia-container-devices", true)] {
            let world = by.world(runtime);
            world.set_at_top("accept-nvidia-visible-devices-as-volume-mounts = true");
            let bundle = Bundle::new(
                world,
                &[&format!("NVIDIA_VISIBLE_DEVICES={visible}")],
                NOTHING,
            );
            bundle.request_by_mount("0");
            let seen = printed(&mut by.run(runtime, &bundle));
            assert_eq!(seen.contains("nvidia0\n"), is_given, "{by:?}: {seen}");
        }
    }
}

/// Another vendor's device can mount anything: an image cannot choose it, the administrator can.
fn variables_name_known_kinds(runtime: &str) {
    for is_accepted in [false, true] {
        let world = World::new(runtime, "auto", "");
        let directory = world.path("cdi");
        let file = json!({
            "cdiVersion": "0.5.0", "kind": "storage.example.com/claim",
            "devices": [{"name": "tenant-b", "containerEdits": {"env": ["CLAIM=b"]}}],
        });
        fs::create_dir(&directory)
            .and_then(|()| fs::write(directory.join("storage.json"), file.to_string()))
            .unwrap_or_else(|error| panic!("{error}"));
        world.set(&format!(
            "modes.cdi.spec-dirs = [\"{}\"]",
            directory.display()
        ));
        if is_accepted {
            world.set_at_top("accept-cdi-kinds = [\"storage.example.com/claim\"]");
        }
        let env = ["NVIDIA_VISIBLE_DEVICES=storage.example.com/claim=tenant-b"];
        let bundle = Bundle::new(world, &env, "echo $CLAIM");
        if is_accepted {
            assert_eq!(printed(&mut bundle.run()), "b\n");
            continue;
        }
        let said = complaint(&mut bundle.run());
        for word in ["claim=tenant-b", "accept-cdi-kinds"] {
            assert!(said.contains(word), "{word}: {said}");
        }
    }
}

/// A name that only its specification explains denotes the GPU whose node the device has.
fn compares_other_names_by_nodes(runtime: &str) {
    for (visible, is_given) in [("0", true), ("1", false), ("1:0", false)] {
        let world = World::new(runtime, "auto", "");
        let directory = world.path("cdi");
        let node = world.driver.path("/dev/nvidia0");
        let file = json!({
            "cdiVersion": "0.5.0", "kind": "k8s.gpu.nvidia.com/claim",
            "devices": [{"name": "pod-a", "containerEdits": {
                "deviceNodes": [{"path": "/dev/nvidia0", "hostPath": node}],
            }}],
        });
        fs::create_dir(&directory)
            .and_then(|()| fs::write(directory.join("claim.json"), file.to_string()))
            .unwrap_or_else(|error| panic!("{error}"));
        world.set(&format!(
            "modes.cdi.spec-dirs = [\"{}\"]",
            directory.display()
        ));
        let bundle = Bundle::new(
            world,
            &[&format!("NVIDIA_VISIBLE_DEVICES={visible}")],
            NOTHING,
        );
        let mut spec = bundle.spec();
        spec["annotations"] = json!({"cdi.k8s.io/x": "k8s.gpu.nvidia.com/claim=pod-a"});
        bundle.write(&spec);
        if is_given {
            let seen = printed(&mut bundle.run());
            assert!(seen.contains("nvidia0\n"), "{seen}");
        } else {
            let said = complaint(&mut bundle.run());
            assert!(said.contains("no GPU is left"), "{visible}: {said}");
        }
    }
}

/// Each way takes the start of a UUID, and neither guesses nor hides what it cannot know.
fn starts_of_uuids_name_gpus(runtime: &str) {
    let ways = ALL.into_iter().chain([By::Runtime("cdi")]);
    // A specification has no GPU in MIG mode.
    let mut usual = machine::driver().profile().clone();
    usual.gpus[1].mig = MigMode::Off;
    usual.mig_devices.clear();
    let uuid = |index: usize| usual.gpus[index].uuid.as_str();
    // The second GPU differs from the first one in the last character only.
    let mut alike = usual.clone();
    let (start, last) = uuid(0).split_at(uuid(0).len() - 1);
    alike.gpus[1].uuid = format!("{start}{}", if last == "f" { "e" } else { "f" });
    let lost = usual.clone().fault(Fault::Fail {
        symbol: "nvmlDeviceGetUUID".into(),
        code: 15,
        gpu: Some(0),
    });
    for by in ways {
        let run = |profile: &Profile, name: &str| {
            let env = format!("NVIDIA_VISIBLE_DEVICES={name}");
            let bundle = Bundle::new(by.machine(runtime, profile), &[&env], &look());
            let (seen, said) = both(&mut by.run(runtime, &bundle));
            let given = seen == sight(bundle.world.driver, 1);
            (
                given,
                format!("{by:?}, {name}: {said}{}{seen}", bundle.world.log()),
            )
        };
        let (given, said) = run(&usual, &uuid(1)[.."GPU-1234".len()]);
        assert!(given, "{said}");
        let (given, said) = run(&usual, &uuid(1)[.."GPU-123".len()]);
        assert!(!given, "three characters are too few: {said}");
        // A whole name wins; the start of two is an error with the candidates.
        let (given, said) = run(&alike, &alike.gpus[1].uuid);
        assert!(given, "{said}");
        let (given, said) = run(&alike, start);
        assert!(!given, "{said}");
        // crun does not show what a hook says.
        let is_shown = by != By::Hook || runtime != "crun";
        for gpu in &alike.gpus {
            assert!(!is_shown || said.contains(&gpu.uuid), "{said}");
        }
        // A specification has only what NVML listed when it was written. The kernel module knows the lost GPU's UUID.
        if by != By::Runtime("cdi") {
            let (given, said) = run(&lost, &uuid(1)[.."GPU-1234".len()]);
            assert!(given, "{said}");
        }
    }
}
