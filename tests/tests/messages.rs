//! Searches the sources of all programs for messages that do not pass `nvc_program::messages`, which escapes them.
//!
//! A value from an image must not reach a terminal, a log or a file raw. Each other use of a stream, a log or an
//! escape function is listed here with its reason.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Ways to a stream or a log, and functions that escape in another form.
const WAYS: &[&str] = &[
    "print!(",
    "println!(",
    "eprint!(",
    "eprintln!(",
    "dbg!(",
    "stdout()",
    "stderr()",
    "Stdio::inherit",
    "STDOUT_FILENO",
    "STDERR_FILENO",
    "dup2",
    "from_raw_fd",
    "unistd::write",
    "io::write(",
    "libc::write",
    "/dev/std",
    "/proc/self/fd/1",
    "/proc/self/fd/2",
    "/dev/tty",
    "/dev/kmsg",
    "/dev/log",
    "UnixDatagram::unbound",
    ".append(true)",
    "set_logger(",
    "set_boxed_logger(",
    "Log for ",
    "set_hook(",
    "escape_debug",
    "escape_default",
];

/// Directories of programs that are not shipped.
const NOT_SHIPPED: &[&str] = &["fuzz", "nvc-build", "nvc-testkit", "tests"];

const FORMATS: &str = "formats each record with the functions that escape";
const ANSWER: &str = "output that was asked for";
const NO_TEXT: &str = "writes no text";

