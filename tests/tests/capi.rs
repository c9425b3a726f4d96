//! Tests the built C library: its file, its header, C programs that use and misuse it, its examples.
#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use nvc_testkit::cli::{self, Run};
use nvc_testkit::driver::{Builder, Driver};
use nvc_testkit::harness::Need::{self, Root};
use nvc_testkit::harness::{self, Test, test};
use nvc_testkit::helper::Helper;
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::profile::{Fault, Profile};
use nvc_testkit::userland;
use nvc_tests::capi::{Check, Program, library_dir, repository, shared_object};
use nvc_tests::{State, configure, debian, debian_root, host_ldconfig, start};

const GCC: Need = Need::Command("gcc");

fn main() -> ExitCode {
    // An IMEX channel is among the things that the C programs ask for, and 32-bit libraries.
    harness::on_debian();
    let mut tests = nvc_testkit::tests![&[GCC];
        the_file_is_as_upstreams,
        the_check_of_the_file_can_fail,
        the_archive_exports_the_interface_alone,
    ];
    tests.extend(nvc_testkit::tests![&[Root, GCC];
        the_same_as_the_command_line,
        the_same_with_migs,
        the_builtin_ldconfig,
        the_capabilities_of_upstreams_steps,
        each_question_is_a_new_query,
        a_hanging_driver,
        a_killed_caller_leaves_nothing,
        the_debug_log,
        the_archive_works,
        a_static_program_works,
        paths_need_not_be_text,
        the_c_example_fails_politely,
    ]);
    tests.extend(nvc_testkit::tests![&[Root, GCC, Need::Command("go")]; the_go_example]);
    tests.extend(nvc_testkit::tests![&[Root]; the_rust_example]);
    let debug = [Root, Need::Sanitizers("gcc"), Need::DebugLibrary];
    tests.extend(nvc_testkit::tests![&debug; released_handles, a_panic_stays_inside]);
    tests.extend(of_compilers());
    harness::main(tests)
}

/// Returns the tests that run with several compilers and checks.
fn of_compilers() -> Vec<Test> {
    let mut tests = Vec::new();
    for (compiler, language) in [
        ("gcc", "c"),
        ("clang", "c"),
        ("g++", "c++"),
        ("clang++", "c++"),
    ] {
        tests.push(test(
            format!("header_alone_{compiler}"),
            &[Need::Command(compiler)],
            move || header_alone(compiler, language),
        ));
    }
    for (compiler, check) in [
        ("gcc", Check::Plain),
        ("gcc", Check::Sanitizers),
        ("gcc", Check::Valgrind),
        ("clang", Check::Plain),
        ("clang", Check::Sanitizers),
    ] {
        let mut needs = vec![Root, Need::Command(compiler)];
        match check {
            Check::Valgrind => needs.push(Need::Command("valgrind")),
            Check::Sanitizers => needs.push(Need::Sanitizers(compiler)),
            Check::Plain | Check::Static | Check::AllStatic => {}
        }
        if check != Check::Plain {
            let name = |what| format!("{what}_{compiler}_{check:?}").to_lowercase();
            let leaks = move || leaks_are_seen(compiler, check);
            tests.push(test(name("leaks_are_seen"), &needs, leaks));
            let errors = move || errors_of_the_driver(compiler, check);
            tests.push(test(name("errors_of_the_driver"), &needs, errors));
        }
        for name in ["use", "misuse", "threads", "effects"] {
            tests.push(test(
                format!("{name}_{compiler}_{check:?}").to_lowercase(),
                &needs,
                move || in_a_container(name, compiler, check),
            ));
        }
    }
    tests
}

