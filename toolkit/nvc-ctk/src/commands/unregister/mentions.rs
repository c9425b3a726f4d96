//! Finds files of engines that name programs of the toolkit.
//!
//! They are read as text: a file of an engine that is not installed, or one with a mistake in it, counts too. Files of
//! users are found in the places of rootless engines, and their links are not followed.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use libnvc::container::filesystem_at;
use nvc_hostfile::shell::{self, word};
use nvc_hostfile::{HostFile, programs};

use crate::engine::edits::Engine;
use crate::engine::{containerd, crio, docker};

/// Directories of drop-ins, and their engines. None: of hooks, and of specifications.
const DIRECTORIES: [(&str, Option<Engine>); 8] = [
    ("/etc/containerd/conf.d", Some(Engine::Containerd)),
    ("/etc/crio/crio.conf.d", Some(Engine::Crio)),
    ("/etc/containers/oci/hooks.d", None),
    ("/usr/share/containers/oci/hooks.d", None),
    ("/usr/libexec/oci/hooks.d", None),
    ("/etc/cdi", None),
    ("/var/run/cdi", None),
    ("/etc/containers/containers.conf.d", None),
];

/// Files of rootless engines, below a home directory.
const OF_USERS: [(&str, Engine); 2] = [
    (".config/docker/daemon.json", Engine::Docker),
    (".config/containerd/config.toml", Engine::Containerd),
];

/// Filesystems whose server may be away, or a user's, so that looking at a home directory on them could block.
const REMOTE: [&str; 8] = [
    "autofs", "nfs", "nfs4", "cifs", "smb3", "ceph", "afs", "fuse",
];

/// Programs that are going to be removed.
#[derive(Debug)]
pub(super) struct Programs<'a> {
    /// Their directory.
    directory: &'a Path,
    names: &'a [&'a str],
    /// Other directories in which engines find a program by its bare name.
    others: Vec<PathBuf>,
}

impl<'a> Programs<'a> {
    pub(super) fn new(directory: &'a Path, names: &'a [&'a str]) -> Self {
        let is_other = |path: &PathBuf| fs::canonicalize(path).is_ok_and(|path| path != directory);
        let others = programs::directories(None);
        Self {
            directory,
            names,
            others: others.into_iter().filter(is_other).collect(),
        }
    }

    /// Returns true if a program is one of them, and no other one of its name takes its place. The path is root's.
    pub(super) fn include(&self, program: &str) -> bool {
        let parent = Path::new(program).parent();
        let is_same =
            |parent: &Path| fs::canonicalize(parent).is_ok_and(|parent| parent == self.directory);
        self.include_as_written(program)
            || parent.is_some_and(|parent| parent.is_absolute() && is_same(parent))
                && self.has_name(program)
    }

    fn has_name(&self, program: &str) -> bool {
        let name = Path::new(program).file_name().unwrap_or_default();
        self.names.iter().any(|known| name == *known)
    }

    /// Returns true if a user's path is one of them. Compares the text only: the path can be on a filesystem that the
    /// user serves.
    pub(super) fn include_as_written(&self, program: &str) -> bool {
        let parent = Path::new(program).parent();
        self.has_name(program)
            && match parent.filter(|parent| parent.is_absolute()) {
                Some(parent) => parent == self.directory,
                None => !program.contains('/') && programs::find(program, &self.others).is_none(),
            }
    }

    /// Returns the first of them that a text names in quotes, or as a word of YAML, outside of comments.
    pub(super) fn are_named_in(&self, text: &str) -> Option<String> {
        self.word_of(text, &|word| self.include(word))
    }

    fn word_of(&self, text: &str, is_it: &dyn Fn(&str) -> bool) -> Option<String> {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.starts_with('#') && line.contains("nvidia-"));
        let separators = |c: char| c.is_whitespace() || "\"'=,[]{}".contains(c);
        lines
            .flat_map(|line| line.split(separators))
            .find(|word| is_it(word))
            .map(Into::into)
    }
}

/// A file that names one of the programs.
#[derive(Debug)]
pub(super) struct Mention {
    pub(super) file: PathBuf,
    program: String,
    user: Option<String>,
    command: String,
}

impl fmt::Display for Mention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            program,
            user,
            command,
        } = self;
        let file = file.display();
        write!(f, "{file} names {program}, which is being removed. ")?;
        match user {
            Some(user) => write!(f, "It is {user}'s file and stays as it is")?,
            None => f.write_str("No call of nvidia-ctk wrote that, so it stays as it is")?,
        }
        write!(f, ". Remove it there, or while nvidia-ctk is installed: ")?;
        match user {
            Some(user) => write!(f, "sudo -u {} {command}", word(user)),
            None => f.write_str(command),
        }
    }
}

/// Returns the command that removes a runtime from a file, or the file if it is no engine's.
pub(super) fn command(engine: Option<Engine>, file: &Path, name: &str) -> String {
    let path = file.to_string_lossy();
    let Some(engine) = engine else {
        return shell::line(["rm", &path]);
    };
    let is_drop_in = file
        .parent()
        .is_some_and(|parent| parent.ends_with("conf.d"))
        || file
            .parent()
            .is_some_and(|parent| parent.ends_with("crio.conf.d"));
    let option = if is_drop_in {
        "drop-in-config"
    } else {
        "config"
    };
    let mut words = ["nvidia-ctk", "runtime", "configure"]
        .map(String::from)
        .to_vec();
    words.push(format!("--runtime={}", engine.name()));
    words.push(format!("--{option}={path}"));
    words.push("--remove".into());
    if !name.is_empty() && name != "nvidia" {
        words.push(format!("--nvidia-runtime-name={name}"));
    }
    shell::line(words)
}

