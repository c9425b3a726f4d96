//! Runs real queries, in a real process, against libraries that crash, hang, lie and lack functions.
//!
//! The query program is this test itself, so it has its own `main`. Changing the root needs privileges: without them,
//! tests that do so are shown as ignored, with the kind `needs root`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use libnvc::host::DeviceInfo;
use libnvc::host::query::{Query, QueryProgram, QueryReply, QueryRequest, serve_if_asked};
use libnvc::{Error, ErrorKind};
use libtest_mimic::{Arguments, Failed, Trial};
use tempfile::TempDir;

const UID: u32 = 65534;
const GID: u32 = 65533;

/// First argument with which this program runs one query and reports on standard output.
const ASK: &str = "--ask";

type Outcome = Result<(), Failed>;

/// Set if the query process is a fork of this one.
const COPIED: &str = "NVC_TEST_COPIED";

fn is_copied() -> bool {
    std::env::var_os(COPIED).is_some()
}

fn main() {
    serve_if_asked();
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, ask, root, uid] = arguments.as_slice()
        && ask == ASK
    {
        let uid = uid.parse().expect("a number");
        println!("{}", report(&finish(&request(Path::new(root), uid, uid))));
        return;
    }
    let root = nix::unistd::geteuid().is_root();
    let mut trials: Vec<Trial> = with_root()
        .into_iter()
        .map(|(name, test)| {
            Trial::test(name, test)
                .with_kind("needs root")
                .with_ignored_flag(!root)
        })
        .collect();
    if root && !is_copied() {
        trials.push(Trial::test("the_same_in_a_copy", the_same_in_a_copy));
    }
    trials.push(Trial::test("wsl_needs_no_minors", wsl_needs_no_minors));
    trials.push(Trial::test(
        "programs_that_do_not_serve",
        programs_that_do_not_serve,
    ));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

type Test = fn() -> Outcome;

fn with_root() -> Vec<(&'static str, Test)> {
    vec![
        ("everything_is_reported", everything_is_reported),
        ("the_process_is_confined", the_process_is_confined),
        (
            "programs_of_nvml_have_the_shield",
            programs_of_nvml_have_the_shield,
        ),
        ("host_libraries_win", host_libraries_win),
        ("noise_goes_nowhere", noise_goes_nowhere),
        ("old_names_and_no_mig", old_names_and_no_mig),
        ("crash_in_init", crash_in_init),
        ("crash_later", crash_later),
        ("exit_later", exit_later),
        ("processors_stay_as_they_are", processors_stay_as_they_are),
        ("hang_in_init", hang_in_init),
        ("hang_later", hang_later),
        ("init_fails", init_fails),
        ("floods_end", floods_end),
        ("a_library_that_shrinks", a_library_that_shrinks),
        ("slow_answers_are_announced", slow_answers_are_announced),
        ("one_lost_gpu_is_skipped", one_lost_gpu_is_skipped),
        ("all_lost_gpus_are_an_error", all_lost_gpus_are_an_error),
        ("garbage_is_refused", garbage_is_refused),
        ("missing_symbols", missing_symbols),
        ("no_root_and_no_library", no_root_and_no_library),
        ("without_privileges", without_privileges),
        ("dropping_ends_the_process", dropping_ends_the_process),
        (
            "killing_the_caller_ends_the_process",
            killing_the_caller_ends_the_process,
        ),
        ("many_threads_ask", many_threads_ask),
    ]
}

/// Repeats all tests with a fork of the asking process, which then must have one thread and no loader variables.
fn the_same_in_a_copy() -> Outcome {
    let output = Command::new(std::env::current_exe()?)
        .args(["--test-threads=1", "--skip=the_same_in_a_copy"])
        .env_remove("LD_LIBRARY_PATH")
        .env(COPIED, "1")
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure(
        output.status.success() && text.contains("dropping_ends_the_process "),
        text,
    )
}

// The driver root and its queries.

/// A driver root without a C library, containing only a stub NVML built with some macros.
struct Root(TempDir);