/// Runs one of the C programs that takes a driver root and a container.
fn in_a_container(name: &str, compiler: &str, check: Check) {
    let driver = machine::driver();
    let container = debian();
    let program = Program::compile(compiler, &format!("tests/c/{name}.c"), check);
    let ldconfig = format!("@{}", userland::host_ldconfig().display());
    let mut words: Vec<OsString> = vec![
        driver.root().into(),
        container.pid().to_string().into(),
        container.root().into(),
    ];
    // Valgrind cannot follow a program into ldconfig's sandbox.
    match (name, check) {
        ("effects", Check::Valgrind) => words.push("builtin".into()),
        ("use" | "effects", _) if check != Check::Valgrind => words.push(ldconfig.into()),
        _ => {}
    }
    program.succeeds(words);
}

fn header_alone(compiler: &str, language: &str) {
    let standards = match language {
        "c" => ["-std=c89", "-std=c99", "-std=c17"],
        _ => ["-std=c++98", "-std=c++11", "-std=c++17"],
    };
    for standard in standards {
        // clang regards the `_Bool` behind upstream's `bool` members as an extension of C89.
        let extension =
            (compiler == "clang" && standard == "-std=c89").then_some("-Wno-c99-extensions");
        let output = Command::new(compiler)
            .args(["-x", language, standard, "-fsyntax-only"])
            .args(["-Wall", "-Wextra", "-pedantic", "-Werror"])
            .args(extension)
            .arg("-I")
            .arg(repository().join("include"))
            .arg(repository().join("tests/c/layout.c"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{standard}: {text}");
    }
}

fn check_elf(file: &Path) -> Run {
    Run::other(repository().join("scripts/build/check-elf.sh"))
        .args([file.as_os_str(), env!("CARGO_PKG_VERSION").as_ref()])
}

fn the_file_is_as_upstreams() {
    let file = shared_object();
    check_elf(&file).succeeds();
    let text = Run::other(&file).succeeds();
    let version = format!("version: {}\nbuild date: ", env!("CARGO_PKG_VERSION"));
    assert!(text.starts_with(&version), "{text}");
    for link in ["libnvidia-container.so.1", "libnvidia-container.so"] {
        assert!(library_dir().join(link).is_symlink(), "{link}");
    }
}

fn the_check_of_the_file_can_fail() {
    let scratch = Scratch::new().unwrap();
    let source = scratch.join("x.c");
    fs::write(&source, "int nvc_version(void) { return 0; }\nint other;\n").unwrap();
    let file = scratch.join("x.so");
    let compiled = Command::new("gcc")
        .args(["-shared", "-fPIC", "-Wl,-z,norelro", "-o"])
        .args([&file, &source])
        .status()
        .unwrap();
    assert!(compiled.success());
    let outcome = check_elf(&file).outcome().unwrap();
    assert_eq!(outcome.status, Some(1), "{outcome:#?}");
    for what in [
        "SONAME",
        "exports other symbols",
        "RELRO",
        "not bound at start",
        "stripped",
        "run",
    ] {
        assert!(outcome.stderr.contains(what), "{what}: {outcome:#?}");
    }
}

fn the_archive_exports_the_interface_alone() {
    let archive = library_dir().join("libnvidia-container.a");
    let output = Command::new("nm")
        .args(["-g", "--defined-only"])
        .arg(archive)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let symbols = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2));
    let mut symbols: Vec<_> = symbols.collect();
    symbols.sort_unstable();
    assert_eq!(symbols.len(), 26, "{symbols:?}");
    let foreign: Vec<_> = symbols
        .iter()
        .filter(|name| !name.starts_with("nvc_"))
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}

