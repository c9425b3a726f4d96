//! What claims get, and which are refused.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::health::taints;
use crate::node::{Node, result, uid, wait};

const API: &str = "resource.nvidia.com/v1beta1";

/// Refusals that have nothing to do with the machine: what is claimed, and what the driver says.
pub(crate) fn refused() {
    let mut node = Node::new();
    let mut daemon = node.started();
    let parameters = |driver: &str, parameters: Value| json!({"results": [result("gpu-0")], "config": [{"source": "FromClaim", "requests": [], "opaque": {"driver": driver, "parameters": parameters}}]});
    let ours = |it: Value| parameters("gpu.nvidia.com", it);
    let hint = "hint: leave the config out of the claim and of its DeviceClass";
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    let deep: Value = serde_json::from_str(&deep).unwrap();
    for (devices, said) in [
        (
            json!({"results": []}),
            "the claim has no device of gpu.nvidia.com".to_owned(),
        ),
        (
            Value::Null,
            "the claim has no device of gpu.nvidia.com".into(),
        ),
        (
            json!({"results": [{"request": "r", "driver": "other.com", "pool": "n1", "device": "gpu-0"}]}),
            "the claim has no device of gpu.nvidia.com".into(),
        ),
        (
            json!({"results": [{"request": "r", "driver": "gpu.nvidia.com", "pool": "n2", "device": "gpu-0"}]}),
            "gpu-0 is one of the pool n2, and this node is n1".into(),
        ),
        (
            json!({"results": [result("gpu-0"), result("gpu-7")]}),
            "there is no gpu-7 now".into(),
        ),
        // In MIG mode.
        (
            json!({"results": [result("gpu-1")]}),
            "there is no gpu-1 now".into(),
        ),
        (
            json!({"results": [result("../gpu-0")]}),
            "there is no ../gpu-0 now".into(),
        ),
        (
            ours(
                json!({"apiVersion": API, "kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}),
            ),
            format!("this driver shares no device: sharing.strategy is \"TimeSlicing\" ({hint})"),
        ),
        (
            ours(json!({"apiVersion": API, "kind": "GpuConfig", "sharding": 1})),
            format!("GpuConfig has no field \"sharding\" ({hint})"),
        ),
        (
            ours(json!({"apiVersion": "v9", "kind": "GpuConfig"})),
            format!("this driver has no parameters \"GpuConfig\" of \"v9\" ({hint})"),
        ),
        (
            ours(deep),
            format!("the claim's parameters are no object ({hint})"),
        ),
        (
            ours(Value::Null),
            format!("the claim's parameters are no object ({hint})"),
        ),
    ] {
        node.claim_of("a", devices.clone());
        assert_eq!(node.refused("a"), said, "{devices}");
    }
    // Another claim of the same name.
    node.claim("a", &["gpu-0"]);
    let service = node.services().remove(0);
    let answer = node.call_at(&service, "NodePrepareResources", "a", "other");
    assert_eq!(
        answer["error"],
        format!("the claim was replaced by another one, {}", uid("a"))
    );
    for (name, uid) in [
        ("a", ""),
        ("a", "../../x"),
        ("../../api/v1/nodes/n1", "x"),
        ("a", "x\n"),
    ] {
        for method in ["NodePrepareResources", "NodeUnprepareResources"] {
            let answer = node.call_at(&service, method, name, uid);
            let is_harmless = method == "NodeUnprepareResources" && name != "a";
            assert_eq!(
                answer["error"] == "",
                is_harmless,
                "{method} {name} {uid}: {answer}"
            );
        }
    }
    assert_eq!(node.files(), [] as [String; 0]);
    // A device is given to one, and parameters of others do not matter.
    node.claim_of("a", parameters("other.com", json!([1])));
    node.prepared("a");
    node.claim("b", &["gpu-0"]);
    let said = node.refused("b");
    assert!(
        said.starts_with("the claim ns/a has the same device (hint: "),
        "{said}"
    );
    // Also after the claim's end, until the kubelet says that its container has ended.
    node.api(json!({"remove": "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/a"}));
    node.refused("b");
    node.unprepared("a");
    node.prepared("b");
    assert!(daemon.is_alive());
}

pub(crate) fn given() {
    let mut node = Node::new();
    let _daemon = node.started();
    let devices = node.published();
    let migs: Vec<_> = devices.iter().filter(|name| name.contains("mig")).collect();
    node.claim_of("a", json!({
        "results": [
            {"request": "r/first", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"},
            {"request": "q", "driver": "other.com", "pool": "n1", "device": "x"},
            result(migs[0]),
        ],
        "config": [{"source": "FromClass", "requests": [], "opaque": {"driver": "gpu.nvidia.com", "parameters": {"apiVersion": API, "kind": "GpuConfig"}}}],
    }));
    node.prepared("a");
    let answer = node.prepare("a");
    let devices = answer["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 2, "{answer}");
    assert_eq!(devices[0]["request_names"], json!(["r"]));
    assert_eq!(devices[0]["pool_name"], "n1");
    // The older service is the same.
    let file = fs::read_to_string(node.specification("a")).unwrap();
    assert!(
        file.contains("/dev/nvidia0") && file.contains("/dev/nvidiactl"),
        "{file}"
    );
    node.claim("b", &[migs[1]]);
    node.prepared("b");
    node.unprepared("a");
    node.unprepared("a");
    node.unprepared("b");
    assert_eq!(node.files(), [] as [String; 0]);
}

/// A part of the machine is missing, or the driver is not that of its libraries: nothing is given, and the reason said.
pub(crate) fn the_machine_changes() {
    let mut node = Node::new();
    let mut daemon = node.started();
    node.claim("a", &["gpu-0"]);
    node.prepared("a");
    // A node that is missing is made again.
    let modules = ["nvidia", "nvidia_uvm", "nvidia_modeset"];
    let modules = modules.map(|name| format!("{name} 1 0 - Live 0x0\n"));
    fs::write(node.driver.path("/proc/modules"), modules.concat()).unwrap();
    let uvm = node.driver.path("/dev/nvidia-uvm");
    fs::remove_file(&uvm).unwrap();
    node.prepared("a");
    assert!(uvm.exists());
    node.unprepared("a");
    // The simulated GPU is not on PCI, so that its node cannot be made.
    let [path, aside] = ["/dev/nvidia0", "/dev/aside"].map(|path| node.driver.path(path));
    fs::rename(&path, &aside).unwrap();
    let said = node.refused("a");
    assert!(said.contains("/dev/nvidia0 is missing (hint: "), "{said}");
    fs::create_dir(&path).unwrap();
    let said = node.refused("a");
    assert!(said.contains("/dev/nvidia0"), "{said}");
    fs::remove_dir(&path).unwrap();
    fs::rename(&aside, &path).unwrap();
    node.prepared("a");
    node.unprepared("a");
    let is_published =
        |node: &mut Node, name: &str| node.published().iter().any(|known| known == name);
    // The GPU is gone; the other ones stay.
    let whole = node.driver.profile().clone();
    let mut less = whole.clone();
    less.gpus.remove(0);
    for mig in &mut less.mig_devices {
        mig.gpu = 0;
    }
    node.driver.answer(&less).unwrap();
    let said = node.refused("a");
    assert!(
        said.contains("gpu-0") || said.contains("GPU-51a2"),
        "{said}"
    );
    wait("a slice without it", || !is_published(&mut node, "gpu-0"));
    assert_eq!(node.refused("a"), "there is no gpu-0 now");
    assert_eq!(node.published().len(), 2);
    node.driver.answer(&whole).unwrap();
    wait("a slice with it", || is_published(&mut node, "gpu-0"));
    node.prepared("a");
    node.unprepared("a");
    // A driver that was updated underneath.
    let mut newer = whole.clone();
    newer.driver = "999.1.1".into();
    node.driver.answer(&newer).unwrap();
    let said = node.refused("a");
    assert!(said.contains("999.1.1"), "{said}");
    node.driver.answer(&whole).unwrap();
    wait("the driver again", || is_published(&mut node, "gpu-0"));
    node.prepared("a");
    node.unprepared("a");
    // Another GPU in its place: nobody may claim it by that name for a minute.
    let mut other = whole.clone();
    other.gpus[0].uuid = "GPU-00000000-0000-4000-8000-000000000000".into();
    node.driver.answer(&other).unwrap();
    wait("a slice without its name", || {
        !is_published(&mut node, "gpu-0")
    });
    assert_eq!(node.published().len(), 2);
    assert!(daemon.log().contains("gpu-0 is another GPU now"));
    assert!(daemon.is_alive());
}

pub(crate) fn files_that_are_gone_or_damaged() {
    let mut node = Node::new();
    let mut daemon = node.started();
    let migs: Vec<_> = node
        .published()
        .into_iter()
        .filter(|name| name.contains("mig"))
        .collect();
    node.claim("a", &["gpu-0"]);
    node.claim("b", &[&migs[0]]);
    node.prepared("a");
    node.prepared("b");
    let whole = fs::read(node.specification("a")).unwrap();
    // Gone, changed, or the half of it.
    for content in [
        None,
        Some(&b"cdiVersion: 0.5.0\n"[..]),
        whole.get(..whole.len() / 2),
        Some(b"\0"),
    ] {
        fs::remove_file(node.specification("a")).unwrap();
        if let Some(content) = content {
            fs::write(node.specification("a"), content).unwrap();
        }
        node.prepared("a");
        assert_eq!(fs::read(node.specification("a")).unwrap(), whole);
    }
    // Also after a restart.
    daemon.signal(Signal::SIGTERM);
    daemon.ended();
    assert_eq!((node.services().len(), node.registrations().len()), (0, 0));
    fs::remove_file(node.specification("a")).unwrap();
    daemon = node.started();
    node.prepared("a");
    assert_eq!(fs::read(node.specification("a")).unwrap(), whole);
    // A damaged record costs that claim only.
    let record = fs::read(node.record("a")).unwrap();
    let long = format!("{{\"uid\": \"{}\"}}", "x".repeat(1 << 20));
    let outside = node.scratch.join("outside.json");
    fs::write(&outside, "x").unwrap();
    let elsewhere = String::from_utf8(record.clone())
        .unwrap()
        .replace(&uid("a"), "../../../../outside");
    for content in [
        &record[..record.len() / 2],
        b"",
        b"null",
        b"[",
        long.as_bytes(),
        elsewhere.as_bytes(),
    ] {
        fs::write(node.record("a"), content).unwrap();
        node.prepared("b");
        node.unprepared("b");
        node.prepared("b");
        node.prepared("a");
        assert_eq!(fs::read(node.record("a")).unwrap(), record);
        fs::write(node.record("a"), content).unwrap();
        node.unprepared("a");
        assert!(!node.record("a").exists());
        node.prepared("a");
    }
    assert!(outside.exists());
    node.unprepared("a");
    node.unprepared("b");
    // Those that NVIDIA's driver has prepared, and unknown ones.
    fs::write(node.specification("theirs"), &whole).unwrap();
    let checkpoint = node.scratch.join("plugins/gpu.nvidia.com/checkpoint.json");
    fs::write(&checkpoint, "{}").unwrap();
    node.unprepared("theirs");
    node.unprepared("unknown");
    assert_eq!(node.files(), [] as [String; 0]);
    assert!(checkpoint.exists());
    assert!(daemon.is_alive());
}

/// A container of its claim may run: the specification says what it has.
pub(crate) fn a_damaged_record_still_guards() {
    let mut node = Node::new();
    let _daemon = node.started();
    let devices = node.published();
    let migs: Vec<_> = devices.iter().filter(|name| name.contains("mig")).collect();
    node.claim("a", &["gpu-0"]);
    node.claim("b", &["gpu-0"]);
    node.claim("m", &[migs[0]]);
    node.claim("n", &[migs[0]]);
    node.claim("o", &[migs[1]]);
    node.prepared("a");
    node.prepared("m");
    for name in ["a", "m"] {
        fs::write(node.record(name), "{").unwrap();
    }
    for (name, other) in [("b", "a"), ("n", "m")] {
        let said = node.refused(name);
        let expected = format!("the claim ?/{} has the same device (hint: ", uid(other));
        assert!(said.starts_with(&expected), "{said}");
    }
    node.prepared("o");
    node.unprepared("a");
    node.unprepared("m");
    node.prepared("b");
    node.prepared("n");
    // With nothing to go by, it costs no other claim.
    fs::write(node.record("b"), "{").unwrap();
    fs::write(node.specification("b"), "{").unwrap();
    node.prepared("a");
}

/// The kubelet shows what a plugin has given only after that has returned: between the two looks of Prepare, or later.
pub(crate) fn a_device_plugin_gives_the_same() {
    let mut node = Node::new();
    let gpu = node.driver.profile().gpus[0].uuid.clone();
    let never = node.scratch.join("never");
    node.plugin_gives(&gpu, &never);
    let _daemon = node.started();
    node.claim("a", &["gpu-0"]);
    node.prepared("a");
    node.unprepared("a");
    // The first look of this Prepare finds nothing.
    let specification = node.specification("a");
    node.plugin_gives(&gpu, &specification);
    let said = "gpu-0 is given to the pod other/p by a device plugin (hint: let one program give the GPUs of a node)";
    assert_eq!(node.refused("a"), said);
    assert_eq!(node.files(), [] as [String; 0]);
    let tainted = ["gpu-0 gpu.nvidia.com/device-plugin -"];
    wait("a taint", || taints(&mut node) == tainted);
    // From then on it is the first look.
    assert_eq!(node.refused("a"), said);
    node.plugin_gives(&gpu, &never);
    wait("no taint", || taints(&mut node).is_empty());
    node.prepared("a");
    // Later than both looks.
    File::create(&never).unwrap();
    let said = "gpu-0 is given to the claim ns/a, and by a device plugin to the pod other/p";
    wait("an Event that names both", || {
        let events = node.api(json!({"list": "/apis/events.k8s.io/v1/"}));
        let mut events = events.as_array().unwrap().iter();
        events.any(|event| event["reason"] == "GivenTwice" && event["note"] == said)
    });
    wait("a taint", || taints(&mut node) == tainted);
    // The kubelet has forgotten the claim: its container may run, so it keeps what it has.
    let had = fs::read(&specification).unwrap();
    assert_ne!(node.prepare("a")["error"], "");
    assert_eq!(fs::read(&specification).unwrap(), had);
}

pub(crate) fn a_full_disk() {
    let mut node = Node::new();
    node.claim("a", &["gpu-0"]);
    let records = node.scratch.join("plugins/gpu.nvidia.com/claims");
    fs::create_dir_all(&records).unwrap();
    for directory in [node.scratch.join("cdi"), records] {
        let tmpfs = |flags: MsFlags, options: &str| {
            mount(
                Some("tmpfs"),
                &directory,
                Some("tmpfs"),
                flags,
                Some(options),
            )
            .unwrap();
        };
        tmpfs(MsFlags::empty(), "size=16k,mode=755");
        // Later mounts of this test are not the driver's.
        let mut daemon = node.started();
        fill(&directory.join("other"));
        let said = node.refused("a");
        assert!(said.contains("no space left on device"), "{said}");
        assert!(said.contains(directory.to_str().unwrap()), "{said}");
        assert_eq!(node.files(), ["other"]);
        // Nor without inodes or rights.
        let options = "size=1m,nr_inodes=2";
        tmpfs(MsFlags::MS_REMOUNT, options);
        let said = node.refused("a");
        assert!(said.contains("no space left on device"), "{said}");
        tmpfs(MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, options);
        let said = node.refused("a");
        assert!(said.contains("read-only file system"), "{said}");
        let options = "size=1m,nr_inodes=0";
        tmpfs(MsFlags::MS_REMOUNT, options);
        fs::remove_file(directory.join("other")).unwrap();
        node.prepared("a");
        // It keeps what it had.
        let had = fs::read(node.specification("a")).unwrap();
        tmpfs(MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, options);
        assert_ne!(node.prepare("a")["error"], "");
        assert_eq!(fs::read(node.specification("a")).unwrap(), had);
        tmpfs(MsFlags::MS_REMOUNT, options);
        node.unprepared("a");
        assert_eq!(node.files(), [] as [String; 0]);
        daemon.signal(Signal::SIGTERM);
        daemon.ended();
    }
}

fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    while file.write_all(&[0; 1024]).is_ok() {}
}

/// As in a rolling update: each call is served by one, and both know the other's claims.
pub(crate) fn two_drivers() {
    let mut node = Node::new();
    let mut first = node.started();
    let service = node.services().remove(0);
    let mut second = node.start();
    wait("a second driver", || {
        assert!(second.is_alive(), "{}", second.log());
        node.registrations().len() == 2
    });
    for socket in node.registrations() {
        node.registration(
            &socket,
            "NotifyRegistrationStatus",
            json!({"plugin_registered": true}),
        );
    }
    let mut services = node.services();
    services.sort_by_key(|socket| *socket != service);
    let call = |node: &mut Node, at: usize, method: &str, name: &str| {
        let answer = node.call_at(&services[at], method, name, &uid(name));
        answer["error"]
            .as_str()
            .unwrap_or_else(|| panic!("{answer}"))
            .to_owned()
    };
    let (prepare, unprepare) = ("NodePrepareResources", "NodeUnprepareResources");
    node.claim("a", &["gpu-0"]);
    node.claim("b", &["gpu-0"]);
    assert_eq!(call(&mut node, 0, prepare, "a"), "");
    let said = call(&mut node, 1, prepare, "b");
    assert!(
        said.starts_with("the claim ns/a has the same device"),
        "{said}"
    );
    assert_eq!(call(&mut node, 1, prepare, "a"), "");
    assert_eq!(call(&mut node, 1, unprepare, "a"), "");
    assert_eq!(call(&mut node, 1, prepare, "b"), "");
    // The old one goes; one slice stays, and comes back by the new one.
    first.signal(Signal::SIGTERM);
    first.ended();
    assert_eq!(node.services().len(), 1);
    node.remove_slices();
    node.published();
    node.unprepared("b");
    // One that is killed leaves sockets, which the next one removes.
    second.signal(Signal::SIGKILL);
    second.ended();
    assert_eq!((node.services().len(), node.registrations().len()), (1, 1));
    let mut third = node.start();
    wait("sockets of the third alone", || {
        third.is_alive()
            && node.services() != services[1..]
            && node.services().len() == 1
            && node.registrations().len() == 1
    });
}
