//! Tests the output of `info` and `list` for intact and broken simulated drivers.
#![allow(clippy::unwrap_used)]

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use std::{fs, io};

use nvc_testkit::cli::Run;
use nvc_testkit::driver::{Builder, Driver};
use nvc_testkit::harness::Need::Root;
use nvc_testkit::harness::{self, Test, test};
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::profile::{Fault, Profile};
use nvc_tests::{assert_lines, command_line, on_driver};

fn main() -> ExitCode {
    // All of a package's files: 32-bit and GL libraries, the fabric manager, the modeset node, IMEX channels.
    harness::on_debian();
    let mut tests = nvc_testkit::tests![&[]; version_and_help_go_to_standard_output];
    // Entering another driver root by chroot needs root.
    tests.extend(nvc_testkit::tests![&[Root];
        info_matches_the_driver,
        info_csv,
        a_driver_without_gpus,
        list_kinds_one_by_one,
        list_says_everything,
        list_devices,
        a_driver_without_capability_nodes,
        libraries_are_chosen_by_rules,
        rhel_like_driver_root,
        driver_root_without_a_c_library,
        broken_libraries_are_warned_about,
    ]);
    tests.extend(failures());
    let symbols = ["load", "nvmlInit_v2", "nvmlDeviceGetUUID", "nvmlShutdown"];
    tests.extend(with_each("crash_at", &symbols, crashes));
    let symbols = ["load", "nvmlInit_v2", "nvmlDeviceGetName"];
    tests.extend(with_each("hang_at", &symbols, hangs));
    let symbols = [
        "nvmlSystemGetDriverVersion",
        "nvmlSystemGetCudaDriverVersion",
        "nvmlDeviceGetCount_v2",
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetPciInfo",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlDeviceGetGpuInstanceId",
    ];
    tests.extend(with_each("garbage_from", &symbols, answers_garbage));
    harness::main(tests)
}

/// Returns a test for each of NVML's functions.
fn with_each(name: &str, symbols: &[&'static str], body: fn(&'static str)) -> Vec<Test> {
    let named = |symbol: &&'static str| {
        let symbol = *symbol;
        test(format!("{name}_{symbol}"), &[Root], move || body(symbol))
    };
    symbols.iter().map(named).collect()
}

fn failures() -> impl Iterator<Item = Test> {
    let fail = |symbol: &str, code| Fault::Fail {
        symbol: symbol.into(),
        code,
        gpu: None,
    };
    let table = [
        (
            "init_fails",
            fail("nvmlInit_v2", 9),
            "initialization error: nvml error: driver not loaded",
        ),
        (
            "init_mismatch",
            fail("nvmlInit_v2", 18),
            "initialization error: nvml error: driver/library version mismatch",
        ),
        (
            "count_fails",
            fail("nvmlDeviceGetCount_v2", 999),
            "detection error: nvml error: unknown error",
        ),
    ];
    table.into_iter().map(|(name, fault, text)| {
        test(name, &[Root], move || {
            let (driver, _scratch) = build(&Builder::new(Profile::default().fault(fault)));
            assert_eq!(
                run(&driver, &["info"]).fails(),
                format!("nvidia-container-cli: {text}")
            );
        })
    })
}

fn crashes(symbol: &str) {
    let fault = Fault::CrashAt(symbol.into());
    let (driver, _scratch) = build(&Builder::new(Profile::default().fault(fault)));
    let outcome = run(&driver, &["info"]).outcome().unwrap();
    assert_eq!(outcome.orphans, [""; 0]);
    if symbol == "nvmlShutdown" {
        // All output had been written before.
        assert_eq!(outcome.status, Some(0), "{outcome:#?}");
        return;
    }
    assert_eq!(outcome.status, Some(1), "{outcome:#?}");
    let is_ours = outcome.message().starts_with("nvidia-container-cli: ");
    assert!(is_ours, "{outcome:#?}");
    assert!(outcome.stderr.contains("driver rpc error"), "{outcome:#?}");
}

fn hangs(symbol: &str) {
    let fault = Fault::HangAt(symbol.into());
    let (driver, _scratch) = build(&Builder::new(Profile::default().fault(fault)));
    let start = Instant::now();
    let run = run(&driver, &["info"]).env("NVC_DRIVER_TIMEOUT", "1");
    let message = run.fails();
    assert!(message.contains("timed out"), "{message}");
    let took = start.elapsed();
    assert!(took < Duration::from_secs(60), "{took:?}");
}

