//! Tests edits of configurations.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::render::cdi::tests::plan;

fn options() -> Options {
    Options {
        host: cdi::Options::default(),
        hook: Some((
            "/usr/bin/nvidia-cdi-hook".into(),
            vec!["nvidia-cdi-hook".into()],
        )),
        bind_nodes: false,
    }
}

#[test]
fn unknown_members_survive_and_a_second_pass_changes_nothing() {
    let mut config = json!({
        "ociVersion": "1.0.2",
        "x": { "y": [1, null] },
        "process": { "env": ["A=1", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=0"] },
        "linux": { "devices": null, "z": true },
    });
    let intents = plan().flattened();
    assert!(edit(&mut config, &intents, &options()).unwrap());
    assert_eq!(config["x"], json!({ "y": [1, null] }));
    assert_eq!(config["linux"]["z"], true);
    assert_eq!(
        config["process"]["env"],
        json!(["A=1", "NVIDIA_VISIBLE_DEVICES=void"])
    );
    let paths: Vec<_> = config["linux"]["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|device| device["path"].as_str().unwrap())
        .collect();
    assert_eq!(paths, ["/dev/nvidiactl", "/dev/nvidia0", "/dev/dri/card1"]);
    assert_eq!(
        config["linux"]["resources"]["devices"][1],
        json!({ "allow": true, "type": "c", "major": 195, "minor": 0, "access": "rw" })
    );
    let hooks = config["hooks"]["createContainer"].as_array().unwrap();
    assert_eq!(hooks.len(), 1);
    assert_eq!(hooks[0]["args"][1], "merged");

    let once = config.clone();
    assert!(!edit(&mut config, &intents, &options()).unwrap());
    assert_eq!(config, once);
}

/// The file is valid for a real runtime: `scripts/test-cdi.sh` runs it with runc. `NVC_WRITE_GOLDEN` writes it instead.
#[test]
fn a_whole_configuration() {
    let look = "ls /dev /dev/dri/by-path /usr/lib64; env";
    let mut config = json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": { "uid": 0, "gid": 0 },
            "args": ["sh", "-c", look],
            "env": ["PATH=/usr/bin:/bin", "NVIDIA_VISIBLE_DEVICES=0"],
            "cwd": "/",
        },
        "root": { "path": "rootfs", "readonly": false },
        "mounts": [
            { "destination": "/proc", "type": "bind", "source": "/proc", "options": ["rbind"] },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] },
        ],
        "linux": { "namespaces": [{ "type": "mount" }] },
    });
    edit(&mut config, &plan().flattened(), &options()).unwrap();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/render/oci/golden.json");
    if std::env::var_os("NVC_WRITE_GOLDEN").is_some() {
        std::fs::write(file, format!("{config:#}\n")).unwrap();
    }
    let golden: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(config, golden, "{config:#}");
}

#[test]
fn a_node_that_is_there_is_replaced_if_it_is_another() {
    let mut config = json!({ "linux": { "devices": [
        { "path": "/dev/nvidia0", "type": "c", "major": 1, "minor": 3 },
        { "path": "/dev/other", "type": "c", "major": 1, "minor": 5 },
    ] } });
    edit(&mut config, &plan().flattened(), &options()).unwrap();
    let devices = config["linux"]["devices"].as_array().unwrap();
    let of_gpu: Vec<_> = devices
        .iter()
        .filter(|device| device["path"] == "/dev/nvidia0")
        .collect();
    assert_eq!(of_gpu.len(), 1);
    assert_eq!(of_gpu[0]["major"], 195);
    assert!(devices.iter().any(|device| device["path"] == "/dev/other"));
}

#[test]
fn nodes_of_another_root_are_bound_in_user_namespaces() {
    let options = Options {
        host: cdi::Options {
            dev_root: "/run/nvidia/driver".into(),
            ..cdi::Options::default()
        },
        bind_nodes: true,
        ..options()
    };
    let mut config = json!({});
    edit(&mut config, &plan().flattened(), &options).unwrap();
    assert!(config["linux"].get("devices").is_none());
    let mounts = config["mounts"].as_array().unwrap();
    let node = json!({
        "destination": "/dev/nvidia0",
        "type": "bind",
        "source": "/run/nvidia/driver/dev/nvidia0",
        "options": ["ro", "nosuid", "noexec", "bind"],
    });
    assert!(mounts.contains(&node), "{mounts:#?}");
}

#[test]
fn wrong_types_are_errors() {
    for config in [
        json!([]),
        json!({ "process": [] }),
        json!({ "process": { "env": {} } }),
        json!({ "hooks": 1 }),
    ] {
        let error = edit(&mut config.clone(), &plan().flattened(), &options()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Malformed, "{config}");
    }
}
