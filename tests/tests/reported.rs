//! Errors and warnings of hook and runtime reach somebody: the system's log, and the file from which engines take their
//! message.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Output};

use nix::sys::stat::Mode;
use nvc_testkit::driver::Builder;
use nvc_testkit::files;
use nvc_testkit::harness::{self, Need};
use nvc_testkit::tests;
use nvc_tests::bundle::Bundle;
use nvc_tests::world::World;
use serde_json::{Value, json};

const HOOK: &str = "nvidia-container-runtime-hook";
const RUNTIME: &str = "nvidia-container-runtime";

fn main() -> ExitCode {
    harness::main(tests![&[Need::Root, Need::Command("runc")];
        a_hooks_error_is_logged,
        a_hooks_warning_is_logged,
        what_happens_in_the_container_is_logged_outside,
        the_programs_errors_and_warnings_are_logged,
        a_librarys_warning_is_logged,
        a_runtimes_error_is_logged,
        a_specification_with_a_file_that_is_gone_is_named,
        a_runtimes_warning_is_logged_at_the_start,
        a_full_log_blocks_nothing,
        engines_find_the_reason,
        engines_find_what_is_wrong_with_the_configuration,
        a_failure_is_written_once,
        a_pipe_without_a_reader_blocks_nothing,
        hints_name_what_the_reader_has,
        a_driver_root_without_a_driver_is_named,
        the_debug_log_says_why,
        messages_name_what_is_wrong,
        persistence_mode_needs_no_daemon,
    ])
}

/// A bundle that runs by our runtime and runc, and the log of its system.
struct Case {
    world: World,
    journal: UnixDatagram,
}

/// What a run left.
struct Run {
    output: Output,
    /// The lines of the system's log.
    logged: Vec<String>,
}

impl Run {
    fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// Returns the only line of the system's log, without its start.
    #[track_caller]
    fn line(&self, start: &str) -> &str {
        let [line] = self.logged.as_slice() else {
            panic!("{:#?}\n{}", self.logged, self.stderr());
        };
        let rest = line.strip_prefix(start);
        rest.unwrap_or_else(|| panic!("{line}"))
    }
}

impl Case {
    /// Creates a bundle with these variables.
    fn new(mode: &str, more: &str, env: &[&str]) -> Self {
        let Bundle { world, .. } = Bundle::new(World::new("runc", mode, more), env, ":");
        let journal = UnixDatagram::bind(world.path("socket")).unwrap();
        journal.set_nonblocking(true).unwrap();
        Self { world, journal }
    }

    fn config(&self) -> PathBuf {
        self.world.path("config.toml")
    }

    /// Changes config.json.
    fn edit(&self, change: impl FnOnce(&mut Value)) {
        let file = self.world.path("bundle/config.json");
        let mut spec: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        change(&mut spec);
        fs::write(&file, spec.to_string()).unwrap();
    }

    /// Changes the configuration so that the hook executes nvidia-container-cli.
    fn execute_program(&self) {
        let text = fs::read_to_string(self.config()).unwrap();
        let table = "[nvidia-container-cli]\n";
        let text = text.replace(table, &format!("{table}environment = [\"A=1\"]\n"));
        fs::write(self.config(), text).unwrap();
    }

    /// Returns the name of the file for `--log`.
    fn log_file(&self) -> PathBuf {
        self.world.path("log.json")
    }

    /// Returns the records in that file: level and message.
    fn records(&self) -> Vec<(String, String)> {
        let text = fs::read_to_string(self.log_file()).unwrap_or_default();
        let record = |line: &str| {
            let record: Value = serde_json::from_str(line).unwrap();
            let member = |name: &str| record[name].as_str().unwrap().to_owned();
            (member("level"), member("msg"))
        };
        text.lines().map(record).collect()
    }

    /// Returns the only error in that file, as docker shows it.
    #[track_caller]
    fn error(&self) -> String {
        let records = self.records();
        let errors: Vec<_> = records
            .iter()
            .filter(|(level, _)| level == "error")
            .collect();
        let [(_, text)] = errors.as_slice() else {
            panic!("{records:#?}");
        };
        text.clone()
    }

