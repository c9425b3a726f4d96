//! Tests hooks under real runtimes: live specifications, undo, read-only roots, volumes, masks.

use std::fs;
use std::path::{Path, PathBuf};

use nvc_testkit::cli::{self, Outcome, Run};
use nvc_testkit::driver;
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::profile::Profile;
use nvc_testkit::rootfs::{self, Layout};
use serde_json::{Value, json};

/// Commands for the container's process.
const LOOK: &str = "cd /proc/driver/nvidia; cat params; cd gpus; echo gpus *; ls -l /usr/lib/x86_64-linux-gnu; \
    cat /proc/self/mountinfo; cat /etc/nvidia/nvidia-application-profiles-rc.d/*";

struct Bundle {
    scratch: Scratch,
    config: Value,
    /// Shell commands that run in the runtime's mount namespace first.
    before: String,
}

impl Bundle {
    /// Creates a container with GPU 0 and these hooks.
    fn new(hooks: &[Vec<String>]) -> Self {
        machine::driver();
        let scratch = Scratch::new().unwrap();
        let root = scratch.join("bundle/rootfs");
        rootfs::Builder::new(Layout::Debian).build(root).unwrap();
        let program = cli::beside("nvidia-cdi-hook").unwrap();
        let hook = |words: &Vec<String>| {
            let words = [&["nvidia-cdi-hook".to_owned()], words.as_slice()].concat();
            json!({ "path": program, "args": words, "env": ["NVIDIA_CTK_DEBUG=false"] })
        };
        let hooks: Vec<Value> = hooks.iter().map(hook).collect();
        let mount = |place: &str, kind: &str, source: &str, options: &[&str]| json!({ "destination": place, "type": kind, "source": source, "options": options });
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "terminal": false, "user": { "uid": 0, "gid": 0 }, "args": ["sh", "-c", LOOK],
                "env": ["PATH=/usr/bin:/bin"], "cwd": "/", "noNewPrivileges": true,
            },
            "root": { "path": "rootfs", "readonly": false },
            "mounts": [
                // With the simulated driver mounted in it.
                mount("/proc", "bind", "/proc", &["rbind"]),
                mount("/dev", "tmpfs", "tmpfs", &["nosuid", "mode=755", "size=65536k"]),
            ],
            "hooks": { "createContainer": hooks },
            "linux": {
                "namespaces": [{ "type": "mount" }],
                "devices": [{ "path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0 }],
            },
            // crun sends the output of hooks to /dev/null.
            "annotations": { "run.oci.hooks.stderr": "/proc/self/fd/2" },
        });
        Self {
            scratch,
            config,
            before: "true".into(),
        }
    }

    fn root(&self) -> PathBuf {
        self.scratch.join("bundle/rootfs")
    }

    /// Lets system calls of the first hook fail, with ENOSYS unless EPERM is the first word.
    fn without(&mut self, calls: &[&str]) {
        let hook = &mut self.config["hooks"]["createContainer"][0];
        let program = hook["path"].as_str().unwrap().to_owned();
        let own = hook["args"].as_array_mut().unwrap().split_off(1);
        let words = [&["nvc-without"], calls, &["--", &program]].concat();
        let words = words.into_iter().map(Value::from);
        hook["args"] = words.chain(own).collect();
        let without = cli::beside("nvc-without").unwrap();
        hook["path"] = without.display().to_string().into();
    }

    /// Runs the container to its end, in a separate mount namespace.
    fn run(&self, runtime: &str) -> Outcome {
        let path = self.scratch.join("bundle");
        let config = serde_json::to_vec(&self.config).unwrap();
        fs::write(path.join("config.json"), config).unwrap();
        let state = self.scratch.join("state");
        // crun does not support machines with both cgroup versions mounted.
        let script = format!(
            "umount /sys/fs/cgroup/unified 2>/dev/null; {} && cd \"$1\" && exec \"$0\" --root \"$2\" run \"$3\"",
            self.before
        );
        let own = self
            .scratch
            .path()
            .file_name()
            .unwrap()
            .display()
            .to_string();
        let name = format!("nvc-cdi-{runtime}-{}-{own}", std::process::id());
        let run = Run::other("unshare").args(["--mount", "--propagation", "private", "sh", "-c"]);
        let run = run.args([script.as_str(), runtime]).args([path, state]);
        run.args([name]).outcome().unwrap()
    }

    #[track_caller]
    fn succeeds(&self, runtime: &str) -> String {
        let outcome = self.run(runtime);
        assert_eq!(outcome.status, Some(0), "{outcome:#?}");
        outcome.stdout
    }
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(String::from).collect()
}

