//! Finds the command lines of an engine's daemon: that of its unit, with drop-ins and environment files, and that of
//! the running process.
//!
//! Options there name another file than the usual one, or contradict what a file says. systemd is not asked: the files
//! are read also where it does not run, as in an image, and a changed unit counts before it is loaded.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::libc::S_ISUID;
use nix::unistd::geteuid;
use nvc_hostfile::shell;

use super::matching;

/// Directories of units; a file in an earlier one hides those of its name in the others.
const DIRECTORIES: [&str; 5] = [
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
];

/// Returns true if this machine has a unit.
pub(crate) fn has_unit(name: &str) -> bool {
    let mut directories = DIRECTORIES.iter();
    directories.any(|directory| Path::new("/").join(directory).join(name).exists())
}

/// A daemon's command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DaemonLine {
    /// Its words, without the program.
    words: Vec<String>,
    /// Where it is written: a file and a line, or a process.
    pub(crate) origin: String,
}

impl DaemonLine {
    /// Returns the values of an option, given as `--NAME=VALUE`, `--NAME VALUE`, or with one dash and the short name.
    pub(crate) fn values(&self, long: &str, short: Option<char>) -> Vec<&str> {
        let short = short.map(|short| format!("-{short}"));
        let names = [Some(format!("--{long}")), short];
        let mut found = Vec::new();
        let mut words = self.words.iter();
        while let Some(word) = words.next() {
            for name in names.iter().flatten() {
                if word == name {
                    found.extend(words.as_slice().first().map(String::as_str));
                } else if let Some(value) = word.strip_prefix(name.as_str()) {
                    found.extend(value.strip_prefix('='));
                }
            }
        }
        found
    }
}