/// Which garbage is an error is open; the program must neither crash nor hang.
fn answers_garbage(symbol: &str) {
    let fault = Fault::Garbage(symbol.into());
    let (driver, _scratch) = build(&Builder::new(Profile::default().fault(fault)));
    let outcome = run(&driver, &["list"]).outcome().unwrap();
    assert!(matches!(outcome.status, Some(0 | 1)), "{outcome:#?}");
    assert_eq!(outcome.orphans, [""; 0]);
    assert!(!outcome.stderr.contains("panicked"), "{outcome:#?}");
}

fn build(builder: &Builder) -> (Driver, Scratch) {
    let scratch = Scratch::new().unwrap();
    let driver = builder.build(scratch.path()).unwrap();
    (driver, scratch)
}

fn run(driver: &Driver, arguments: &[&str]) -> Run {
    Run::cli(command_line(driver, arguments))
}

fn printed(run: Run) -> Vec<String> {
    run.succeeds().lines().map(str::to_owned).collect()
}

fn info_matches_the_driver() {
    let expected = "\
NVRM version:   570.124.06
CUDA version:   12.8

Device Index:   0
Device Minor:   0
Model:          NVIDIA L4 (simulated)
Brand:          Nvidia
GPU UUID:       GPU-51a2d1c0-64a7-4f6e-8d3b-0c9c5e2f7a10
Bus Location:   00000000:3b:00.0
Architecture:   8.9

Device Index:   1
Device Minor:   1
Model:          NVIDIA H100 PCIe (simulated)
Brand:          Nvidia
GPU UUID:       GPU-9e0b7d54-2c3f-4b18-a6d9-7f1e8c4a5b21
Bus Location:   00000000:af:00.0
Architecture:   9.0
";
    assert_eq!(on_driver(&["info"]).succeeds(), expected);
}

fn info_csv() {
    let expected = "\
NVRM version,CUDA version
570.124.06,12.8

Device Index,Device Minor,Model,Brand,GPU UUID,Bus Location,Architecture
0,0,NVIDIA L4 (simulated),Nvidia,GPU-51a2d1c0-64a7-4f6e-8d3b-0c9c5e2f7a10,00000000:3b:00.0,8.9
1,1,NVIDIA H100 PCIe (simulated),Nvidia,GPU-9e0b7d54-2c3f-4b18-a6d9-7f1e8c4a5b21,00000000:af:00.0,9.0
";
    assert_eq!(on_driver(&["info", "--csv"]).succeeds(), expected);
}

fn a_driver_without_gpus() {
    let (driver, _scratch) = build(&Builder::new(Profile::without_gpus()));
    let expected = "NVRM version:   570.124.06\nCUDA version:   12.8\n";
    assert_eq!(run(&driver, &["info"]).succeeds(), expected);
}

fn list_kinds_one_by_one() {
    assert_eq!(
        printed(on_driver(&["list", "--binaries"])),
        [
            "/usr/bin/nvidia-smi",
            "/usr/bin/nvidia-debugdump",
            "/usr/bin/nvidia-persistenced",
            "/usr/bin/nv-fabricmanager",
            "/usr/bin/nvidia-cuda-mps-control",
            "/usr/bin/nvidia-cuda-mps-server",
        ]
    );
    assert_eq!(
        printed(on_driver(&["list", "-i"])),
        [
            "/var/run/nvidia-persistenced/socket",
            "/var/run/nvidia-fabricmanager/socket",
            "/tmp/nvidia-mps",
        ]
    );
    assert_lines(
        &printed(on_driver(&["list", "-f"])),
        "/lib/firmware/nvidia/VER/gsp_ga10x.bin\n/lib/firmware/nvidia/VER/gsp_tu10x.bin",
    );
    assert_eq!(
        on_driver(&["list", "-f", "--no-gsp-firmware"]).succeeds(),
        ""
    );
    let narrow = printed(on_driver(&["list", "-l", "--compat32"]));
    let wide = printed(on_driver(&["list", "--libraries"]));
    assert_eq!(narrow.get(..wide.len()), Some(&wide[..]));
    assert_eq!((wide.len(), narrow.len() - wide.len()), (28, 21));
}

