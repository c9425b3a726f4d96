//! Packs the folder of `make test-gpu` from the debug build and runs it on a simulated machine, so that it works on the
//! day when somebody has a GPU.
//!
//! The machine is a bare root: a simulated driver, busybox, ldconfig and a C library. Neither a compiler nor this
//! machine's programs are in it. Each machine gets the folder as the archive that people copy.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::{env, fs};

use nvc_testkit::cli;
use nvc_testkit::driver::{self, TRIPLET};
use nvc_testkit::files;
use nvc_testkit::harness::Need::{Command as Program, Root};
use nvc_testkit::harness::{self, test};
use nvc_testkit::machine::Scratch;
use nvc_testkit::profile::{MigMode, Profile};
use nvc_testkit::tree::{Entry, Tree};
use nvc_testkit::userland;
use nvc_tests::capi::repository;

fn main() -> ExitCode {
    // Most tests want MPS, IMEX channels and a program without a wrapper; two name the real machine.
    harness::on_debian();
    let all = [Root, Program("runc"), Program("busybox"), Program("strip")];
    let engines = [&all[..], &ENGINES.map(Program)].concat();
    let tests: [(&str, fn()); 10] = [
        ("a_machine_with_gpus_passes", a_machine_with_gpus_passes),
        (
            "a_machine_file_makes_the_same_machine",
            a_machine_file_makes_the_same_machine,
        ),
        ("one_gpu_suffices", one_gpu_suffices),
        (
            "an_open_node_and_a_lie_are_found",
            an_open_node_and_a_lie_are_found,
        ),
        ("without_a_gpu_it_says_so", without_a_gpu_it_says_so),
        ("without_rights_it_says_so", without_rights_it_says_so),
        (
            "another_architecture_is_named",
            another_architecture_is_named,
        ),
        (
            "without_glibc_the_packed_one_serves",
            without_glibc_the_packed_one_serves,
        ),
        ("an_older_glibc_is_replaced", an_older_glibc_is_replaced),
        ("what_is_wrong_is_found", what_is_wrong_is_found),
    ];
    let tests = tests.into_iter().map(|(name, body)| test(name, &all, body));
    let name = "engines_and_upstreams_programs";
    let more = test(name, &engines, engines_and_upstreams_programs);
    harness::main(tests.chain([more]).collect())
}

/// Packs the folder once, and returns its archive.
fn archive() -> &'static Path {
    static DONE: OnceLock<(PathBuf, Scratch)> = OnceLock::new();
    let (archive, _) = DONE.get_or_init(|| {
        let scratch = Scratch::new().unwrap();
        let test = env::current_exe().unwrap();
        let target = test.ancestors().nth(3).unwrap();
        let output = Command::new(repository().join("scripts/test/gpu.sh"))
            .env("NVC_PROFILE", "debug")
            .env("NVC_TEST_GPU_OUT", scratch.path())
            .env("CARGO_TARGET_DIR", target)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        (scratch.join("nvc-test-gpu.tar.gz"), scratch)
    });
    archive
}

const ENGINES: [&str; 7] = [
    "crun",
    "podman",
    "conmon",
    "dockerd",
    "docker",
    "containerd",
    "containerd-shim-runc-v2",
];
const ANY_IMAGE: &str = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#;

const CAPABILITIES: [&str; 7] = [
    "compute", "utility", "graphics", "display", "video", "ngx", "compat32",
];

/// A bare machine, and the commands that run in it.
struct Bare(Scratch);

/// Result of a run.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    said: String,
}

impl Ran {
    #[track_caller]
    fn says(&self, text: &str) {
        assert!(self.said.contains(text), "no `{text}` in:\n{}", self.said);
    }
}