/// Returns the command lines of a daemon, such as `dockerd` of `docker.service`: first the running one's, then the unit's.
pub(crate) fn command_lines(program: &str, unit: &str) -> Vec<DaemonLine> {
    let running = running(program).into_iter().filter_map(|process| {
        let line = fs::read(process.join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let words = line.split('\0').skip(1).filter(|word| !word.is_empty());
        let pid = process.file_name()?.to_string_lossy().into_owned();
        Some(DaemonLine {
            words: words.map(Into::into).collect(),
            origin: format!("process {pid} ({program})"),
        })
    });
    let running = running.filter(|line| !is_of_docker(line));
    running.chain(of_unit(Path::new("/"), unit)).collect()
}

/// Returns true for the containerd that a dockerd starts if it finds none: it serves this dockerd alone, which writes its
/// file, below its run directory, at each start.
fn is_of_docker(line: &DaemonLine) -> bool {
    let mut files = line.values("config", Some('c')).into_iter();
    files.any(|file| file.ends_with("/docker/containerd/containerd.toml"))
}

/// Returns the processes of the system's daemons of this name, as directories of /proc.
///
/// They must belong to root, or for a rootless engine to the caller, because any user can give a process this name. A
/// setuid program is no daemon: sudo belongs to root while it asks a user for a password, and has the name and the words
/// that this user chose. They must have our mount namespace and our root directory: a daemon in a container or a snap has
/// others, and a container with the host's root as a volume can have the latter.
pub(crate) fn running(program: &str) -> Vec<PathBuf> {
    let identity = |path: &Path| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    let place = |process: &Path| {
        let namespace = identity(&process.join("ns/mnt"))?;
        Some((namespace, identity(&process.join("root"))?))
    };
    let ours = place(Path::new("/proc/self"));
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_it = |process: &PathBuf| {
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
        let status = || fs::read_to_string(process.join("status")).unwrap_or_default();
        name.trim_end() == program
            && is_of(&status(), &[0, geteuid().as_raw()])
            && fs::metadata(process.join("exe")).is_ok_and(|exe| exe.mode() & S_ISUID == 0)
            && ours.is_some()
            && place(process) == ours
    };
    processes.map(|entry| entry.path()).filter(is_it).collect()
}

/// Returns true if a text of /proc/PID/status says that all ids of the process are one of these users'.
pub(crate) fn is_of(status: &str, users: &[u32]) -> bool {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let is_all = |user: &u32, ids: &str| ids.split_whitespace().all(|id| id == user.to_string());
    ids.is_some_and(|ids| users.iter().any(|user| is_all(user, ids)))
}

/// Returns the command line of a unit below a root.
fn of_unit(root: &Path, unit: &str) -> Option<DaemonLine> {
    let directories = || DIRECTORIES.iter().map(|directory| root.join(directory));
    let main = directories().map(|directory| directory.join(unit));
    let main = main.into_iter().find(|path| path.exists())?;
    let mut drop_ins = BTreeMap::new();
    let patterns = directories().map(|directory| directory.join(format!("{unit}.d/*.conf")));
    for path in patterns.flat_map(|pattern| matching(&pattern)) {
        let name = path.file_name().unwrap_or_default().to_owned();
        drop_ins.entry(name).or_insert(path);
    }
    let mut service = Service::default();
    for path in [main].iter().chain(drop_ins.values()) {
        service.read(root, path);
    }
    let (line, origin) = service.start.take()?;
    let words = split(&line).into_iter().skip(1);
    let words = words.flat_map(|word| service.expanded(&word)).collect();
    Some(DaemonLine { words, origin })
}

/// Splits a line of a unit into words; one whose quotes have no end has none.
fn split(line: &str) -> Vec<String> {
    shell::words(line).unwrap_or_default()
}

/// What the files of a unit say.
#[derive(Debug, Default)]
struct Service {
    /// The last `ExecStart=`, with its file and line.
    start: Option<(String, String)>,
    environment: BTreeMap<String, String>,
}

impl Service {
    fn read(&mut self, root: &Path, path: &Path) {
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut lines = text.lines().enumerate();
        let mut is_service = false;
        while let Some((number, line)) = lines.next() {
            let mut line = line.trim().to_owned();
            while line.ends_with('\\') {
                line.pop();
                line += lines
                    .next()
                    .map(|(_, next)| next.trim())
                    .unwrap_or_default();
            }
            if line.starts_with('[') {
                is_service = line == "[Service]";
            }
            let Some((key, value)) = line.split_once('=').filter(|_| is_service) else {
                continue;
            };
            match (key.trim(), value.trim()) {
                ("ExecStart", "") => self.start = None,
                ("ExecStart", value) => {
                    let origin = format!("{}:{}", path.display(), number + 1);
                    self.start = Some((value.into(), origin));
                }
                ("Environment", "") => self.environment.clear(),
                ("Environment", value) => split(value).iter().for_each(|word| self.set(word)),
                ("EnvironmentFile", value) => {
                    let file = value.trim_start_matches('-').trim_start_matches('/');
                    let text = fs::read_to_string(root.join(file)).unwrap_or_default();
                    let is_setting = |line: &&str| !line.trim_start().starts_with(['#', ';']);
                    for line in text.lines().filter(is_setting) {
                        if let Some((name, value)) = line.split_once('=') {
                            let value = value.trim().trim_matches(['"', '\'']);
                            self.set(&format!("{}={value}", name.trim()));
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn set(&mut self, word: &str) {
        if let Some((name, value)) = word.split_once('=') {
            self.environment.insert(name.into(), value.into());
        }
    }

    /// Returns a word with its variables replaced; one that is a variable, `$NAME`, becomes that variable's words.
    fn expanded(&self, word: &str) -> Vec<String> {
        let value = |name: &str| self.environment.get(name).cloned().unwrap_or_default();
        let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if let Some(name) = word.strip_prefix('$').filter(|name| is_name(name)) {
            return split(&value(name));
        }
        let mut parts = word.split("${");
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            match part.split_once('}') {
                Some((name, rest)) => text += &(value(name) + rest),
                None => text += part,
            }
        }
        vec![text]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_daemons_of_root_and_of_the_caller_count() {
        let status = "Name:\tdockerd\nUid:\t1000\t1000\t1000\t1000\nGid:\t0\t0\t0\t0\n";
        assert!(is_of(status, &[0, 1000]));
        assert!(!is_of(status, &[0, 0]));
        assert!(is_of("Uid:\t0\t0\t0\t0\n", &[0, 1000]));
        // A program of root's that a user started, and that may be anything.
        assert!(!is_of("Uid:\t1000\t0\t0\t0\n", &[0, 1000]));
        assert!(!is_of("", &[0]));
    }

    #[test]
    fn dockers_own_containerd_is_not_the_machines() {
        let line = |file: &str| DaemonLine {
            words: vec!["--config".into(), file.into()],
            origin: String::new(),
        };
        assert!(is_of_docker(&line(
            "/var/run/docker/containerd/containerd.toml"
        )));
        assert!(is_of_docker(&line(
            "/run/user/1000/docker/containerd/containerd.toml"
        )));
        assert!(!is_of_docker(&line("/etc/containerd/config.toml")));
    }

    #[test]
    fn a_unit_is_its_files() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path();
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let line = || of_unit(root, "d.service");
        assert_eq!(line(), None);
        put(
            "usr/lib/systemd/system/d.service",
            "[Unit]\nExecStart=no\n[Service]\nExecStart=/usr/bin/d -H fd:// \\\n  $OPTIONS --x=${X}y\n",
        );
        put(
            "etc/default/d",
            "# A=b\nOPTIONS=\"--config-file /a --add-runtime=x=/y\"\n",
        );
        put(
            "usr/lib/systemd/system/d.service.d/1.conf",
            "[Service]\nEnvironmentFile=-/etc/default/d\nEnvironment=X=1 \"Z=a b\"\n",
        );
        let found = line().unwrap();
        assert_eq!(found.values("config-file", None), ["/a"]);
        assert_eq!(found.values("add-runtime", None), ["x=/y"]);
        assert_eq!(found.values("x", None), ["1y"]);
        assert_eq!(found.values("host", Some('H')), ["fd://"]);
        assert!(
            found.origin.ends_with("system/d.service:4"),
            "{}",
            found.origin
        );
        put(
            "etc/systemd/system/d.service.d/2.conf",
            "[Service]\nExecStart=\nExecStart=d -c '/a b'\n",
        );
        let found = line().unwrap();
        assert_eq!(found.values("config", Some('c')), ["/a b"]);
        assert!(found.origin.ends_with("2.conf:3"), "{}", found.origin);
        // It hides the other file of its name.
        put("etc/systemd/system/d.service.d/1.conf", "");
        put(
            "etc/systemd/system/d.service.d/2.conf",
            "[Service]\nExecStart=\n",
        );
        assert_eq!(line(), None);
    }
}