    /// Runs our runtime as docker does, with these words before the verb.
    fn run(&self, words: &[&str]) -> Run {
        let log = self.log_file();
        let log = log.to_str().unwrap();
        self.run_with(
            &[&["--log", log, "--log-format", "json"], words].concat(),
            "run",
        )
    }

    /// Runs our runtime where /dev/log is the socket of this test.
    fn run_with(&self, words: &[&str], verb: &str) -> Run {
        const SCRIPT: &str = "mount -t tmpfs dev \"$1\" && \
            cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty \"$1\" && \
            mkdir \"$1/pts\" \"$1/shm\" \"$1/mqueue\" && mount --rbind /dev/pts \"$1/pts\" && ln -s pts/ptmx \"$1/ptmx\" && \
            ln -s /proc/self/fd \"$1/fd\" && ln -s fd/2 \"$1/stderr\" && touch \"$1/log\" && \
            mount --bind \"$2\" \"$1/log\" && mount --rbind \"$1\" /dev && shift 2 && exec \"$@\"";
        let dev = self.world.path("dev");
        let _ = fs::create_dir(&dev);
        let runtime = self.world.command(RUNTIME);
        let mut command = Command::new("timeout");
        command
            .args(["60", "unshare", "--mount", "sh", "-c", SCRIPT, "sh"])
            .arg(&dev)
            .arg(self.world.path("socket"))
            .arg(runtime.get_program())
            .arg("--root")
            .arg(self.world.path("state"))
            .args(words)
            .args([verb, &self.world.name()])
            .current_dir(self.world.path("bundle"))
            .env_clear()
            // Whoever chooses the variables chooses neither the program nor the container in the log.
            .env("NVC_SYSTEM_LOG", "sshd:c9");
        for (name, value) in runtime.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        let output = command.output().unwrap();
        let logged = self.logged();
        Run { output, logged }
    }

    /// Returns what has been logged meanwhile. The container is called c1: its own name is also the name of a cgroup,
    /// and all tests share that namespace.
    fn logged(&self) -> Vec<String> {
        let name = self.world.name();
        let mut lines = Vec::new();
        let mut buffer = vec![0; 9999];
        while let Ok(length) = self.journal.recv(&mut buffer) {
            lines.push(String::from_utf8_lossy(&buffer[..length]).replace(&name, "c1"));
        }
        lines
    }
}

/// runc says that the hook failed, and engines drop the hook's output; podman shows the last line of runc's.
fn a_hooks_error_is_logged() {
    let case = Case::new("legacy", "", &["NVIDIA_VISIBLE_DEVICES=9"]);
    let run = case.run(&[]);
    let text = run.line(&format!("<27>{HOOK}: container c1: "));
    let start = "nvidia-container-cli: device error: 9: unknown device (hint: ";
    assert!(text.starts_with(start), "{text}");
    let stderr = run.stderr();
    let last = stderr.trim_end().lines().last().unwrap_or_default();
    assert!(last.contains(start), "{stderr}");
}

fn a_hooks_warning_is_logged() {
    let case = Case::new("legacy", "frob = 1", &["NVIDIA_VISIBLE_DEVICES=0"]);
    let run = case.run(&[]);
    assert!(run.output.status.success(), "{}", run.stderr());
    let expected = [RUNTIME, HOOK].map(|program| {
        let file = case.config();
        let file = file.display();
        format!("<28>{program}: container c1: {file}: line 1, column 1: unknown key frob")
    });
    assert_eq!(run.logged, expected);
}

