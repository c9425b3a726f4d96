//! Tests how edits are applied to config.json.

#![allow(clippy::unwrap_used)]

use super::*;

fn spec() -> Spec {
    Spec::new(json!({
        "ociVersion": "1.0.2",
        "process": {"user": {"uid": 0, "gid": 7}, "env": ["PATH=/bin", "A=own"]},
        "mounts": [
            {"destination": "/a/b/c", "source": "x"},
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/lib/x", "source": "old"},
        ],
        "frob": {"unknown": [1, 2.5]},
    }))
}

fn node(path: &str, host: &str) -> DeviceNode {
    DeviceNode {
        path: path.into(),
        host_path: host.into(),
        ..DeviceNode::default()
    }
}

fn look_up(path: &Path) -> Result<HostNode> {
    let (kind, minor) = match path.to_str().unwrap() {
        "/dev/nv0" => ('c', 0),
        "/dev/nv1" => ('c', 1),
        "/dev/pipe" => ('p', 0),
        other => return Err(malformed(format!("{other} is missing"))),
    };
    Ok(HostNode {
        kind,
        major: 195,
        minor,
        mode: 0o660,
    })
}

fn host(drivers: &CharDrivers) -> Host<'_> {
    Host { look_up, drivers }
}

fn edits() -> Edits {
    Edits {
        env: vec!["A=cdi".into(), "B=1".into(), "B=2".into()],
        device_nodes: vec![
            node("/dev/nv0", ""),
            node("/dev/x", "/dev/nv1"),
            node("/dev/y", "/dev/nv1"),
        ],
        mounts: vec![Mount {
            host_path: "/new".into(),
            container_path: "/lib/x".into(),
            options: vec!["ro".into()],
            kind: String::new(),
        }],
        hooks: vec![Hook {
            hook_name: "createContainer".into(),
            path: "/h".into(),
            args: vec!["h".into()],
            ..Hook::default()
        }],
        additional_gids: vec![44, 0, 44],
        ..Edits::default()
    }
}