impl Root {
    fn new(macros: &[&str]) -> Self {
        let root = Self(tempfile::tempdir().expect("a directory"));
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o777)).expect("chmod");
        // Distributions compile in one of these two.
        fs::create_dir_all(root.path().join("usr/lib")).expect("mkdir");
        for link in ["lib", "lib64", "usr/lib64"] {
            let target = if link == "usr/lib64" {
                "lib"
            } else {
                "usr/lib"
            };
            symlink(target, root.path().join(link)).expect("a link");
        }
        fs::write(root.path().join("only-in-this-root"), "").expect("a file");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/query/nvml.c");
        let needed = [
            "-Wl,--no-as-needed",
            "-lm",
            "-lpthread",
            "-ldl",
            "-lrt",
            "-lgcc_s",
        ];
        let macros = macros.iter().map(|name| format!("-D{name}"));
        root.compile(
            "libnvidia-ml.so.1",
            &source,
            macros.chain(needed.map(String::from)),
        );
        root
    }

    fn compile(&self, name: &str, source: &Path, arguments: impl Iterator<Item = String>) {
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-w", "-o"])
            .arg(self.path().join("usr/lib").join(name))
            .arg(format!("-Wl,-soname,{name}"))
            .arg(source)
            .args(arguments)
            .status()
            .expect("a C compiler");
        assert!(status.success(), "cannot compile {name}");
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn request(&self) -> QueryRequest {
        request(self.path(), UID, GID)
    }

    fn ask(&self) -> Result<QueryReply, Error> {
        finish(&self.request())
    }

    /// Returns the query process's pid, once the library hangs.
    fn pid(&self) -> i32 {
        let file = self.path().join("pid");
        wait_for("the library to hang", || fs::read_to_string(&file).ok())
            .trim()
            .parse()
            .expect("a number")
    }
}

fn request(root: &Path, uid: u32, gid: u32) -> QueryRequest {
    QueryRequest {
        root: root.into(),
        uid,
        gid,
        wsl_library: None,
        deadline: Duration::from_secs(30),
    }
}

fn start(request: &QueryRequest) -> Query {
    let program = match is_copied() {
        true => QueryProgram::ThisProcess,
        false => QueryProgram::ThisExecutable,
    };
    Query::start(&program, request).expect("a process")
}

fn finish(request: &QueryRequest) -> Result<QueryReply, Error> {
    start(request).finish()
}

fn report(result: &Result<QueryReply, Error>) -> String {
    match result {
        Ok(reply) => format!("{} gpus", reply.devices.gpus.len()),
        Err(error) => error.message(),
    }
}