/// The hook stays in the container's mount namespace that it has entered, where /dev/log is not the system's.
fn what_happens_in_the_container_is_logged_outside() {
    let case = Case::new("legacy", "", &["NVIDIA_VISIBLE_DEVICES=0"]);
    let place = "usr/bin/nvidia-smi";
    fs::create_dir_all(case.world.path("bundle/rootfs").join(place).join("x")).unwrap();
    // The namespace starts with a copy of the test's mounts.
    let uncover = "pid=$(sed 's/.*\"pid\": *\\([0-9]*\\).*/\\1/') && \
        nsenter --mount --target \"$pid\" umount --lazy /dev/log";
    let hook = json!({"path": "/bin/sh", "args": ["sh", "-c", uncover]});
    case.edit(|spec| spec["hooks"] = json!({"prestart": [hook]}));
    let run = case.run(&[]);
    let text = run.line(&format!("<28>{HOOK}: container c1: skipped (optional): "));
    assert!(
        text.ends_with(&format!("{place}: is a directory")),
        "{text}"
    );
}

/// If the configuration needs nvidia-container-cli, the hook executes it.
fn the_programs_errors_and_warnings_are_logged() {
    let case = Case::new("legacy", "", &["NVIDIA_VISIBLE_DEVICES=9"]);
    case.execute_program();
    let run = case.run(&[]);
    let text = run.line(&format!("<27>{HOOK}: container c1: "));
    let start = "nvidia-container-cli: device error: 9: unknown device (hint: ";
    assert!(text.starts_with(start), "{text}");
    let stderr = run.stderr();
    assert_eq!(stderr.matches("9: unknown device").count(), 1, "{stderr}");
    let case = Case::new("legacy", "", &["NVIDIA_VISIBLE_DEVICES=0"]);
    case.execute_program();
    let place = "usr/bin/nvidia-smi";
    fs::create_dir_all(case.world.path("bundle/rootfs").join(place).join("x")).unwrap();
    let run = case.run(&[]);
    let text = run.line(&format!("<28>{HOOK}: container c1: skipped (optional): "));
    assert!(text.ends_with(": is a directory"), "{text}");
}

/// libnvc gives its warnings to a logger.
fn a_librarys_warning_is_logged() {
    let more = "features.allow-ldconfig-from-container = true\n";
    let case = Case::new("legacy", more, &["NVIDIA_VISIBLE_DEVICES=0"]);
    let text = fs::read_to_string(case.config()).unwrap();
    let of_image = "[nvidia-container-cli]\nldconfig = \"/sbin/ldconfig\"";
    let text = text.replace("[nvidia-container-cli]", of_image);
    fs::write(case.config(), text).unwrap();
    let rootfs = case.world.path("bundle/rootfs");
    fs::create_dir_all(rootfs.join("sbin")).unwrap();
    let _ = fs::remove_file(rootfs.join("sbin/ldconfig"));
    files::file(&rootfs.join("sbin/ldconfig"), "#!/bin/sh\n", 0o755).unwrap();
    let run = case.run(&[]);
    let start = format!("<28>{HOOK}: container c1: running the image's own /");
    assert!(
        run.logged.iter().any(|line| line.starts_with(&start)),
        "{:#?}\n{}",
        run.logged,
        run.stderr()
    );
}

fn a_runtimes_error_is_logged() {
    let case = Case::new("jit-cdi", "", &["NVIDIA_VISIBLE_DEVICES=9"]);
    let run = case.run(&[]);
    let text = run.line(&format!("<27>{RUNTIME}: container c1: "));
    assert!(text.contains("9: unknown device"), "{text}");
}

/// The low-level runtime would name the mount alone.
fn a_specification_with_a_file_that_is_gone_is_named() {
    let case = Case::new("cdi", "", &["NVIDIA_VISIBLE_DEVICES=0"]);
    let file = case.world.path("specifications/gpu.yaml");
    let directory = file.parent().unwrap();
    fs::create_dir_all(directory).unwrap();
    case.world.set(&format!(
        "modes.cdi.spec-dirs = [\"{}\"]",
        directory.display()
    ));
    let text = "# generated by nvidia-ctk 1.20.2\n# command: nvidia-ctk cdi generate --mode=nvml\n\
        {cdiVersion: 0.5.0, kind: nvidia.com/gpu, devices: [{name: '0', containerEdits: {env: [A=b]}}],\n \
        containerEdits: {mounts: [{hostPath: /no/libgone.so, containerPath: /x}]}}\n";
    fs::write(&file, text).unwrap();
    case.run(&[]);
    let (error, file) = (case.error(), file.display());
    let repair = format!("nvidia-ctk cdi generate --mode=nvml --output={file}");
    for part in [format!("{file}: /no/libgone.so is missing"), repair] {
        assert!(error.contains(&part), "{part}: {error}");
    }
}

