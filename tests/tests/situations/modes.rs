//! Gives a container GPUs in one of the ways that there are, and lets it look around.

use std::fs;
use std::process::Command;

use nvc_testkit::files;
use serde_json::{Value, json};

use super::expectation::Found;
use super::machine::{BIN, Machine, printed};
use super::row::{Row, Volume};

/// A way to give a container GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// `nvidia-container-cli configure`, called by a hook of somebody else.
    Configure,
    /// The prestart hook, with a plain runtime.
    Hook,
    /// Our runtime in mode legacy, which adds that hook.
    Legacy,
    /// Our runtime in mode jit-cdi.
    Jit,
    /// A specification that lists files, and our runtime in mode cdi, which does what engines do.
    Specification,
    /// The same with `--style=live`.
    Live,
}

pub(crate) use Mode::{Configure, Hook, Jit, Legacy, Live, Specification};

/// All ways.
pub(crate) const MODES: [Mode; 6] = [Configure, Hook, Legacy, Jit, Specification, Live];

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Configure => "configure",
            Hook => "hook",
            Legacy => "legacy",
            Jit => "jit-cdi",
            Specification => "specification",
            Live => "live",
        }
    }

    /// The runtime's mode.
    fn of_runtime(self) -> &'static str {
        match self {
            Configure | Hook | Legacy => "legacy",
            Jit => "jit-cdi",
            Specification | Live => "cdi",
        }
    }
}

/// Where the hook of somebody else leaves what `configure` says: runc drops what a hook prints.
const SAID: &str = "/tmp/said";

/// Runs a container that looks around.
pub(crate) fn run(machine: &Machine, row: &Row, mode: Mode) -> Found {
    configure(machine, row, mode);
    machine.forget();
    if let Some((before, _)) = &row.service {
        before(&machine.driver);
    }
    let mut said = prepare(machine, row, mode);
    if let Some((_, later)) = &row.service {
        later(&machine.driver);
    }
    bundle(machine, row, mode);
    let runtime = match mode {
        Configure | Hook => "sim-runc",
        _ => "nvidia-container-runtime",
    };
    let (program, name) = (format!("{BIN}/{runtime}"), machine.name());
    let words = ["--root=/tmp/runc", "run", "--bundle=/bundle", &name];
    let output = machine.run(row, &[&[program.as_str()], &words[..]].concat());
    said += &String::from_utf8_lossy(&output.stderr);
    said += &machine.log();
    let left = machine.driver.path(SAID);
    said += &fs::read_to_string(&left).unwrap_or_default();
    let _ = fs::remove_file(left);
    Found {
        succeeded: output.status.success(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        said,
    }
}

/// Writes config.toml.
fn configure(machine: &Machine, row: &Row, mode: Mode) {
    let text = format!(
        "[nvidia-container-cli]\npath = \"{BIN}/nvidia-container-cli\"\nload-kmods = false\nno-cgroups = true\n{}\n\
         [nvidia-ctk]\npath = \"{BIN}/nvidia-cdi-hook\"\n\
         [nvidia-container-runtime]\nmode = \"{}\"\nruntimes = [\"{BIN}/sim-runc\"]\n\
         [nvidia-container-runtime-hook]\npath = \"{BIN}/nvidia-container-runtime-hook\"\n",
        row.cli,
        mode.of_runtime()
    );
    let file = machine
        .driver
        .path("/etc/nvidia-container-runtime/config.toml");
    files::file(&file, text, 0o644).unwrap();
}

/// Writes the specification; returns what the program says.
fn prepare(machine: &Machine, row: &Row, mode: Mode) -> String {
    let _ = fs::remove_file(machine.driver.path("/etc/cdi/nvidia.json"));
    let style: &[&str] = match mode {
        Specification => &[],
        Live => &["--style=live"],
        _ => return String::new(),
    };
    let hook = format!("--nvidia-cdi-hook-path={BIN}/nvidia-cdi-hook");
    let words = [
        "nvidia-ctk",
        "cdi",
        "generate",
        "--output=/etc/cdi/nvidia.json",
        &hook,
    ];
    let ids: Vec<String> = row
        .devices
        .split(',')
        .map(|id| format!("--device-id={id}"))
        .collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let output = machine.run(row, &[&words[..], style, &ids].concat());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Makes the bundle anew.
fn bundle(machine: &Machine, row: &Row, mode: Mode) {
    let at = |path: &str| machine.driver.path(path);
    let root = at("/bundle/rootfs");
    for old in ["/bundle", "/volumes"] {
        let _ = fs::remove_dir_all(at(old));
        files::directory(&at(old)).unwrap();
    }
    printed(Command::new("cp").arg("-a").arg(machine.image()).arg(&root));
    let devices = match mode {
        Specification | Live => "nvidia.com/gpu=all",
        _ => row.devices,
    };
    let words = row.expected(mode);
    let words = words.words().map(|word| machine.driver.fill(word));
    let words: Vec<String> = std::iter::once("/look".into()).chain(words).collect();
    let mut config = json!({
        "ociVersion": "1.0.2",
        "process": {
            "args": words,
            "cwd": "/",
            "user": { "uid": 0, "gid": 0 },
            "env": [
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                format!("NVIDIA_VISIBLE_DEVICES={devices}"),
                format!("NVIDIA_DRIVER_CAPABILITIES={}", row.capabilities),
            ],
        },
        "root": { "path": "rootfs" },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] },
        ],
        "linux": { "namespaces": [{ "type": "mount" }, { "type": "pid" }, { "type": "ipc" }] },
    });
    for (number, volume) in row.volumes.iter().enumerate() {
        add_volume(machine, &mut config, number, *volume);
    }
    let hook = match mode {
        Configure => Some(json!({ "path": "/bundle/hook", "args": ["hook"] })),
        Hook => {
            let program = format!("{BIN}/nvidia-container-runtime-hook");
            let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
            let path = match row.path {
                "" => path.to_owned(),
                first => path.replacen('=', &format!("={first}:"), 1),
            };
            let variable = row.variable.map(|(name, value)| format!("{name}={value}"));
            let env: Vec<String> = std::iter::once(path).chain(variable).collect();
            Some(json!({ "path": program, "args": ["hook", "prestart"], "env": env }))
        }
        _ => None,
    };
    if let Some(hook) = hook {
        config["hooks"] = json!({ "prestart": [hook] });
    }
    for change in &row.container {
        change(&mut config);
    }
    fs::write(at("/bundle/config.json"), config.to_string()).unwrap();
    files::file(&at("/bundle/hook"), by_hand(row), 0o755).unwrap();
}