/// The example program, an upstream-style client, has the same effect as the command line.
fn the_same_as_the_command_line() {
    let driver = machine::driver();
    let (by_cli, by_c) = (debian(), debian());
    let (cli_before, c_before) = (State::of(&by_cli), State::of(&by_c));
    // The example names no ldconfig, which is equivalent.
    let words = ["--utility", "--compute", "--device=0", "--ldconfig=auto"];
    configure(&by_cli, &words).succeeds();
    let text = Program::compile("gcc", "examples/c/configure.c", Check::Plain)
        .run()
        .args([by_c.pid().to_string()])
        .args([by_c.root()])
        .args(["0"])
        .args([driver.root()])
        .succeeds();
    assert!(text.contains(&driver.profile().driver), "{text}");
    c_before.assert_host_unchanged(&by_c);
    assert_eq!(c_before.new_mounts(&by_c), cli_before.new_mounts(&by_cli));
    assert_eq!(c_before.new_files(&by_c), cli_before.new_files(&by_cli));
    let contents =
        |container: &nvc_testkit::container::Container| container.files_inside().unwrap();
    let changes = contents(&by_c).changes_since(&contents(&by_cli));
    // Procfs differs between processes.
    let changes: Vec<_> = changes
        .iter()
        .filter(|line| !line.contains(" proc/"))
        .collect();
    assert!(changes.is_empty(), "{changes:#?}");
}

/// Runs a program that calls everything, and the equivalent command line.
fn the_same_with_migs() {
    let (by_cli, by_c) = (debian(), debian());
    let (cli_before, c_before) = (State::of(&by_cli), State::of(&by_c));
    let wishes = "--utility --compute --graphics --display --device=all --mig-config=all --mig-monitor=all --imex-channel=0";
    let words: Vec<_> = wishes.split(' ').collect();
    configure(&by_cli, &words).succeeds();
    let program = Program::compile("gcc", "tests/c/use.c", Check::Plain);
    program
        .run()
        .args([machine::driver().root().as_os_str()])
        .args([by_c.pid().to_string()])
        .args([by_c.root()])
        .args([host_ldconfig().trim_start_matches("--ldconfig=")])
        .succeeds();
    let without_mps = |mut lines: Vec<String>| {
        // The program omits MPS, and takes a MIG device besides all of them.
        lines.retain(|line| {
            !line.contains("mps") && !line.contains("/mig/gi1/") && !line.contains("nvidia-cap14")
        });
        lines
    };
    assert_eq!(
        without_mps(c_before.new_mounts(&by_c)),
        without_mps(cli_before.new_mounts(&by_cli))
    );
}

/// The library remembers one call's mounts for the call that updates the cache.
fn the_builtin_ldconfig() {
    let program = Program::compile("gcc", "tests/c/use.c", Check::Plain);
    let ldconfig = host_ldconfig();
    let outcome = |ldconfig: &str| {
        let container = debian();
        let before = State::of(&container);
        let run = program
            .run()
            .args([machine::driver().root().as_os_str()])
            .args([container.pid().to_string()])
            .args([container.root()])
            .args([ldconfig]);
        run.succeeds();
        let mut listing = Command::new(userland::host_ldconfig());
        listing
            .arg("-p")
            .arg("-C")
            .arg(container.root().join("etc/ld.so.cache"));
        let listing = String::from_utf8(listing.output().unwrap().stdout).unwrap();
        let entries = listing.lines().filter(|line| line.contains(" => "));
        let entries: Vec<_> = entries.map(str::to_owned).collect();
        assert!(entries.len() > 10, "{listing}");
        (entries, before.new_files(&container))
    };
    let expected = outcome(ldconfig.trim_start_matches("--ldconfig="));
    assert_eq!(outcome("builtin"), expected);
}

/// Upstream's command line keeps only the capabilities that upstream's steps need.
fn the_capabilities_of_upstreams_steps() {
    let program = Program::compile("gcc", "tests/c/steps.c", Check::Plain);
    let ldconfig = host_ldconfig();
    for ldconfig in [ldconfig.trim_start_matches("--ldconfig="), "builtin"] {
        let (driver, _scratch) = build(Profile::default());
        let container = debian();
        let run = program.run().args([driver.root().as_os_str()]);
        let run = run.args([container.pid().to_string()]);
        run.args([container.root()]).args([ldconfig]).succeeds();
    }
}