/// Returns the hook of a live specification for a driver root.
fn live(root: &str) -> Vec<String> {
    words(&format!(
        "merged --version=1 --discover --driver-root {root} --disable-device-node-modification \
         --filter-driver-proc --update-application-profile"
    ))
}

#[track_caller]
fn sees(seen: &str, texts: &[&str]) {
    for text in texts {
        assert!(seen.contains(text), "{text}: {seen}");
    }
}

pub(super) fn a_live_specification(runtime: &str) {
    let driver = machine::driver();
    let bundle = Bundle::new(&[live(&driver.root().display().to_string())]);
    let seen = bundle.succeeds(runtime);
    let library = driver.fill("/libcuda.so.VER");
    sees(
        &seen,
        &[
            "ModifyDeviceFiles: 0",
            "gpus 0000:3b:00.0\n",
            &library,
            "EGLVisibleDGPUDevices\",0x1",
        ],
    );
    let link = driver.fill("libcuda.so.1 -> libcuda.so.VER");
    sees(&seen, &[&link]);
    let of_driver = seen.lines().filter(|line| line.contains(" /usr/lib/x86"));
    for line in of_driver {
        assert!(line.contains(" ro,nosuid,nodev"), "{line}");
    }
    let cache = fs::read(bundle.root().join("etc/ld.so.cache")).unwrap();
    assert!(String::from_utf8_lossy(&cache).contains("libcuda.so.1"));
}

/// The same specification, before and after the driver root changes its version.
pub(super) fn a_driver_update(runtime: &str) {
    let scratch = Scratch::new().unwrap();
    let top = scratch.join("driver");
    fs::create_dir(&top).unwrap();
    let mut bundle = Bundle::new(&[live(&top.display().to_string())]);
    for version in ["570.133.20", "575.57.08"] {
        let profile = Profile {
            driver: version.into(),
            ..Profile::default()
        };
        let built = scratch.join(version);
        driver::Builder::new(profile).build(&built).unwrap();
        let (built, top) = (built.display(), top.display());
        bundle.before = format!(
            "mount --rbind {built} {top} && umount /proc/driver && mount --bind {built}/proc/driver /proc/driver"
        );
        let seen = bundle.succeeds(runtime);
        sees(
            &seen,
            &[
                &format!("/libcuda.so.{version}"),
                &format!("libcuda.so.1 -> libcuda.so.{version}"),
            ],
        );
    }
}

/// The last part fails; no effect of the others remains.
pub(super) fn a_failure_undoes_everything(runtime: &str) {
    let driver = machine::driver().root().display().to_string();
    let mut hook = live(&driver);
    hook.extend(words("--ldconfig-path /bin/false --link a::/etc/new-link"));
    let bundle = Bundle::new(&[hook]);
    let before = nvc_testkit::tree::Tree::of(&bundle.root()).unwrap();
    let outcome = bundle.run(runtime);
    assert_ne!(outcome.status, Some(0), "{outcome:#?}");
    let after = nvc_testkit::tree::Tree::of(&bundle.root()).unwrap();
    // Ignore files created by the runtime itself.
    let ours = |change: &&String| change.contains("etc") || change.contains("usr");
    let changes = after.changes_since(&before);
    assert_eq!(changes.iter().find(ours), None, "{changes:#?}");
}

