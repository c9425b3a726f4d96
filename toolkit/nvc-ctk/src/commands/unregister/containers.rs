//! Finds running containers of the NVIDIA runtime: without it, their engine cannot stop them.
//!
//! containerd, and so docker, notes the runtime's program in a container's bundle; root's conmon, of CRI-O and podman, has
//! it on its command line. Processes of other users are not read: their memory can be a file of a filesystem that does
//! not answer.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::programs::Programs;
use crate::engine::change;
use crate::engine::daemon::is_of;

/// Bundles of running containers, as `NAMESPACE/ID` below these directories.
const BUNDLES: [&str; 3] = [
    "run/containerd/io.containerd.runtime.v2.task",
    "run/docker/containerd/daemon/io.containerd.runtime.v2.task",
    "run/k3s/containerd/io.containerd.runtime.v2.task",
];

/// Namespace of docker's containers in containerd.
const DOCKERS: &str = "moby";

/// The name of the process that watches over a container of CRI-O or Podman.
const CONMON: &str = "conmon";

/// The number of containers that a message names.
const NAMED: usize = 5;

/// A running container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Container {
    engine: String,
    id: String,
    /// Its first process, if known.
    pid: Option<u32>,
}

/// The running containers of an engine. There can be any number: a user can have many processes named conmon.
#[derive(Debug)]
pub(super) struct Running(Vec<Container>);

impl fmt::Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Container { engine, .. }) = self.0.first() else {
            return Ok(());
        };
        let listed = |of: &dyn Fn(&Container) -> Option<String>, between| {
            let words: Vec<String> = self.0.iter().take(NAMED).filter_map(of).collect();
            words.join(between)
        };
        let ids = listed(&|container| Some(container.id.clone()), ", ");
        let more = match self.0.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let (containers, use_, it) = match self.0.len() {
            1 => ("container", "uses", "it"),
            _ => ("containers", "use", "them"),
        };
        write!(
            f,
            "{containers} {ids}{more} of {engine} {use_} a runtime that is being removed, without which {engine} cannot stop \
             {it}: stop {it} first"
        )?;
        let pids = listed(&|container| Some(container.pid?.to_string()), " ");
        if pids.is_empty() || !more.is_empty() {
            return Ok(());
        }
        // Their first processes need not have a handler for another signal, and then do not get it.
        write!(f, ", or later: kill -KILL {pids}")
    }
}

/// Where docker keeps its containers.
const DOCKER: &str = "var/lib/docker/containers";

/// Returns the running containers of these programs, by engine. `root` is `/`, except in tests.
pub(super) fn running(root: &Path, programs: &Programs<'_>) -> Vec<Running> {
    by_engine(containers(root, programs))
}

/// Puts the containers of each engine together; they are sorted.
fn by_engine(containers: Vec<Container>) -> Vec<Running> {
    let mut engines: Vec<Running> = Vec::new();
    for container in containers {
        match engines.last_mut() {
            Some(Running(of)) if of[0].engine == container.engine => of.push(container),
            _ => engines.push(Running(vec![container])),
        }
    }
    engines
}

