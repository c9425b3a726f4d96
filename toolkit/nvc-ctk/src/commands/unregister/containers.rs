//! Finds running containers of the NVIDIA runtime: without it, their engine cannot stop them.
//!
//! containerd, and so docker, notes the runtime's program in a container's bundle; root's conmon, of CRI-O and podman, has
//! it on its command line. Processes of other users are not read: their memory can be a file of a filesystem that does
//! not answer.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::programs::Programs;
use crate::engine::daemon::is_of;
use crate::engine::read;

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

/// A running container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Container {
    engine: String,
    id: String,
    /// Its first process, if known.
    pid: Option<u32>,
}

/// Where docker keeps its containers.
const DOCKER: &str = "var/lib/docker/containers";

/// Returns a warning for each engine with running containers of these programs. `root` is `/`, except in tests.
pub(super) fn running(root: &Path, programs: &Programs<'_>) -> Vec<String> {
    let containers = containers(root, programs);
    let by_engine = containers.chunk_by(|one, other| one.engine == other.engine);
    by_engine.map(warning).collect()
}

/// Returns the warning for an engine's containers.
fn warning(containers: &[Container]) -> String {
    let engine = &containers[0].engine;
    let ids: Vec<_> = containers.iter().map(|one| one.id.as_str()).collect();
    let pids: Vec<_> = containers.iter().filter_map(|one| one.pid).collect();
    let pids: String = pids.iter().map(|pid| format!(" {pid}")).collect();
    // Their first processes need not have a handler for another signal, and then do not get it.
    let later = (!pids.is_empty()).then(|| format!(", or later: kill -KILL{pids}"));
    format!(
        "running containers of {engine} use a runtime that is being removed, without which {engine} cannot stop them: {}; \
         stop them first{}",
        ids.join(", "),
        later.unwrap_or_default()
    )
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

/// What docker notes of a container.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Settings {
    name: String,
}

/// Returns the name of docker's container, as `docker ps` shows it.
fn name_of(root: &Path, id: &str) -> Option<String> {
    let file = root.join(DOCKER).join(id).join("config.v2.json");
    let settings: Settings = serde_json::from_str(&text(&file)?).ok()?;
    Some(settings.name.trim_start_matches('/').into())
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
    read(path).ok().flatten()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_has_one_line() {
        let of = |engine: &str, id: &str, pid: Option<u32>| Container {
            engine: engine.into(),
            id: id.into(),
            pid,
        };
        let start = "running containers of docker use a runtime that is being removed, without which docker cannot stop them";
        let two = [of("docker", "a", Some(7)), of("docker", "b", Some(8))];
        assert_eq!(
            warning(&two),
            format!("{start}: a, b; stop them first, or later: kill -KILL 7 8")
        );
        let line = warning(&[of("podman", "a", None)]);
        assert!(line.ends_with("stop them: a; stop them first"), "{line}");
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