/// An image can have a library of another driver in a link's place. Directories stay: with one in the place of a link
/// the separate hook fails, as upstream's, and replaces nothing.
pub(super) fn links_replace_files(runtime: &str) {
    let links = "--link target::/usr/lib/file --link target::/usr/lib/link";
    let all = format!("{links} --link target::/usr/lib/directory");
    for (hook, succeeds) in [
        (format!("create-symlinks {links}"), true),
        (format!("create-symlinks {all}"), false),
        (format!("merged --version=1 {all}"), true),
    ] {
        let mut bundle = Bundle::new(&[words(&hook)]);
        let lib = bundle.root().join("usr/lib");
        fs::write(lib.join("file"), "old").unwrap();
        std::os::unix::fs::symlink("elsewhere", lib.join("link")).unwrap();
        fs::create_dir(lib.join("directory")).unwrap();
        bundle.config["process"]["args"][2] = "true".into();
        let outcome = bundle.run(runtime);
        assert_eq!(outcome.status == Some(0), succeeds, "{outcome:#?}");
        let target = |name: &str| fs::read_link(lib.join(name)).ok();
        let (file, link) = if succeeds {
            (Some("target"), "target")
        } else {
            (None, "elsewhere")
        };
        assert_eq!(target("file"), file.map(PathBuf::from), "{hook}");
        assert_eq!(target("link"), Some(PathBuf::from(link)), "{hook}");
        assert!(lib.join("directory").is_dir(), "{hook}");
        let left = fs::read_dir(&lib).unwrap().flatten();
        let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
        assert!(
            !left
                .iter()
                .any(|name| name.to_string_lossy().starts_with(".nvc")),
            "{hook}: {left:?}"
        );
    }
}

/// The filter alone is not part of the plan. If it fails, none of the plan's files exists.
pub(super) fn a_failing_filter_undoes_everything(runtime: &str) {
    let hook = "merged --version=1 --filter-driver-proc --link a::/etc/new-link --folder /usr/lib";
    let mut bundle = Bundle::new(&[words(hook)]);
    bundle.config["process"]["args"][2] = "ls /proc/driver/nvidia/gpus".into();
    assert_eq!(bundle.succeeds(runtime), "0000:3b:00.0\n");
    let link = bundle.root().join("etc/new-link");
    assert!(link.is_symlink());
    fs::remove_file(&link).unwrap();
    // The filter needs a tmpfs, by either call; links and the loader's cache do not.
    bundle.without(&["EPERM", "fsopen", "mount"]);
    let outcome = bundle.run(runtime);
    assert_ne!(outcome.status, Some(0), "{outcome:#?}");
    assert!(!link.is_symlink(), "{outcome:#?}");
}

/// crun makes the root read-only before it runs hooks. Every hook works there, and the root is read-only afterwards.
pub(super) fn a_read_only_root(runtime: &str) {
    let mut bundle = Bundle::new(&super::hooks());
    bundle.config["root"]["readonly"] = true.into();
    let line = format!("{LOOK}; echo > /touched && echo the root can be written; true");
    bundle.config["process"]["args"][2] = line.into();
    let seen = bundle.succeeds(runtime);
    sees(
        &seen,
        &[
            "ModifyDeviceFiles: 0",
            "gpus 0000:3b:00.0\n",
            "EGLVisibleDGPUDevices",
        ],
    );
    assert!(!seen.contains("the root can be written"), "{seen}");
    let link = bundle
        .root()
        .join("usr/lib/x86_64-linux-gnu/x/y/libcuda.so");
    assert!(link.is_symlink(), "{seen}");
}

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
/// user nothing is created; on one of the container's root, only the merged hook creates what that root could.
pub(super) fn volumes_stay_in_a_user_namespace(runtime: &str) {
    const FIRST: u32 = 200_000;
    let hooks = [
        words("create-symlinks --link ../owned::/data/a/link --link target::/mine/separate"),
        words("chmod --mode 777 --path /data/file"),
        words(
            "merged --version=1 --link ../owned::/data/b/link --link target::/mine/merged --link target::/mine/file",
        ),
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
    let after = nvc_testkit::tree::Tree::with_traces(&volume).unwrap();
    assert_eq!(after.changes_since(&before), Vec::<String>::new());
    assert!(mine.join("merged").is_symlink());
    assert!(!mine.join("separate").is_symlink());
    // It may be anyone's who uses the volume.
    assert!(!mine.join("file").is_symlink());
}

/// Not even root can fill what hides other GPUs: a container with a read-only root has no such place.
pub(super) fn hidden_directories_stay_empty(runtime: &str) {
    for hook in [
        words("filter-driver-proc"),
        words("merged --version=1 --disable-device-node-modification --filter-driver-proc"),
    ] {
        let mut bundle = Bundle::new(&[hook]);
        let all = json!(["CAP_DAC_OVERRIDE"]);
        bundle.config["process"]["capabilities"] =
            json!({ "bounding": all, "effective": all, "permitted": all });
        bundle.config["process"]["args"][2] = "cd /proc/driver/nvidia/gpus; (: > new) || ls".into();
        let seen = bundle.succeeds(runtime);
        assert_eq!(seen, "0000:3b:00.0\n");
        // As before Linux 5.12.
        bundle.without(&["mount_setattr", "fsopen", "open_tree", "move_mount"]);
        let seen = bundle.succeeds(runtime);
        assert_eq!(seen, "0000:3b:00.0\n");
    }
}

/// An administrator's mount over the driver's directory stays.
pub(super) fn a_masked_directory_stays(runtime: &str) {
    for hook in [
        words("filter-driver-proc"),
        words("merged --version=1 --disable-device-node-modification --filter-driver-proc"),
    ] {
        let mut bundle = Bundle::new(&[hook]);
        // By a hook, since newer versions of runc refuse a mount of config.json inside /proc.
        let place = bundle.root().join("proc/driver/nvidia");
        let mask = format!("mount -t tmpfs -o ro tmpfs '{}'", place.display());
        let mask = json!({ "path": "/bin/sh", "args": ["sh", "-c", mask], "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"] });
        let hooks = bundle.config["hooks"]["createContainer"].as_array_mut();
        hooks.unwrap().insert(0, mask);
        bundle.config["process"]["args"][2] = "ls -A /proc/driver/nvidia; echo end".into();
        let seen = bundle.succeeds(runtime);
        assert_eq!(seen, "end\n");
    }
}