fn a_runtimes_warning_is_logged_at_the_start() {
    let case = Case::new("jit-cdi", "frob = 1", &[]);
    let run = case.run(&[]);
    let text = run.line(&format!("<28>{RUNTIME}: container c1: "));
    assert!(text.ends_with(": unknown key frob"), "{text}");
    // Health checks and stops would fill the log with the same line.
    assert_eq!(case.run_with(&[], "state").logged, [""; 0]);
}

fn a_full_log_blocks_nothing() {
    let case = Case::new("jit-cdi", "", &["NVIDIA_VISIBLE_DEVICES=9"]);
    let sender = UnixDatagram::unbound().unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.send_to(b"x", case.world.path("socket")).is_ok() {}
    let run = case.run(&[]);
    assert_eq!(run.output.status.code(), Some(1), "{}", run.stderr());
    assert!(run.logged.iter().all(|line| line == "x"));
    assert!(case.error().contains("9: unknown device"));
}

fn engines_find_the_reason() {
    let case = Case::new("jit-cdi", "", &["NVIDIA_VISIBLE_DEVICES=9"]);
    let run = case.run(&[]);
    let error = case.error();
    // Upstream's words follow it.
    assert!(error.starts_with("9: unknown device (hint: "), "{error}");
    assert!(
        error.contains("; could not apply required modification"),
        "{error}"
    );
    let stderr = run.stderr();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("9: unknown device (hint: "), "{stderr}");
    // A bundle that cannot be read.
    fs::remove_file(case.log_file()).unwrap();
    fs::remove_file(case.world.path("bundle/config.json")).unwrap();
    fs::create_dir(case.world.path("bundle/config.json")).unwrap();
    case.run(&[]);
    let error = case.error();
    assert!(error.contains("config.json: is a directory; "), "{error}");
}

/// docker showed `unable to retrieve OCI runtime error (open .../log.json: no such file)`, for every container.
fn engines_find_what_is_wrong_with_the_configuration() {
    let case = Case::new("auto", "", &[]);
    let right = fs::read_to_string(case.config()).unwrap();
    for (wrong, expected) in [
        ("[nvidia-container-cli\n", "config.toml: line 1, column "),
        (
            "disable-require = 7\n",
            "disable-require: expected true or false, found a number",
        ),
        (
            "nvidia-container-runtime.mode = \"legcy\"\n",
            "invalid mode \"legcy\"",
        ),
        (
            "nvidia-container-runtime.runtimes = []\n",
            "at least one runtime candidate",
        ),
    ] {
        let text = if wrong.contains("runtime.") {
            wrong.into()
        } else {
            format!("{wrong}{right}")
        };
        fs::write(case.config(), text).unwrap();
        let run = case.run(&[]);
        assert_eq!(
            run.output.status.code(),
            Some(1),
            "{wrong}: {}",
            run.stderr()
        );
        assert!(case.error().contains(expected), "{wrong}: {}", case.error());
        assert!(
            run.line(&format!("<27>{RUNTIME}: container c1: "))
                .contains(expected)
        );
        fs::remove_file(case.log_file()).unwrap();
    }
    // Whatever level the administrator wants.
    let quiet = "nvidia-container-runtime.mode = \"legcy\"\nnvidia-container-runtime.log-level = \"panic\"\n";
    fs::write(case.config(), quiet).unwrap();
    case.run(&[]);
    assert!(case.error().contains("invalid mode"));
}

