//! What the driver publishes, at an API server that deletes it, changes it, is slow or away.

use std::fs;

use nvc_testkit::driver::Builder;
use nvc_testkit::profile::Profile;
use serde_json::{Value, json};

use crate::node::{Node, wait};

/// The devices of the simulated driver's default machine.
fn is_whole(devices: &[String]) -> bool {
    devices.iter().any(|name| name == "gpu-0") && devices.len() == 3
}

pub(crate) fn slices_follow_the_registration() {
    let mut node = Node::new();
    let mut daemon = node.start();
    wait("a registration socket", || {
        assert!(daemon.is_alive(), "{}", daemon.log());
        !node.registrations().is_empty()
    });
    let socket = node.registrations().remove(0);
    let info = node.registration(&socket, "GetInfo", json!({}));
    let service = node.services().remove(0);
    let expected = json!([{
        "type": "DRAPlugin", "name": "gpu.nvidia.com", "endpoint": service,
        "supported_versions": ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"],
    }]);
    assert_eq!(info, expected);
    let refusal = json!({"plugin_registered": false, "error": "no"});
    node.registration(&socket, "NotifyRegistrationStatus", refusal);
    assert_eq!(node.slices(), [] as [Value; 0]);
    node.register(&mut daemon);
    assert!(is_whole(&node.published()));
    let slice = node.slices().remove(0);
    assert_eq!(slice["spec"]["nodeName"], "n1");
    assert_eq!(slice["spec"]["driver"], "gpu.nvidia.com");
    assert_eq!(slice["metadata"]["ownerReferences"][0]["kind"], "Node");
}

/// A slice takes 64 devices if one of them may have a taint.
pub(crate) fn sixteen_gpus_with_seven_mig_devices_each() {
    let mut node = Node::with(Builder::new(Profile::of_size(16, 7)));
    let _daemon = node.started();
    wait("all devices", || node.published().len() == 112);
    let mut names = node.published();
    let slices = node.slices();
    let sizes = slices
        .iter()
        .map(|slice| slice["spec"]["devices"].as_array().unwrap().len());
    assert_eq!(sizes.collect::<Vec<_>>(), [64, 48]);
    let pool = &slices[0]["spec"]["pool"];
    assert_eq!(pool["resourceSliceCount"], 2);
    assert_eq!(slices[1]["spec"]["pool"], *pool);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 112);
    node.claim("a", &["gpu-15-mig-1g10gb-19-6"]);
    node.prepared("a");
}

pub(crate) fn slices_come_back() {
    let mut node = Node::new();
    let _daemon = node.started();
    let mut again = |what: &str, before: Value| {
        if before != Value::Null {
            node.api(before);
        }
        node.remove_slices();
        wait(what, || !node.slices().is_empty());
        assert!(is_whole(&node.published()), "{what}");
    };
    again("deleted", Value::Null);
    again("deleted again", Value::Null);
    again("the watch has ended", json!({"end": 0}));
    again("the watch is too old", json!({"end": 410}));
    again("the list fails", json!({"next": [500, 410, 429, 0]}));
    again("the write is refused", json!({"next": [409]}));
    // Somebody changes it.
    let mut slice = node.slices().remove(0);
    let name = slice["metadata"]["name"].as_str().unwrap().to_owned();
    slice["spec"]["devices"] = json!([]);
    node.put(
        &format!("/apis/resource.k8s.io/v1/resourceslices/{name}"),
        slice,
    );
    wait("changed", || is_whole(&node.published()));
    // Another one of this driver and node, such as NVIDIA's driver has left.
    let mut other = node.slices().remove(0);
    other["metadata"] = json!({"name": "other"});
    other["spec"]["pool"]["generation"] = json!(7);
    node.put("/apis/resource.k8s.io/v1/resourceslices/other", other);
    wait("one whole pool of the newest generation", || {
        let slices = node.slices();
        slices.len() == 1 && slices[0]["spec"]["pool"]["generation"].as_i64().unwrap() >= 7
    });
}

pub(crate) fn what_the_server_kept_stays() {
    let mut node = Node::new();
    node.api(json!({"drop": ["brand", "uuid"]}));
    let _daemon = node.started();
    node.remove_slices();
    node.published();
    node.api(json!({"calls": true}));
    // An event of another object; the driver would write again if it compared with what it sent.
    let mut slice = node.slices().remove(0);
    let name = slice["metadata"]["name"].as_str().unwrap().to_owned();
    slice["metadata"]["labels"] = json!({"a": "b"});
    node.put(
        &format!("/apis/resource.k8s.io/v1/resourceslices/{name}"),
        slice,
    );
    std::thread::sleep(std::time::Duration::from_secs(1));
    let calls = node.api(json!({"calls": true}));
    let writes = |call: &&Value| call[0] != "GET";
    assert_eq!(
        calls.as_array().unwrap().iter().filter(writes).count(),
        0,
        "{calls}"
    );
}