#[test]
fn everything_goes_where_engines_put_it() {
    let mut spec = spec();
    apply(&mut spec, &[edits()], host(&CharDrivers::default())).unwrap();
    let value = spec.value();
    assert_eq!(
        value["process"]["env"],
        json!(["PATH=/bin", "A=cdi", "B=2"])
    );
    assert_eq!(value["process"]["user"]["additionalGids"], json!([44]));
    let device = |path: &str, minor: u64| json!({"path": path, "type": "c", "major": 195, "minor": minor, "fileMode": 0o660, "gid": 7});
    let devices = [
        device("/dev/nv0", 0),
        device("/dev/x", 1),
        device("/dev/y", 1),
    ];
    assert_eq!(value["linux"]["devices"], json!(devices));
    assert_eq!(
        value["linux"]["resources"]["devices"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
    let places: Vec<_> = value["mounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| &mount["destination"])
        .collect();
    assert_eq!(places, ["/proc", "/lib/x", "/a/b/c"]);
    assert_eq!(value["mounts"][1]["source"], "/new");
    assert_eq!(value["hooks"]["createContainer"][0]["args"], json!(["h"]));
    assert_eq!(value["frob"], json!({"unknown": [1, 2.5]}));
}

#[test]
fn a_second_time_changes_nothing() {
    let mut once = spec();
    apply(&mut once, &[edits()], host(&CharDrivers::default())).unwrap();
    let mut twice = once.clone();
    apply(&mut twice, &[edits()], host(&CharDrivers::default())).unwrap();
    assert_eq!(once, twice);
}

#[test]
fn variables_are_set_once() {
    let with = |env: &[&str]| Edits {
        env: env.iter().map(ToString::to_string).collect(),
        ..Edits::default()
    };
    let mut spec =
        Spec::new(json!({"process": {"env": ["A=1", "B=1", "A=2", 7, "AA=3", "A", "C=1"]}}));
    let all = [with(&["A=3", "A=4", "D=1"]), with(&["D=2", "C=", "A=5"])];
    for _ in 0..2 {
        apply(&mut spec, &all, host(&CharDrivers::default())).unwrap();
        let expected = json!(["A=5", "B=1", 7, "AA=3", "C=", "D=2"]);
        assert_eq!(spec.value()["process"]["env"], expected);
    }
}

#[test]
fn no_hook_in_the_container_has_its_environment() {
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let hook = |stage: &str, env: &[&str]| Hook {
        hook_name: stage.into(),
        path: "/h".into(),
        env: env.iter().map(ToString::to_string).collect(),
        timeout: Some(7),
        ..Hook::default()
    };
    let stages = [
        "createContainer",
        "startContainer",
        "prestart",
        "createRuntime",
        "poststart",
        "poststop",
    ];
    let hooks = stages
        .iter()
        .flat_map(|stage| [hook(stage, &[]), hook(stage, &["A=b"])]);
    let edits = Edits {
        hooks: hooks.collect(),
        ..Edits::default()
    };
    let entry = |env: Option<&str>| match env {
        Some(env) => json!({"path": "/h", "timeout": 7, "env": [env]}),
        None => json!({"path": "/h", "timeout": 7}),
    };
    // The engine has applied the specification itself.
    let there = json!({"hooks": {"createContainer": [entry(None), {"path": "/x"}]}});
    for mut spec in [Spec::new(json!({})), Spec::new(there)] {
        for _ in 0..2 {
            apply(
                &mut spec,
                std::slice::from_ref(&edits),
                host(&CharDrivers::default()),
            )
            .unwrap();
        }
        let found = &spec.value()["hooks"];
        for stage in stages {
            let inside = ["createContainer", "startContainer"].contains(&stage);
            let list = found[stage].as_array().unwrap();
            let ours: Vec<_> = list.iter().filter(|hook| hook["path"] == "/h").collect();
            let bare = entry(inside.then_some(path));
            assert_eq!(ours, [&bare, &entry(Some("A=b"))], "{stage}");
        }
        let mut foreign = found["createContainer"].as_array().unwrap().iter();
        assert!(foreign.all(|hook| hook["env"].is_array()), "{found}");
    }
}

/// The engine has applied a specification that has the hook twice.
#[test]
fn no_hook_without_an_environment_is_left() {
    let bare = json!({"path": "/h", "args": ["h"]});
    let mut spec = Spec::new(json!({"hooks": {"createContainer": [bare, bare]}}));
    let hook = edits().hooks[0].clone();
    let edits = Edits {
        hooks: vec![hook.clone(), hook],
        ..Edits::default()
    };
    apply(&mut spec, &[edits], host(&CharDrivers::default())).unwrap();
    let hooks = spec.value()["hooks"]["createContainer"].as_array().unwrap();
    assert_eq!(hooks.len(), 2);
    assert!(hooks.iter().all(|hook| hook["env"].is_array()), "{hooks:?}");
}

#[test]
fn a_rule_that_is_taken_back_is_given_again() {
    let allowed = json!({"allow": true, "type": "c", "major": 195, "minor": 0, "access": "rwm"});
    let mut spec =
        Spec::new(json!({"linux": {"resources": {"devices": [allowed, {"allow": false}]}}}));
    let edits = Edits {
        device_nodes: vec![node("/dev/nv0", "")],
        ..Edits::default()
    };
    apply(&mut spec, &[edits], host(&CharDrivers::default())).unwrap();
    let rules = &spec.value()["linux"]["resources"]["devices"];
    assert_eq!(rules[2], allowed);
}

/// Also if a file records numbers: the container gets those.
#[test]
fn nodes_must_be_the_devices_of_their_names() {
    let drivers = CharDrivers::of("Character devices:\n195 nvidia\n508 nvidia-uvm\n", "");
    let apply_node = |node: DeviceNode| {
        let edits = Edits {
            device_nodes: vec![node],
            ..Edits::default()
        };
        apply(&mut spec(), &[edits], host(&drivers))
    };
    // The host's nodes are 195:0, 195:1, and a fifo.
    for (path, host_path, expected) in [
        ("/dev/nvidia0", "/dev/nv0", Ok(())),
        ("/dev/nvidia1", "/dev/nv1", Ok(())),
        (
            "/dev/nvidia0",
            "/dev/nv1",
            Err("/dev/nvidia0 is 195:1, and its minor number should be 0"),
        ),
        (
            "/dev/nvidia-uvm",
            "/dev/nv0",
            Err("/dev/nvidia-uvm is 195:0, and the driver's major number is 508"),
        ),
        (
            "/dev/nvidiactl",
            "/dev/pipe",
            Err("/dev/nvidiactl is not a character device"),
        ),
        ("/dev/of-another-vendor", "/dev/pipe", Ok(())),
    ] {
        let applied = apply_node(node(path, host_path)).map_err(|error| error.message());
        assert_eq!(
            applied,
            expected.map_err(String::from),
            "{path} {host_path}"
        );
    }
    let recorded = |major| DeviceNode {
        kind: "c".into(),
        major,
        ..node("/dev/nvidia-uvm", "")
    };
    assert!(apply_node(recorded(508)).is_ok());
    let outdated = apply_node(recorded(510)).unwrap_err();
    assert_eq!(
        outdated.message(),
        "/dev/nvidia-uvm is 510:0, and the driver's major number is 508"
    );
}

#[test]
fn nodes_must_match_their_declared_type() {
    let apply_node = |node: DeviceNode| {
        let mut spec = spec();
        let edits = Edits {
            device_nodes: vec![node],
            ..Edits::default()
        };
        apply(&mut spec, &[edits], host(&CharDrivers::default()))
            .map(|()| spec.value()["linux"].clone())
    };
    let missing = apply_node(node("/dev/none", "")).unwrap_err();
    assert_eq!(missing.message(), "/dev/none is missing");
    let block = DeviceNode {
        kind: "b".into(),
        ..node("/dev/nv0", "")
    };
    assert!(
        apply_node(block)
            .unwrap_err()
            .message()
            .contains("expected a device of type b")
    );
    let known = DeviceNode {
        kind: "c".into(),
        major: 5,
        minor: 6,
        ..node("/dev/none", "")
    };
    assert_eq!(apply_node(known).unwrap()["devices"][0]["major"], 5);
    let fifo = apply_node(node("/dev/pipe", "")).unwrap();
    assert_eq!(fifo["devices"][0].get("major"), None);
    assert_eq!(fifo["resources"]["devices"], json!([]));
}

#[test]
fn members_of_another_type_are_errors() {
    let mut spec = Spec::new(json!({"process": {"env": "A=1"}}));
    let error = apply(&mut spec, &[edits()], host(&CharDrivers::default())).unwrap_err();
    assert_eq!(error.message(), "process.env: expected a list");
}