fn add_volume(machine: &Machine, config: &mut Value, number: usize, volume: Volume) {
    let fill = |at: &str| machine.driver.fill(at);
    let source = format!("/volumes/{number}");
    let (source, at, option) = match volume {
        Volume::Copy(at) => (source, at, "rw"),
        Volume::ReadOnly(at) => (source, at, "ro"),
        Volume::Empty(at) => {
            files::directory(&machine.driver.path(&source)).unwrap();
            (source, at, "rw")
        }
        Volume::File(host, at) => (machine.driver.fill(host), at, "rw"),
    };
    if matches!(volume, Volume::Copy(_) | Volume::ReadOnly(_)) {
        let of_image = files::below(&machine.image(), fill(at).as_ref());
        let to = machine.driver.path(&source);
        printed(Command::new("cp").arg("-a").arg(of_image).arg(to));
    }
    let at = fill(at);
    let mount = json!({ "destination": at, "type": "bind", "source": source, "options": ["rbind", option] });
    config["mounts"].as_array_mut().unwrap().push(mount);
}

/// A hook of somebody else that calls `configure`, as programs do that do not use ours.
fn by_hand(row: &Row) -> String {
    let capabilities = match row.capabilities {
        "all" => "--compute --utility --graphics --display --video --ngx --compat32".to_owned(),
        words => words.split(',').map(|word| format!(" --{word}")).collect(),
    };
    format!(
        "#!/bin/sh\npid=$(sed 's/.*\"pid\": *\\([0-9]*\\).*/\\1/')\nPATH={}:/usr/sbin:/usr/bin:/sbin:/bin\n\
         {}{BIN}/nvidia-container-cli configure --no-cgroups --pid=$pid --device={} {capabilities} /bundle/rootfs 2> {SAID} || \
         {{ cat {SAID} >&2; exit 1; }}\n",
        match row.path {
            "" => "/usr/local/bin",
            first => first,
        },
        row.variable
            .map_or(String::new(), |(name, value)| format!("{name}={value} ")),
        row.devices
    )
}