/// The allowed uses: file, way, number, reason.
const ALLOWED: &[(&str, &str, usize, &str)] = &[
    (
        "shared/nvc-program/src/messages.rs",
        "stderr()",
        1,
        "the place that the others use",
    ),
    (
        "shared/nvc-program/src/messages.rs",
        "dup2",
        2,
        "makes both streams unwritable",
    ),
    (
        "shared/nvc-program/src/messages/logging.rs",
        "Log for ",
        1,
        FORMATS,
    ),
    (
        "shared/nvc-program/src/messages/logging.rs",
        "set_logger(",
        1,
        FORMATS,
    ),
    (
        "shared/nvc-program/src/messages/system_log.rs",
        "/dev/log",
        1,
        "the place that the others use",
    ),
    (
        "shared/nvc-program/src/messages/system_log.rs",
        "UnixDatagram::unbound",
        1,
        "the place that the others use",
    ),
    ("shared/nvc-program/src/warnings.rs", "Log for ", 1, NO_TEXT),
    (
        "shared/nvc-program/src/warnings.rs",
        "set_logger(",
        1,
        NO_TEXT,
    ),
    (
        "toolkit/nvc-runtime/src/log.rs",
        "stderr()",
        1,
        "whether it is the log file",
    ),
    (
        "toolkit/nvc-runtime/src/log.rs",
        "set_boxed_logger(",
        1,
        FORMATS,
    ),
    ("toolkit/nvc-runtime/src/log.rs", "Log for ", 1, FORMATS),
    (
        "shared/nvc-program/src/messages/redirection.rs",
        "/proc/self/fd/2",
        1,
        "the value of an annotation",
    ),
    (
        "shared/nvc-program/src/messages/redirection.rs",
        "/dev/std",
        1,
        "the value of an annotation",
    ),
    (
        "shared/nvc-program/src/messages.rs",
        "set_hook(",
        1,
        FORMATS,
    ),
    (
        "libnvc/src/host/device.rs",
        "escape_default",
        1,
        "the name of a product in lists, not a message",
    ),
    ("libnvc/src/host/query/server.rs", "dup2", 1, NO_TEXT),
    ("libnvc/src/host/query/server.rs", "stdout()", 1, NO_TEXT),
    (
        "libnvc/src/sys/sandbox/child.rs",
        "dup2",
        6,
        "the streams of ldconfig, which libnvc reads",
    ),
    ("libnvc/src/sys/bpf.rs", "from_raw_fd", 1, NO_TEXT),
    ("libnvc/src/sys/descriptors.rs", "from_raw_fd", 2, NO_TEXT),
    ("libnvc/src/sys/fork.rs", "dup2", 1, NO_TEXT),
    ("libnvc/src/sys/spawn.rs", "dup2", 1, NO_TEXT),
    ("libnvc/src/sys/start.rs", "stdout()", 1, NO_TEXT),
    ("libnvc/src/sys/mount.rs", "from_raw_fd", 1, NO_TEXT),
    ("libnvc/src/sys/namespace.rs", "from_raw_fd", 1, NO_TEXT),
    ("libnvc/src/sys/process.rs", "from_raw_fd", 1, NO_TEXT),
    ("libnvc/src/sys/sandbox.rs", "from_raw_fd", 1, NO_TEXT),
    ("capi/entry.rs", "stdout()", 1, ANSWER),
    ("capi/entry.rs", "unistd::write", 1, ANSWER),
    (
        "shared/nvc-program/src/debuglog.rs",
        "/dev/std",
        1,
        "a debug log's name",
    ),
    (
        "shared/nvc-program/src/debuglog.rs",
        "stderr()",
        1,
        "a debug log's place",
    ),
    (
        "shared/nvc-program/src/debuglog.rs",
        ".append(true)",
        1,
        FORMATS,
    ),
    ("capi/logfile.rs", "Log for ", 1, FORMATS),
    ("capi/logfile.rs", "set_logger(", 1, FORMATS),
    ("examples/rust/hook.rs", "eprintln!(", 1, FORMATS),
    ("examples/rust/plan.rs", "println!(", 1, ANSWER),
    (
        "nvc-cli/nvc-commands/src/commands.rs",
        "stderr()",
        1,
        NO_TEXT,
    ),
    (
        "nvc-cli/nvc-commands/src/logging.rs",
        "Log for ",
        1,
        FORMATS,
    ),
    (
        "nvc-cli/nvc-commands/src/logging.rs",
        "set_boxed_logger(",
        1,
        FORMATS,
    ),
    ("nvc-cli/nvc-commands/src/output.rs", "stdout()", 1, ANSWER),
    (
        "toolkit/nvc-hook/src/call.rs",
        "/dev/std",
        1,
        "an argument of nvidia-container-cli, which escapes",
    ),
    (
        "toolkit/nvc-hook/src/prestart.rs",
        ".append(true)",
        1,
        FORMATS,
    ),
    ("toolkit/nvc-hook/src/main.rs", "stdout()", 1, ANSWER),
    (
        "toolkit/nvc-runtime/src/crun.rs",
        ".append(true)",
        1,
        NO_TEXT,
    ),
    ("toolkit/nvc-runtime/src/crun.rs", "stderr()", 1, NO_TEXT),
    (
        "toolkit/nvc-runtime/src/log.rs",
        ".append(true)",
        1,
        FORMATS,
    ),
    ("toolkit/nvc-runtime/src/main.rs", "stdout()", 1, ANSWER),
    (
        "toolkit/nvc-ctk/src/commands/doctor.rs",
        "stdout()",
        1,
        NO_TEXT,
    ),
    ("toolkit/nvc-ctk/src/logging.rs", "stdout()", 1, ANSWER),
    ("toolkit/nvc-cdi-hook/src/report.rs", "Log for ", 1, FORMATS),
    (
        "toolkit/nvc-cdi-hook/src/report.rs",
        "set_logger(",
        1,
        FORMATS,
    ),
    ("toolkit/nvc-cdi-hook/src/report.rs", "stdout()", 1, ANSWER),
    ("nvc-docker/src/log_line.rs", "Log for ", 1, FORMATS),
    ("nvc-docker/src/log_line.rs", "set_logger(", 1, FORMATS),
    ("nvc-docker/src/plugin/run.rs", "stdout()", 1, ANSWER),
    (
        "nvc-docker/src/plugin/listeners.rs",
        "UnixDatagram::unbound",
        1,
        "tells systemd fixed words",
    ),
    (
        "nvc-docker/src/wrapper/container.rs",
        "stderr()",
        1,
        NO_TEXT,
    ),
    (
        "nvc-docker/src/wrapper/docker.rs",
        "stderr()",
        1,
        "docker's progress when it pulls an image",
    ),
    ("nvc-docker/src/wrapper/run.rs", "stdout()", 2, ANSWER),
    ("nvc-node/src/run.rs", "stdout()", 1, ANSWER),
    ("nvc-node/src/sides/machine_side.rs", "dup2", 4, NO_TEXT),
    (
        "nvc-node/src/sides/machine_side.rs",
        "set_hook(",
        1,
        "ends the process after the hook that escapes",
    ),
    (
        "nvc-node/src/sides/machine_side.rs",
        "stdout()",
        1,
        "a pipe, with messages of another form",
    ),
];

