//! Tests the kit itself: its containers, cgroups and nvidia-smi.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, ExitCode};

use nvc_testkit::cgroup::{Attach, DeviceCgroup};
use nvc_testkit::container::{Builder, Container};
use nvc_testkit::harness::Need::{CgroupV1, CgroupV2, Root};
use nvc_testkit::harness::{self, test};
use nvc_testkit::rootfs::{self, Layout};
use nvc_testkit::{machine, mounts};

fn main() -> ExitCode {
    // They mount the driver's files by their names in Debian's directories.
    harness::on_debian();
    let mut tests = nvc_testkit::tests![&[Root];
        nvidia_smi_reports_reachable_gpus,
        a_container_matches_its_options,
        a_pivoted_container_has_its_root_as_root,
        mounts_in_a_shared_root_show_on_the_host,
        the_machine_shows_the_driver,
    ];
    tests.extend(nvc_testkit::tests![&[];
        simdriver_takes_relative_names,
        simdriver_explains_itself,
    ]);
    tests.push(test("v1_cgroup_says_what_it_allows", &[CgroupV1], || {
        let cgroup = DeviceCgroup::v1().unwrap();
        assert_eq!(cgroup.rules().unwrap(), ["c 1:3 rwm"]);
        says_what_it_allows(&cgroup);
    }));
    tests.push(test("v2_cgroup_says_what_it_allows", &[CgroupV2], || {
        let cgroup = DeviceCgroup::v2().unwrap();
        assert_eq!(cgroup.programs().unwrap(), 0);
        let cgroup = cgroup.attach(Attach::Multi, &["1:3", "1:5"]).unwrap();
        let cgroup = cgroup.attach(Attach::Multi, &["1:3", "195:0"]).unwrap();
        assert_eq!(cgroup.programs().unwrap(), 2);
        says_what_it_allows(&cgroup);
    }));
    harness::main(tests)
}

fn says_what_it_allows(cgroup: &DeviceCgroup) {
    assert_eq!(cgroup.allowed(&["195:0", "1:3", "1:5"]).unwrap(), ["1:3"]);
}

fn container() -> Container {
    Builder::new(rootfs::Builder::new(Layout::Debian))
        .start()
        .unwrap()
}

/// Bind-mounts a path of the driver root into a container.
fn put(container: &Container, path: &str) {
    let (source, target) = (machine::driver().path(path), container.point(path));
    let script = "set -e; mkdir -p \"$(dirname \"$2\")\"
        if [ -d \"$1\" ]; then mkdir -p \"$2\"; else touch \"$2\"; fi; mount --bind \"$1\" \"$2\"";
    let output = container
        .enter("sh")
        .args(["-c", script, "put"])
        .args([source, target])
        .output()
        .unwrap();
    assert!(output.status.success(), "{path}: {output:?}");
}

fn nvidia_smi(container: &Container) -> (Option<i32>, String) {
    let output = container
        .run(1000, "/usr/bin/nvidia-smi")
        .arg("-L")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.code(), text)
}

fn nvidia_smi_reports_reachable_gpus() {
    let (container, driver) = (container(), machine::driver());
    let library = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1";
    put(&container, "/usr/bin/nvidia-smi");
    let (status, text) = nvidia_smi(&container);
    assert!(
        status == Some(12) && text.contains("couldn't find libnvidia-ml.so"),
        "{text}"
    );

    put(&container, library);
    let (status, text) = nvidia_smi(&container);
    assert!(
        status == Some(9) && text.contains("couldn't communicate"),
        "{text}"
    );

    put(&container, "/proc/driver/nvidia/version");
    assert_eq!(
        nvidia_smi(&container),
        (Some(0), "No devices found.\n".into())
    );
    put(&container, "/proc/driver/nvidia/gpus/0000:3b:00.0");
    put(&container, "/dev/nvidia0");
    assert_eq!(
        nvidia_smi(&container),
        (Some(0), "No devices found.\n".into())
    );
    put(&container, "/dev/nvidiactl");
    assert_eq!(nvidia_smi(&container), (Some(0), driver.listing(0, &[])));

    // Neither the node nor the procfs directory alone makes a GPU visible.
    put(&container, "/dev/nvidia1");
    assert_eq!(nvidia_smi(&container), (Some(0), driver.listing(0, &[])));

    let container = self::container();
    for path in [
        library,
        "/usr/bin/nvidia-smi",
        "/proc/driver/nvidia/version",
        "/dev/nvidiactl",
    ] {
        put(&container, path);
    }
    put(&container, "/dev/nvidia1");
    put(&container, "/proc/driver/nvidia/gpus/0000:af:00.0");
    put(&container, "/dev/nvidia-caps/nvidia-cap148");
    let instance = "/proc/driver/nvidia/capabilities/gpu1/mig/gi1";
    put(&container, &format!("{instance}/access"));
    put(&container, &format!("{instance}/ci0/access"));
    assert_eq!(nvidia_smi(&container), (Some(0), driver.listing(1, &[])));
    put(&container, "/dev/nvidia-caps/nvidia-cap147");
    assert_eq!(nvidia_smi(&container), (Some(0), driver.listing(1, &[0])));
    assert!(
        driver
            .listing(1, &[0])
            .contains("  MIG 3g.40gb         Device  0: (UUID: MIG-")
    );
}