impl Bare {
    fn new(profile: Profile) -> Self {
        let scratch = Scratch::new().unwrap();
        let root = scratch.path();
        build(profile, root);
        for directory in ["proc", "sys", "mnt", "root", "saved", "old", "tmp"] {
            files::directory(&root.join(directory)).unwrap();
        }
        files::mode(&root.join("tmp"), 0o1777).unwrap();
        // The loader, at the place that programs name; the C library is the driver's neighbour. Debug builds need libgcc.
        let libraries = format!("/usr/lib/{TRIPLET}");
        userland::install(root, &["dash", "setpriv", "ldconfig"], &libraries).unwrap();
        for name in ["libc.so.6", "libgcc_s.so.1"] {
            let source = Path::new("/lib").join(TRIPLET).join(name);
            files::copy_program(
                &source,
                &files::below(root, Path::new(&libraries)).join(name),
            )
            .unwrap();
        }
        let _ = std::os::unix::fs::symlink(
            format!("../usr/lib/{TRIPLET}"),
            root.join("lib").join(TRIPLET),
        );
        let busybox = root.join("bin/busybox");
        files::copy_program(Path::new("/bin/busybox"), &busybox).unwrap();
        for name in [
            "sh", "uname", "mkdir", "cp", "chmod", "rm", "sed", "tar", "gzip",
        ] {
            let _ = fs::remove_file(root.join("bin").join(name));
            std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
        }
        fs::copy(archive(), root.join("root/nvc-test-gpu.tar.gz")).unwrap();
        Self(scratch)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// Installs engines, which are this machine's.
    fn install_engines(&self) {
        let libraries = format!("/usr/lib/{TRIPLET}");
        let copy = |program: &Path, to: &Path| {
            files::copy_program(program, to).unwrap();
            userland::install_needed(self.0.path(), program, &libraries).unwrap();
        };
        for name in ENGINES {
            let program = cli::find(name).unwrap();
            copy(&program, &self.path("usr/bin").join(name));
        }
        // podman 5 does not start without it.
        let networks = Path::new("/usr/lib/podman/netavark");
        if networks.exists() {
            files::directory(&self.path("usr/lib/podman")).unwrap();
            copy(networks, &self.path("usr/lib/podman/netavark"));
        }
        files::file(&self.path("etc/containers/policy.json"), ANY_IMAGE, 0o644).unwrap();
        for directory in ["run", "var/tmp", "var/lib"] {
            files::directory(&self.path(directory)).unwrap();
        }
    }

    /// Installs what stands for upstream's programs: ours, which say more as `change`, a filter, does.
    fn install_upstream(&self, change: &str) {
        cli::copy_programs(&self.path("opt/upstream")).unwrap();
        for name in ["nvidia-container-cli", "nvidia-ctk"] {
            let script = format!("#!/bin/sh\n/opt/upstream/{name} \"$@\" | busybox {change}\n");
            files::file(&self.path("usr/bin").join(name), script, 0o755).unwrap();
        }
    }

    /// Runs README's command in the machine; `before` are shell commands that come first, and may set `shell` and `as`.
    fn run(&self, before: &str) -> Ran {
        let enter = "\
            cd \"$1\" && mount --bind . . && cd \"$1\" && cp -a proc/. saved/ || exit 90
            umount /proc/driver; umount /proc/devices
            mount --rbind /proc proc && mount --bind saved/devices proc/devices || exit 91
            mount --bind saved/driver proc/driver && mount --rbind /sys sys && pivot_root . old || exit 92
            exec /bin/busybox sh -c \"$2\"";
        let inside = format!(
            "busybox umount -l /old; cd /root; {before}\n\
             tar xzf nvc-test-gpu.tar.gz && exec busybox env -i PATH=/fake:/bin:/usr/bin HOME=/root \
             $as ${{shell:-dash}} nvc-test-gpu/run.sh --simulated"
        );
        let output = Command::new("unshare")
            .args([
                "--mount",
                "--propagation",
                "private",
                "bash",
                "-c",
                enter,
                "x",
            ])
            .arg(self.0.path())
            .arg(inside)
            .output()
            .unwrap();
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        Ran {
            code: output.status.code(),
            said: String::from_utf8_lossy(&said).into_owned(),
        }
    }

    fn report(&self) -> String {
        fs::read_to_string(self.path("root/nvc-test-gpu/nvc-test-gpu-report.txt")).unwrap()
    }
}

/// Returns the machine file of a report.
fn machine_file(report: &str) -> &str {
    let (_, rest) = report.split_once("== Machine file").unwrap();
    let (_, rest) = rest.split_once('\n').unwrap();
    rest.split_once("== End of the machine file").unwrap().0
}

fn a_machine_with_gpus_passes() {
    let profile = Profile::default();
    let bare = Bare::new(profile.clone());
    let ran = bare.run("");
    assert_eq!(ran.code, Some(0), "{}", ran.said);
    for text in [
        "driver: SIMULATED, 570.124.06",
        "pass: by hand, 0: 1 GPUs computed",
        "pass: 2 GPUs computed",
        "nodes of MIG instances that open for 1:0: 2",
        "pass: 16 containers at once: those that computed: 16",
        "pass: MPS, legacy: the socket is there: yes",
        "pass: MPS, jit-cdi: the socket is there: no",
        "pass: MPS, jit-cdi with the directory bound in: the socket is there: yes",
        // Engines and upstream's programs.
        "0 failed, 4 not tested",
    ] {
        ran.says(text);
    }
    for way in [
        "runtime in mode auto, 0",
        "mode cdi, nvidia.com/gpu=0",
        "hook under runc, 0",
    ] {
        let lines = ran.said.lines().filter(|line| line.contains(way));
        let passed = lines.filter(|line| line.starts_with("  pass: "));
        assert_eq!(passed.count(), 2, "{way}: {}", ran.said);
    }
    for capability in CAPABILITIES {
        for mode in ["by hand", "legacy", "auto"] {
            ran.says(&format!(
                "pass: {capability} alone, {mode}, PATH of a daemon: "
            ));
        }
    }
    // The report identifies nobody, and its machine file can be built again.
    let report = bare.report();
    let secrets = profile.gpus.iter().map(|gpu| &gpu.uuid);
    for uuid in secrets.chain(profile.mig_devices.iter().map(|mig| &mig.uuid)) {
        let digits = uuid.split_once('-').unwrap().1;
        assert!(!report.contains(digits), "{uuid} is in\n{report}");
    }
    assert!(!report.contains("1650123456789"), "{report}");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let words = report.split(|c: char| !c.is_alphanumeric() && c != '-');
    assert_eq!(words.filter(|word| *word == host.trim()).count(), 0);
    let again = Profile::parse(machine_file(&report)).unwrap();
    assert_eq!(again.cuda, profile.cuda);
    let gpus = |profile: &Profile| -> Vec<_> {
        let gpus = profile.gpus.iter();
        gpus.map(|gpu| (gpu.minor, gpu.bus_id.clone(), gpu.brand, gpu.mig))
            .collect()
    };
    assert_eq!(gpus(&again), gpus(&profile));
    let migs = |profile: &Profile| -> Vec<_> {
        let migs = profile.mig_devices.iter();
        migs.map(|mig| (mig.gpu, mig.slot, mig.gpu_instance, mig.name.clone()))
            .collect()
    };
    assert_eq!(migs(&again), migs(&profile));
    assert_same_files(again, profile);
}

/// The machine file of a Debian host, whose programs are links and whose libraries have a directory of their own, makes
/// the same machine: all files, links and nodes. So does that of a real machine.
fn a_machine_file_makes_the_same_machine() {
    for name in ["debian-alternatives", "h100"] {
        let path = repository().join("shared/nvc-testkit/machines").join(name);
        let profile = Profile::parse(&fs::read_to_string(path).unwrap()).unwrap();
        let bare = Bare::new(profile.clone());
        let ran = bare.run("");
        assert_eq!(ran.code, Some(0), "{}", ran.said);
        let again = Profile::parse(machine_file(&bare.report())).unwrap();
        assert_same_files(again, profile);
    }
}

/// Asserts that two machines have the same files.
#[track_caller]
fn assert_same_files(again: Profile, profile: Profile) {
    let [again, wanted] = [again, profile].map(files_of);
    let only = |these: &[String], those: &[String]| -> Vec<String> {
        let own = these.iter().filter(|line| !those.contains(line));
        own.cloned().collect()
    };
    let (more, less) = (only(&again, &wanted), only(&wanted, &again));
    assert!(
        more.is_empty() && less.is_empty(),
        "too much: {more:#?}\nmissing: {less:#?}"
    );
}

/// Builds a machine and returns its files: kinds, modes, targets of links, numbers of nodes, and all of libraries.
fn files_of(profile: Profile) -> Vec<String> {
    let scratch = Scratch::new().unwrap();
    build(profile, scratch.path());
    let tree = Tree::of(scratch.path()).unwrap();
    let line = |(path, entry): (&Path, &Entry)| {
        let (kind, mode) = (entry.kind, entry.mode);
        // A library's text is what it needs, but for one that the kit compiles.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_library = kind == 'f' && name.starts_with("lib") && name.contains(".so.");
        let is_library = is_library && !name.contains("sandboxutils");
        let text = is_library.then(|| fs::read(scratch.path().join(path)).unwrap());
        let text = text.map_or(String::new(), |text| text.escape_ascii().to_string());
        format!(
            "{path:?} {kind} {mode:o} {:?} {:#x} {text}",
            entry.link, entry.device
        )
    };
    let entries = tree.entries();
    entries
        .filter(|(path, _)| !path.starts_with("etc/nvidia-sim"))
        .map(line)
        .collect()
}

fn build(profile: Profile, root: &Path) {
    let builder = driver::Builder::new(profile).answering_cuda();
    builder.build(root).unwrap();
}

/// Neither MIG devices nor a second GPU nor nvidia-smi are there.
fn one_gpu_suffices() {
    let mut profile = Profile::default();
    profile.gpus.truncate(1);
    profile.gpus[0].mig = MigMode::Unsupported;
    profile.mig_devices.clear();
    let ran = Bare::new(profile).run("rm /usr/bin/nvidia-smi");
    assert_eq!(ran.code, Some(0), "{}", ran.said);
    ran.says("NOT TESTED: comparison with nvidia-smi");
    ran.says("note: this machine has one GPU");
    ran.says("runtime in mode auto, no request");
}

/// A container in which another GPU's node opens, and a GPU of which procfs says something else, are failures.
fn an_open_node_and_a_lie_are_found() {
    let bare = Bare::new(Profile::default());
    let lie = "sed -i 's/Device Minor:.*/Device Minor: \\t 0/' /saved/driver/nvidia/gpus/0000:af:00.0/information";
    // A runtime that adds the second GPU's node to each container, behind ours.
    let leak = "tar xzf nvc-test-gpu.tar.gz; sed -i 's/^pivot/&/; s/^  if \\[ \"$2\" \\]; then$/  : > dev\\/nvidia1; \
                mount --bind \\/dev\\/nvidia1 dev\\/nvidia1\\n&/' nvc-test-gpu/containers.sh; rm nvc-test-gpu.tar.gz; \
                busybox tar czf nvc-test-gpu.tar.gz nvc-test-gpu";
    let ran = bare.run(&format!("{lie}; {leak}"));
    assert_eq!(ran.code, Some(1), "{}", ran.said);
    ran.says("FAIL: minor number and UUID of 0000:af:00.0");
    ran.says("FAIL: by hand, 0: nodes open that were not given: /dev/nvidia1");
    ran.says("FAIL: by hand, no request: nodes open that were not given: /dev/nvidia1");
}

/// On a real machine's layout: all engines of this machine, and programs that say what upstream's do.
fn engines_and_upstreams_programs() {
    let bare = Bare::new(Profile::real("h100").unwrap());
    bare.install_engines();
    bare.install_upstream("sed 's|^/dev/nvidiactl$|&\\n/dev/nvidia-modeset|'");
    // crun refuses a mix of cgroup versions.
    let ran = bare.run("busybox umount /sys/fs/cgroup/unified 2>/dev/null");
    assert_eq!(ran.code, Some(0), "{}", ran.said);
    for text in [
        "pass: graphics alone, legacy, PATH of a daemon: ",
        "but for what the image lacks: libX11.so.6 libXext.so.6",
        "NOT TESTED: MPS: no control daemon runs here",
        "pass: crun: 1 GPUs computed",
        "pass: nvidia-container-cli info --csv: as upstream's, with 0 accepted differences",
        "pass: nvidia-container-cli list: as upstream's, with 1 accepted differences",
        "pass: nvidia-ctk cdi generate: as upstream's",
        "  cdi generate: ",
        // MIG devices and MPS.
        "0 failed, 2 not tested",
    ] {
        ran.says(text);
    }
    for engine in ["podman", "docker"] {
        let lines = ran.said.lines();
        let passed = lines.filter(|line| line.starts_with(&format!("  pass: {engine} ")));
        assert_eq!(passed.count(), 2, "{engine}: {}", ran.said);
    }
}

/// Each check of containers and of upstream's programs finds what it is for.
fn what_is_wrong_is_found() {
    let bare = Bare::new(Profile::default());
    bare.install_upstream("sed s/Nvidia/Another/");
    let wrong = [
        // A library is left out, and a script stands for a program.
        r#"/# From here on/i umount usr/lib/*/libnvidia-gpucomp.so.* 2>/dev/null; rm -f usr/lib/*/libnvidia-gpucomp*; echo > s; chmod 755 s\
           [ ! -e usr/bin/nvidia-smi ] || mount --bind s usr/bin/nvidia-smi"#,
        // The container has no directory of MPS.
        r#"/^mps_container/,/^}/s/compute,utility/utility/"#,
        // One of many containers does not start.
        r#"/cp -a "$work.c"/s/$/; [ $n != 3 ] || rm "$work\/many\/3\/config.json"/"#,
    ];
    let edits = wrong.map(|edit| format!("-e '{edit}'")).join(" ");
    let ran = bare.run(&format!(
        "tar xzf nvc-test-gpu.tar.gz; sed -i {edits} nvc-test-gpu/c*.sh; rm nvc-test-gpu.tar.gz
         busybox tar czf nvc-test-gpu.tar.gz nvc-test-gpu"
    ));
    assert_eq!(ran.code, Some(1), "{}", ran.said);
    for text in [
        "FAIL: graphics alone, by hand, PATH of a daemon: missing files of the driver, which given ones need: libnvidia-gpucomp",
        "FAIL: utility alone, by hand, PATH of the caller: /usr/bin/nvidia-smi it is no ELF file",
        "FAIL: MPS, legacy: the socket is there: \"no \", not \"yes \"",
        "FAIL: 16 containers at once: those that computed: \"15 \", not \"16 \"",
        "FAIL: nvidia-container-cli info --csv: 4 differences to upstream's that are not accepted",
    ] {
        ran.says(text);
    }
}

fn first_lines(ran: &Ran) -> String {
    ran.said.lines().take(6).collect::<Vec<_>>().join("\n")
}

fn without_a_gpu_it_says_so() {
    let bare = Bare::new(Profile::without_gpus());
    let ran = bare.run("");
    assert_eq!(ran.code, Some(3), "{}", ran.said);
    assert!(first_lines(&ran).contains("\nNO GPU: "), "{}", ran.said);
    ran.says("NOTHING COULD BE TESTED");
}

/// What needs no container is tested.
fn without_rights_it_says_so() {
    let ran = Bare::new(Profile::default()).run(
        "as='/bin/setpriv --reuid=65534 --regid=65534 --clear-groups --'; \
         mkdir nvc-test-gpu; busybox chown 65534 /root nvc-test-gpu",
    );
    assert!(
        first_lines(&ran).contains("\nNO RIGHTS: not root"),
        "{}",
        ran.said
    );
    assert_eq!(ran.code, Some(0), "{}", ran.said);
    ran.says("pass: driver version");
    ran.says("NOT TESTED: all containers: not root");
}

fn another_architecture_is_named() {
    let bare = Bare::new(Profile::default());
    let fake = bare.path("fake/uname");
    files::file(&fake, "#!/bin/sh\necho riscv64\n", 0o755).unwrap();
    let ran = bare.run("");
    assert_eq!(ran.code, Some(3), "{}", ran.said);
    ran.says("NOT TESTED: everything. This machine is riscv64");
}

/// Asserts that everything was tested, but with the packed C library, and that the first lines give the reason.
#[track_caller]
fn served_by_packed_libc(ran: &Ran, reason: &str) {
    assert_eq!(ran.code, Some(0), "{}", ran.said);
    let first = format!("\nOTHER C LIBRARY: {reason}");
    let lines: Vec<_> = ran.said.lines().take(8).collect();
    assert!(lines.join("\n").contains(&first), "{}", ran.said);
    ran.says("NOT TESTED: our programs with the C library of this machine");
    for text in [
        "pass: nvidia-container-runtime --version",
        "pass: minor number and UUID of 0000:af:00.0",
        "pass: each of its ",
        "pass: by hand, 0: 1 GPUs computed",
    ] {
        ran.says(text);
    }
    for way in [
        "runtime in mode auto, 0",
        "runtime in mode legacy, 0",
        "mode cdi, nvidia.com/gpu=0",
        "hook under runc, 0",
    ] {
        let lines = ran.said.lines().filter(|line| line.contains(way));
        let passed = lines.filter(|line| line.starts_with("  pass: "));
        assert_eq!(passed.count(), 2, "{way}: {}", ran.said);
    }
}

/// As with musl, or without any C library: only busybox runs.
fn without_glibc_the_packed_one_serves() {
    let ran = Bare::new(Profile::default()).run(&format!(
        "shell='/bin/busybox sh'; rm /lib64/ld-linux-* /bin/uname; \
         rm -f /lib/{TRIPLET}/libc.so.6 /usr/lib/{TRIPLET}/libc.so.6 /usr/lib/{TRIPLET}/libgcc_s.so.1"
    ));
    served_by_packed_libc(&ran, "this machine has no glibc, whose loader is /lib");
    ran.says("pass: CUDA version, and nvidia-smi");
    ran.says("nodes of MIG instances that open for 1:0: 2");
}

/// A C library without the version of symbols that all programs of today need.
fn an_older_glibc_is_replaced() {
    let bare = Bare::new(Profile::default());
    let mut library = fs::read(bare.path(&format!("lib/{TRIPLET}/libc.so.6"))).unwrap();
    let (version, other) = (b"GLIBC_2.34\0", b"GLIBC_0.34\0");
    let found: Vec<usize> = library
        .windows(version.len())
        .enumerate()
        .filter_map(|(place, bytes)| (bytes == version).then_some(place))
        .collect();
    assert!(!found.is_empty(), "this glibc is older itself");
    for place in found {
        library[place..place + other.len()].copy_from_slice(other);
    }
    for directory in ["lib", "usr/lib"] {
        let path = bare.path(&format!("{directory}/{TRIPLET}/libc.so.6"));
        fs::write(path, &library).unwrap();
    }
    let ran = bare.run("shell='/bin/busybox sh'");
    let reason = "the programs were packed for a newer glibc than this machine's, with GLIBC_2.34";
    served_by_packed_libc(&ran, reason);
}