/// A container with the host's own /dev sees the GPUs that its device rules let it open.
pub(super) fn device_rules_count(runtime: &str) {
    let nodes = machine::driver().path("/dev");
    for hook in [
        words("filter-driver-proc"),
        words("merged --version=1 --disable-device-node-modification --filter-driver-proc"),
    ] {
        for (denied, shown) in [
            (true, "0000:3b:00.0\n"),
            (false, "0000:3b:00.0\n0000:af:00.0\n"),
        ] {
            let mut bundle = Bundle::new(std::slice::from_ref(&hook));
            let dev = bundle.scratch.join("dev");
            fs::create_dir(&dev).unwrap();
            let dev = dev.display();
            bundle.before = format!(
                "mount -t tmpfs tmpfs {dev} && cp -a /dev/null /dev/zero /dev/urandom {}/nvidia* {dev} && mount --bind {dev} /dev",
                nodes.display()
            );
            bundle.config["mounts"][1] = json!({ "destination": "/dev", "type": "bind", "source": "/dev", "options": ["rbind"] });
            let linux = &mut bundle.config["linux"];
            linux["devices"] = json!([]);
            let nvidia = |minor: i64| json!({ "allow": true, "type": "c", "major": 195, "minor": minor, "access": "rwm" });
            linux["resources"] = if denied {
                json!({ "devices": [{ "allow": false, "access": "rwm" }, nvidia(0), nvidia(255)] })
            } else {
                json!({ "devices": [{ "allow": true, "access": "rwm" }] })
            };
            bundle.config["process"]["args"][2] = "ls /proc/driver/nvidia/gpus".into();
            assert_eq!(bundle.succeeds(runtime), shown, "{hook:?}");
        }
    }
}

