//! Tests the decision about GPUs: tables of requests, and [properties] that hold for every container.

#![allow(clippy::unwrap_used)]

mod bounds;
mod forged;
mod properties;
mod sources;

use super::features::Feature;
use super::*;

fn container(env: &[&str]) -> Container {
    Container {
        environment: Environment::new(env).unwrap(),
        ..Container::default()
    }
}

fn privileged(env: &[&str]) -> Container {
    Container {
        privileged: true,
        ..container(env)
    }
}

fn mounts(names: &[&str]) -> Vec<Mount> {
    let place = |name: &&str| Mount {
        source: "/dev/null".into(),
        destination: format!("/var/run/nvidia-container-devices/{name}"),
    };
    names.iter().map(place).collect()
}

fn policy() -> Policy {
    Policy::new(&Config::default()).unwrap()
}

fn only_privileged() -> Policy {
    let accept_environment = false;
    Policy {
        accept_environment,
        ..policy()
    }
}

fn with_mounts() -> Policy {
    let accept_mounts = true;
    Policy {
        accept_mounts,
        ..policy()
    }
}

/// A machine with three GPUs, the last of them with a MIG device, and a specification that names the first two.
#[derive(Clone, Copy, Debug)]
struct Three;

/// The UUIDs of the devices, with their indices.
const DEVICES: [(&str, &str); 4] = [
    ("0", "GPU-a"),
    ("1", "GPU-b"),
    ("2", "GPU-c"),
    ("2:0", "MIG-d"),
];

