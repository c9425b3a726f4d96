//! Verdicts about GPUs in the slices: of the right device alone, over restarts, and gone after recovery.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::Signal;
use nvc_testkit::files;

use crate::node::{Node, wait};

/// Returns the taints: device, key, value.
pub(crate) fn taints(node: &mut Node) -> Vec<String> {
    let slices = node.slices();
    let devices = slices
        .iter()
        .flat_map(|slice| slice["spec"]["devices"].as_array().into_iter().flatten());
    let taints = devices.flat_map(|device| {
        let taints = device["taints"].as_array().into_iter().flatten();
        let word = |value: &serde_json::Value| value.as_str().unwrap_or("-").to_owned();
        taints.map(move |taint| {
            let [device, key, value] = [&device["name"], &taint["key"], &taint["value"]].map(word);
            format!("{device} {key} {value}")
        })
    });
    taints.collect()
}

pub(crate) fn a_taint_outlives_restarts_and_ends_with_the_fault() {
    let mut node = Node::new();
    let uuid = node.driver.profile().gpus[0].uuid.clone();
    let [events, readings] =
        ["events", "readings"].map(|name| node.driver.path(format!("/etc/nvidia-sim/{name}")));
    files::file(&events, "", 0o644).unwrap();
    let daemon = node.started();
    let names = node.published();
    let tainted = ["gpu-0 gpu.nvidia.com/xid 79"];
    wait("a taint", || {
        // A watch that just started may miss the first.
        let mut file = OpenOptions::new().append(true).open(&events).unwrap();
        writeln!(file, "xid gpu={uuid} code=31\nxid gpu={uuid} code=79").unwrap();
        sleep(Duration::from_millis(100));
        taints(&mut node) == tainted
    });
    assert_eq!(node.published(), names);
    node.claim("a", &["gpu-0"]);
    let said = node.refused("a");
    assert!(said.contains("XID 79"), "{said}");
    // Daemon and kubelet start anew; the GPU does not answer any more.
    daemon.signal(Signal::SIGKILL);
    drop(daemon);
    files::file(&readings, "total.0=!15\n", 0o644).unwrap();
    node.remove_slices();
    let _daemon = node.started();
    wait("the taint again", || taints(&mut node) == tainted);
    assert_eq!(node.published(), names);
    files::file(&readings, "", 0o644).unwrap();
    wait("recovery", || taints(&mut node).is_empty());
    assert_eq!(node.published(), names);
    node.prepared("a");
    node.unprepared("a");
}
