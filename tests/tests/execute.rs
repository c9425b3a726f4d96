//! Tests how programs become another program, and how they end when their reader has gone.
//!
//! execvp(3) gives a file that is no program to a shell, as root; an empty one then "succeeds", and an engine believes
//! that the container was created.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use nvc_testkit::cli;
use nvc_testkit::files;

/// Files with the right to be executed that are no programs.
const NO_PROGRAMS: [&str; 2] = ["", "touch ran\nexit 0\n"];

fn program(name: &str) -> Command {
    Command::new(cli::beside(name).expect("it is beside the tests"))
}

/// Runs our runtime with this file as the real one.
fn create(runtime: &Path) -> Output {
    run(create_command(runtime))
}

fn run(mut command: Command) -> Output {
    let output = command.output();
    output.expect("cargo build --workspace comes first")
}

fn create_command(runtime: &Path) -> Command {
    let directory = runtime.parent().expect("a directory");
    let config = directory.join("config.toml");
    let text = format!(
        "[nvidia-container-runtime]\nmode = \"legacy\"\nruntimes = [\"{}\"]\n",
        runtime.display()
    );
    fs::write(&config, text).expect("a configuration");
    let spec = r#"{"ociVersion": "1.0.2", "process": {"args": ["sh"], "cwd": "/"}, "root": {"path": "rootfs"}}"#;
    fs::write(directory.join("config.json"), spec).expect("a config.json");
    let mut command = program("nvidia-container-runtime");
    command.args(["create", "--bundle"]).arg(directory);
    command.arg("name").current_dir(directory);
    command.env("NVIDIA_CTK_CONFIG_FILE_PATH", config);
    command
}

/// Runs nvidia-docker with this file as docker: by its path, or by its name in PATH.
fn docker(path: &Path, by_name: bool) -> Output {
    run(docker_command(path, by_name))
}

fn docker_command(path: &Path, by_name: bool) -> Command {
    let directory = path.parent().expect("a directory");
    let mut command = program("nvidia-docker");
    if by_name {
        let name = path.file_name().expect("a name");
        command.env("NV_DOCKER", name).env("PATH", directory);
    } else {
        command.env("NV_DOCKER", path);
    }
    command.args(["ps", "--all"]).current_dir(directory);
    command
}

#[test]
fn no_shell_runs_what_is_no_program() {
    for text in NO_PROGRAMS {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("program");
        files::file(&path, text, 0o755).expect("a file");
        for output in [create(&path), docker(&path, false), docker(&path, true)] {
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            let shown = String::from_utf8_lossy(&output.stderr).to_ascii_lowercase();
            assert!(shown.contains("exec format error"), "{output:?}");
        }
        assert!(!directory.path().join("ran").exists(), "a shell read it");
    }
}

/// Returns a command that runs this one with closed standard streams.
fn without_streams(command: &Command) -> Command {
    let mut shell = Command::new("/bin/sh");
    let shell_words = ["-c", "exec \"$0\" \"$@\" <&- >&- 2>&-"];
    shell.args(shell_words).arg(command.get_program());
    shell.args(command.get_args());
    for (name, value) in command.get_envs() {
        shell.env(name, value.expect("it is set"));
    }
    if let Some(directory) = command.get_current_dir() {
        shell.current_dir(directory);
    }
    shell
}

/// A closed stream would be the next file that we open, in which lines for the user would end up.
#[test]
fn closed_streams_lead_nowhere() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("program");
    let seen = directory.path().join("seen");
    let text =
        "#!/bin/sh\nexec 9> seen\n(exec >&9; readlink /proc/$$/fd/0 /proc/$$/fd/1 /proc/$$/fd/2)\n";
    files::file(&path, text, 0o755).expect("a script");
    for command in [create_command(&path), docker_command(&path, false)] {
        let status = without_streams(&command).status().expect("a shell");
        assert_eq!(status.code(), Some(0), "{command:?}");
        let seen = fs::read_to_string(&seen).expect("the script wrote it");
        assert_eq!(seen, "/dev/null\n".repeat(3), "{command:?}");
    }
}

/// Rust's run time ignores SIGPIPE, and programs inherit what is ignored.
#[test]
fn programs_that_we_become_have_the_usual_signals() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("program");
    let text = "#!/bin/sh\nexec /bin/grep SigIgn: /proc/self/status\n";
    files::file(&path, text, 0o755).expect("a script");
    for output in [create(&path), docker(&path, false), docker(&path, true)] {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mask = text.trim().rsplit('\t').next().map(str::to_owned);
        let mask = u64::from_str_radix(&mask.unwrap_or_default(), 16);
        let mask = mask.unwrap_or_else(|_| panic!("{output:?}"));
        assert_eq!(mask & 1 << (nix::libc::SIGPIPE - 1), 0, "{output:?}");
    }
}

#[test]
fn programs_end_quietly_without_a_reader() {
    for (name, words) in [
        ("nvidia-container-cli", &["--help"][..]),
        ("nvidia-container-cli", &["--version"]),
        ("nvidia-container-runtime-hook", &["-version"]),
        ("nvidia-ctk", &["--help"]),
        ("nvidia-ctk", &["config"]),
        ("nvidia-cdi-hook", &["--help"]),
    ] {
        let (reader, writer) = nix::unistd::pipe().expect("a pipe");
        drop(reader);
        let output = program(name)
            .args(words)
            .stdout(Stdio::from(writer))
            .stderr(Stdio::piped())
            .env("PATH", "/no/such/directory")
            .output()
            .expect("cargo build --workspace comes first");
        let shown = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!shown.contains("panicked"), "{name}: {shown}");
        assert_eq!(output.status.code(), Some(0), "{name}: {output:?}");
    }
}