fn containers(root: &Path, programs: &Programs<'_>) -> Vec<Container> {
    let mut found: Vec<Container> = BUNDLES
        .iter()
        .flat_map(|top| entries(&root.join(top)))
        .flat_map(|namespace| entries(&namespace))
        .filter_map(|bundle| of_bundle(root, &bundle, programs))
        .collect();
    let is_conmon = |process: &PathBuf| {
        text(&process.join("comm")).is_some_and(|name| name.trim_end() == CONMON)
            && text(&process.join("status")).is_some_and(|status| is_of(&status, &[0]))
    };
    let conmons = entries(&root.join("proc")).into_iter().filter(is_conmon);
    found.extend(
        conmons.filter_map(|process| of_conmon(&text(&process.join("cmdline"))?, programs)),
    );
    found.sort();
    found
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn of_bundle(root: &Path, bundle: &Path, programs: &Programs<'_>) -> Option<Container> {
    let runtime = text(&bundle.join("runtime"))?;
    programs.include(runtime.trim()).then_some(())?;
    let pid: u32 = text(&bundle.join("init.pid"))?.trim().parse().ok()?;
    let is_running = root.join("proc").join(pid.to_string()).exists();
    let namespace = bundle.parent()?.file_name()?.to_string_lossy();
    let engine = match &*namespace {
        DOCKERS => "docker",
        _ => "containerd",
    };
    let id = bundle.file_name()?.to_string_lossy().into_owned();
    let name = (engine == "docker").then(|| name_of(root, &id)).flatten();
    is_running.then(|| Container {
        engine: engine.into(),
        id: name.unwrap_or(id),
        pid: Some(pid),
    })
}

/// Returns the name of docker's container, as `docker ps` shows it.
fn name_of(root: &Path, id: &str) -> Option<String> {
    let file = root.join(DOCKER).join(id).join("config.v2.json");
    let settings: serde_json::Value = serde_json::from_str(&text(&file)?).ok()?;
    let name = settings.get("Name")?.as_str()?;
    Some(name.trim_start_matches('/').into())
}

/// Nothing that its command line says is looked up.
fn of_conmon(line: &str, programs: &Programs<'_>) -> Option<Container> {
    let words: Vec<&str> = line.split('\0').collect();
    let program = Path::new(words.first()?).file_name()?;
    (program == CONMON).then_some(())?;
    let value = |short: &str, long: &str| {
        let pairs = words.windows(2);
        let mut pairs = pairs.filter(|pair| pair[0] == short || pair[0] == long);
        pairs.next().map(|pair| pair[1])
    };
    programs.include(value("-r", "--runtime")?).then_some(())?;
    let id = value("-c", "--cid")?;
    let is_plain = id.chars().all(|c| c.is_ascii_alphanumeric());
    is_plain.then(|| Container {
        engine: "podman or CRI-O".into(),
        id: id.into(),
        pid: None,
    })
}

fn text(path: &Path) -> Option<String> {
    change::read(path).ok().flatten()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Any user can have thousands of processes named conmon.
    #[test]
    fn an_engine_has_one_line() {
        let of = |engine: &str, count: u32, pid: Option<u32>| {
            let container = |n: u32| Container {
                engine: engine.into(),
                id: format!("c{n}"),
                pid: pid.map(|pid| pid + n),
            };
            (0..count).map(container).collect::<Vec<_>>()
        };
        let lines = |containers: Vec<Vec<Container>>| {
            let lines = by_engine(containers.concat()).into_iter();
            lines.map(|line| line.to_string()).collect::<Vec<_>>()
        };
        let uses = "a runtime that is being removed, without which";
        assert_eq!(
            lines(vec![
                of("containerd", 2, Some(10)),
                of("docker", 1, Some(7)),
                of("podman", 1, None)
            ]),
            [
                format!(
                    "containers c0, c1 of containerd use {uses} containerd cannot stop them: stop them first, or later: \
                     kill -KILL 10 11"
                ),
                format!(
                    "container c0 of docker uses {uses} docker cannot stop it: stop it first, or later: kill -KILL 7"
                ),
                format!("container c0 of podman uses {uses} podman cannot stop it: stop it first"),
            ]
        );
        assert_eq!(
            lines(vec![of("docker", 5000, Some(1))]),
            [format!(
                "containers c0, c1, c2, c3, c4 and 4995 more of docker use {uses} docker cannot stop them: stop them first"
            )]
        );
    }

    #[test]
    fn running_containers_are_named() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().canonicalize().unwrap();
        let names = ["nvidia-container-runtime"];
        let own = root.join("bin");
        let programs = Programs::new(&own, &names);
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let ours = own.join(names[0]).display().to_string();
        for (bundle, runtime, pid) in [
            ("moby/one", &*ours, "17"),
            ("k8s.io/two", &ours, "18"),
            ("k8s.io/gone", &ours, "19"),
            ("k8s.io/other", "runc", "17"),
            ("k8s.io/built-in", "", "17"),
        ] {
            put(&format!("{}/{bundle}/runtime", BUNDLES[0]), runtime);
            put(&format!("{}/{bundle}/init.pid", BUNDLES[0]), pid);
        }
        let line = |id: &str, runtime: &str| {
            format!("/usr/bin/conmon\0--api-version\x001\0-c\0{id}\0-r\0{runtime}\0-p\0/p\0")
        };
        put("proc/17/cmdline", "sleep\0");
        put("proc/18/cmdline", &line("no", "/usr/bin/crun"));
        put("proc/21/cmdline", &line("three", &ours));
        put("proc/22/cmdline", &line("x; reboot", &ours));
        put("proc/23/cmdline", &line("another", &ours));
        for pid in [18, 21, 22] {
            put(&format!("proc/{pid}/comm"), "conmon\n");
        }
        // Its user lets nobody read its memory.
        put("proc/1/comm", "conmon\n");
        put("proc/1/status", "Uid:\t7\t7\t7\t7\n");
        put(
            &format!("{DOCKER}/one/config.v2.json"),
            "{\"ID\": \"one\", \"Name\": \"/web\"}",
        );
        let ids = "Name:\tconmon\nUid:\t0\t0\t0\t0\n";
        put("proc/21/status", ids);
        let fifo = nix::sys::stat::Mode::S_IRWXU;
        nix::unistd::mkfifo(&root.join("proc/1/cmdline"), fifo).unwrap();
        let found: Vec<String> = containers(&root, &programs)
            .into_iter()
            .map(|found| format!("{} {} {:?}", found.engine, found.id, found.pid))
            .collect();
        let expected = [
            "containerd two Some(18)",
            "docker web Some(17)",
            "podman or CRI-O three None",
        ];
        assert_eq!(found, expected);
    }
}
