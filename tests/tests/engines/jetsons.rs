//! Runs containers on Jetsons, also those with a discrete GPU beside the integrated one: by the runtime's mode csv, and
//! by specifications of that mode.

use std::fs;
use std::path::Path;
use std::process::Command;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nvc_testkit::driver::Builder;
use nvc_testkit::machine;
use nvc_testkit::profile::{Fault, Profile};
use nvc_tests::bundle::Bundle;
use nvc_tests::world::{World, both, complaint, printed};

use super::runtimes::Body;

/// Name and body of each test.
pub(crate) const TESTS: &[(&str, Body)] = &[
    ("gives_the_files_of_a_jetson", of_a_jetson),
    (
        "gives_links_and_directories_of_a_jetson",
        links_and_directories_of_a_jetson,
    ),
    ("gives_the_gpus_of_a_pair", gives_the_gpus_of_a_pair),
    ("gives_a_pair_by_a_specification", by_a_specification),
    ("refuses_what_a_pair_lacks", refuses_what_a_pair_lacks),
    ("gives_the_lists_without_nvml", gives_the_lists_without_nvml),
    ("checks_what_a_jetson_can_do", checks_what_a_jetson_can_do),
    ("asks_cuda_where_nvml_is_missing", asks_cuda_without_nvml),
];

/// Files that an operating system would list: those of a discrete GPU among them.
const LIST: &str = "dev, /dev/nvidia0\ndev, /dev/nvidia1\ndev, /dev/nvidiactl\ndev, /dev/nvmap\n\
                    dev, /dev/nvhost-*\ndev, /dev/nvgpu/*/*\nlib, /usr/lib/*-linux-gnu/libcuda.so.*\n";

/// A node of the integrated GPU's own driver, and its minor number.
pub(crate) const IGPU: &str = "/dev/nvgpu/igpu0/ctrl";
pub(crate) const IGPU_MINOR: u64 = 4003;

/// What the lists give a container with the integrated GPU.
const FIRST: &str = "nvgpu nvhost-as-gpu nvidia0 nvidia2 nvidiactl nvmap";
/// What a container with the discrete GPU gets.
const SECOND: &str = "nvidia-modeset nvidia-uvm nvidia-uvm-tools nvidia1 nvidiactl nvmap";
const BOTH: &str = "nvgpu nvhost-as-gpu nvidia-modeset nvidia-uvm nvidia-uvm-tools nvidia0 nvidia1 nvidia2 nvidiactl \
                    nvmap";
/// Everything in the lists.
const LISTED: &str = "nvgpu nvhost-as-gpu nvidia0 nvidia1 nvidiactl nvmap";

const SINGLE: &str = "modes.jit-cdi.nvcdi-feature-flags = [\"disable-multiple-csv-devices\"]";

/// Prints the names of the driver's nodes.
const LOOK: &str = "cd /dev; for n in nv*; do [ -e $n ] && echo $n; done; true";

/// Creates an environment in mode csv, on a Jetson with a driver.
pub(crate) fn world(runtime: &str, driver: Builder) -> World {
    let mut world = World::with_list(runtime, LIST);
    world.use_driver(&driver.edit(nodes_of_a_soc));
    world
}

/// Adds the nodes that a Jetson has beside the driver's usual ones. No driver is behind them.
fn nodes_of_a_soc(root: &Path) -> std::io::Result<()> {
    let major = u64::from(machine::driver().majors().imex);
    for (path, major, minor) in [
        ("dev/nvidia2", 195, 2),
        ("dev/nvmap", major, 4001),
        ("dev/nvhost-as-gpu", major, 4002),
        (&IGPU[1..], major, IGPU_MINOR),
    ] {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        let mode = Mode::from_bits_truncate(0o666);
        mknod(&path, SFlag::S_IFCHR, mode, makedev(major, minor))?;
    }
    Ok(())
}

/// Runs a container with these variables; returns its output, the runtime's messages, and its log.
fn run(world: World, env: &[&str], script: &str) -> (String, String, String) {
    let bundle = Bundle::new(world, env, script);
    let (seen, said) = both(&mut bundle.run());
    let log = bundle.world.log();
    (seen.lines().collect::<Vec<_>>().join(" "), said, log)
}

fn request(device: &str) -> String {
    format!("NVIDIA_VISIBLE_DEVICES={device}")
}

