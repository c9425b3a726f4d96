//! Devices that a device plugin has given, as the kubelet says.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::thread;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::health::taints;
use crate::node::{Node, result, wait};
use crate::sides::started;

/// Returns what the kubelet answers if a pod of a plugin has this device.
pub(crate) fn with(id: &str) -> Value {
    json!({"pods": [{"name": "p", "namespace": "other", "containers": [
        {"name": "none"},
        {"name": "c", "devices": [
            {"resource_name": "example.com/x", "device_ids": ["x"]},
            {"resource_name": "nvidia.com/gpu", "device_ids": [id]},
        ]},
    ]}]})
}

/// Such a device is given to nobody else, whether the plugin was first, or both gave it at the same moment.
pub(crate) fn a_device_of_a_plugin() {
    let mut node = Node::new();
    node.plugins(json!({}));
    let mut daemon = node.started();
    let devices = node.published();
    let whole = node.driver.profile().gpus[0].uuid.clone();
    let parent = node.driver.profile().gpus[1].uuid.clone();
    let [mig, sibling] = [0, 1].map(|at| node.driver.profile().mig_devices[at].uuid.clone());
    let name = devices.iter().find(|name| name.contains("mig")).unwrap();
    let refusal = |device: &str| {
        format!(
            "{device} is given to the pod other/p by a device plugin (hint: let one program give the GPUs of a node)"
        )
    };
    node.claim("a", &["gpu-0"]);
    node.claim("b", &[name]);
    // The plugin was first; one that shares a device numbers the shares.
    for id in [whole.clone(), format!("{whole}::3")] {
        node.plugins(with(&id));
        assert_eq!(node.refused("a"), refusal("gpu-0"));
        node.prepared("b");
        node.unprepared("b");
    }
    wait("a taint", || !taints(&mut node).is_empty());
    let tainted = taints(&mut node);
    assert!(
        tainted.iter().all(|taint| taint.starts_with("gpu-0 ")),
        "{tainted:?}"
    );
    assert_eq!(node.published(), devices);
    for id in [&mig, &parent] {
        node.plugins(with(id));
        assert_eq!(node.refused("b"), refusal(name));
    }
    node.plugins(with(&sibling));
    node.prepared("b");
    node.unprepared("b");
    // An administrator's claim takes nothing away.
    let mut shared = result("gpu-0");
    shared["adminAccess"] = json!(true);
    node.plugins(with(&whole));
    node.claim_of("c", json!({"results": [shared]}));
    node.prepared("c");
    node.unprepared("c");
    // At the same moment: the kubelet knows it when the claim's file is there.
    let file = node.specification("b");
    node.plugin_gives(&mig, &file);
    assert_eq!(node.refused("b"), refusal(name));
    assert_eq!(node.files(), [] as [String; 0]);
    // It has gone.
    node.plugins(json!({}));
    node.prepared("b");
    node.unprepared("b");
    wait("no taint", || taints(&mut node).is_empty());
    assert!(daemon.is_alive());
}

/// A driver beside a kubelet that has not started yet asks it later. In a container without the kubelet's directory it asks
/// nobody, and says so.
pub(crate) fn a_list_that_is_not_there() {
    let mut node = Node::new();
    let (uuid, socket) = (
        node.driver.profile().gpus[0].uuid.clone(),
        node.pods_socket(),
    );
    let directory = socket.parent().unwrap();
    node.claim("a", &["gpu-0"]);
    fs::remove_dir_all(directory).unwrap();
    let mut daemon = node.started();
    let mode = fs::metadata(directory).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o750);
    let at = format!("{}: ", socket.display());
    assert!(node.refused("a").starts_with(&at));
    node.plugins(with(&uuid));
    assert!(node.refused("a").contains("by a device plugin"));
    node.plugins(json!({}));
    node.prepared("a");
    node.unprepared("a");
    // What vanishes later gives nothing either.
    fs::remove_dir_all(directory).unwrap();
    assert!(node.refused("a").starts_with(&at));
    daemon.signal(Signal::SIGTERM);
    daemon.ended();
    node.remove_slices();
    let plugins = node.scratch.join("plugins");
    let script = "mount --bind \"$0\" \"$0\" && exec \"$@\"";
    let wrapper = [
        "unshare",
        "-m",
        "sh",
        "-c",
        script,
        plugins.to_str().unwrap(),
    ];
    let daemon = started(&mut node, &wrapper);
    node.prepared("a");
    node.unprepared("a");
    let said = "device plugins";
    assert_eq!(daemon.log().matches(said).count(), 1, "{}", daemon.log());
    assert!(!directory.exists());
}

/// Then nothing is given; the slices do not wait for it.
pub(crate) fn a_kubelet_that_does_not_say() {
    let mut node = Node::new();
    node.plugins(json!({"hang": true}));
    let mut daemon = node.started();
    node.claim("a", &["gpu-0"]);
    let socket = node.pods_socket();
    let at = format!("{}: ", socket.display());
    for (answer, said) in [
        (json!({"hang": true}), "no answer"),
        (json!({"refuse": "RESOURCE_EXHAUSTED"}), "as the test said"),
        (json!({"refuse": "UNIMPLEMENTED"}), "as the test said"),
        (json!({"message": "ff", "times": 64}), "failed to decode"),
        (json!({"message": "0aff", "times": 1}), "failed to decode"),
        // A pod within a pod within a pod.
        (json!({"message": "0a", "times": 1 << 20}), ""),
        (
            json!({"message": "0a00", "times": 9 << 20}),
            "length too large",
        ),
    ] {
        node.plugins(answer.clone());
        let reason = node.refused("a");
        assert!(
            reason.starts_with(&at) && reason.contains(said),
            "{answer}: {reason}"
        );
        assert_eq!(node.files(), [] as [String; 0]);
    }
    node.remove_slices();
    node.published();
    // As many pods as nobody has, with names that nobody has.
    let name = "\u{1b}[2J".repeat(1000);
    let mut pods = with(&node.driver.profile().gpus[0].uuid.clone());
    pods["pods"][0]["name"] = json!(name);
    let pod = pods["pods"][0].clone();
    pods["pods"] = json!(vec![pod; 1000]);
    node.plugins(pods);
    let reason = node.refused("a");
    assert!(
        reason.len() < 4096 && !reason.contains('\u{1b}'),
        "{reason}"
    );
    // Another server than the kubelet's, or none.
    fs::remove_file(&socket).unwrap();
    assert!(node.refused("a").starts_with(&at));
    let listener = UnixListener::bind(&socket).unwrap();
    thread::spawn(move || {
        for (n, stream) in listener.incoming().enumerate() {
            let garbage = [&b"HTTP/1.1 200 OK\r\n\r\n"[..], &[0xff; 4096], b""][n % 3];
            let _ = stream.unwrap().write_all(garbage);
        }
    });
    for _ in 0..6 {
        assert!(node.refused("a").starts_with(&at));
    }
    fs::remove_file(&socket).unwrap();
    node.plugins(json!({}));
    node.prepared("a");
    node.unprepared("a");
    assert!(daemon.is_alive());
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}