fn wait_for<T>(what: &str, mut test: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = test() {
            return value;
        }
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "waited in vain for {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns true if a process is alive; a zombie is not.
fn lives(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    !matches!(state, Some('Z' | 'X'))
}

fn ensure(condition: bool, what: impl Into<String>) -> Outcome {
    match condition {
        true => Ok(()),
        false => Err(Failed::from(what.into())),
    }
}

/// Checks a failure's kind and text, and the words in its hint.
fn ensure_error<T>(result: Result<T, Error>, kind: ErrorKind, text: &str, hint: &str) -> Outcome {
    let Err(error) = result else {
        return Err(format!("no failure, instead of: {text}").into());
    };
    let advice = error.advice().unwrap_or_default();
    ensure(
        error.kind() == kind && error.message() == text && advice.contains(hint),
        format!("{:?}: {}\nhint: {advice}", error.kind(), error.message()),
    )
}

fn indices(devices: &DeviceInfo) -> (Vec<u32>, Vec<u32>) {
    (
        devices.gpus.iter().map(|gpu| gpu.index).collect(),
        devices.failed.iter().map(|gpu| gpu.index).collect(),
    )
}

const RPC_FAILED: &str = "driver rpc error: failed to process request";

// Tests.

fn everything_is_reported() -> Outcome {
    let root = Root::new(&[]);
    let reply = root.ask()?;
    ensure(reply.versions.driver == "535.261.03", "driver version")?;
    ensure(reply.versions.cuda == "12.2", "cuda version")?;
    ensure(
        indices(&reply.devices) == (vec![0, 1, 2], vec![]),
        "indices",
    )?;
    let gpu = &reply.devices.gpus[1];
    ensure(
        (
            &*gpu.model,
            &*gpu.uuid,
            &*gpu.busid,
            &*gpu.arch,
            &*gpu.brand,
            gpu.minor,
        ) == (
            "NVIDIA A100",
            "GPU-1",
            "00010000:3c:00.0",
            "8.0",
            "Nvidia",
            5,
        ),
        format!("{gpu:?}"),
    )?;
    let migs: Vec<_> = gpu
        .mig_devices
        .iter()
        .map(|mig| (mig.index, mig.gi, &*mig.uuid))
        .collect();
    ensure(
        migs == [(0, 7, "MIG-0"), (2, 9, "MIG-2")],
        format!("{migs:?}"),
    )?;
    let capable: Vec<bool> = reply
        .devices
        .gpus
        .iter()
        .map(|gpu| gpu.mig_capable)
        .collect();
    ensure(capable == [false, true, true], format!("{capable:?}"))
}

fn the_process_is_confined() -> Outcome {
    let root = Root::new(&["INSPECT"]);
    // Without close-on-exec, like a careless caller's.
    let leaked = nix::unistd::dup(std::io::stderr())?;
    let result = root.ask();
    drop(leaked);
    // The library fails to initialise with the number of the failed check.
    let failed = |error: Error| Failed::from(error.message());
    result.map_err(failed)?;
    for dumpable in [None, Some("DUMPABLE")] {
        let macros: Vec<_> = ["INSPECT", "AS_ROOT"].into_iter().chain(dumpable).collect();
        let root = Root::new(&macros);
        finish(&request(root.path(), 0, 0)).map_err(failed)?;
    }
    Ok(())
}

/// Programs that NVML executes are dumpable, and must not have fewer capabilities than a container's root.
fn programs_of_nvml_have_the_shield() -> Outcome {
    for (macros, uid, gid) in [
        (&["INSPECT", "HELPER"][..], UID, GID),
        (&["INSPECT", "HELPER", "AS_ROOT"], 0, 0),
    ] {
        let root = Root::new(macros);
        let source = root.path().join("helper.c");
        fs::write(
            &source,
            "#include <linux/capability.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n\
            int main(void) {\n\
            struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};\n\
            struct __user_cap_data_struct sets[2];\n\
            return syscall(SYS_capget, &header, sets) ? 50 : sets[0].permitted ? 51 :\n\
            sets[1].permitted != 1u << (CAP_WAKE_ALARM - 32) ? 52 : 0; }\n",
        )?;
        let status = Command::new("cc")
            .args(["-static", "-o"])
            .arg(root.path().join("helper"))
            .arg(source)
            .status()?;
        ensure(status.success(), "cannot compile the helper")?;
        let reply = finish(&request(root.path(), uid, gid));
        reply.map_err(|error| Failed::from(error.message()))?;
    }
    Ok(())
}

fn host_libraries_win() -> Outcome {
    let root = Root::new(&["NEEDS"]);
    let trap = root.path().join("trap.c");
    fs::write(
        &trap,
        "#include <unistd.h>\n__attribute__((constructor)) static void trap(void) { _exit(66); }\n",
    )?;
    for name in [
        "libc.so.6",
        "libm.so.6",
        "librt.so.1",
        "libpthread.so.0",
        "libdl.so.2",
        "libgcc_s.so.1",
    ] {
        root.compile(
            name,
            &trap,
            std::iter::once("-nostdlib".into()).chain(["-lc".into()]),
        );
    }
    ensure(report(&root.ask()) == "3 gpus", report(&root.ask()))
}

fn noise_goes_nowhere() -> Outcome {
    let root = Root::new(&["NOISE"]);
    let output = Command::new(std::env::current_exe()?)
        .args([
            OsStr::new(ASK),
            root.path().as_os_str(),
            OsStr::new("65534"),
        ])
        .stdin(Stdio::null())
        .output()?;
    ensure(
        output.stdout == b"3 gpus\n" && output.stderr.is_empty(),
        format!("{output:?}"),
    )
}

fn old_names_and_no_mig() -> Outcome {
    let reply = Root::new(&["ONLY_OLD_NAMES", "NO_MIG"]).ask()?;
    ensure(
        indices(&reply.devices) == (vec![0, 1, 2], vec![]),
        "indices",
    )?;
    ensure(reply.devices.gpus.iter().all(|gpu| !gpu.mig_capable), "MIG")?;
    ensure(reply.devices.gpus[2].busid == "00010000:3d:00.0", "bus id")
}

fn crash_in_init() -> Outcome {
    let hint = "while it was being initialised: it was killed by SIGABRT";
    ensure_error(
        Root::new(&["CRASH_INIT"]).ask(),
        ErrorKind::DriverUnavailable,
        RPC_FAILED,
        hint,
    )
}

fn crash_later() -> Outcome {
    let root = Root::new(&["CRASH_BRAND"]);
    let mut query = start(&root.request());
    ensure(query.versions()?.driver == "535.261.03", "driver version")?;
    let hint = "while it was asked about GPU 1: it was killed by SIGSEGV";
    for _ in 0..2 {
        ensure_error(query.devices(), ErrorKind::DriverFailed, RPC_FAILED, hint)?;
    }
    Ok(())
}

fn exit_later() -> Outcome {
    let hint = "while it was asked about GPU 0: it ended with status 3";
    ensure_error(
        Root::new(&["EXIT_BRAND=3"]).ask(),
        ErrorKind::DriverFailed,
        RPC_FAILED,
        hint,
    )
}

/// Queries with a short deadline and checks that it is kept and that the process is gone.
fn ask_in_vain(macros: &[&str], kind: ErrorKind, hint: &str) -> Outcome {
    let root = Root::new(macros);
    let request = QueryRequest {
        deadline: Duration::from_millis(700),
        ..root.request()
    };
    let start = Instant::now();
    let result = finish(&request);
    let elapsed = start.elapsed();
    ensure_error(result, kind, "driver rpc error: timed out", hint)?;
    ensure(
        (700..3000).contains(&elapsed.as_millis()),
        format!("took {elapsed:?}"),
    )?;
    ensure(
        !Path::new(&format!("/proc/{}", root.pid())).exists(),
        "not reaped",
    )
}

fn hang_in_init() -> Outcome {
    let hint = "within 0.7 s while it was being initialised; raise NVC_DRIVER_TIMEOUT";
    ask_in_vain(&["HANG_INIT"], ErrorKind::DriverUnavailable, hint)
}

fn hang_later() -> Outcome {
    ask_in_vain(
        &["HANG_NAME"],
        ErrorKind::TimedOut,
        "while it was asked about GPU 1",
    )
}

/// A flood of data into the socket ends with the deadline, or when it is recognised as invalid.
fn floods_end() -> Outcome {
    for (flood, text, hint) in [
        (1, "driver rpc error: timed out", "asked about GPU 1"),
        (2, "driver rpc error: timed out", "asked about GPU 0"),
        (3, RPC_FAILED, "answered nonsense"),
    ] {
        let root = Root::new(&[&format!("FLOOD={flood}")]);
        let request = QueryRequest {
            deadline: Duration::from_millis(500),
            ..root.request()
        };
        let mut query = start(&request);
        let kind = match flood {
            3 => ErrorKind::DriverFailed,
            _ => ErrorKind::TimedOut,
        };
        ensure_error(query.devices(), kind, text, hint)?;
    }
    Ok(())
}

/// Truncating a library file that is in use removes its pages: SIGBUS at the next instruction.
fn a_library_that_shrinks() -> Outcome {
    let root = Root::new(&["HANG_NAME"]);
    let mut query = start(&root.request());
    let pid = nix::unistd::Pid::from_raw(root.pid());
    fs::write(root.path().join("usr/lib/libnvidia-ml.so.1"), "")?;
    // Wakes it up: the process has a handler for this signal, and returns from it to the same place.
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGIO)?;
    let hint = "while it was asked about GPU 1: it was killed by SIGBUS";
    ensure_error(query.devices(), ErrorKind::DriverFailed, RPC_FAILED, hint)
}

