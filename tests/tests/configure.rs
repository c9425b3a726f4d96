//! Tests the effects of `configure` in containers: mounts with options, files with modes and owners, links, the linker
//! cache.
#![allow(clippy::unwrap_used)]

#[path = "configure/images.rs"]
mod images;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use nvc_testkit::cli::{Run, lacks};
use nvc_testkit::container::{Builder, Container};
use nvc_testkit::harness::Need::Root;
use nvc_testkit::rootfs::{self, Layout};
use nvc_testkit::{harness, machine, mounts, userland};
use nvc_tests::{
    State, assert_lines, command_line, configure, debian, debian_root, host_ldconfig, start,
};

use images::*;

fn main() -> ExitCode {
    // All of a package's files: 32-bit libraries, the fabric manager, MPS, the modeset node, IMEX channels.
    harness::on_debian();
    harness::main(nvc_testkit::tests![&[Root];
        utility_with_one_gpu,
        nvidia_smi_sees_one_gpu_alone,
        compute_brings_unified_memory,
        graphics_brings_a_profile,
        no_capabilities_bring_little,
        everything_in_32_bits_too,
        one_mig_device,
        all_mig_devices,
        mig_configuration,
        imex_channels,
        no_device_binds,
        proc_files_are_copies,
        created_files_belong_to_the_container,
        files_of_the_image_stay,
        modes_do_not_depend_on_the_umask,
        missing_directories_follow_the_umask,
        every_layout_runs_nvidia_smi,
        an_image_without_glibc,
        an_empty_image,
        cuda_compatibility_libraries,
        cuda_compatibility_modes,
        again_adds_nothing,
        another_gpu_is_added,
        a_shared_root_leaks_nothing,
        standalone,
        the_root_of_a_process_that_has_pivoted,
        a_read_only_image,
        the_images_ldconfig_does_not_run,
        leaves_nothing_in_the_driver_root,
    ])
}

const UTILITY: &str = "
    dev/nvidiactl noexec,nosuid,ro
    proc/driver/nvidia nodev,noexec,nosuid,rw
    run/nvidia-fabricmanager/socket nodev,noexec,nosuid,ro
    run/nvidia-persistenced/socket nodev,noexec,nosuid,ro
    usr/bin/nv-fabricmanager nodev,nosuid,ro
    usr/bin/nvidia-debugdump nodev,nosuid,ro
    usr/bin/nvidia-persistenced nodev,nosuid,ro
    usr/bin/nvidia-smi nodev,nosuid,ro
    usr/lib/firmware/nvidia/VER/gsp_ga10x.bin nodev,nosuid,ro
    usr/lib/firmware/nvidia/VER/gsp_tu10x.bin nodev,nosuid,ro
    LIB/libnvidia-cfg.so.VER nodev,nosuid,ro
    LIB/libnvidia-ml.so.VER nodev,nosuid,ro";
const GPU_0: &str = "
    dev/nvidia0 noexec,nosuid,ro
    proc/driver/nvidia/gpus/0000:3b:00.0 nodev,noexec,nosuid,ro";
const GPU_1: &str = "
    dev/nvidia1 noexec,nosuid,ro
    proc/driver/nvidia/gpus/0000:af:00.0 nodev,noexec,nosuid,ro";
const MIG_0: &str = "
    dev/nvidia-caps/nvidia-cap147 noexec,nosuid,ro
    dev/nvidia-caps/nvidia-cap148 noexec,nosuid,ro
    proc/driver/nvidia/capabilities/gpu1/mig/gi1/access nodev,noexec,nosuid,ro
    proc/driver/nvidia/capabilities/gpu1/mig/gi1/ci0/access nodev,noexec,nosuid,ro";
const MIG_1: &str = "
    dev/nvidia-caps/nvidia-cap156 noexec,nosuid,ro
    dev/nvidia-caps/nvidia-cap157 noexec,nosuid,ro
    proc/driver/nvidia/capabilities/gpu1/mig/gi2/access nodev,noexec,nosuid,ro
    proc/driver/nvidia/capabilities/gpu1/mig/gi2/ci0/access nodev,noexec,nosuid,ro";

/// Configures a container successfully and returns the new mounts.
#[track_caller]
fn mounted(container: &Container, arguments: &[&str]) -> Vec<String> {
    let before = State::of(container);
    configure(container, arguments).succeeds();
    before.assert_host_unchanged(container);
    before.new_mounts(container)
}

