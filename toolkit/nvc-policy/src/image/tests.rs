//! Tests the decision about GPUs: tables of requests, and [properties] that hold for every container.

#![allow(clippy::unwrap_used)]

mod bounds;
mod forged;
mod machine;
mod mount;
mod parts;
mod properties;
mod sources;

use machine::Three;

use super::*;

/// Decides without the runtime.
fn request(container: &Container, policy: &Policy, machine: &dyn Machine) -> Result<Answer, Error> {
    super::request(container, policy, None, machine)
}

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
        ("ALL", "all"),
        ("NoNe,0", "none"),
        ("Void,0", "-"),
        ("\"0,1\"", "0,1"),
        (" 'GPU-a' ", "GPU-a"),
        ("\"\"", "-"),
        ("\"0", "\"0"),
        ("\"'0'\"", "'0'"),
        ("nvidia.com/gpu=ALL", "nvidia.com/gpu=all"),
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
    let error = self::request(&container(&bad), &policy(), &Three).unwrap_err();
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
    assert_eq!(request.imex_channels, [1]);
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
    };
    for (value, expected) in [
        ("0,1", &[0, 1][..]),
        ("2,2,channel2,02", &[2]),
        ("1048575", &[1_048_575]),
        ("all", &[]),
        ("1,all", &[]),
        ("none", &[]),
        ("1,none", &[]),
        ("void", &[]),
        ("", &[]),
    ] {
        assert_eq!(channels(value, &policy()), expected, "{value}");
    }
    let ignoring = Policy {
        ignore_imex: true,
        ..policy()
    };
    assert_eq!(channels("1", &ignoring), [0; 0]);
    assert_eq!(
        asked(&container(&["NVIDIA_IMEX_CHANNELS=0"]), &policy()),
        None
    );
    let all = Container {
        mounts: mounts(&["imex/all", "0"]),
        ..Container::default()
    };
    let one = |channel: &str| {
        let variable = format!("NVIDIA_IMEX_CHANNELS={channel}");
        container(&["NVIDIA_VISIBLE_DEVICES=0", &variable])
    };
    for (wrong, policy, name) in [
        (all, with_mounts(), "all"),
        (one("0,x"), policy(), "x"),
        (one("1048576"), policy(), "1048576"),
        (one("channel"), policy(), "channel"),
    ] {
        let refused = request(&wrong, &policy, &Three).unwrap_err();
        assert_eq!(refused, Error::ImexChannel(name.to_owned()));
    }
}

#[test]
fn qualified_names_are_those_of_cdi() {
    for name in ["nvidia.com/gpu=0", "n/g=0", "a-b_c.d/e.f=G:0-1.x"] {
        assert!(nvc_cdi::names::is_qualified(name), "{name}");
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
        assert!(!nvc_cdi::names::is_qualified(name), "{name}");
    }
}