fn a_failure_is_written_once() {
    let case = Case::new("jit-cdi", "", &["NVIDIA_VISIBLE_DEVICES=9"]);
    // The engine's file is the administrator's too.
    let text = fs::read_to_string(case.config()).unwrap();
    let text = text.replace("/runtime.log\"", "/log.json\"");
    fs::write(case.config(), text).unwrap();
    case.run(&[]);
    assert!(case.error().contains("9: unknown device"));
    // The low-level runtimes' default.
    let run = case.run_with(&["--log", "/dev/stderr"], "run");
    let stderr = run.stderr();
    assert_eq!(stderr.matches("9: unknown device").count(), 1, "{stderr}");
    // The real runtime's errors are its own.
    let case = Case::new("jit-cdi", "", &[]);
    let file = case.world.path("bundle/config.json");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("\"sh\"", "\"no-such-program\"")).unwrap();
    let run = case.run(&[]);
    assert!(case.error().contains("no-such-program"), "{}", case.error());
    assert_eq!(run.logged, [""; 0]);
}

fn a_pipe_without_a_reader_blocks_nothing() {
    let case = Case::new("jit-cdi", "", &["NVIDIA_VISIBLE_DEVICES=9"]);
    nix::unistd::mkfifo(&case.log_file(), Mode::from_bits_truncate(0o600)).unwrap();
    let run = case.run(&[]);
    assert_eq!(run.output.status.code(), Some(1), "{}", run.stderr());
    let error = run.logged.last().map_or("", String::as_str);
    assert!(error.contains("9: unknown device"), "{:#?}", run.logged);
    let warning = "log.json: no such device or address";
    assert!(run.logged[0].ends_with(warning), "{:#?}", run.logged);
}

fn hints_name_what_the_reader_has() {
    let case = Case::new("legacy", "", &["NVIDIA_VISIBLE_DEVICES=0"]);
    let empty = case.world.path("empty");
    fs::create_dir(&empty).unwrap();
    case.world.set_root(case.world.driver.root(), &empty);
    let run = case.run(&[]);
    let set = "nvidia-ctk config --set nvidia-container-cli.root=";
    let hook = run.logged.iter().find(|line| line.contains(HOOK));
    let hook = hook.unwrap_or_else(|| panic!("{:#?}\n{}", run.logged, run.stderr()));
    assert!(hook.contains(set) && !hook.contains(" --root"), "{hook}");
    let runtime = case.world.path("jit.toml");
    let text = fs::read_to_string(case.config()).unwrap();
    fs::write(&runtime, text.replace("\"legacy\"", "\"jit-cdi\"")).unwrap();
    fs::rename(&runtime, case.config()).unwrap();
    fs::remove_file(case.log_file()).unwrap();
    case.run(&[]);
    assert!(case.error().contains(set), "{}", case.error());
    let complaint = |words: &[&str]| {
        let output = case.world.command("nvidia-ctk").args(words).output();
        let output = output.unwrap();
        let both = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&both).into_owned()
    };
    let root = empty.to_str().unwrap();
    let said = complaint(&["cdi", "generate", "--mode=nvml", "--driver-root", root]);
    assert!(
        said.contains("with --driver-root, or nvidia-container-cli.root of config.toml\n"),
        "{said}"
    );
    let said = complaint(&["doctor"]);
    assert!(!said.contains(" --root"), "{said}");
    // Misspelt words.
    let said = complaint(&["cdi", "generat"]);
    assert!(said.ends_with("hint: did you mean generate?\n"), "{said}");
    let said = complaint(&["runtime", "configure", "--runtime=dockr"]);
    assert!(said.contains("hint: did you mean docker?"), "{said}");
}