/// Returns true if one of the new mounts starts with this text.
fn has(mounts: &[String], start: &str) -> bool {
    let start = machine::driver().fill(start);
    mounts.iter().any(|line| line.starts_with(&start))
}

/// Returns the output of `nvidia-smi -L` in a container, run as an unprivileged user.
#[track_caller]
fn nvidia_smi(container: &Container) -> String {
    let output = container
        .run(1000, "/usr/bin/nvidia-smi")
        .arg("-L")
        .output()
        .unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn cache(container: &Container) -> String {
    let output = Command::new(userland::host_ldconfig())
        .args(["-p", "-r"])
        .arg(container.root())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn utility_with_one_gpu() {
    let container = debian();
    let before = State::of(&container);
    let new = mounted(&container, &["--utility", "--device=0"]);
    assert_lines(&new, &[UTILITY, GPU_0].concat());
    // Remaining files in the image: empty mount points, and ldconfig's links.
    assert_lines(
        &before.new_files(&container),
        "+ run/nvidia-fabricmanager d 0755 0:0
         + run/nvidia-fabricmanager/socket f 0644 0:0 0
         + run/nvidia-persistenced d 0755 0:0
         + run/nvidia-persistenced/socket f 0644 0:0 0
         + usr/bin/nv-fabricmanager f 0755 0:0 0
         + usr/bin/nvidia-debugdump f 0755 0:0 0
         + usr/bin/nvidia-persistenced f 0755 0:0 0
         + usr/bin/nvidia-smi f 0755 0:0 0
         + LIB d 0755 0:0
         + usr/lib/firmware d 0755 0:0
         + usr/lib/firmware/nvidia d 0755 0:0
         + usr/lib/firmware/nvidia/VER d 0755 0:0
         + usr/lib/firmware/nvidia/VER/gsp_ga10x.bin f 0644 0:0 0
         + usr/lib/firmware/nvidia/VER/gsp_tu10x.bin f 0644 0:0 0
         + LIB/libnvidia-cfg.so.1 l 0777 0:0 -> libnvidia-cfg.so.VER
         + LIB/libnvidia-cfg.so.VER f 0644 0:0 0
         + LIB/libnvidia-ml.so.1 l 0777 0:0 -> libnvidia-ml.so.VER
         + LIB/libnvidia-ml.so.VER f 0755 0:0 0",
    );
    let seen = container.files_inside().unwrap();
    let ours = Path::new("/usr/bin/nvidia-smi");
    let size = fs::metadata(machine::driver().path(ours)).unwrap().size();
    assert_eq!(seen.get(ours).unwrap().size, size);
    assert_eq!(
        seen.get("/dev/nvidia0").unwrap().to_string(),
        "c 0666 0:0 195:0"
    );
    let line = machine::driver().fill("=> /LIB/libnvidia-ml.so.1\n");
    assert!(cache(&container).contains(&line), "{}", cache(&container));
}

fn nvidia_smi_sees_one_gpu_alone() {
    let driver = machine::driver();
    for (device, expected) in [
        ("0", driver.listing(0, &[])),
        ("1", driver.listing(1, &[])),
        ("1:0", driver.listing(1, &[0])),
        ("1:1", driver.listing(1, &[1])),
    ] {
        let container = start(Builder::new(debian_root()));
        configure(&container, &["--utility", "--device", device]).succeeds();
        assert_eq!(nvidia_smi(&container), expected, "{device}");
    }
}

fn compute_brings_unified_memory() {
    let container = debian();
    let new = mounted(&container, &["--compute", "--device=0"]);
    for wanted in [
        "dev/nvidia-uvm noexec,nosuid,ro",
        "dev/nvidia-uvm-tools noexec,nosuid,ro",
        "tmp/nvidia-mps nodev,noexec,nosuid,rw",
        "usr/bin/nvidia-cuda-mps-control ",
        "LIB/libcuda.so.VER ",
        "LIB/libnvidia-nvvm.so.VER ",
    ] {
        assert!(has(&new, wanted), "{wanted}: {new:#?}");
    }
    for unwanted in [
        "usr/bin/nvidia-smi",
        "LIB/libnvidia-ml",
        "run/",
        "dev/nvidia-modeset",
    ] {
        assert!(!has(&new, unwanted), "{unwanted}: {new:#?}");
    }
    let link = |name: &str| fs::read_link(container.point(machine::driver().fill(name))).unwrap();
    assert_eq!(link("LIB/libcuda.so"), Path::new("libcuda.so.1"));
    assert_eq!(link("LIB/libcuda.so.1"), Path::new("libcuda.so.570.124.06"));
}

fn graphics_brings_a_profile() {
    let container = debian();
    let new = mounted(&container, &["--graphics", "--display", "--device=all"]);
    let directory = "etc/nvidia/nvidia-application-profiles-rc.d";
    assert!(
        has(&new, &format!("{directory} nodev,noexec,nosuid,rw")),
        "{new:#?}"
    );
    assert!(
        has(&new, "dev/nvidia-modeset ") && !has(&new, "dev/nvidia-uvm"),
        "{new:#?}"
    );
    assert!(
        has(&new, "LIB/libGLX_nvidia.so.VER ") && !has(&new, "LIB/libcuda"),
        "{new:#?}"
    );
    let profile = fs::read_to_string(container.inside(format!("{directory}/10-container.conf")));
    assert_eq!(
        profile.unwrap(),
        r#"{ "profiles": [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", 0x3]}], "rules": [{"pattern": [], "profile": "_container_"}]}"#
    );
    let link = machine::driver().fill("LIB/libGLX_indirect.so.0");
    let target = fs::read_link(container.point(link)).unwrap();
    assert_eq!(target, Path::new("libGLX_nvidia.so.570.124.06"));
}

fn no_capabilities_bring_little() {
    let container = debian();
    assert_lines(
        &mounted(&container, &[]),
        "dev/nvidiactl noexec,nosuid,ro
         proc/driver/nvidia nodev,noexec,nosuid,rw
         usr/lib/firmware/nvidia/VER/gsp_ga10x.bin nodev,nosuid,ro
         usr/lib/firmware/nvidia/VER/gsp_tu10x.bin nodev,nosuid,ro",
    );
}

fn everything_in_32_bits_too() {
    let container = debian();
    let capabilities = [
        "--compute",
        "--utility",
        "--video",
        "--graphics",
        "--display",
        "--ngx",
    ];
    let new = mounted(
        &container,
        &[&capabilities[..], &["--compat32", "--device=all"]].concat(),
    );
    let below = |directory: &str| {
        let directory = machine::driver().fill(directory);
        new.iter()
            .filter(|line| line.starts_with(&directory))
            .count()
    };
    assert_eq!((below("LIB/"), below("LIB32/")), (28, 21), "{new:#?}");
    let line = machine::driver().fill("=> /LIB32/libcuda.so.1\n");
    assert!(cache(&container).contains(&line));
}

fn one_mig_device() {
    let container = debian();
    let new = mounted(&container, &["--utility", "--device=1:0"]);
    assert_lines(&new, &[UTILITY, GPU_1, MIG_0].concat());
}

fn all_mig_devices() {
    let container = debian();
    let new = mounted(&container, &["--utility", "--device=all"]);
    assert_lines(&new, &[UTILITY, GPU_0, GPU_1, MIG_0, MIG_1].concat());
}

fn mig_configuration() {
    let container = debian();
    let new = mounted(
        &container,
        &["--utility", "--device=all", "--mig-config=all"],
    );
    let global = "
        proc/driver/nvidia/capabilities nodev,noexec,nosuid,ro
        dev/nvidia-caps noexec,nosuid,ro";
    assert_lines(&new, &[UTILITY, GPU_0, GPU_1, global].concat());
}

fn imex_channels() {
    let container = debian();
    let new = mounted(
        &container,
        &["--utility", "--device=0", "--imex-channel=0,2047"],
    );
    let channels = "
        dev/nvidia-caps-imex-channels/channel0 noexec,nosuid,ro
        dev/nvidia-caps-imex-channels/channel2047 noexec,nosuid,ro";
    assert_lines(&new, &[UTILITY, GPU_0, channels].concat());
}

fn no_device_binds() {
    let container = debian();
    let new = mounted(&container, &["--compute", "--device=1:0", "--no-devbind"]);
    assert!(!has(&new, "dev/"), "{new:#?}");
    assert!(
        has(&new, "proc/driver/nvidia/capabilities/gpu1/mig/gi1/access "),
        "{new:#?}"
    );
}

fn proc_files_are_copies() {
    let container = debian();
    configure(&container, &["--utility", "--device=0"]).succeeds();
    let (driver, seen) = (machine::driver(), container.files_inside().unwrap());
    for name in ["version", "registry", "params"] {
        let path = format!("proc/driver/nvidia/{name}");
        let ours = fs::read_to_string(driver.path(&path)).unwrap();
        let wanted = ours.replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0");
        assert_eq!(fs::read_to_string(container.inside(&path)).unwrap(), wanted);
        assert_eq!(seen.get(&path).unwrap().mode, 0o444, "{path}");
    }
    assert_eq!(seen.get("proc/driver/nvidia").unwrap().mode, 0o555);
    assert!(seen.get("proc/driver/nvidia/gpus/0000:af:00.0").is_none());
}

fn created_files_belong_to_the_container() {
    let container = start(Builder::new(debian_root().no_programs()).owner(1000));
    let before = State::of(&container);
    let new = mounted(&container, &["--utility", "--device=0"]);
    assert_lines(&new, &[UTILITY, GPU_0].concat());
    let files = before.new_files(&container);
    assert!(
        !files.is_empty() && files.iter().all(|line| line.contains(" 1000:1000")),
        "{files:#?}"
    );
    let seen = container.files_inside().unwrap();
    assert_eq!(
        seen.get("proc/driver/nvidia/version")
            .unwrap()
            .to_string()
            .split(' ')
            .nth(2),
        Some("1000:1000")
    );
}

fn files_of_the_image_stay() {
    let path = |text: &str| -> &'static str { machine::driver().fill(text).leak() };
    let builder = debian_root()
        .no_programs()
        .file("/usr/bin/nvidia-smi", "the image's own", 0o640)
        .file(path("/LIB/libmine.so"), "the image's own", 0o644)
        .link(path("/LIB/libnvidia-ml.so.VER"), "libmine.so");
    let container = start(Builder::new(builder));
    let before = State::of(&container);
    let new = mounted(&container, &["--utility", "--device=0"]);
    assert!(has(&new, "usr/bin/nvidia-smi "), "{new:#?}");
    // The image's link is followed inside the image.
    assert!(has(&new, "LIB/libmine.so "), "{new:#?}");
    let changes = before.new_files(&container);
    assert!(
        !changes.iter().any(|line| line.contains("nvidia-smi")),
        "{changes:#?}"
    );
    assert!(
        !changes.iter().any(|line| line.starts_with(['~', '-'])),
        "{changes:#?}"
    );
}

fn modes_do_not_depend_on_the_umask() {
    // As in upstream, the umask applies to created parents, but a container must stay usable for its users.
    let container = start(Builder::new(debian_root()));
    let mut command = Command::new("sh");
    command.args(["-c", "umask 077; exec \"$@\"", "sh"]);
    let (pid, ldconfig) = (format!("--pid={}", container.pid()), host_ldconfig());
    let words = [
        "configure",
        &ldconfig,
        "--no-cgroups",
        &pid,
        "--utility",
        "--device=0",
    ];
    let mut line = command_line(machine::driver(), &words);
    line.push(container.root().into());
    Run::within(command, line).succeeds();
    let seen = container.files_inside().unwrap();
    assert_eq!(seen.get("usr/bin/nvidia-smi").unwrap().mode, 0o755);
    assert_eq!(seen.get("dev/nvidia0").unwrap().mode, 0o666);
}

fn missing_directories_follow_the_umask() {
    // As in upstream: accessible at least to the owner, as the umask allows; those of programs never writable by
    // others.
    for (umask, way, programs) in [
        ("0", 0o777, 0o755),
        ("022", 0o755, 0o755),
        ("077", 0o700, 0o700),
        ("777", 0o300, 0),
    ] {
        let builder = debian_root().edit(|root| std::fs::remove_dir_all(root.join("usr/bin")));
        let container = start(Builder::new(builder));
        let mut command = Command::new("sh");
        command.args(["-c", "umask $0; exec \"$@\"", umask]);
        let (pid, ldconfig) = (format!("--pid={}", container.pid()), host_ldconfig());
        let words = [
            "configure",
            &ldconfig,
            "--no-cgroups",
            &pid,
            "--utility",
            "--graphics",
            "--device=0",
        ];
        let mut line = command_line(machine::driver(), &words);
        line.push(container.root().into());
        Run::within(command, line).succeeds();
        let seen = container.files_inside().unwrap();
        let mode = |path: &str| seen.get(path).unwrap().mode;
        assert_eq!(mode("etc/nvidia"), way, "{umask}");
        assert_eq!(mode("proc/driver/nvidia/gpus"), way, "{umask}");
        assert_eq!(mode("usr/bin"), programs, "{umask}");
    }
}

fn again_adds_nothing() {
    let container = debian();
    let arguments = ["--utility", "--compute", "--graphics", "--device=all"];
    configure(&container, &arguments).succeeds();
    let before = State::of(&container);
    configure(&container, &arguments).succeeds();
    // The linker cache gains names that were dangling links during ldconfig's first run; nothing else may change.
    assert_eq!(before.new_mounts(&container), [""; 0]);
    assert_eq!(before.new_files(&container), [""; 0]);
    let before = State::of(&container);
    configure(&container, &arguments).succeeds();
    before.assert_unchanged(&container);
}

fn another_gpu_is_added() {
    let container = start(Builder::new(debian_root()));
    configure(&container, &["--utility", "--device=0"]).succeeds();
    let new = mounted(&container, &["--utility", "--device=1:0"]);
    assert_lines(&new, &[GPU_1, MIG_0].concat());
    let listing = nvidia_smi(&container);
    assert_eq!(listing.matches("GPU ").count(), 2, "{listing}");
    let mig = "MIG-7c5f2b9e-1d84-5a06-9b3c-e2f4a6d81030";
    assert!(listing.contains(mig), "{listing}");
}

fn a_shared_root_leaks_nothing() {
    let container = start(Builder::new(debian_root()).shared());
    let new = mounted(&container, &["--utility", "--device=0"]);
    assert!(has(&new, "usr/bin/nvidia-smi "), "{new:#?}");
    assert_eq!(nvidia_smi(&container), machine::driver().listing(0, &[]));
    let table = mounts::of("self").unwrap();
    let ours = |point: &str| {
        table
            .iter()
            .any(|mount| mount.point == container.point(point))
    };
    assert!(!ours("usr/bin/nvidia-smi") && !ours("dev/nvidia0") && !ours("proc/driver/nvidia"));
}

fn standalone() {
    let container = start(Builder::new(debian_root()));
    let before = State::of(&container);
    let ldconfig = host_ldconfig();
    let words = [
        "configure",
        &ldconfig,
        "--no-cgroups",
        "--utility",
        "--device=0",
    ];
    let mut line = command_line(machine::driver(), &words);
    line.push(container.root().into());
    // The caller is the container's process: a shell in its namespace.
    let mut command = container.enter("sh");
    command.args(["-c", "\"$@\"; exit $?", "sh"]);
    Run::within(command, line).succeeds();
    assert_lines(&before.new_mounts(&container), &[UTILITY, GPU_0].concat());
    assert_eq!(nvidia_smi(&container), machine::driver().listing(0, &[]));
}

fn the_root_of_a_process_that_has_pivoted() {
    let container = start(Builder::new(debian_root()).pivoted());
    let pid = format!("--pid={}", container.pid());
    let ldconfig = host_ldconfig();
    let words = ["configure", &ldconfig, "--no-cgroups", "--utility"];
    let words = [&words[..], &["--device=GPU-51a2", &pid, "/"]].concat();
    let run = Run::cli(command_line(machine::driver(), &words));
    if !lacks().is_empty() {
        // Without open_tree, mounts are made by name, and no name of the host's is visible there (docs/kernel-features.md).
        let outcome = run.outcome().unwrap();
        assert_eq!(outcome.status, Some(1), "{outcome:#?}");
        return;
    }
    run.succeeds();
    let mut smi = container.enter("/usr/bin/nvidia-smi");
    let output = smi.arg("-L").env_clear().output().unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(listed, machine::driver().listing(0, &[]));
}

fn leaves_nothing_in_the_driver_root() {
    let (container, driver) = (debian(), machine::driver());
    let look = || nvc_testkit::tree::Tree::of(driver.root()).unwrap();
    let before = look();
    configure(&container, &["--utility", "--compute", "--device=all"]).succeeds();
    assert_eq!(look().changes_since(&before), [""; 0]);
}