impl Machine for Three {
    fn uuids(&self, name: &str) -> Result<Vec<String>, String> {
        let device = name.split_once('=').map_or(name, |(_, device)| device);
        let device = match device {
            // A kind with devices of its own numbers.
            "0" if name.contains("/slot=") => "2",
            "all" if name.contains("/slot=") => return Ok(vec!["GPU-b".into(), "GPU-c".into()]),
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
                return Ok(known.iter().map(|(_, uuid)| uuid.to_string()).collect());
            }
        };
        Ok(uuids.iter().map(ToString::to_string).collect())
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

fn asked(container: &Container, policy: &Policy) -> Option<ContainerRequest> {
    request(container, policy, &Three).unwrap().request
}

/// Returns the GPUs of a container with this value of the variable: `-` for no GPU container, `none` for one without
/// GPUs.
fn visible(value: &str) -> String {
    let env = format!("NVIDIA_VISIBLE_DEVICES={value}");
    let answer = request(&container(&[&env]), &policy(), &Three);
    match answer.map(|answer| answer.request.map(|request| request.devices)) {
        Ok(None) => "-".into(),
        Ok(Some(Devices::None)) => "none".into(),
        Ok(Some(devices)) => devices.names().join(","),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_variable_lists_devices() {
    let table = [
        ("", "-"),
        (" , ,", "-"),
        ("void", "-"),
        ("all,void", "-"),
        ("0, void ,1", "-"),
        ("none", "none"),
        ("none,0", "none"),
        ("0,none,all", "none"),
        ("all", "all"),
        ("0,all,none", "all"),
        ("ALL", "ALL"),
        ("0", "0"),
        (" 1, 0 ,,2", "1,0,2"),
        ("0,0", "0"),
        ("0,0,1,0", "0,1"),
        ("0:0,MIG-x", "0:0,MIG-x"),
        ("nvidia.com/gpu=0,nvidia.com/gpu=0", "nvidia.com/gpu=0"),
        ("runtime.nvidia.com/gpu=0", "runtime.nvidia.com/gpu=0"),
        ("n/gpu", "n/gpu"),
        ("/var/run/nvidia-container-devices", "-"),
    ];
    for (value, expected) in table {
        assert_eq!(visible(value), expected, "{value}");
    }
}

#[test]
fn containers_that_ask_for_nothing_get_nothing() {
    let empty = Environment::new([""]);
    assert_eq!(empty, Err(Error::NotAVariable(String::new())));
    for env in [
        &[][..],
        &["PATH=/bin"],
        &["nvidia_visible_devices=all"],
        &["NVIDIA_GDS=enabled"],
    ] {
        assert_eq!(asked(&container(env), &policy()), None);
        assert_eq!(asked(&privileged(env), &with_mounts()), None);
    }
}

#[test]
fn old_images_get_everything() {
    let request = asked(&container(&["CUDA_VERSION=9.0.176"]), &policy()).unwrap();
    assert_eq!(request.devices, Devices::All);
    assert_eq!(request.origin, Origin::LegacyImage);
    assert_eq!(request.capabilities, Capabilities::all());
    assert_eq!(request.requirements, ["cuda>=9.0"]);
    let new = ["CUDA_VERSION=9.0.176", "NVIDIA_REQUIRE_CUDA=cuda>=9.0"];
    assert_eq!(asked(&container(&new), &policy()), None);
    let empty = ["CUDA_VERSION=9.0.176", "NVIDIA_VISIBLE_DEVICES="];
    assert_eq!(asked(&container(&empty), &policy()), None);
    let bad = ["CUDA_VERSION=latest"];
    let error = super::request(&container(&bad), &policy(), &Three).unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to get requirements failed to get version: invalid CUDA version latest: invalid version string"
    );
    let disabled = ["CUDA_VERSION=latest", "NVIDIA_DISABLE_REQUIRE=1"];
    assert!(asked(&container(&disabled), &policy()).is_some());
}

#[test]
fn unprivileged_containers_may_be_kept_from_asking() {
    let env = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_IMEX_CHANNELS=1"];
    let answer = request(&container(&env), &only_privileged(), &Three).unwrap();
    assert_eq!(answer.request, None);
    assert_eq!(
        answer.warnings,
        [
            "Ignoring devices requested by environment variable(s) in unprivileged container: [NVIDIA_VISIBLE_DEVICES]"
        ]
    );
    let request = asked(&privileged(&env), &only_privileged()).unwrap();
    assert_eq!(request.devices, Devices::All);
    assert_eq!(request.imex_channels, ["1"]);
}

#[test]
fn mounts_ask_where_they_may() {
    let names = [
        "0",
        "GPU-a",
        "imex/3",
        "cdi/nvidia.com/gpu/1",
        "cdi/nvidia.com/gpu=2",
        "cdi/bad",
        "0",
    ];
    let asking = Container {
        mounts: mounts(&names),
        ..container(&["NVIDIA_VISIBLE_DEVICES=7", "NVIDIA_IMEX_CHANNELS=4"])
    };
    let request = asked(&asking, &with_mounts()).unwrap();
    let expected = ["0", "GPU-a", "nvidia.com/gpu=1", "nvidia.com/gpu=2"];
    assert_eq!(request.devices.names(), expected);
    assert_eq!(request.imex_channels, ["3"]);
    assert_eq!(request.origin, Origin::Mounts);
    assert_eq!(asked(&asking, &policy()).unwrap().devices.names(), ["7"]);
    let strict = Policy {
        accept_environment: false,
        ..with_mounts()
    };
    assert_eq!(asked(&asking, &strict).unwrap().devices.names(), expected);
}

#[test]
fn only_mounts_of_dev_null_at_that_place_ask() {
    let mount = |source: &str, destination: &str| Mount {
        source: source.into(),
        destination: destination.into(),
    };
    let names = |mount: Mount| {
        let asking = Container {
            mounts: vec![mount],
            ..Container::default()
        };
        asked(&asking, &with_mounts()).map(|request| request.devices.names().join(","))
    };
    let place = "/var/run/nvidia-container-devices";
    assert_eq!(
        names(mount("/dev/null", &format!("{place}/0/"))).unwrap(),
        "0"
    );
    assert_eq!(
        names(mount("//dev/./null", &format!("{place}//x/../0"))).unwrap(),
        "0"
    );
    assert_eq!(
        names(mount("/dev/null", &format!("{place}x/1"))).unwrap(),
        "x/1"
    );
    assert_eq!(
        names(mount("/dev/null", &format!("{place}/imex"))).unwrap(),
        "imex"
    );
    assert_eq!(names(mount("/dev/null", place)), None);
    assert_eq!(names(mount("/dev/zero", &format!("{place}/0"))), None);
    assert_eq!(names(mount("", &format!("{place}/0"))), None);
    assert_eq!(
        names(mount("/dev/null", "/run/nvidia-container-devices/0")),
        None
    );
    assert_eq!(names(mount("/dev/null", &format!("{place}/../0"))), None);
}

#[test]
fn authority_over_mig_needs_privilege() {
    for name in ["CONFIG", "MONITOR"] {
        let variable = format!("NVIDIA_MIG_{name}_DEVICES=all");
        let env = ["NVIDIA_VISIBLE_DEVICES=0", variable.as_str()];
        let error = request(&container(&env), &policy(), &Three).unwrap_err();
        let expected = format!("cannot set MIG_{name}_DEVICES in non privileged container");
        assert_eq!(error.to_string(), expected);
        let request = asked(&privileged(&env), &policy()).unwrap();
        let given = [request.mig_config, request.mig_monitor];
        assert_eq!(given.iter().flatten().collect::<Vec<_>>(), ["all"]);
        let empty = format!("NVIDIA_MIG_{name}_DEVICES=");
        let env = ["NVIDIA_VISIBLE_DEVICES=0", empty.as_str()];
        assert_eq!(asked(&container(&env), &policy()).unwrap().mig_config, None);
    }
}

#[test]
fn imex_channels_come_with_devices_only() {
    let channels = |value: &str, policy: &Policy| {
        let variable = format!("NVIDIA_IMEX_CHANNELS={value}");
        asked(&container(&["NVIDIA_VISIBLE_DEVICES=0", &variable]), policy)
            .unwrap()
            .imex_channels
            .join(",")
    };
    for (value, expected) in [
        ("0,1", "0,1"),
        ("2,2", "2"),
        ("all", ""),
        ("1,all", ""),
        ("none", ""),
        ("1,none", ""),
        ("void", ""),
        ("", ""),
    ] {
        assert_eq!(channels(value, &policy()), expected, "{value}");
    }
    let ignoring = Policy {
        ignore_imex: true,
        ..policy()
    };
    assert_eq!(channels("1", &ignoring), "");
    assert_eq!(
        asked(&container(&["NVIDIA_IMEX_CHANNELS=0"]), &policy()),
        None
    );
    let all = Container {
        mounts: mounts(&["imex/all", "0"]),
        ..Container::default()
    };
    assert_eq!(asked(&all, &with_mounts()).unwrap().imex_channels, ["all"]);
}

#[test]
fn capabilities_are_those_that_are_supported() {
    let of = |value: Option<&str>, supported: &str| {
        let config = Config {
            supported_driver_capabilities: supported.into(),
            ..Config::default()
        };
        let policy = Policy::new(&config).unwrap();
        let variable = value.map(|value| format!("NVIDIA_DRIVER_CAPABILITIES={value}"));
        let mut env = vec!["NVIDIA_VISIBLE_DEVICES=0"];
        env.extend(variable.as_deref());
        match request(&container(&env), &policy, &Three) {
            Ok(answer) => answer.request.unwrap().capabilities.to_string(),
            Err(error) => error.to_string(),
        }
    };
    let everything = "compat32,compute,display,graphics,ngx,utility,video";
    let table = [
        (None, "all", "compute,utility"),
        (Some(""), "all", "compute,utility"),
        (Some(""), "utility,video", "utility"),
        (Some("all"), "utility,video", "utility,video"),
        (Some("all"), "", ""),
        (
            Some("video, compute,,graphics"),
            "all",
            "compute,graphics,video",
        ),
        (Some("x, all"), everything, everything),
        (Some(" , "), "all", ""),
        (
            Some("compute,frob"),
            "all",
            "unsupported capabilities found in 'compute,frob' (allowed 'compute')",
        ),
        (
            Some("utility,graphics"),
            "utility,compute",
            "unsupported capabilities found in 'graphics,utility' (allowed 'utility')",
        ),
        (
            Some("none"),
            "all",
            "unsupported capabilities found in 'none' (allowed '')",
        ),
    ];
    for (value, supported, expected) in table {
        assert_eq!(of(value, supported), expected, "{value:?} of {supported}");
    }
    for bad in ["all,compute", "compute,frob", "Compute"] {
        let config = Config {
            supported_driver_capabilities: bad.into(),
            ..Config::default()
        };
        assert!(Policy::new(&config).is_err(), "{bad}");
    }
}

#[test]
fn pictures_are_asked_for_in_words() {
    let all = Capabilities::all();
    let asks = |value: &str, supported: Capabilities| {
        let entry = format!("NVIDIA_DRIVER_CAPABILITIES={value}");
        capabilities::asks_for_graphics(&Environment::new([entry]).unwrap(), supported)
    };
    for value in ["graphics", "display", "all", "compute, graphics"] {
        assert!(asks(value, all), "{value}");
    }
    for value in ["", "compute", "graphicsx"] {
        assert!(!asks(value, all), "{value}");
    }
    let old = Environment::new(["CUDA_VERSION=9.0"]).unwrap();
    assert!(!capabilities::asks_for_graphics(&old, all));
    // Only as far as the administrator allows.
    let [compute, display] =
        ["compute", "display"].map(|name| Capabilities::from_word(name).unwrap());
    for (value, supported, expected) in [
        ("all", compute, false),
        ("graphics", compute, false),
        ("graphics", display, false),
        ("all", display | compute, true),
    ] {
        assert_eq!(asks(value, supported), expected, "{value} of {supported}");
    }
}

#[test]
fn requirements_are_collected() {
    let env = [
        "NVIDIA_VISIBLE_DEVICES=0",
        "NVIDIA_REQUIRE_CUDA=cuda>=11.0 driver>=450",
        "NVIDIA_REQUIRE_JETPACK=csv-mounts=all",
        "NVIDIA_REQUIRE_JETPACK_HOST_MOUNTS=x",
        "NVIDIA_REQUIRE_ARCH=arch>=7.0",
    ];
    let request = asked(&container(&env), &policy()).unwrap();
    assert_eq!(
        request.requirements,
        ["cuda>=11.0 driver>=450", "arch>=7.0"]
    );
    for (value, disabled) in [
        ("true", true),
        ("T", true),
        ("1", true),
        ("yes", false),
        ("0", false),
    ] {
        let switch = format!("NVIDIA_DISABLE_REQUIRE={value}");
        let env = ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_X=x", &switch];
        let request = asked(&container(&env), &policy()).unwrap();
        assert_eq!(request.requirements.is_empty(), disabled, "{value}");
    }
}

#[test]
fn features_are_switched_on_by_one_word() {
    let env = [
        "NVIDIA_NVSWITCH=enabled",
        "NVIDIA_GDS=enabled",
        "NVIDIA_MOFED=true",
        "NVIDIA_GDRCOPY=",
    ];
    let (found, ignored) = features::of(&container(&env), &policy());
    assert_eq!(found, [Feature::Gds, Feature::Nvswitch]);
    assert_eq!(ignored, None);
}

#[test]
fn features_follow_the_policy_for_the_environment() {
    let env = ["NVIDIA_GDS=enabled", "NVIDIA_MOFED=enabled"];
    let both = [Feature::Gds, Feature::Mofed].to_vec();
    assert_eq!(features::of(&container(&env), &policy()).0, both);
    assert_eq!(features::of(&privileged(&env), &only_privileged()).0, both);
    let (found, ignored) = features::of(&container(&env), &only_privileged());
    assert!(found.is_empty());
    assert!(ignored.unwrap().contains("[NVIDIA_GDS NVIDIA_MOFED]"));
    // Nothing is ignored if nothing is requested.
    assert_eq!(
        features::of(&container(&[]), &only_privileged()),
        (Vec::new(), None)
    );
}

#[test]
fn qualified_names_are_those_of_cdi() {
    for name in ["nvidia.com/gpu=0", "n/g=0", "a-b_c.d/e.f=G:0-1.x"] {
        assert!(qualified::is_qualified(name), "{name}");
    }
    for name in [
        "",
        "0",
        "nvidia.com/gpu",
        "/gpu=0",
        "nvidia.com/=0",
        "nvidia.com/gpu=",
        "1n/gpu=0",
        "n/gpu=-0",
        "n-/g=0",
        "n/g=0=1 ",
    ] {
        assert!(!qualified::is_qualified(name), "{name}");
    }
}