/// Returns the files that name one of the programs.
pub(super) fn of(programs: &Programs<'_>) -> Vec<Mention> {
    let mut found: Vec<Mention> = of_root()
        .into_iter()
        .filter_map(|(file, engine)| mention(programs, file, engine, None))
        .collect();
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    for (user, home) in homes(&passwd) {
        let files = OF_USERS.map(|(file, engine)| (home.join(file), engine));
        let files = files
            .into_iter()
            .filter(|(file, _)| !is_remote(file, &mounts));
        found.extend(
            files.filter_map(|(file, engine)| mention(programs, file, Some(engine), Some(user))),
        );
    }
    found
}

fn of_root() -> Vec<(PathBuf, Option<Engine>)> {
    let mut files: Vec<(PathBuf, Option<Engine>)> = vec![
        (docker::CONFIG.into(), Some(Engine::Docker)),
        (containerd::CONFIG.into(), Some(Engine::Containerd)),
        (crio::CONFIG.into(), Some(Engine::Crio)),
        ("/etc/containers/containers.conf".into(), None),
    ];
    for (directory, engine) in DIRECTORIES {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        files.extend(paths.into_iter().map(|path| (path, engine)));
    }
    files
}

fn mention(
    programs: &Programs<'_>,
    file: PathBuf,
    engine: Option<Engine>,
    user: Option<&str>,
) -> Option<Mention> {
    let opened = HostFile::open_anywhere(&file).ok()?;
    let text = opened.text()?;
    let program = match user {
        Some(_) => programs.word_of(text, &|word| programs.include_as_written(word))?,
        None => programs.are_named_in(text)?,
    };
    // It becomes part of a command that root may copy.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let name = match engine {
        Some(Engine::Docker) => docker::names(text, &program).into_iter().next(),
        _ => None,
    };
    let name = name.filter(|name| name.chars().all(is_plain));
    let mut command = command(engine, &file, &name.unwrap_or_default());
    if file.starts_with("/etc/containers/containers.conf")
        || file.starts_with("/etc/containers/containers.conf.d")
    {
        command = shell::line(["editor", &file.to_string_lossy()]);
    }
    Some(Mention {
        file,
        program,
        user: user.map(Into::into),
        command,
    })
}

/// Returns the users other than root, with their home directories.
fn homes(passwd: &str) -> impl Iterator<Item = (&str, PathBuf)> {
    passwd.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, _, _, home, _] = fields[..] else {
            return None;
        };
        let is_user = uid.parse::<u32>().is_ok_and(|uid| uid != 0);
        let is_home = home.starts_with('/') && home.len() > 1;
        (is_user && is_home).then(|| (name, home.into()))
    })
}

/// Returns true if a path is on a filesystem of another machine.
fn is_remote(path: &Path, mountinfo: &[u8]) -> bool {
    let kind = filesystem_at(mountinfo, path).unwrap_or_default();
    REMOTE.iter().any(|remote| kind == remote.as_bytes()) || kind.starts_with(b"fuse.")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const NAMES: [&str; 2] = ["nvidia-container-runtime", "nvidia-cdi-hook"];

    #[test]
    fn only_our_own_programs_count() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().canonicalize().unwrap();
        let programs = Programs::new(&directory, &NAMES);
        let own = directory.join(NAMES[0]);
        let own = own.to_str().unwrap();
        assert!(programs.include(own));
        assert!(programs.include(&own.replace("/nvidia", "/./nvidia")));
        assert!(!programs.include_as_written(&own.replace("/nvidia", "/../nvidia")));
        for other in ["/opt/nvidia/nvidia-container-runtime", "runc", "", "/"] {
            assert!(!programs.include(other), "{other}");
        }
        for (text, found) in [
            (format!("{{\"path\": \"{own}\"}}"), true),
            (format!("BinaryName = '{own}'"), true),
            (format!("  - path: {own}\n"), true),
            (format!("# BinaryName = \"{own}\""), false),
            (format!("BinaryName = \"{own}.experimental\""), false),
            (
                "BinaryName = \"/opt/nvidia-container-runtime\"".into(),
                false,
            ),
        ] {
            assert_eq!(programs.are_named_in(&text).is_some(), found, "{text}");
        }
    }

    #[test]
    fn homes_on_other_machines_are_not_entered() {
        let passwd = "root:x:0:0::/root:/bin/sh\nana:x:1000:1000:A,B:/home/ana:/bin/sh\nbroken:x\nno:x:7:7::/:/bin/sh\n";
        let found: Vec<_> = homes(passwd).collect();
        assert_eq!(found, [("ana", PathBuf::from("/home/ana"))]);
        let mounts =
            b"1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:1 / /home rw shared:1 - nfs4 s:/home rw\n\
                      3 2 0:2 / /home/local rw - xfs /dev/b rw\n";
        assert!(is_remote(Path::new("/home/ana"), mounts));
        assert!(!is_remote(Path::new("/home/local/bo"), mounts));
        assert!(!is_remote(Path::new("/homes/ana"), mounts));
    }
}