fn version_and_help_go_to_standard_output() {
    let version = Run::cli(["--version"]).succeeds();
    assert!(version.starts_with("cli-version: "), "{version}");
    let help = Run::cli(["configure", "--help"]).succeeds();
    assert!(help.contains("--no-cgroups"), "{help}");
}

fn list_says_everything() {
    let found = printed(on_driver(&["list"]));
    let expected = machine::driver().fill(
        "/dev/nvidiactl
         /dev/nvidia-uvm
         /dev/nvidia-uvm-tools
         /dev/nvidia-modeset
         /dev/nvidia0
         /dev/nvidia1
         /proc/driver/nvidia/capabilities/gpu1/mig/gi1/access
         /proc/driver/nvidia/capabilities/gpu1/mig/gi1/ci0/access
         /dev/nvidia-caps/nvidia-cap147
         /dev/nvidia-caps/nvidia-cap148
         /proc/driver/nvidia/capabilities/gpu1/mig/gi2/access
         /proc/driver/nvidia/capabilities/gpu1/mig/gi2/ci0/access
         /dev/nvidia-caps/nvidia-cap156
         /dev/nvidia-caps/nvidia-cap157
         /usr/bin/nvidia-smi
         /usr/bin/nvidia-debugdump
         /usr/bin/nvidia-persistenced
         /usr/bin/nv-fabricmanager
         /usr/bin/nvidia-cuda-mps-control
         /usr/bin/nvidia-cuda-mps-server
         /LIB/libnvidia-ml.so.VER
         /LIB/libnvidia-cfg.so.VER
         /LIB/libcuda.so.VER
         /LIB/libcudadebugger.so.VER
         /LIB/libnvidia-opencl.so.VER
         /LIB/libnvidia-gpucomp.so.VER
         /LIB/libnvidia-ptxjitcompiler.so.VER
         /LIB/libnvidia-allocator.so.VER
         /LIB/libnvidia-pkcs11.so.VER
         /LIB/libnvidia-pkcs11-openssl3.so.VER
         /LIB/libnvidia-nvvm.so.VER
         /LIB/libnvidia-ngx.so.VER
         /LIB/libvdpau_nvidia.so.VER
         /LIB/libnvidia-encode.so.VER
         /LIB/libnvidia-opticalflow.so.VER
         /LIB/libnvcuvid.so.VER
         /LIB/libnvidia-eglcore.so.VER
         /LIB/libnvidia-glcore.so.VER
         /LIB/libnvidia-tls.so.VER
         /LIB/libnvidia-glsi.so.VER
         /LIB/libnvidia-fbc.so.VER
         /LIB/libnvidia-rtcore.so.VER
         /LIB/libnvoptix.so.VER
         /LIB/libGLX_nvidia.so.VER
         /LIB/libEGL_nvidia.so.VER
         /LIB/libGLESv2_nvidia.so.VER
         /LIB/libGLESv1_CM_nvidia.so.VER
         /LIB/libnvidia-glvkspirv.so.VER",
    );
    let expected: Vec<_> = expected.lines().map(str::trim).collect();
    // The 32-bit libraries, sockets and firmware follow, and have their own tests.
    assert_eq!(found.get(..expected.len()).unwrap(), expected);
    assert_eq!(found.len(), expected.len() + 21 + 3 + 2);
}

fn list_devices() {
    let driver_nodes =
        "/dev/nvidiactl\n/dev/nvidia-uvm\n/dev/nvidia-uvm-tools\n/dev/nvidia-modeset\n";
    let mig = "/proc/driver/nvidia/capabilities/gpu1/mig";
    let first = format!(
        "/dev/nvidia1\n{mig}/gi1/access\n{mig}/gi1/ci0/access\n\
         /dev/nvidia-caps/nvidia-cap147\n/dev/nvidia-caps/nvidia-cap148\n"
    );
    for (selection, expected) in [
        ("0", "/dev/nvidia0\n"),
        ("1,0", "/dev/nvidia1\n/dev/nvidia0\n"),
        ("GPU-51a2d1c0-64a7-4f6e-8d3b-0c9c5e2f7a10", "/dev/nvidia0\n"),
        ("GPU-51a2", "/dev/nvidia0\n"),
        ("MIG-7c5f2b9e-1d84", &first),
        ("0:AF:0.0", "/dev/nvidia1\n"),
        ("1:0", &first),
        ("MIG-7c5f2b9e-1d84-5a06-9b3c-e2f4a6d81030", &first),
        (",", ""),
    ] {
        let found = on_driver(&["list", "--device", selection]).succeeds();
        assert_eq!(found, format!("{driver_nodes}{expected}"), "{selection}");
    }
    let imex = on_driver(&["list", "-b", "--imex-channel=0,7"]).succeeds();
    let channel = "/dev/nvidia-caps-imex-channels/channel";
    assert!(
        imex.starts_with(&format!("{channel}0\n{channel}7\n")),
        "{imex}"
    );
    let config = on_driver(&["list", "-d", "all", "--mig-config=all"]).succeeds();
    assert!(
        config.contains("/proc/driver/nvidia/capabilities/mig/config\n"),
        "{config}"
    );
    assert!(!config.contains("gi1/access"), "{config}");
}

