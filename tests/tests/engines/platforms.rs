//! Runs containers in mode auto on machines whose kind only NVML knows, or that have nothing to give.

use std::fs;
use std::process::Stdio;

use nvc_testkit::driver::Builder;
use nvc_testkit::profile::{Fault, Profile};
use nvc_tests::bundle::Bundle;
use nvc_tests::world::{World, both};

use super::runtimes::Body;

/// Name and body of each test; the argument is the low-level runtime.
pub(crate) const TESTS: &[(&str, Body)] = &[
    ("nvml_tells_what_a_tegra_system_is", tegra_by_nvml),
    ("a_hook_refuses_an_integrated_gpu", hook_refuses),
    ("all_of_no_gpus_is_none", all_of_none),
    ("a_request_without_lists_is_an_error", without_lists),
    ("a_display_adapter_is_no_gpu", without_display),
    ("a_device_with_two_names_is_given_once", given_once),
];

const LIST: &str = "dev, /dev/nvidia0\ndev, /dev/nvidiactl\n";
const LOOK: &str = "cd /dev; for n in nv*; do [ -e $n ] && echo $n; done; true";
const DISCRETE: &str = "nvidia-uvm nvidia-uvm-tools nvidia0 nvidiactl";
const LISTED: &str = "nvidia0 nvidiactl";

fn world(runtime: &str, profile: &Profile, has_files: bool) -> World {
    let mut world = World::with_list(runtime, LIST);
    let config = world.path("config.toml");
    let text = fs::read_to_string(&config).expect("config.toml");
    fs::write(&config, text.replace("\"csv\"", "\"auto\"")).expect("config.toml");
    let edit = move |root: &std::path::Path| {
        let text = if has_files { "# R36 (release)\n" } else { "" };
        let name = if has_files {
            "etc/nv_tegra_release"
        } else {
            "etc/other"
        };
        fs::write(root.join(name), text)
    };
    world.use_driver(&Builder::new(profile.clone()).edit(edit));
    world
}

/// Runs a container that requests `device`; returns its nodes, the runtime's messages and log.
fn run(world: World, device: &str) -> (String, String, String) {
    let bundle = Bundle::new(world, &[&format!("NVIDIA_VISIBLE_DEVICES={device}")], LOOK);
    let (seen, said) = both(&mut bundle.run());
    let log = bundle.world.log();
    (seen.lines().collect::<Vec<_>>().join(" "), said, log)
}

/// Returns machines with one discrete or one integrated GPU.
fn machines() -> [(Profile, &'static str); 3] {
    let alone = |mut profile: Profile| {
        profile.gpus.truncate(1);
        profile.mig_devices.clear();
        profile
    };
    [
        (alone(Profile::default()), DISCRETE),
        (alone(Profile::orin_pair()), LISTED),
        (alone(Profile::thor_pair()), LISTED),
    ]
}

fn tegra_by_nvml(runtime: &str) {
    for (profile, expected) in machines() {
        for has_files in [false, true] {
            for device in ["0", "all"] {
                let mut profile = profile.clone();
                profile.gpus[0].minor = 0;
                let (seen, said, _) = run(world(runtime, &profile, has_files), device);
                assert_eq!(seen, expected, "{device}, {has_files}: {said}\n{profile}");
            }
        }
    }
    // NVML that fails for another reason than its absence is not taken for a Jetson's.
    let failing = Profile::default().fault(Fault::Fail {
        symbol: "nvmlInit_v2".into(),
        code: 9,
        gpu: None,
    });
    let (seen, said, _) = run(world(runtime, &failing, true), "all");
    assert_eq!(seen, "", "{said}");
    assert!(said.contains("driver not loaded"), "{said}");
}

fn hook_refuses(runtime: &str) {
    for (profile, expected) in machines() {
        let bundle = Bundle::new(
            world(runtime, &profile, false),
            &["NVIDIA_VISIBLE_DEVICES=0"],
            LOOK,
        );
        let state = format!(
            r#"{{"ociVersion":"1.0","id":"x","pid":{},"bundle":"{}"}}"#,
            std::process::id(),
            bundle.path().display()
        );
        let world = &bundle.world;
        let input = world.path("state");
        fs::write(&input, state).expect("a state");
        if expected == DISCRETE {
            continue;
        }
        let mut hook = world.command("nvidia-container-runtime-hook");
        let output = hook
            .arg(format!("-config={}", world.path("config.toml").display()))
            .arg("prestart")
            .stdin(Stdio::from(fs::File::open(&input).expect("a state")))
            .output()
            .expect("the hook");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("--runtime=nvidia"), "{said}");
    }
}

fn all_of_none(runtime: &str) {
    let (seen, said, log) = run(world(runtime, &Profile::without_gpus(), false), "all");
    assert!(seen.ends_with("nvidiactl"), "{said}");
    assert!(log.contains("NVML lists no GPU"), "{log}");
    let (seen, said, _) = run(world(runtime, &Profile::without_gpus(), false), "0");
    assert!(
        seen.is_empty() && said.contains("0: unknown device"),
        "{said}"
    );
}

fn without_lists(runtime: &str) {
    let [_, (orin, _), _] = machines();
    let without = |list: Option<&str>| {
        let world = world(runtime, &orin, true);
        match list {
            Some(list) => world.set_list(list),
            None => fs::remove_file(world.path("host-files/l4t.csv")).expect("a list"),
        }
        world
    };
    for (list, words) in [
        (None, "there are no file lists in"),
        (
            Some("lib, /usr/lib/libmissing.so.1\n"),
            "nothing of the lists",
        ),
    ] {
        let (seen, said, _) = run(without(list), "all");
        assert!(seen.is_empty() && said.contains(words), "{said}");
    }
}

fn without_display(runtime: &str) {
    let mut profile = Profile::default();
    profile.mig_devices.clear();
    profile.gpus[1] = nvc_testkit::profile::Gpu {
        model: "NVIDIA DGX Display".into(),
        uuid: profile.gpus[1].uuid.clone(),
        bus_id: profile.gpus[1].bus_id.clone(),
        minor: 1,
        ..profile.gpus[0].clone()
    };
    let (seen, said, _) = run(world(runtime, &profile, false), "all");
    assert_eq!(seen, DISCRETE, "{said}");
    let (seen, said, _) = run(world(runtime, &profile, false), "1");
    assert!(seen.is_empty() && said.contains("unknown device"), "{said}");
}

fn given_once(runtime: &str) {
    let profile = Profile::default();
    let (gpu, mig) = (&profile.gpus[0].uuid, &profile.mig_devices[0].uuid);
    for (once, twice) in [
        ("0", format!("{gpu},0")),
        ("1:0", format!("{mig},1:0,{mig}")),
        (
            "0",
            format!("runtime.nvidia.com/gpu={gpu},runtime.nvidia.com/gpu=0"),
        ),
    ] {
        let (expected, said, _) = run(world(runtime, &profile, false), once);
        assert!(!expected.is_empty(), "{said}");
        let (seen, said, _) = run(world(runtime, &profile, false), &twice);
        assert_eq!(seen, expected, "{twice}: {said}");
    }
}
