//! Tests hooks under real runtimes in containers with volumes.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nvc_testkit::cli::{self, Run};
use nvc_testkit::machine;
use nvc_tests::apply::{apply, link, own_devices};
use serde_json::json;

use super::bundle::{Bundle, live, words};

/// The image's links point hooks to a volume: nothing is created there, and the container starts.
pub(super) fn volumes_stay(runtime: &str) {
    let hooks = [
        words("create-symlinks --link ../owned::/data/a/link --link target::/etc/nvidia/link"),
        words("update-application-profile"),
        words("enable-cuda-compat --host-driver-version=1.0"),
        words("chmod --mode 777 --path /data/file"),
    ];
    let mut bundle = Bundle::new(&hooks);
    let volume = bundle.scratch.join("volume");
    fs::create_dir_all(volume.join("etc-nvidia")).unwrap();
    fs::write(volume.join("file"), "").unwrap();
    let before = nvc_testkit::tree::Tree::with_traces(&volume).unwrap();
    fs::create_dir(bundle.root().join("data")).unwrap();
    std::os::unix::fs::symlink("/data/etc-nvidia", bundle.root().join("etc/nvidia")).unwrap();
    let mounts = bundle.config["mounts"].as_array_mut().unwrap();
    mounts.push(
        json!({ "destination": "/data", "type": "bind", "source": volume, "options": ["rbind"] }),
    );
    bundle.config["process"]["args"][2] = "true".into();
    bundle.succeeds(runtime);
    let after = nvc_testkit::tree::Tree::with_traces(&volume).unwrap();
    assert_eq!(after.changes_since(&before), Vec::<String>::new());
}

/// In a user namespace hooks have all of its capabilities, the container's process has none. On a volume of another
/// user nothing is created; on one of the container's root, only a plan's hook creates what that root could.
pub(super) fn volumes_stay_in_a_user_namespace(runtime: &str) {
    const FIRST: u32 = 200_000;
    let hooks = [
        words("create-symlinks --link ../owned::/data/a/link --link target::/mine/separate"),
        words("chmod --mode 777 --path /data/file"),
        words(&apply(&[
            link("../owned", "/data/b/link"),
            link("target", "/mine/merged"),
            link("target", "/mine/file"),
        ])),
    ];
    let mut bundle = Bundle::new(&hooks);
    // The root of a user namespace cannot execute a file below the host root's home.
    let program = bundle.scratch.join("nvidia-cdi-hook");
    nvc_testkit::files::copy_program(&cli::beside("nvidia-cdi-hook").unwrap(), &program).unwrap();
    for hook in bundle.config["hooks"]["createContainer"]
        .as_array_mut()
        .unwrap()
    {
        hook["path"] = program.display().to_string().into();
    }
    let (volume, mine) = (bundle.scratch.join("volume"), bundle.scratch.join("mine"));
    fs::create_dir(&volume).unwrap();
    fs::create_dir(&mine).unwrap();
    fs::write(volume.join("file"), "").unwrap();
    fs::write(mine.join("file"), "").unwrap();
    for place in ["data", "mine"] {
        fs::create_dir(bundle.root().join(place)).unwrap();
    }
    let chown = |owner: u32, path: &Path| {
        let owner = format!("{owner}:{owner}");
        let run = Run::other("chown").args(["-R", "-h", &owner]).args([path]);
        assert_eq!(run.outcome().unwrap().status, Some(0));
    };
    chown(FIRST, &bundle.root());
    chown(FIRST, &mine);
    chown(FIRST + 1000, &volume);
    let before = nvc_testkit::tree::Tree::with_traces(&volume).unwrap();
    let machines = || fs::metadata("/dev/null").map(|null| null.uid()).unwrap();
    let owner = machines();
    let mounts = bundle.config["mounts"].as_array_mut().unwrap();
    for (place, source) in [("/data", &volume), ("/mine", &mine)] {
        mounts.push(
            json!({ "destination": place, "type": "bind", "source": source, "options": ["rbind"] }),
        );
    }
    let map = json!([{ "containerID": 0, "hostID": FIRST, "size": 65536 }]);
    let linux = &mut bundle.config["linux"];
    linux["uidMappings"] = map.clone();
    linux["gidMappings"] = map;
    linux["namespaces"] = json!([{ "type": "mount" }, { "type": "user" }]);
    linux["devices"] = json!([]);
    bundle.config["process"]["args"][2] = "true".into();
    bundle.succeeds(runtime);
    assert_eq!(machines(), owner);
    let after = nvc_testkit::tree::Tree::with_traces(&volume).unwrap();
    assert_eq!(after.changes_since(&before), Vec::<String>::new());
    assert!(mine.join("merged").is_symlink());
    assert!(!mine.join("separate").is_symlink());
    // It may be anyone's who uses the volume.
    assert!(!mine.join("file").is_symlink());
}