fn a_container_matches_its_options() {
    let builder = || rootfs::Builder::new(Layout::Rhel);
    let container = Builder::new(builder())
        .owner(1000)
        .read_only()
        .start()
        .unwrap();
    let mounted = container.mounts().unwrap();
    let at = |point| {
        mounted
            .iter()
            .rfind(|mount| mount.point == container.point(point))
            .unwrap()
    };
    assert!(at("").has("ro") && at("dev").has("rw"));
    assert_eq!(at("proc/driver").fs_type, "tmpfs");
    assert!(mounted.iter().all(|mount| mount.propagation.is_empty()));
    let seen = container.files_inside().unwrap();
    let entry = |path: &str| seen.get(path).unwrap().to_string();
    assert_eq!(entry("/proc/driver/nvidia"), "d 0555 1000:1000");
    assert_eq!(entry("/dev/null"), "c 0666 0:0 1:3");
    assert_eq!(entry("/etc/passwd").split(' ').nth(2), Some("1000:1000"));
    assert!(container.files().unwrap().get("/dev/null").is_none());
    let status = std::fs::read_to_string(format!("/proc/{}/status", container.pid())).unwrap();
    assert!(
        status.contains("Uid:\t1000\t1000\t1000\t1000\n"),
        "{status}"
    );

    let bare = Builder::new(builder()).no_proc().start().unwrap();
    assert!(
        bare.mounts()
            .unwrap()
            .iter()
            .all(|mount| mount.point != bare.point("proc"))
    );
}

fn a_pivoted_container_has_its_root_as_root() {
    let builder = rootfs::Builder::new(Layout::Debian);
    let container = Builder::new(builder).pivoted().start().unwrap();
    let mounted = container.mounts().unwrap();
    assert!(
        mounted
            .iter()
            .any(|mount| mount.point == Path::new("/proc/driver"))
    );
    let root = format!("/proc/{}/root/etc/os-release", container.pid());
    assert_eq!(std::fs::read_to_string(root).unwrap(), "ID=debian\n");
}

fn mounts_in_a_shared_root_show_on_the_host() {
    let builder = rootfs::Builder::new(Layout::Debian);
    let container = Builder::new(builder).shared().start().unwrap();
    let on_host = mounts::of("self").unwrap();
    assert_eq!(mounts::below(&on_host, &container.point("mnt")).count(), 0);
    let mount = container
        .enter("mount")
        .args(["-t", "tmpfs", "x"])
        .arg(container.point("mnt"))
        .status();
    assert!(mount.unwrap().success());
    let on_host = mounts::of("self").unwrap();
    assert_eq!(mounts::below(&on_host, &container.point("mnt")).count(), 1);
    let root = container.root().to_owned();
    drop(container);
    let on_host = mounts::of("self").unwrap();
    assert_eq!(mounts::below(&on_host, &root).count(), 0);
    assert!(!root.exists());
}

fn the_machine_shows_the_driver() {
    let driver = machine::driver();
    let devices = std::fs::read_to_string("/proc/devices").unwrap();
    assert!(devices.contains(&format!("{:3} nvidia-caps\n", driver.majors().caps)));
    assert!(Path::new("/proc/driver/nvidia/gpus/0000:3b:00.0/information").exists());
    let script = format!(
        "{} && grep -c nvidia /proc/devices",
        machine::WITHOUT_DRIVER
    );
    let without = Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&without.stdout).trim(),
        "0",
        "{without:?}"
    );
}

fn simdriver(directory: &Path, words: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvc-simdriver"));
    command.current_dir(directory).args(words).output().unwrap()
}

fn simdriver_takes_relative_names() {
    let scratch = machine::Scratch::new().unwrap();
    for (words, made) in [
        (&["build", "drv", "--no-nodes"][..], "drv/etc/ld.so.cache"),
        (&["rootfs", "./rt/root", "empty"], "rt/root/etc"),
    ] {
        let output = simdriver(scratch.path(), words);
        assert!(output.status.success(), "{output:?}");
        assert!(scratch.join(made).exists());
    }
}

fn simdriver_explains_itself() {
    let scratch = machine::Scratch::new().unwrap();
    for words in [
        &["--help"][..],
        &["-h"],
        &["build", "--help"],
        &["rootfs", "-h"],
    ] {
        let output = simdriver(scratch.path(), words);
        assert!(output.status.success(), "{output:?}");
        assert!(output.stdout.starts_with(b"usage: nvc-simdriver build DIR"));
    }
    let output = simdriver(scratch.path(), &["build", "--no-nodes"]);
    assert!(!output.status.success() && output.stderr.windows(6).any(|text| text == b"usage:"));
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}