fn init_fails() -> Outcome {
    let unavailable = ErrorKind::DriverUnavailable;
    let text = "nvml error: code 18 of nvml";
    ensure_error(
        Root::new(&["INIT_CODE=18"]).ask(),
        unavailable,
        text,
        "reload it or reboot",
    )
}

fn slow_answers_are_announced() -> Outcome {
    let root = Root::new(&["SLOW_NAME=1100000"]);
    let (told, heard) = mpsc::channel();
    let mut query = start(&root.request());
    query.when_slow(move |elapsed| {
        told.send(elapsed).expect("a listener");
    });
    query.versions()?;
    ensure(heard.try_recv().is_err(), "announced too early")?;
    ensure(query.devices()?.gpus.len() == 3, "GPUs")?;
    let elapsed = heard.try_recv()?.as_millis();
    ensure(elapsed >= 3000, format!("announced after {elapsed} ms"))?;
    ensure(heard.try_recv().is_err(), "announced twice")
}

fn one_lost_gpu_is_skipped() -> Outcome {
    for (macros, uuid, busid) in [
        ("LOST_UUID=1", None, Some("00010000:3c:00.0")),
        ("LOST_HANDLE=1", None, None),
        ("MIG_MODE_CODE=999", Some("GPU-1"), Some("00010000:3c:00.0")),
        ("MIG_COUNT=100000", Some("GPU-1"), Some("00010000:3c:00.0")),
    ] {
        let devices = Root::new(&[macros]).ask()?.devices;
        ensure(indices(&devices) == (vec![0, 2], vec![1]), macros)?;
        let failed = &devices.failed[0];
        ensure(
            (failed.uuid.as_deref(), failed.busid.as_deref()) == (uuid, busid),
            format!("{macros}: {failed}"),
        )?;
        let text = match macros {
            "MIG_MODE_CODE=999" => "nvml error: code 999 of nvml",
            "MIG_COUNT=100000" => "too many MIG devices: 100000",
            _ => "nvml error: gpu is lost",
        };
        ensure(failed.error.message() == text, failed.error.message())?;
    }
    Ok(())
}