fn build(profile: Profile) -> (Driver, Scratch) {
    let scratch = Scratch::new().unwrap();
    let driver = Builder::new(profile).build(scratch.join("driver")).unwrap();
    (driver, scratch)
}

fn each_question_is_a_new_query() {
    let program = Program::compile("gcc", "tests/c/ask.c", Check::Plain);
    let (driver, scratch) = build(Profile::default());
    let none = scratch.join("driver/etc/nvidia-sim/other");
    fs::write(&none, Profile::without_gpus().to_string()).unwrap();
    let place = driver.path("/etc/nvidia-sim/profile");
    let text = program
        .run()
        .args([driver.root(), &none, &place])
        .succeeds();
    assert_eq!(text, "570.124.06 12.8 2\n0\n");
}

/// No error path leaks.
fn errors_of_the_driver(compiler: &str, check: Check) {
    let fail = |symbol: &str, code| Fault::Fail {
        symbol: symbol.into(),
        code,
        gpu: None,
    };
    let crash = |symbol: &str| Fault::CrashAt(symbol.into());
    let rpc = "driver rpc error: failed to process request";
    let program = Program::compile(compiler, "tests/c/ask.c", check);
    for (fault, text) in [
        (
            fail("nvmlInit_v2", 9),
            "init: nvml error: driver not loaded",
        ),
        (
            fail("nvmlDeviceGetCount_v2", 999),
            "devices: nvml error: unknown error",
        ),
        (crash("load"), &format!("init: {rpc}")),
        (crash("nvmlInit_v2"), &format!("init: {rpc}")),
        (crash("nvmlDeviceGetUUID"), &format!("devices: {rpc}")),
    ] {
        let (driver, _scratch) = build(Profile::default().fault(fault));
        assert_eq!(program.run().args([driver.root()]).fails(), text);
    }
}

/// Checks that the checker detects leaks.
fn leaks_are_seen(compiler: &str, check: Check) {
    let program = Program::compile(compiler, "tests/c/leak.c", check);
    let outcome = program.run().outcome().unwrap();
    assert!(!matches!(outcome.status, Some(0 | 1)), "{outcome:#?}");
}