/// A directory that the engine fills from the image (`VOLUME /dev`) has the image's nodes.
pub(super) fn nodes_on_a_volume_count_by_device_rules(runtime: &str) {
    for hook in [
        words("filter-driver-proc"),
        words("merged --version=1 --disable-device-node-modification --filter-driver-proc"),
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
        words("merged --version=1 --disable-device-node-modification --filter-driver-proc"),
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

/// The container's /proc is the host's, as with `-v /proc:/proc:rshared`: GPUs are hidden in the container only.
pub(super) fn a_shared_procfs(runtime: &str) {
    for hook in [
        words("disable-device-node-modification"),
        words("filter-driver-proc"),
        words("merged --version=1 --disable-device-node-modification --filter-driver-proc"),
    ] {
        let mut bundle = Bundle::new(std::slice::from_ref(&hook));
        let (host, mounts) = (bundle.scratch.join("proc"), bundle.scratch.join("mounts"));
        fs::create_dir(&host).unwrap();
        bundle.config["mounts"][0] = json!({ "destination": "/proc", "type": "bind", "source": host, "options": ["rbind", "rshared"] });
        bundle.config["linux"]["rootfsPropagation"] = "rshared".into();
        bundle.config["process"]["args"][2] =
            "cat /proc/driver/nvidia/params; ls /proc/driver/nvidia/gpus".into();
        let look = format!(
            "grep {} /proc/self/mountinfo >> {}",
            host.display(),
            mounts.display()
        );
        bundle.before = format!(
            "mount --rbind /proc {0} && mount --make-rshared {0}; {look};              (cd \"$1\" && \"$0\" --root \"$2\" run \"$3\"); echo --- >> {1}; {look}; exit 0",
            host.display(),
            mounts.display()
        );
        let outcome = bundle.run(runtime);
        let mounts = fs::read_to_string(&mounts).unwrap();
        let (before, after) = mounts.split_once("---\n").unwrap();
        assert!(!before.is_empty());
        assert_eq!(before, after, "{hook:?} {outcome:#?}");
        let wanted = match hook[0].as_str() {
            "filter-driver-proc" => "\n0000:3b:00.0\n",
            _ => "ModifyDeviceFiles: 0",
        };
        assert!(outcome.stdout.contains(wanted), "{hook:?} {outcome:#?}");
        let hides = hook[0] != "disable-device-node-modification";
        assert_eq!(outcome.stdout.contains("0000:af:00.0"), !hides, "{hook:?}");
    }
}

/// Only the container's root can write to files that hooks create, whatever umask the runtime starts them with.
pub(super) fn made_directories_are_not_writable_by_all(runtime: &str) {
    for hook in [
        live(&machine::driver().root().display().to_string()),
        words("merged --version=1 --link a::/usr/share/new/a --update-application-profile"),
        words("create-symlinks --link a::/usr/share/new/a"),
    ] {
        for mask in ["000", "077"] {
            let mut bundle = Bundle::new(std::slice::from_ref(&hook));
            bundle.before = format!("umask {mask}");
            bundle.config["process"]["args"][2] = "true".into();
            bundle.succeeds(runtime);
            let found = |rest: &[&str]| {
                let run = Run::other("find").args([bundle.root()]);
                run.args(rest).outcome().unwrap().stdout
            };
            let open = found(&["-perm", "-2", "!", "-type", "l", "!", "-name", "tmp"]);
            assert_eq!(open, "", "{hook:?}, umask {mask}");
            let closed = found(&["-path", "*/usr/share*", "-type", "d", "!", "-perm", "-555"]);
            assert_eq!(closed, "", "{hook:?}, umask {mask}");
        }
    }
}

/// An image's annotation makes crun open a file of the host as the streams of hooks: they print nothing. With crun's own
/// standard error they say why they fail.
pub(super) fn a_file_of_the_image_stays_empty(runtime: &str) {
    let ldcache = [
        words("update-ldcache --folder /usr/lib --debug"),
        words("x\x1b y"),
    ];
    let alias = ldcache
        .clone()
        .map(|words| [vec!["hook".to_owned()], words].concat());
    for (program, hooks) in [("nvidia-cdi-hook", ldcache), ("nvidia-ctk", alias)] {
        let mut bundle = Bundle::new(&hooks);
        let hooks = bundle.config["hooks"]["createContainer"].as_array_mut();
        for hook in hooks.unwrap() {
            hook["path"] = cli::beside(program).unwrap().display().to_string().into();
        }
        let cache = bundle.root().join("etc/ld.so.cache");
        let _ = fs::remove_file(&cache);
        fs::create_dir_all(cache.join("full")).unwrap();
        let outcome = bundle.run(runtime);
        assert_ne!(outcome.status, Some(0), "{program}: {outcome:#?}");
        assert!(
            outcome.stderr.contains("ld.so.cache"),
            "{program}: {outcome:#?}"
        );

        for value in ["chosen", "./chosen"] {
            let chosen = bundle.scratch.join(value);
            let streams = ["run.oci.hooks.stdout", "run.oci.hooks.stderr"];
            bundle.config["annotations"] = streams
                .map(|name| (name, json!(chosen)))
                .into_iter()
                .collect();
            let outcome = bundle.run(runtime);
            assert_ne!(outcome.status, Some(0), "{program}: {outcome:#?}");
            let written = fs::read_to_string(&chosen);
            assert_eq!(written.is_ok(), runtime == "crun", "{program}");
            assert_eq!(written.unwrap_or_default(), "", "{program}: {outcome:#?}");
        }
    }
}