fn all_lost_gpus_are_an_error() -> Outcome {
    let text = "nvml error: gpu is lost";
    ensure_error(
        Root::new(&["LOST_UUID=-1"]).ask(),
        ErrorKind::DriverFailed,
        text,
        "Xid",
    )?;
    let none = Root::new(&["GPU_COUNT=0"]).ask()?.devices;
    ensure(indices(&none) == (vec![], vec![]), "no GPU is no failure")
}

fn garbage_is_refused() -> Outcome {
    let failed = ErrorKind::DriverFailed;
    for (macros, text) in [
        (
            r#"VERSION="""#,
            r#"nvml error: malformed driver version: """#,
        ),
        (
            r#"VERSION="5\377""#,
            r#"nvml error: malformed driver version: "5\u{fffd}""#,
        ),
        (
            r#"VERSION="../../etc""#,
            r#"nvml error: malformed driver version: "../../etc""#,
        ),
        ("GPU_COUNT=0xffffffff", "too many devices: 4294967295"),
        ("NO_HANDLE", "nvml error: no device handle"),
    ] {
        let root = Root::new(&[macros]);
        ensure_error(root.ask(), failed, text, "may be damaged")?;
    }
    for (macros, text) in [
        ("UNTERMINATED", "nvml error: unterminated string"),
        (
            "BAD_UUID",
            r#"nvml error: malformed uuid: "GPU-\u{1b}[31m\u{fffd}\n""#,
        ),
    ] {
        let devices = Root::new(&[macros]).ask()?.devices;
        ensure(indices(&devices) == (vec![1, 2], vec![0]), macros)?;
        let message = devices.failed[0].error.message();
        ensure(message == text, message)?;
    }
    Ok(())
}

fn missing_symbols() -> Outcome {
    let result = Root::new(&["NO_UUID"]).ask();
    let text = "nvml error: function not found";
    ensure_error(
        result,
        ErrorKind::DriverFailed,
        text,
        "has no nvmlDeviceGetUUID",
    )?;
    let result = Root::new(&["NO_UUID", "NO_ERROR_STRING"]).ask();
    ensure_error(
        result,
        ErrorKind::DriverFailed,
        text,
        "has no nvmlDeviceGetUUID",
    )?;
    let result = Root::new(&["INIT_CODE=9", "NO_ERROR_STRING"]).ask();
    ensure_error(
        result,
        ErrorKind::DriverUnavailable,
        "nvml error: code 9",
        "modprobe nvidia",
    )?;
    let result = Root::new(&["nvmlInit_v2=not_there"]).ask();
    ensure_error(
        result,
        ErrorKind::DriverUnavailable,
        text,
        "has no nvmlInit_v2",
    )
}

fn no_root_and_no_library() -> Outcome {
    let unavailable = ErrorKind::DriverUnavailable;
    let result = finish(&request(Path::new("/nonexistent"), UID, GID));
    let text = "change root failed: no such file or directory";
    ensure_error(result, unavailable, text, "")?;
    let root = Root::new(&[]);
    fs::remove_file(root.path().join("usr/lib/libnvidia-ml.so.1"))?;
    let text = "load library failed: libnvidia-ml.so.1: cannot open shared object file: no such file or directory";
    ensure_error(root.ask(), unavailable, text, "--root")
}

