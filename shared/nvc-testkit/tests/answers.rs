//! Compares the simulated NVML's answers with `answers.table`, and lets a program use it that knows only nvml.h.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nvc_testkit::compile::{Source, compiled};
use nvc_testkit::profile::layout::What;
use nvc_testkit::profile::{Fault, Link, Profile};

/// A machine of the table.
#[derive(Default)]
struct State {
    profile: String,
    forbidden: Vec<String>,
    is_uninitialized: bool,
}

/// A line of the table: where it is, the call, the state, the answer.
struct Row {
    line: usize,
    call: String,
    state: String,
    answer: String,
}

fn table() -> (BTreeMap<String, State>, Vec<Row>) {
    let mut states: BTreeMap<String, State> = BTreeMap::new();
    let (mut rows, mut call, mut current) = (Vec::new(), None, String::new());
    for (number, text) in include_str!("answers.table").lines().enumerate() {
        let content = text.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        if let Some(name) = text.strip_prefix("state ") {
            current = name.into();
            states.insert(current.clone(), State::default());
        } else if !text.starts_with(' ') {
            call = Some(content.to_owned());
        } else if let Some(call) = &call {
            let (state, answer) = content.split_once(' ').unwrap();
            rows.push(Row {
                line: number + 1,
                call: call.clone(),
                state: state.into(),
                answer: answer.trim().into(),
            });
        } else {
            let state = states.get_mut(&current).unwrap();
            match content.split_once(' ') {
                Some(("forbidden", node)) => state.forbidden.push(node.into()),
                Some(("real", name)) => {
                    state.profile = Profile::real(name).unwrap().to_string();
                }
                _ if content == "uninitialized" => state.is_uninitialized = true,
                _ => state.profile += &format!("{content}\n"),
            }
        }
    }
    (states, rows)
}

/// A library that reads its profile, events and nodes in the current directory, which its callers have as this one.
fn library(directory: &Path, profile: &Profile) -> PathBuf {
    let mut arguments: Vec<String> = [
        ("PROFILE", "profile"),
        ("EVENTS", "events"),
        ("READINGS", "readings"),
        ("NODES", "."),
    ]
    .map(|(name, file)| format!("-D{name}=\"{file}\""))
    .to_vec();
    for fault in &profile.faults {
        if let Fault::Missing(symbol) = fault {
            arguments.push(format!("-D{symbol}=absent_{symbol}"));
        }
    }
    fs::write(directory.join("profile"), profile.to_string()).unwrap();
    fs::write(directory.join("events"), "").unwrap();
    for change in &profile.layout.changes {
        if let What::File { text, .. } = &change.what
            && change.path == "/etc/nvidia-sim/readings"
        {
            fs::write(directory.join("readings"), text).unwrap();
        }
    }
    fs::write(directory.join("nvidiactl"), "").unwrap();
    let path = directory.join("libnvidia-ml.so.1");
    fs::write(
        &path,
        compiled(Source::Nvml, &arguments).unwrap().as_slice(),
    )
    .unwrap();
    path
}

fn program(source: Source, directory: &Path) -> PathBuf {
    let path = directory.join("program");
    fs::write(&path, compiled(source, &[]).unwrap().as_slice()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Replaces {gpu0}, {mig1} and so on by UUIDs.
fn fill(answer: &str, profile: &Profile) -> String {
    let gpus = profile.gpus.iter().enumerate();
    let filled = gpus.fold(answer.to_owned(), |text, (n, gpu)| {
        text.replace(&format!("{{gpu{n}}}"), &gpu.uuid)
    });
    let migs = profile.mig_devices.iter().enumerate();
    migs.fold(filled, |text, (n, mig)| {
        text.replace(&format!("{{mig{n}}}"), &mig.uuid)
    })
}

/// Returns the answers to calls in a state, each in a process of its own.
fn answers(state: &State, profile: &Profile, calls: &[&Row]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let library = library(directory.path(), profile);
    let program = program(Source::NvmlAsk, directory.path());
    let ask = |row: &&Row| {
        let mut child = Command::new(&program)
            .current_dir(directory.path())
            .arg(&library)
            .args(&state.forbidden)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let init = if state.is_uninitialized {
            ""
        } else {
            "nvmlInit_v2\n"
        };
        let text = format!("{init}{}\n", row.call);
        child
            .stdin
            .take()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().last().unwrap_or_default().trim().to_owned()
    };
    calls.iter().map(ask).collect()
}

#[test]
fn every_answer_is_that_of_the_table() {
    let (states, rows) = table();
    let is_root = nix::unistd::geteuid().is_root();
    let mut wrong = Vec::new();
    for (name, state) in &states {
        let text = format!("driver=570.124.06\ncuda=12080\n{}", state.profile);
        let profile = Profile::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let needs_root = |row: &&Row| {
            let words = ["InstanceById", "nvmlGpuInstance", "nvmlComputeInstance"];
            words.iter().any(|word| row.call.contains(word))
        };
        let own = rows.iter().filter(|row| row.state == *name);
        let own: Vec<&Row> = own.filter(|row| is_root || !needs_root(row)).collect();
        assert!(!own.is_empty(), "no row has the state {name}");
        for (row, answer) in own.iter().zip(answers(state, &profile, &own)) {
            let wanted = fill(&row.answer, &profile);
            if answer != wanted {
                let (line, call) = (row.line, &row.call);
                wrong.push(format!(
                    "line {line}, {call}, {name}: {answer}, not {wanted}"
                ));
            }
        }
    }
    assert!(
        rows.iter().all(|row| states.contains_key(&row.state)),
        "a row has an unknown state"
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs the program that knows only nvml.h, as this user or another.
fn call_as(user: Option<u32>, profile: &Profile) -> String {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let library = library(directory.path(), profile);
    let events = directory.path().join("events");
    fs::set_permissions(&events, fs::Permissions::from_mode(0o666)).unwrap();
    let mut command = Command::new(program(Source::NvmlCaller, directory.path()));
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    command.current_dir(directory.path());
    let output = command.arg(&library).arg(&events).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{profile}");
    text
}

#[test]
fn a_caller_that_knows_only_the_header_finds_no_contradiction() {
    let mut linked = Profile::of_size(3, 0);
    linked.links = [(0, 1), (1, 0)]
        .map(|(gpu, to)| Link {
            gpu,
            number: 2,
            to: Some(to),
        })
        .to_vec();
    let profiles = [
        Profile::without_gpus(),
        Profile::default(),
        Profile::orin_pair(),
        Profile::thor_pair(),
        Profile::of_size(2, 7),
        linked,
        nvc_testkit::profile::machines::machine(3),
    ];
    let users: &[Option<u32>] = if nix::unistd::geteuid().is_root() {
        &[None, Some(65534)]
    } else {
        &[None]
    };
    for profile in &profiles {
        for user in users {
            let text = call_as(*user, profile);
            let gpus = text.lines().filter(|line| line.starts_with("GPU ")).count();
            assert_eq!(gpus, profile.gpus.len(), "{text}");
            let migs = text.matches("  MIG device ").count();
            assert_eq!(migs, profile.mig_devices.len(), "{text}");
        }
    }
}