/// A directory that the engine fills from the image (`VOLUME /dev`) has the image's nodes.
pub(super) fn nodes_on_a_volume_count_by_device_rules(runtime: &str) {
    for hook in [
        words("filter-driver-proc"),
        words(&apply(&[own_devices(true)])),
    ] {
        for hosts_have_nodes in [false, true] {
            let mut bundle = Bundle::new(std::slice::from_ref(&hook));
            let (volume, dev) = (bundle.scratch.join("volume"), bundle.scratch.join("dev"));
            fs::create_dir(&volume).unwrap();
            fs::create_dir(&dev).unwrap();
            let nodes = machine::driver().path("/dev");
            let (volume, dev, nodes) = (volume.display(), dev.display(), nodes.display());
            bundle.before = format!(
                "mknod {volume}/nvidia0 c 195 0 && mknod {volume}/nvidia1 c 195 1 && mknod -m 666 {volume}/null c 1 3"
            );
            if hosts_have_nodes {
                bundle.before += &format!(
                    " && mount -t tmpfs tmpfs {dev} && cp -a /dev/null /dev/zero /dev/urandom /dev/full /dev/random /dev/tty {nodes}/nvidia* {dev} && mount --bind {dev} /dev"
                );
            }
            bundle.config["mounts"][1] = json!({ "destination": "/dev", "type": "bind", "source": volume.to_string(), "options": ["rbind"] });
            let nvidia = |minor: i64| json!({ "allow": true, "type": "c", "major": 195, "minor": minor, "access": "rwm" });
            bundle.config["linux"]["resources"] =
                json!({ "devices": [{ "allow": false, "access": "rwm" }, nvidia(0), nvidia(255)] });
            bundle.config["process"]["args"][2] = "ls /proc/driver/nvidia/gpus".into();
            assert_eq!(
                bundle.succeeds(runtime),
                "0000:3b:00.0\n",
                "{hook:?}, nodes on the host: {hosts_have_nodes}"
            );
        }
    }
}

/// The image leads to a volume that is shared with the host; the runtime's namespace stands for the host's.
pub(super) fn a_shared_volume_stays(runtime: &str) {
    let driver = machine::driver().root().display().to_string();
    for hook in [
        words("disable-device-node-modification"),
        words("filter-driver-proc"),
        words(&apply(&[own_devices(true)])),
        live(&driver),
    ] {
        for path in ["proc", "etc"] {
            let mut bundle = Bundle::new(std::slice::from_ref(&hook));
            let (volume, place) = (bundle.scratch.join("volume"), bundle.root().join(path));
            fs::create_dir_all(volume.join("driver/nvidia/gpus")).unwrap();
            fs::write(
                volume.join("driver/nvidia/params"),
                "ModifyDeviceFiles: 1\n",
            )
            .unwrap();
            let before = nvc_testkit::tree::Tree::with_traces(&volume).unwrap();
            fs::rename(&place, bundle.root().join("moved")).unwrap();
            std::os::unix::fs::symlink("vol", &place).unwrap();
            let mount = |place: &str, source: &Path, option: &str| json!({ "destination": place, "type": "bind", "source": source, "options": ["rbind", option] });
            let shared = mount("/vol", &volume, "rshared");
            bundle.config["mounts"].as_array_mut().unwrap().push(shared);
            // As engines do for such a volume.
            bundle.config["linux"]["rootfsPropagation"] = "rshared".into();
            if path == "proc" {
                // Runtimes refuse most images whose /proc is a link; here they mount no procfs.
                bundle.config["mounts"].as_array_mut().unwrap().remove(0);
            }
            let out = bundle.scratch.join("mounts");
            bundle.before = format!(
                "mount --bind {0} {0} && mount --make-shared {0}; (cd \"$1\" && \"$0\" --root \"$2\" run \"$3\"); \
                 grep -c {0} /proc/self/mountinfo > {1}; exit 0",
                volume.display(),
                out.display()
            );
            let outcome = bundle.run(runtime);
            let mounts = fs::read_to_string(&out).unwrap();
            assert_eq!(mounts, "1\n", "{hook:?} {path} {outcome:#?}");
            let after = nvc_testkit::tree::Tree::with_traces(&volume).unwrap();
            assert_eq!(after.changes_since(&before), Vec::<String>::new());
        }
    }
}
