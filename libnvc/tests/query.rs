//! Runs real queries, in a real process, against libraries that crash, hang, lie and lack functions.
//!
//! The query program is this test itself, so it has its own `main`. Changing the root needs privileges: without them,
//! tests that do so are shown as ignored, with the kind `needs root`.

#[path = "query/breakdowns.rs"]
mod breakdowns;
#[path = "query/driver_root.rs"]
mod driver_root;
#[path = "query/jetson.rs"]
mod jetson;
#[path = "query/process.rs"]
mod process;
#[path = "query/serving.rs"]
mod serving;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use libnvc::host::Identity;
use libnvc::host::query::{QueryRequest, serve_if_asked};
use libnvc::{ErrorKind, HostPath};
use libtest_mimic::{Arguments, Failed, Trial};

use breakdowns::*;
use driver_root::{
    PROFILE, Root, ensure, ensure_error, finish, indices, report, request, start, without,
};
use process::*;
use serving::*;

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

/// Set if this program forgets to serve: to what it does instead.
const FORGETFUL: &str = "NVIDIA_TEST_FORGETFUL";

fn main() {
    if let Ok(way) = std::env::var(FORGETFUL) {
        return forget_to_serve(&way);
    }
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
    trials.push(Trial::test(
        "a_forgotten_call_is_named",
        a_forgotten_call_is_named,
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
        (
            "nothing_is_executed_without_a_shield",
            nothing_is_executed_without_a_shield,
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
        ("nvml_is_where_libraries_are", nvml_is_where_libraries_are),
        ("without_privileges", without_privileges),
        ("dropping_ends_the_process", dropping_ends_the_process),
        (
            "killing_the_caller_ends_the_process",
            killing_the_caller_ends_the_process,
        ),
        ("many_threads_ask", many_threads_ask),
        (
            "an_integrated_gpu_is_listed",
            jetson::an_integrated_gpu_is_listed,
        ),
        (
            "cuda_answers_without_nvml",
            jetson::cuda_answers_without_nvml,
        ),
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

fn old_names_and_no_mig() -> Outcome {
    let others = [
        ("nvmlInit_v2", "nvmlInit"),
        ("nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"),
        (
            "nvmlDeviceGetHandleByIndex_v2",
            "nvmlDeviceGetHandleByIndex",
        ),
    ];
    let mut arguments: Vec<_> = others
        .iter()
        .map(|(name, other)| format!("-D{name}={other}"))
        .collect();
    // Only a newer form of the PCI address is left.
    for name in [
        "PciInfo",
        "MigMode",
        "MaxMigDeviceCount",
        "MigDeviceHandleByIndex",
        "GpuInstanceId",
        "ComputeInstanceId",
    ] {
        arguments.extend(without(&format!("nvmlDeviceGet{name}")));
    }
    let reply = Root::with(PROFILE.as_bytes(), &arguments).ask()?;
    ensure(
        indices(&reply.devices) == (vec![0, 1, 2], vec![]),
        "indices",
    )?;
    ensure(reply.devices.gpus.iter().all(|gpu| !gpu.mig_capable), "MIG")?;
    ensure(reply.devices.gpus[2].busid == "00010000:3d:00.0", "bus id")
}

/// The loader of a root without a cache knows none of these directories.
fn nvml_is_where_libraries_are() -> Outcome {
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    for (place, search) in [
        (&*format!("usr/lib/{triplet}/nvidia/current"), None),
        ("run/opengl-driver/lib", None),
        ("opt/driver", Some("/opt/driver")),
    ] {
        let root = Root::new(&[]);
        let at = root.path().join(place);
        fs::create_dir_all(&at)?;
        let name = "libnvidia-ml.so.1";
        fs::rename(root.path().join("usr/lib").join(name), at.join(name))?;
        let request = QueryRequest {
            dev_root: None,
            library_search: search.into_iter().map(HostPath::new).collect(),
            ..root.request()
        };
        let found = report(&finish(&request));
        ensure(found == "3 gpus", format!("{place}: {found}"))?;
    }
    Ok(())
}

fn init_fails() -> Outcome {
    let unavailable = ErrorKind::DriverUnavailable;
    let text = "nvml error: driver/library version mismatch";
    ensure_error(
        Root::new(&["fail=nvmlInit_v2:18"]).ask(),
        unavailable,
        text,
        "reload it or reboot",
    )
}

fn slow_answers_are_announced() -> Outcome {
    let root = Root::new(&["slow-at=nvmlDeviceGetName:1100"]);
    let (told, heard) = mpsc::channel();
    let mut query = start(&root.request());
    query.when_slow(move |elapsed| {
        told.send(elapsed).expect("a listener");
    });
    query.versions()?;
    ensure(query.devices()?.gpus.len() == 3, "GPUs")?;
    let elapsed = heard.try_recv()?.as_millis();
    ensure(elapsed >= 3000, format!("announced after {elapsed} ms"))?;
    ensure(heard.try_recv().is_err(), "announced twice")
}

fn one_lost_gpu_is_skipped() -> Outcome {
    for (macros, uuid, busid) in [
        (
            "fail=nvmlDeviceGetUUID:15:1",
            None,
            Some("00010000:3c:00.0"),
        ),
        ("fail=nvmlDeviceGetHandleByIndex_v2:15:1", None, None),
        (
            "fail=nvmlDeviceGetMigMode:999:1",
            Some("GPU-1"),
            Some("00010000:3c:00.0"),
        ),
        (
            "garbage=nvmlDeviceGetMaxMigDeviceCount:1",
            Some("GPU-1"),
            Some("00010000:3c:00.0"),
        ),
    ] {
        let devices = Root::new(&[macros]).ask()?.devices;
        ensure(indices(&devices) == (vec![0, 2], vec![1]), macros)?;
        let failed = &devices.failed[0];
        ensure(
            (failed.uuid.as_deref(), failed.busid.as_deref()) == (uuid, busid),
            format!("{macros}: {failed}"),
        )?;
        let text = match macros {
            "fail=nvmlDeviceGetMigMode:999:1" => "nvml error: unknown error",
            "garbage=nvmlDeviceGetMaxMigDeviceCount:1" => "too many MIG devices: 4294967280",
            _ => "nvml error: gpu is lost",
        };
        ensure(failed.error.message() == text, failed.error.message())?;
    }
    Ok(())
}

fn all_lost_gpus_are_an_error() -> Outcome {
    let text = "nvml error: gpu is lost";
    ensure_error(
        Root::new(&["fail=nvmlDeviceGetUUID:15"]).ask(),
        ErrorKind::DriverFailed,
        text,
        "Xid",
    )?;
    let none = Root::with(b"driver=535.261.03\ncuda=12020\n", &[])
        .ask()?
        .devices;
    ensure(indices(&none) == (vec![], vec![]), "no GPU is no failure")
}

fn garbage_is_refused() -> Outcome {
    let failed = ErrorKind::DriverFailed;
    for (line, text) in [
        (
            &b"driver=\n"[..],
            r#"nvml error: malformed driver version: """#,
        ),
        (
            b"driver=5\xff\n",
            "nvml error: malformed driver version: \"5\u{fffd}\"",
        ),
        (
            b"driver=../../etc\n",
            r#"nvml error: malformed driver version: "../../etc""#,
        ),
        (
            b"garbage=nvmlDeviceGetCount_v2\n",
            "too many devices: 4294967280",
        ),
        (
            b"null=nvmlDeviceGetHandleByIndex_v2\n",
            "nvml error: no device handle",
        ),
    ] {
        let root = Root::with(&[PROFILE.as_bytes(), line].concat(), &[]);
        ensure_error(root.ask(), failed, text, "may be damaged")?;
    }
    let broken = PROFILE.replace("uuid=GPU-0", "uuid=GPU-\x1b[31m@");
    let broken = broken
        .bytes()
        .map(|byte| if byte == b'@' { 0xff } else { byte });
    for (profile, text) in [
        (
            format!("{PROFILE}garbage=nvmlDeviceGetName:0\n").into_bytes(),
            "nvml error: unterminated string",
        ),
        (
            broken.collect(),
            "nvml error: malformed uuid: \"GPU-\u{1b}[31m\u{fffd}\"",
        ),
    ] {
        let devices = Root::with(&profile, &[]).ask()?.devices;
        ensure(indices(&devices) == (vec![1, 2], vec![0]), text)?;
        let message = devices.failed[0].error.message();
        ensure(message == text, message)?;
    }
    Ok(())
}

fn missing_symbols() -> Outcome {
    let (failed, unavailable) = (ErrorKind::DriverFailed, ErrorKind::DriverUnavailable);
    let missing = "nvml error: function not found";
    let no_uuid = "has no nvmlDeviceGetUUID";
    for (symbols, line, kind, text, hint) in [
        (&["nvmlDeviceGetUUID"][..], "", failed, missing, no_uuid),
        (
            &["nvmlDeviceGetUUID", "nvmlErrorString"],
            "",
            failed,
            missing,
            no_uuid,
        ),
        (
            &["nvmlErrorString"],
            "fail=nvmlInit_v2:9\n",
            unavailable,
            "nvml error: code 9",
            "modprobe nvidia",
        ),
        (
            &["nvmlInit_v2"],
            "",
            unavailable,
            missing,
            "has no nvmlInit_v2",
        ),
    ] {
        let arguments: Vec<_> = symbols.iter().flat_map(|symbol| without(symbol)).collect();
        let root = Root::with(format!("{PROFILE}{line}").as_bytes(), &arguments);
        ensure_error(root.ask(), kind, text, hint)?;
    }
    Ok(())
}

fn no_root_and_no_library() -> Outcome {
    let unavailable = ErrorKind::DriverUnavailable;
    let result = finish(&request(Path::new("/nonexistent"), UID, GID));
    let text = "change root failed: no such file or directory";
    ensure_error(result, unavailable, text, "")?;
    let root = Root::new(&[]);
    fs::remove_file(root.path().join("usr/lib/libnvidia-ml.so.1"))?;
    let text = "load library failed: libnvidia-ml.so.1: cannot open shared object file: no such file or directory";
    ensure_error(root.ask(), unavailable, text, "with root")
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
    let root = Root::new(&["lenient=yes"]);
    let profile = root.path().join("etc/nvidia-sim/profile");
    let profile = format!("-DPROFILE=\"{}\"", profile.display());
    let asked = Root::with(b"", &[profile]);
    let library: PathBuf = asked.path().join("usr/lib/libnvidia-ml.so.1");
    let request = QueryRequest {
        root: "/".into(),
        user: Some(Identity::caller()),
        dev_root: None,
        library_search: Vec::new(),
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