/// Of a driver container that does not run, root is left over.
fn a_driver_root_without_a_driver_is_named() {
    for what in ["missing", "a file", "empty"] {
        let case = Case::new("legacy", "", &["NVIDIA_VISIBLE_DEVICES=0"]);
        let place = case.world.path("place");
        match what {
            "a file" => fs::write(&place, "").unwrap(),
            "empty" => fs::create_dir(&place).unwrap(),
            _ => {}
        }
        let (place, key) = (place.to_str().unwrap(), "nvidia-container-cli.root");
        case.world
            .set_root(case.world.driver.root(), place.as_ref());
        let text = fs::read_to_string(case.config()).unwrap();
        let mut said = vec![("legacy", case.run(&[]).logged.join("\n"))];
        for mode in ["jit-cdi", "auto"] {
            fs::write(
                case.config(),
                text.replace("\"legacy\"", &format!("\"{mode}\"")),
            )
            .unwrap();
            let _ = fs::remove_file(case.log_file());
            case.run(&[]);
            said.push((mode, case.error()));
        }
        let output = |program: &str, words: &[&str]| {
            let output = case.world.command(program).args(words).output().unwrap();
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        let file = case.config();
        let modes: &[&str] = match what {
            "empty" => &["nvml", "management"],
            _ => &["nvml", "management", "imex", "gds"],
        };
        for mode in modes {
            let option = format!("--mode={mode}");
            let file = file.to_str().unwrap();
            let words = ["cdi", "generate", &option, "--config", file];
            said.push((mode, output("nvidia-ctk", &words)));
        }
        let root = format!("--root={place}");
        let by_hand = output("nvidia-container-cli", &[&root, "info"]);
        said.push(("nvidia-container-cli", by_hand.replace("with --root", key)));
        for (way, said) in said {
            assert!(
                said.contains(place) && said.contains(key),
                "{what}, {way}: {said}"
            );
        }
    }
}

fn the_debug_log_says_why() {
    let log = |level: &str| {
        let case = Case::new("jit-cdi", "", &["NVIDIA_VISIBLE_DEVICES=0"]);
        case.world.set(&format!("log-level = \"{level}\""));
        let run = case.run(&[]);
        assert!(run.output.status.success(), "{}", run.stderr());
        case.world.log()
    };
    let usual = log("info");
    assert!(!usual.contains("giving "), "{usual}");
    let log = log("debug");
    for text in [
        "devices 0 by NVIDIA_VISIBLE_DEVICES",
        "driver capabilities compute,display,graphics,ngx,utility,video (",
        "giving {",
        "libcuda.so.",
        "missing library ",
    ] {
        assert!(log.contains(text), "{text}: {log}");
    }
    assert!(!log.contains("/dev/nvidia1"), "{log}");
}

fn messages_name_what_is_wrong() {
    // An expression of an image.
    let env = ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=x"];
    let case = Case::new("jit-cdi", "", &env);
    assert!(case.run(&[]).output.status.success());
    let log = case.world.log();
    assert!(log.contains("invalid expression (`cuda>=x'"), "{log}");
    let case = Case::new("legacy", "", &env);
    let run = case.run(&[]);
    let text = run.line(&format!("<27>{HOOK}: container c1: "));
    assert!(
        text.contains("invalid expression (hint: `cuda>=x'"),
        "{text}"
    );
    // Names with a kind and without.
    let case = Case::new(
        "jit-cdi",
        "",
        &["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0,1"],
    );
    case.run(&[]);
    let error = case.error();
    assert!(
        error.contains("(hint: 1 has no kind: give each name one"),
        "{error}"
    );
    // An invalid mode.
    let case = Case::new("legcy", "", &["NVIDIA_VISIBLE_DEVICES=0"]);
    case.run(&[]);
    let error = case.error();
    assert!(error.contains("invalid mode \"legcy\" (hint: "), "{error}");
    assert!(error.contains("did you mean legacy?"), "{error}");
    // A read-only file system.
    let mut set = Command::new("unshare");
    let ctk = case.world.command("nvidia-ctk");
    let script =
        "mount --bind \"$1\" \"$1\" && mount -o remount,ro,bind \"$1\" && shift && exec \"$@\"";
    set.args(["--mount", "sh", "-c", script, "sh"])
        .arg(case.world.path(""))
        .arg(ctk.get_program())
        .args([
            "config",
            "--set",
            "disable-require=true",
            "--in-place",
            "--config-file",
        ])
        .arg(case.config());
    let said = String::from_utf8(set.output().unwrap().stderr).unwrap();
    assert!(said.contains("read-only file system"), "{said}");
    assert!(
        said.contains("hint: its file system is read-only"),
        "{said}"
    );
    // A directory of root's.
    let drop_in = "--drop-in-config=/etc/nvc-none/x.toml";
    let mut configure = Command::new("setpriv");
    configure
        .args(["--reuid=65534", "--clear-groups"])
        .arg(ctk.get_program());
    configure.args(["runtime", "configure", "--runtime=crio", drop_in]);
    let said = String::from_utf8(configure.output().unwrap().stderr).unwrap();
    assert!(
        said.contains("mkdir failed: /etc/nvc-none: permission denied"),
        "{said}"
    );
    assert!(said.contains("hint: run the command as root"), "{said}");
    // A directory instead of a file.
    let mut generate = case.world.command("nvidia-ctk");
    generate.args(["cdi", "generate", "--output=/etc/"]);
    let said = String::from_utf8(generate.output().unwrap().stderr).unwrap();
    assert!(
        said.contains("hint: name a file in it: /etc/nvidia.yaml"),
        "{said}"
    );
    // A runtime that is not there, and a file that is no text.
    let text = fs::read_to_string(case.config()).unwrap();
    let runtimes = text
        .lines()
        .find(|line| line.starts_with("runtimes"))
        .unwrap();
    fs::write(
        case.config(),
        text.replace(runtimes, "runtimes = [\"nvc-none\"]"),
    )
    .unwrap();
    let _ = fs::remove_file(case.log_file());
    case.run(&[]);
    let error = case.error();
    assert!(
        error.contains("(hint: name the engine's runtime with its path in"),
        "{error}"
    );
    fs::write(case.config(), b"\xff").unwrap();
    let _ = fs::remove_file(case.log_file());
    case.run(&[]);
    let error = case.error();
    assert!(
        error.contains(&format!("{}: it is not UTF-8", case.config().display())),
        "{error}"
    );
    // A broken file, once.
    fs::write(case.config(), "x = \n").unwrap();
    let output = case.world.command("nvidia-ctk").arg("doctor").output();
    let said = String::from_utf8(output.unwrap().stderr).unwrap();
    let file = case.config().display().to_string();
    assert!(
        said.lines().all(|line| line.matches(&file).count() <= 1),
        "{said}"
    );
}

/// What keeps GPUs attached matters, not which way an administrator has chosen for that.
fn persistence_mode_needs_no_daemon() {
    let case = Case::new("legacy", "", &["NVIDIA_VISIBLE_DEVICES=0"]);
    let driver = Builder::default()
        .majors(case.world.driver.majors())
        .build(case.world.path("another"))
        .unwrap();
    let other = case.world.driver.root();
    case.world.set_root(other, driver.root());
    for place in ["run", "var/run"] {
        let _ = fs::remove_dir_all(driver.root().join(place).join("nvidia-persistenced"));
    }
    let ctk = case.world.command("nvidia-ctk");
    let said = || {
        let mut doctor = Command::new("unshare");
        let without_sockets = "mount -t tmpfs tmpfs /run; exec \"$0\" doctor";
        doctor
            .args(["--mount", "sh", "-c", without_sockets])
            .arg(ctk.get_program())
            .env("NVIDIA_CTK_CONFIG_FILE_PATH", case.config());
        String::from_utf8(doctor.output().unwrap().stdout).unwrap()
    };
    let daemon = "nvidia-persistenced is installed and does not run";
    assert!(said().contains(daemon), "{}", said());
    fs::write(driver.path("/etc/nvidia-sim/readings"), "persistence=1\n").unwrap();
    assert!(!said().contains("nvidia-persistenced"), "{}", said());
    let is_ok = |line: &str| line.starts_with("ok ") && line.ends_with(" persistence");
    assert!(said().lines().any(is_ok), "{}", said());
}