fn a_hanging_driver() {
    let program = Program::compile("gcc", "tests/c/ask.c", Check::Plain);
    for (symbol, phase) in [("nvmlInit_v2", "init"), ("nvmlDeviceGetName", "devices")] {
        let (driver, _scratch) = build(Profile::default().fault(Fault::HangAt(symbol.into())));
        let begin = Instant::now();
        let ask = |seconds| {
            let run = program.run().env("NVC_DRIVER_TIMEOUT", seconds);
            run.args([driver.root()]).fails()
        };
        let expected = format!("{phase}: driver rpc error: timed out");
        // A slow machine may take a second to get there.
        let message = Some(ask("1")).filter(|message| *message == expected);
        assert_eq!(message.unwrap_or_else(|| ask("20")), expected);
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
}

/// If a caller is killed while NVML hangs, the query process ends too.
fn a_killed_caller_leaves_nothing() {
    let program = Program::compile("gcc", "tests/c/ask.c", Check::Plain);
    let (driver, _scratch) = build(Profile::default().fault(Fault::HangAt("nvmlInit_v2".into())));
    let outcome = Run::other("timeout")
        .args(["--foreground", "--signal=KILL", "0.5", "env"])
        .args([program.path()])
        .args([driver.root()])
        .env("LD_LIBRARY_PATH", library_dir())
        .outcome()
        .unwrap();
    assert_eq!(outcome.status, Some(137), "{outcome:#?}");
    assert_eq!(outcome.orphans, [""; 0]);
}

fn released_handles() {
    let program = Program::compile("gcc", "tests/c/released.c", Check::Sanitizers);
    let outcome = program
        .run()
        .args([machine::driver().root()])
        .outcome()
        .unwrap();
    assert_eq!(outcome.status, Some(0), "{outcome:#?}");
    assert!(outcome.stderr.contains("was it released?"), "{outcome:#?}");
}

fn a_panic_stays_inside() {
    let program = Program::compile("gcc", "tests/c/panic.c", Check::Sanitizers);
    let outcome = program.run().outcome().unwrap();
    assert_eq!(outcome.status, Some(0), "{outcome:#?}");
    assert!(outcome.stderr.contains("as asked"), "{outcome:#?}");
}

fn the_debug_log() {
    let program = Program::compile("gcc", "examples/c/configure.c", Check::Plain);
    let container = debian();
    let scratch = Scratch::new().unwrap();
    let log = scratch.join("log");
    program
        .run()
        .env("NVC_DEBUG_FILE", &log)
        .args([container.pid().to_string()])
        .args([container.root()])
        .args(["0"])
        .args([machine::driver().root()])
        .succeeds();
    let text = fs::read_to_string(log).unwrap();
    assert!(
        text.starts_with("\n-- WARNING, the following logs are for debugging purposes only --\n\n"),
        "{text}"
    );
    let line = text
        .lines()
        .find(|line| line.contains("] mounting "))
        .unwrap();
    assert!(line.starts_with('I') && line.contains(".rs:"), "{line}");
}

/// The archive executes the program in the directory that it was built for. In a process with one thread it needs none.
fn the_archive_works() {
    let program = Program::compile("gcc", "tests/c/narrowed.c", Check::Static);
    let run = |threads: &str| {
        let root = machine::driver().root().as_os_str();
        program
            .run()
            .args([root])
            .args(["wide", threads])
            .outcome()
            .unwrap()
    };
    let seen = "570.124.06 2\n570.124.06 2\n";
    assert_eq!(run("1").stdout, seen);
    let outcome = run("2");
    let file = fs::read_to_string(library_dir().join("libnvidia-container.pc")).unwrap();
    let place = file
        .lines()
        .find_map(|line| line.strip_prefix("libexecdir="));
    let built_for = &format!("{}/libnvidia-container", place.unwrap());
    if fs::exists(format!("{built_for}/nvc-query")).unwrap() {
        assert_eq!(outcome.stdout, seen, "{outcome:#?}");
        return;
    }
    let text = format!("process creation failed: nvc-query: in none of {built_for}\n");
    assert_eq!(outcome.stderr, text);
    assert_eq!(with_the_installed_query(&program, built_for), seen);
}

/// `cc -static $(pkg-config --static --libs libnvidia-container)` links, and the program asks NVML through nvc-query.
fn a_static_program_works() {
    let program = Program::compile("gcc", "tests/c/narrowed.c", Check::AllStatic);
    let headers = Run::other("readelf")
        .args(["-lWd"])
        .args([program.path()])
        .succeeds();
    assert!(!headers.contains("INTERP") && !headers.contains("(NEEDED)"));
    let file = fs::read_to_string(library_dir().join("libnvidia-container.pc")).unwrap();
    let place = file
        .lines()
        .find_map(|line| line.strip_prefix("libexecdir="));
    let built_for = format!("{}/libnvidia-container", place.unwrap());
    let seen = "570.124.06 2\n570.124.06 2\n";
    assert_eq!(with_the_installed_query(&program, &built_for), seen);
}

/// Runs a program with nvc-query in the directory that the archive was built for.
fn with_the_installed_query(program: &Program, built_for: &str) -> String {
    // Mounted only in a copy of this namespace.
    let script = format!(
        "mount -t tmpfs tmpfs /usr/local && mkdir -p {built_for} && cp \"$1\" {built_for}/ && shift && exec \"$@\""
    );
    Run::other("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", &script, "sh"])
        .args([library_dir().join("nvc-query"), program.path()])
        .args([machine::driver().root().as_os_str()])
        .args(["wide", "2"])
        .succeeds()
}