fn without_privileges() -> Outcome {
    let root = Root::new(&[]);
    // A copy, because the build directory may not be accessible to others.
    let program = root.path().join("program");
    fs::copy(std::env::current_exe()?, &program)?;
    let ask = |root: &Path, uid: &str| -> Result<String, Failed> {
        let output = Command::new(&program)
            .args([OsStr::new(ASK), root.as_os_str(), OsStr::new(uid)])
            .uid(UID)
            .gid(UID)
            .output()?;
        Ok(String::from_utf8(output.stdout)?)
    };
    let text = ask(root.path(), "65534")?;
    ensure(
        text == "change root failed: operation not permitted\n",
        text,
    )?;
    let text = ask(Path::new("/"), "0")?;
    ensure(
        text == "privilege change failed: operation not permitted\n",
        text,
    )
}

fn dropping_ends_the_process() -> Outcome {
    let root = Root::new(&["HANG_INIT"]);
    let query = start(&root.request());
    let pid = root.pid();
    ensure(lives(pid), "hangs")?;
    let line = |pid: &str| fs::read(format!("/proc/{pid}/cmdline"));
    let is_copy = line(&pid.to_string())? == line("self")?;
    ensure(is_copy == is_copied(), format!("a copy: {is_copy}"))?;
    drop(query);
    ensure(!Path::new(&format!("/proc/{pid}")).exists(), "not reaped")
}

/// A fork starts on another CPU, and keeps its caller's affinity.
fn processors_stay_as_they_are() -> Outcome {
    let root = Root::new(&["HANG_INIT"]);
    let query = start(&root.request());
    let allowed = |process: &str| {
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        let line = status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed:"));
        line.map(str::to_owned).ok_or("no such line".into())
    };
    let (theirs, ours): (Result<String, Failed>, _) =
        (allowed(&root.pid().to_string()), allowed("self"));
    let (theirs, ours) = (theirs?, ours?);
    ensure(theirs == ours, format!("{theirs}, and not {ours}"))?;
    drop(query);
    Ok(())
}

fn killing_the_caller_ends_the_process() -> Outcome {
    // Each guard alone as well.
    for guards in [
        &["HANG_NAME"][..],
        &["HANG_NAME", "NO_DEATH_SIGNAL"],
        &["HANG_NAME", "NO_SOCKET_SIGNAL"],
    ] {
        let root = Root::new(guards);
        let mut caller = Command::new(std::env::current_exe()?)
            .args([
                OsStr::new(ASK),
                root.path().as_os_str(),
                OsStr::new("65534"),
            ])
            .stdout(Stdio::null())
            .spawn()?;
        let pid = root.pid();
        ensure(lives(pid), "hangs")?;
        caller.kill()?;
        caller.wait()?;
        let start = Instant::now();
        wait_for("the query process to end", || (!lives(pid)).then_some(()));
        let elapsed = start.elapsed();
        ensure(
            elapsed < Duration::from_secs(1),
            format!("{guards:?}: {elapsed:?}"),
        )?;
    }
    Ok(())
}

fn many_threads_ask() -> Outcome {
    let root = Root::new(&[]);
    let request = root.request();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let result = report(&finish(&request));
                        assert_eq!(result, "3 gpus");
                    }
                })
            })
            .collect();
        let finished = threads.into_iter().all(|thread| thread.join().is_ok());
        ensure(finished, "a thread failed")
    })
}

fn wsl_needs_no_minors() -> Outcome {
    // Neither another root nor another user: no privileges needed.
    let root = Root::new(&[]);
    let library: PathBuf = root.path().join("usr/lib/libnvidia-ml.so.1");
    let request = QueryRequest {
        root: "/".into(),
        uid: nix::unistd::getuid().as_raw(),
        gid: nix::unistd::getgid().as_raw(),
        wsl_library: Some(library),
        deadline: Duration::from_secs(30),
    };
    let devices = finish(&request)?.devices;
    ensure(indices(&devices) == (vec![0, 1, 2], vec![]), "indices")?;
    let bare = devices.gpus.iter().all(|gpu| {
        gpu.minor == 0 && gpu.node.is_none() && !gpu.mig_capable && gpu.mig_devices.is_empty()
    });
    ensure(bare, format!("{:?}", devices.gpus))
}

fn programs_that_do_not_serve() -> Outcome {
    let unavailable = ErrorKind::DriverUnavailable;
    let request = request(Path::new("/"), UID, GID);
    let ask = |program: &str| Query::start(&QueryProgram::Path(program.into()), &request);
    let text = "process creation failed: no such file or directory";
    ensure_error(ask("/nonexistent"), unavailable, text, "/nonexistent")?;
    ensure_error(
        ask("/bin/true")?.finish(),
        unavailable,
        RPC_FAILED,
        "it ended with status 0",
    )
}