fn gives_the_gpus_of_a_pair(runtime: &str) {
    for profile in [Profile::orin_pair(), Profile::thor_pair()] {
        let uuid = |index: usize| profile.gpus[index].uuid.clone();
        let (one, other) = (uuid(0), uuid(1));
        for (device, expected) in [
            ("0", FIRST),
            ("1", SECOND),
            (&one, FIRST),
            (&other, SECOND),
            ("all", BOTH),
            ("none", ""),
        ] {
            let world = world(runtime, Builder::new(profile.clone()));
            let (seen, said, log) = run(world, &[&request(device)], LOOK);
            assert_eq!(seen, expected, "{device}: {said}");
            assert!(!log.contains("lists alone"), "{device}: {log}");
        }
    }
    let single = world(runtime, Builder::new(Profile::orin_pair()));
    single.set(SINGLE);
    let (seen, said, log) = run(single, &[&request("0")], LOOK);
    assert_eq!(seen, LISTED, "{said}");
    assert!(!log.contains("lists alone"), "{log}");
}

/// Generates a specification in mode csv.
fn generate(world: &World, options: &[&str]) -> Command {
    let mut command = world.command("nvidia-ctk");
    command
        .args(["cdi", "generate", "--mode=csv", "--driver-root"])
        .arg(world.driver.root())
        .arg("--csv.file")
        .arg(world.path("host-files/l4t.csv"))
        .arg("--nvidia-cdi-hook-path")
        .arg(world.bin().join("nvidia-cdi-hook"))
        .arg("--output")
        .arg(world.path("cdi/nvidia.yaml"))
        .args(options);
    command
}

/// Makes the runtime use the generated specification.
fn by_file(world: &World) {
    let file = world.path("config.toml");
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{error}"));
    let text = text.replace("mode = \"csv\"", "mode = \"cdi\"");
    fs::write(&file, text).unwrap_or_else(|error| panic!("{error}"));
    let directory = world.path("cdi");
    world.set(&format!(
        "modes.cdi.spec-dirs = [\"{}\"]",
        directory.display()
    ));
}