fn a_driver_without_capability_nodes() {
    // The major number is read from the caller's root.
    let (without, _scratch) = build(&Builder::default().no_capability_nodes());
    let script = "mount --bind \"$0/proc/devices\" /proc/devices && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).arg(without.root());
    let line = command_line(machine::driver(), &["list", "-d", "1:0"]);
    let found = Run::within(command, line).succeeds();
    let mig = "/proc/driver/nvidia/capabilities/gpu1/mig/gi1";
    assert!(
        found.ends_with(&format!("/dev/nvidia1\n{mig}/access\n{mig}/ci0/access\n")),
        "{found}"
    );
}

fn libraries_are_chosen_by_rules() {
    let builder = Builder::default()
        .rare_libraries()
        .legacy_gl()
        .without("libnvidia-ngx");
    let (driver, _scratch) = build(&builder.edit(|root| {
        // A leftover of another version, not this driver's.
        let directory = fs::read_dir(root.join("usr/lib"))?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<io::Result<Vec<_>>>()?;
        for directory in directory {
            let old = directory.join("libcuda.so.999.1");
            fs::copy(directory.join("libcuda.so.570.124.06"), old)?;
        }
        Ok(())
    }));
    let found = printed(run(&driver, &["list", "-l"]));
    let has = |name: &str| found.iter().any(|line| line.contains(name));
    for wanted in [
        "libnvidia-nscq.so",
        "libnvidia-ifr.so",
        "libnvidia-cbl.so",
        "libnvidia-fatbinaryloader.so",
    ] {
        assert!(has(wanted), "{wanted}: {found:#?}");
    }
    for unwanted in [
        "nvvm70",
        "sandboxutils",
        "gtk3",
        "ngx",
        "999.1",
        "/libGL.so",
        "/libEGL.so",
    ] {
        assert!(!has(unwanted), "{unwanted}: {found:#?}");
    }
}

fn rhel_like_driver_root() {
    let (driver, _scratch) =
        build(&Builder::default().library_dirs("/usr/lib64", Some("/usr/lib")));
    let found = printed(run(&driver, &["list", "-l", "--compat32"]));
    assert!(
        found.contains(&"/usr/lib64/libcuda.so.570.124.06".into()),
        "{found:#?}"
    );
    assert!(
        found.contains(&"/usr/lib/libcuda.so.570.124.06".into()),
        "{found:#?}"
    );
}

fn driver_root_without_a_c_library() {
    let (driver, _scratch) = build(&Builder::default().no_libc());
    assert!(
        run(&driver, &["info"])
            .succeeds()
            .starts_with("NVRM version:   570.124.06\n")
    );
}

/// One bad file must not break every container; it is an error only if it is requested.
fn broken_libraries_are_warned_about() {
    let (driver, _scratch) = build(&Builder::default());
    let path = |name: &str| driver.path(driver.fill(&format!("/LIB/{name}.so.VER")));
    fs::remove_file(path("libnvidia-opencl")).unwrap();
    fs::write(path("libnvidia-tls"), "not ELF").unwrap();
    let outcome = run(&driver, &["list", "-l"]).outcome().unwrap();
    assert_eq!(outcome.status, Some(0), "{outcome:#?}");
    assert!(outcome.stdout.contains("libcuda.so"), "{outcome:#?}");
    assert!(
        !outcome
            .stdout
            .contains(&driver.fill("/LIB/libnvidia-opencl.so")),
        "{outcome:#?}"
    );
}