#[test]
fn messages_leave_escaped() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = BTreeMap::new();
    for file in sources(&root) {
        let text = fs::read_to_string(root.join(&file)).unwrap();
        for way in ways(&text) {
            *found.entry((file.clone(), way)).or_insert(0) += 1;
        }
    }
    let mut allowed = BTreeMap::new();
    for (file, way, count, _) in ALLOWED {
        allowed.insert((file.to_string(), *way), *count);
    }
    let wrong: Vec<_> = found
        .iter()
        .filter(|(key, count)| allowed.get(*key) != Some(*count))
        .collect();
    assert!(wrong.is_empty(), "use nvc_program::messages: {wrong:#?}");
    let gone: Vec<_> = allowed
        .keys()
        .filter(|key| !found.contains_key(*key))
        .collect();
    assert!(gone.is_empty(), "no longer there: {gone:#?}");
}

/// Our own texts pass the same function as foreign ones, so that they must be printable ASCII.
#[test]
fn our_own_texts_need_no_escapes() {
    // An answer of upstream's, with degrees.
    const STATUS: &str = "nvc-docker/src/plugin/rest/status.rs";
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = sources(&root);
    for file in files.iter().filter(|file| *file != STATUS) {
        let text = fs::read_to_string(root.join(file)).unwrap();
        let odd: Vec<_> = code(&text).filter(|line| !line.is_ascii()).collect();
        assert!(odd.is_empty(), "{file}: {odd:#?}");
    }
}

#[test]
fn a_new_message_is_found() {
    let line = |line: &str| ways(&format!("fn f(name: &str) {{\n    {line}\n}}\n"));
    assert_eq!(
        line("eprintln!(\"no such device: {name}\");"),
        ["eprintln!("]
    );
    assert_eq!(line("std::eprint!(\"{name}\");"), ["eprint!("]);
    assert_eq!(line("println!(\"{name}\");"), ["println!("]);
    let locked = "writeln!(io::stderr().lock(), \"{name}\")?;";
    assert_eq!(line(locked), ["stderr()"]);
    assert!(line("messages::write_line(&format!(\"{name}\"));").is_empty());
    assert!(line("// eprintln!(\"{name}\");").is_empty());
    assert!(ways("#[cfg(test)]\nmod tests {\n    println!();\n}\n").is_empty());
}

/// Returns the ways in the code of a file, without its tests and comments.
fn ways(text: &str) -> Vec<&'static str> {
    let mut found = Vec::new();
    for line in code(text) {
        for way in WAYS {
            let part_of_a_word = |at: usize| {
                let before = line[..at].chars().next_back();
                way.starts_with(char::is_alphabetic)
                    && before.is_some_and(|c| c.is_alphanumeric() || c == '_')
            };
            let here = line.match_indices(way).map(|(at, _)| at);
            found.extend(here.filter(|at| !part_of_a_word(*at)).map(|_| *way));
        }
    }
    found
}

/// Returns the lines of code of a file, without its tests and comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    let is_tests = |at: &usize| {
        let rest = &text[*at..];
        rest.starts_with("#[cfg(test)]\nmod tests") || rest.starts_with("#[cfg(test)]\n#[allow")
    };
    let end = text
        .match_indices("#[cfg(test)]")
        .map(|(at, _)| at)
        .find(is_tests);
    let code = &text[..end.unwrap_or(text.len())];
    code.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
}

/// Returns the source files of everything that is shipped, relative to the repository.
fn sources(root: &Path) -> Vec<String> {
    let mut directories = vec![root.join("capi"), root.join("examples/rust")];
    for folder in ["", "nvc-cli", "toolkit", "shared"].map(|name| root.join(name)) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy();
            if path.join("Cargo.toml").exists() && !NOT_SHIPPED.contains(&name.as_ref()) {
                directories.push(path.join("src"));
            }
        }
    }
    let mut files = Vec::new();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                files.push(path);
            }
        }
    }
    let is_code = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.ends_with(".rs") && name != "tests.rs" && name != "testing.rs"
    };
    let relative = |path: &PathBuf| path.strip_prefix(root).unwrap().display().to_string();
    let found: Vec<String> = files
        .iter()
        .filter(|path| is_code(path))
        .map(relative)
        .collect();
    assert!(found.len() > 300, "{}", found.len());
    found
}