pub(crate) fn a_server_that_is_away_or_slow() {
    let mut node = Node::new();
    node.api(json!({"open": false}));
    let mut daemon = node.start();
    node.register(&mut daemon);
    node.claim("a", &["gpu-0"]);
    let said = node.refused("a");
    let server = format!("the API server {}", node.server);
    assert!(said.starts_with(&server), "{said}");
    assert!(said.contains("Connection refused"), "{said}");
    // Taking back needs no API server.
    node.unprepared("a");
    node.api(json!({"open": true}));
    assert!(is_whole(&node.published()));
    node.prepared("a");
    // It restarts, and has lost the slice meanwhile.
    node.api(json!({"open": false}));
    node.remove_slices();
    node.api(json!({"open": true}));
    assert!(is_whole(&node.published()));
    node.api(json!({"delay": 1}));
    node.prepared("a");
    node.unprepared("a");
    node.api(json!({"delay": 0}));
    node.api(json!({"next": [-1]}));
    assert_eq!(
        node.refused("a"),
        format!("{server}: no answer within 10 s")
    );
    for (status, said) in [
        (403, "as the test said: 403"),
        (500, "as the test said: 500"),
    ] {
        node.api(json!({"next": [status]}));
        assert_eq!(node.refused("a"), format!("the API server: {said}"));
    }
    node.prepared("a");
    assert!(daemon.is_alive());
}

/// The driver says why it does not accept a certificate, and goes on when there is a good one: at its start, and later.
pub(crate) fn certificates_that_are_not_accepted() {
    let mut node = Node::secure();
    node.claim("a", &["gpu-0"]);
    let mut daemon = None;
    for (name, year, by, said) in [
        ("127.0.0.1", 2099, "other", "UnknownIssuer"),
        ("127.0.0.1", 2020, "", "certificate expired"),
        ("other.example", 2099, "", "certificate not valid for name"),
    ] {
        node.certify(name, year, by);
        node.remove_slices();
        let daemon = daemon.get_or_insert_with(|| node.start());
        node.register(daemon);
        let reason = node.refused("a");
        let server = format!("the API server {}: ", node.server);
        assert!(reason.starts_with(&server), "{reason}");
        assert!(reason.contains(said), "{reason}");
        assert!(node.slices().is_empty());
        node.certify("127.0.0.1", 2099, "");
        node.published();
        node.prepared("a");
        node.unprepared("a");
        assert!(daemon.is_alive());
        assert!(daemon.log().contains(said), "{}", daemon.log());
    }
}

/// The client reads them once. So the driver ends when they are replaced, and the next one has them.
pub(crate) fn other_authorities() {
    let mut node = Node::secure();
    node.claim("a", &["gpu-0"]);
    let command = node.command_in_pod();
    let mut daemon = node.spawn(command);
    node.register(&mut daemon);
    node.published();
    node.prepared("a");
    node.certify("127.0.0.1", 2099, "other");
    assert!(
        node.prepare("a")["error"]
            .as_str()
            .unwrap()
            .contains("UnknownIssuer")
    );
    let (file, new) = ("account/ca.crt", node.scratch.join("account/new"));
    // A half of it is no reason.
    fs::write(&new, "-----BEGIN CERTIFICATE-----\n").unwrap();
    fs::rename(&new, node.scratch.join(file)).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(11));
    assert!(daemon.is_alive());
    node.api(json!({"authority": "other", "to": new}));
    fs::rename(&new, node.scratch.join(file)).unwrap();
    daemon.ended();
    let said = "the API server has other authorities now";
    assert!(daemon.log().contains(said), "{}", daemon.log());
    assert_eq!((node.services().len(), node.registrations().len()), (0, 0));
    let command = node.command_in_pod();
    let mut daemon = node.spawn(command);
    node.register(&mut daemon);
    node.remove_slices();
    node.published();
    node.prepared("a");
    node.unprepared("a");
}

/// The kubelet replaces the token's file of a pod each hour; the client reads it again each minute.
pub(crate) fn a_token_that_is_rotated() {
    let mut node = Node::secure();
    node.api(json!({"tokens": ["first"]}));
    let command = node.command_in_pod();
    let mut daemon = node.spawn(command);
    node.register(&mut daemon);
    node.published();
    node.claim("a", &["gpu-0"]);
    node.prepared("a");
    let account = node.scratch.join("account");
    fs::write(account.join("new"), "second").unwrap();
    fs::rename(account.join("new"), account.join("token")).unwrap();
    node.api(json!({"tokens": ["second"]}));
    node.api(json!({"end": 0}));
    node.remove_slices();
    node.published();
    node.prepared("a");
    assert!(daemon.is_alive());
    assert!(!daemon.log().contains("second"), "{}", daemon.log());
}