/// Directory names are bytes: tests a driver root and a container root that are not UTF-8.
fn paths_need_not_be_text() {
    use std::os::unix::ffi::OsStrExt;

    let odd = std::ffi::OsStr::from_bytes(b"r\xff\xfe t");
    let scratch = Scratch::new().unwrap();
    let driver = Builder::default().build(scratch.path().join(odd)).unwrap();
    let program = Program::compile("gcc", "tests/c/ask.c", Check::Sanitizers);
    let text = program.run().args([driver.root()]).succeeds();
    assert_eq!(text, "570.124.06 12.8 2\n");

    let root = debian_root()
        .no_programs()
        .build(scratch.path().join("x").join(odd))
        .unwrap();
    let program = Program::compile("gcc", "examples/c/configure.c", Check::Sanitizers);
    let container = by_hand(&root);
    program
        .run()
        .args([container.id().to_string()])
        .args([&root])
        .args(["0"])
        .args([machine::driver().root()])
        .succeeds();
}

/// Starts a process in a mount namespace with a root of any name; the kit's containers have UTF-8 names.
fn by_hand(root: &Path) -> Helper {
    let script = "mount --bind \"$1\" \"$1\" && cd \"$1\" && mount -t tmpfs tmpfs proc && \
        mkdir -p proc/driver/nvidia && echo ready && exec sleep 3600";
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", script, "sh"]);
    Helper::start(command.arg(root), "ready").unwrap()
}

fn the_c_example_fails_politely() {
    let program = Program::compile("gcc", "examples/c/configure.c", Check::Sanitizers);
    let container = start(nvc_testkit::container::Builder::new(
        debian_root().no_programs(),
    ));
    let (pid, driver) = (container.pid().to_string(), machine::driver());
    let run = |pid: &str, gpu: &str| {
        let run = program
            .run()
            .args([pid])
            .args([container.root()])
            .args([gpu]);
        run.args([driver.root()]).fails()
    };
    assert_eq!(run(&pid, "7"), "configure: there is no GPU 7");
    assert_eq!(run("-7", "0"), "configure: invalid argument");
    assert_eq!(
        program.run().fails(),
        "usage: configure PID ROOTFS GPU [DRIVER-ROOT]"
    );
}

fn the_go_example() {
    let scratch = Scratch::new().unwrap();
    let lib = library_dir();
    let output = Command::new(cli::find("go").unwrap())
        .args(["build", "-o"])
        .arg(scratch.join("gpus"))
        .arg(".")
        .current_dir(repository().join("examples/go"))
        .env("CGO_ENABLED", "1")
        .env("CC", "gcc")
        .env(
            "CGO_CFLAGS",
            format!("-I{}", repository().join("include").display()),
        )
        .env("CGO_LDFLAGS", format!("-L{}", lib.display()))
        .env("GOCACHE", scratch.join("cache"))
        .env("GOFLAGS", "-mod=mod -buildvcs=false")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let driver = machine::driver();
    let run = Run::other(scratch.join("gpus")).env("LD_LIBRARY_PATH", lib);
    let text = run.args([driver.root()]).succeeds();
    let gpus = driver.profile().gpus.iter().enumerate();
    let lines = gpus.map(|(index, gpu)| format!("{index}: {} {}\n", gpu.model, gpu.uuid));
    let expected: String = lines.collect();
    assert_eq!(text, format!("driver 570.124.06, CUDA 12.8\n{expected}"));
}

fn the_rust_example() {
    let container = debian();
    // Built with the tests, even if they are configured to use another library.
    let test = std::env::current_exe().unwrap();
    let target = test.parent().and_then(Path::parent).unwrap();
    let text = Run::other(target.join("examples/plan"))
        .args([container.pid().to_string()])
        .args([container.root()])
        .args(["0"])
        .args([machine::driver().root()])
        .succeeds();
    assert!(
        text.contains("\"version\": 1") && text.contains("\"/dev/nvidia0\""),
        "{text}"
    );
}
