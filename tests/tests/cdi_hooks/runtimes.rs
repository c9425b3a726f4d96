//! Tests hooks under real runtimes: live specifications, undo, read-only roots, masks.

use std::fs;
use std::path::PathBuf;

use nvc_testkit::cli::{self, Run};
use nvc_testkit::driver;
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::profile::Profile;
use nvc_tests::apply::{apply, folder, link, own_devices, profile};
use serde_json::json;

use super::bundle::{Bundle, LOOK, live, sees, words};

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
    hook.extend(words("--ldconfig-path /bin/false"));
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
        (
            apply(
                &["file", "link", "directory"]
                    .map(|name| link("target", &format!("/usr/lib/{name}"))),
            ),
            true,
        ),
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
        let (file, elsewhere) = if succeeds {
            (Some("target"), "target")
        } else {
            (None, "elsewhere")
        };
        assert_eq!(target("file"), file.map(PathBuf::from), "{hook}");
        assert_eq!(target("link"), Some(PathBuf::from(elsewhere)), "{hook}");
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
    let hook = apply(&[
        own_devices(false),
        link("a", "/etc/new-link"),
        folder("/usr/lib"),
    ]);
    let mut bundle = Bundle::new(&[words(&hook)]);
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

/// Not even root can fill what hides other GPUs: a container with a read-only root has no such place.
pub(super) fn hidden_directories_stay_empty(runtime: &str) {
    for hook in [
        words("filter-driver-proc"),
        words(&apply(&[own_devices(true)])),
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
        words(&apply(&[own_devices(true)])),
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
        words(&apply(&[own_devices(true)])),
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

/// The container's /proc is the host's, as with `-v /proc:/proc:rshared`: GPUs are hidden in the container only.
pub(super) fn a_shared_procfs(runtime: &str) {
    for hook in [
        words("disable-device-node-modification"),
        words("filter-driver-proc"),
        words(&apply(&[own_devices(true)])),
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
        words(&apply(&[link("a", "/usr/share/new/a"), profile()])),
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