fn by_a_specification(runtime: &str) {
    let profile = Profile::orin_pair();
    let uuid = |index: usize| profile.gpus[index].uuid.clone();
    for (device, expected) in [
        ("0", FIRST.to_owned()),
        (&uuid(0), FIRST.into()),
        ("1", SECOND.into()),
        (&uuid(1), SECOND.into()),
        ("all", BOTH.into()),
    ] {
        let world = world(runtime, Builder::new(profile.clone()));
        printed(&mut generate(&world, &[]));
        let mut list = world.command("nvidia-ctk");
        let directory = format!("--spec-dir={}", world.path("cdi").display());
        let listed = printed(list.args(["cdi", "list", &directory]));
        let names = ["0", "1", "all", &uuid(0), &uuid(1)];
        for name in names {
            assert!(
                listed.contains(&format!("nvidia.com/gpu={name}\n")),
                "{listed}"
            );
        }
        by_file(&world);
        let (seen, said, _) = run(world, &[&request(device)], LOOK);
        assert_eq!(seen, expected, "{device}: {said}");
    }

    let world = world(runtime, Builder::new(profile.clone()));
    let text = |options: &[&str]| {
        printed(&mut generate(&world, options));
        fs::read_to_string(world.path("cdi/nvidia.yaml")).unwrap_or_default()
    };
    let named = text(&["--device-name-strategy=uuid", "--device-id=1"]);
    assert!(
        named.contains(&uuid(1)) && !named.contains(&uuid(0)),
        "{named}"
    );
    assert!(!named.contains("nvgpu"), "{named}");
    let single = text(&["--feature-flag=disable-multiple-csv-devices"]);
    assert!(
        single.contains("/dev/nvidia1") && !single.contains("/dev/nvidia2"),
        "{single}"
    );
    assert!(!single.contains(&uuid(0)), "{single}");
    for hook in ["filter-driver-proc", "disable-device-node-modification"] {
        let argument = format!("- {hook}\n");
        assert!(single.contains(&argument), "{single}");
        let without = text(&[&format!("--disable-hook={hook}")]);
        assert!(!without.contains(&argument), "{without}");
    }
    // A list that does not exist is a warning if another one does.
    let missing = format!("--csv.file={}", world.path("missing.csv").display());
    let edits = |text: String| {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let without = edits(text(&[]));
    let (_, said) = both(&mut generate(&world, &[&missing]));
    assert!(said.contains("missing.csv"), "{said}");
    assert_eq!(edits(text(&[&missing])), without);
    let none = complaint(&mut generate(&world, &["--device-id=none"]));
    assert!(none.contains("unsupported device id: none"), "{none}");
    for (id, reason) in [
        ("1:0", "MIG device"),
        ("2", "devices here: 0, 1, or their UUIDs"),
        ("first", "devices here: 0, 1, or their UUIDs"),
    ] {
        let said = complaint(&mut generate(&world, &["--device-id", id]));
        assert!(said.contains(&format!("there is no device {id}")), "{said}");
        assert!(said.contains(reason), "{said}");
    }
}

fn refuses_what_a_pair_lacks(runtime: &str) {
    for (device, reason) in [
        ("2", "devices here: 0, 1, or their UUIDs"),
        ("1:0", "is a MIG device"),
        (
            "MIG-7c5f2b9e-1d84-5a06-9b3c-e2f4a6d81030",
            "is a MIG device",
        ),
        (
            "GPU-7c5f2b9e-1d84-5a06-9b3c-e2f4a6d81030",
            "devices here: 0, 1, or their UUIDs",
        ),
        ("first", "devices here: 0, 1, or their UUIDs"),
    ] {
        let world = world(runtime, Builder::new(Profile::orin_pair()));
        let bundle = Bundle::new(world, &[&request(device)], LOOK);
        let said = complaint(&mut bundle.run());
        assert!(said.contains(&format!("no device {device}")), "{said}");
        assert!(said.contains(reason), "{said}");
    }
}

/// A driver that does not describe the pair gives what the lists give, without the node of a discrete GPU that the kernel
/// module lists.
fn gives_the_lists_without_nvml(runtime: &str) {
    let fail = |symbol: &str, gpu| Fault::Fail {
        symbol: symbol.into(),
        code: 15,
        gpu,
    };
    for fault in [
        fail("nvmlInit_v2", None),
        fail("nvmlDeviceGetPciInfo", Some(0)),
        Fault::CrashAt("nvmlDeviceGetPciInfo:1".into()),
        Fault::Garbage("nvmlDeviceGetUUID:1".into()),
    ] {
        let broken = || {
            world(
                runtime,
                Builder::new(Profile::orin_pair().fault(fault.clone())),
            )
        };
        let (seen, said, log) = run(broken(), &[&request("all")], LOOK);
        assert_eq!(seen, LISTED.replace(" nvidia1", ""), "{fault:?}: {said}");
        assert!(log.contains("given by the lists alone"), "{fault:?}: {log}");
        let (seen, said, _) = run(broken(), &[&request("0")], LOOK);
        let is_first = seen.contains("nvidia0") && !seen.contains("nvidia1");
        assert!(is_first, "{fault:?}: {seen} {said}");
        let bundle = Bundle::new(broken(), &[&request("1")], LOOK);
        let said = complaint(&mut bundle.run());
        assert!(said.contains("no device 1"), "{fault:?}: {said}");
        // The same in a specification.
        let world = broken();
        let (_, said) = both(&mut generate(&world, &[]));
        assert!(
            said.contains("given by the lists alone"),
            "{fault:?}: {said}"
        );
        let text = fs::read_to_string(world.path("cdi/nvidia.yaml")).unwrap_or_default();
        assert!(text.contains("/dev/nvidia0"), "{fault:?}: {text}");
        for other in ["/dev/nvidia1", "/dev/nvidia2"] {
            assert!(!text.contains(other), "{fault:?}: {text}");
        }
    }
    // A lost discrete GPU does not take the integrated one with it.
    for minor in [1, 3] {
        let mut lost = Profile::orin_pair().fault(fail("nvmlDeviceGetMinorNumber", Some(1)));
        lost.gpus[1].minor = minor;
        let world = world(runtime, Builder::new(lost));
        world.set_list(&LIST.replace("dev, /dev/nvidia1", "dev, /dev/nvidia[1-9]"));
        let (seen, said, _) = run(world, &[&request("0")], LOOK);
        // Listed nodes stay, unless they are that GPU's.
        assert_eq!(seen, FIRST, "{minor}: {said}");
    }
}

/// NVML knows CUDA's version, and the architecture of each GPU.
fn checks_what_a_jetson_can_do(runtime: &str) {
    for (device, demand, is_met) in [
        ("0", "cuda>=12.6,arch=8.7", true),
        ("1", "cuda>=12.6,arch=8.6", true),
        ("all", "cuda>=12.6,arch<9", true),
        ("none", "cuda>=12.6", true),
        ("0", "cuda>=12.7", false),
        ("1", "arch>=8.7", false),
        // Both GPUs must do.
        ("all", "arch>=8.7", false),
        ("0", "driver>=1", false),
    ] {
        let world = world(runtime, Builder::new(Profile::orin_pair()));
        let demand = format!("NVIDIA_REQUIRE_X={demand}");
        let (seen, said, _) = run(world, &[&request(device), &demand], "echo here");
        assert_eq!(seen == "here", is_met, "{device} {demand}: {said}");
        assert_eq!(said.contains("unsatisfied condition"), !is_met, "{said}");
    }
}

/// Older Jetsons have no NVML.
fn asks_cuda_without_nvml(runtime: &str) {
    let mut profile = Profile::orin_pair();
    profile.gpus.truncate(1);
    let old = || Builder::new(profile.clone()).without("libnvidia-ml");
    for (driver, demand, is_met) in [
        (old().answering_cuda(), "cuda>=12.6,arch=8.7", true),
        (old().answering_cuda(), "cuda>=12.7", false),
        (old().answering_cuda(), "arch<8", false),
        // This one's library has no functions.
        (old(), "cuda>=1", false),
    ] {
        let demand = format!("NVIDIA_REQUIRE_X={demand}");
        let world = world(runtime, driver);
        let (seen, said, log) = run(world, &[&request("all"), &demand], "echo here");
        assert_eq!(seen == "here", is_met, "{demand}: {said}");
        let has_problem = log.contains("cuda: ") || log.contains("CUDA driver library");
        assert_eq!(has_problem, demand.ends_with(">=1"), "{demand}: {log}");
    }
    let (seen, said, log) = run(world(runtime, old()), &[&request("0")], LOOK);
    assert_eq!(seen, LISTED.replace(" nvidia1", ""), "{said}");
    assert!(!log.contains("lists alone"), "{log}");
}

fn of_a_jetson(runtime: &str) {
    let script = "for n in /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl; do e=$( (exec 3<$n) 2>&1 ); echo \"$n: ${e##*: }\"; done; \
                  ldconfig -p | grep -c libcuda.so.1; ls /usr/bin/nvidia-smi";
    let bundle = |devices: &str| {
        let devices = format!("NVIDIA_VISIBLE_DEVICES={devices}");
        Bundle::new(World::jetson(runtime), &[&devices], script)
    };
    let all = bundle("all");
    let (seen, said) = both(&mut all.run());
    // NVML says which CUDA version the image's compatibility libraries are compared with.
    let hooks = all.spec()["hooks"]["createContainer"].to_string();
    let at = |name: &str| hooks.find(name);
    let compat = at("host_cuda");
    assert!(compat.is_some() && compat < at("library-path"), "{hooks}");
    // In the loader's cache is the library of each word size.
    let nodes = "/dev/nvidia0: No such device or address\n/dev/nvidia1: No such file\n/dev/nvidiactl: No such device or address\n";
    assert_eq!(seen, format!("{nodes}2\n"), "{said}");
    let (seen, _) = both(&mut bundle("none").run());
    assert!(seen.starts_with("/dev/nvidia0: No such file\n"), "{seen}");
    // A GPU that the machine does not have.
    let said = complaint(&mut bundle("1").run());
    assert!(said.contains("no device 1"), "{said}");
}

/// `sym` lines give links, also chains of them, and the file at their end; `dir` lines give directories, read-only.
fn links_and_directories_of_a_jetson(runtime: &str) {
    const TREE: &str = "set -e; mkdir -p $1/usr/lib $1/lib; cp -a $0/dev $1/dev; cp -a $0$2 $1/usr/lib/; \
                        cp -a $0/lib/firmware $1/lib/; mkdir $1$2/tegra; ln -s ../libcuda.so.1 $1$2/tegra/libcuda.so.1.1; \
                        ln -s $2/tegra/libcuda.so.1.1 $1$2/libcuda.so";
    let list = "dev, /dev/nvidia0\ndir, /lib/firmware/nvidia\nsym, /usr/lib/*-linux-gnu/libcuda.so\n\
                dir, /usr/lib/no-such\nfrob, /etc\n";
    let world = World::jetson(runtime);
    world.set_list(list);
    let (driver, tree) = (world.driver.root().to_owned(), world.path("tree"));
    let lib = format!("/usr/lib/{}", nvc_testkit::driver::TRIPLET);
    let mut build = Command::new("sh");
    build.args(["-c", TREE]).args([&driver, &tree]).arg(&lib);
    printed(&mut build);
    world.set_root(world.driver.root(), &tree);
    let script = format!(
        "(exec 3</dev/nvidia0) 2>&1 | grep -o 'No such device or address'; cd {lib}; \
         for l in libcuda.so tegra/libcuda.so.1.1 libcuda.so.1; do [ -L $l ] && [ -s $l ] && echo $l; done; \
         ls /lib/firmware/nvidia/*; (echo > /lib/firmware/nvidia/x) 2>/dev/null || echo read-only; \
         ldconfig -p | grep -c -m1 libcuda.so.1"
    );
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=all"], &script);
    let seen = printed(&mut bundle.run());
    let expected = [
        "No such device or address",
        "libcuda.so",
        "tegra/libcuda.so.1.1",
        "libcuda.so.1",
        "gsp_ga10x.bin",
        "gsp_tu10x.bin",
        "read-only",
        "1",
    ];
    assert_eq!(seen.lines().collect::<Vec<_>>(), expected);
    let log = bundle.world.log();
    assert!(log.contains("/usr/lib/no-such is missing"), "{log}");
}
