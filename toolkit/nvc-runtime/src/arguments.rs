//! Extracts the runtime's parameters from a command line that belongs to another program: the verb, the bundle, the
//! log.
//!
//! The options are those of runc, crun and youki, which differ. Unknown options are passed on.

use std::ffi::OsString;
use std::path::PathBuf;

/// Options before the verb with a separate value.
const VALUED: [&str; 8] = [
    "log",
    "log-format",
    "log-level",
    "root",
    "criu",
    "rootless",
    "cgroup-manager",
    "r",
];

/// Verbs of the runtimes; any other word is the value of an unknown option.
const VERBS: [&str; 22] = [
    "checkpoint",
    "create",
    "delete",
    "events",
    "exec",
    "features",
    "help",
    "info",
    "init",
    "kill",
    "list",
    "mounts",
    "pause",
    "ps",
    "restore",
    "resume",
    "run",
    "spec",
    "start",
    "state",
    "update",
    "version",
];

/// The parsed command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    pub verb: Option<String>,
    /// The words after the verb.
    pub arguments: Vec<OsString>,
    pub bundle: Bundle,
    pub log: Option<PathBuf>,
    /// `--log-format json`.
    pub json: bool,
    pub debug: bool,
    pub version: bool,
    /// The low-level runtime prints its help: `--help`, `help`, or nothing at all.
    pub help: bool,
}

/// The bundle of a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Bundle {
    /// The current directory.
    #[default]
    Here,
    /// This directory.
    At(PathBuf),
    /// The option is the last word, without a value.
    Missing,
}

impl Line {
    /// Returns true if the verb creates a container from config.json.
    pub(crate) fn starts_container(&self) -> bool {
        matches!(self.verb.as_deref(), Some("create" | "run"))
    }

    /// Returns the id of the container to be created, the last word, for messages.
    pub(crate) fn container(&self) -> Option<String> {
        let last = self.arguments.last().filter(|_| self.starts_container())?;
        let id = last.to_string_lossy();
        (!id.starts_with('-')).then(|| id.into_owned())
    }
}

/// Parses the words after the program's name.
pub(crate) fn read(words: &[OsString]) -> Line {
    let texts: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let mut line = Line {
        help: texts.is_empty(),
        ..Line::default()
    };
    let mut at = 0;
    while let Some(word) = texts.get(at) {
        at += 1;
        let Some((name, value)) = option(word) else {
            // A word that is not a runtime's verb belongs to an option.
            if line.verb.is_none() && VERBS.contains(&word.as_ref()) {
                line.verb = Some(word.to_string());
                line.arguments = words.get(at..).unwrap_or_default().to_vec();
                line.help |= word == "help" && line.arguments.is_empty();
                if !line.starts_container() {
                    break;
                }
            }
            continue;
        };
        // Index of the option's value, if that is a separate word.
        let next = value.is_none().then_some(at);
        let text = || {
            value
                .map(str::to_owned)
                .or_else(|| texts.get(at).map(|text| text.to_string()))
        };
        match name {
            "b" | "bundle" => {
                line.bundle = match (value, next.and_then(|next| words.get(next))) {
                    (Some(""), _) => Bundle::Here,
                    (Some(value), _) => Bundle::At(value.into()),
                    (None, Some(next)) if next.is_empty() => Bundle::Here,
                    (None, Some(next)) => Bundle::At(next.into()),
                    (None, None) => Bundle::Missing,
                };
            }
            "log" => {
                let file = text().map(PathBuf::from);
                line.log = file.filter(|file| !file.as_os_str().is_empty());
            }
            "log-format" => line.json = text().as_deref() == Some("json"),
            "debug" => line.debug = value.is_none_or(|value| value != "false"),
            // Behind the verb the real runtime rejects it.
            "version" if line.verb.is_none() => line.version = true,
            "help" | "h" if line.verb.is_none() => line.help = true,
            _ => {}
        }
        let takes_next = matches!(name, "b" | "bundle")
            || (line.verb.is_none() && VALUED.contains(&name))
            || matches!(name, "pid-file" | "console-socket" | "preserve-fds");
        if takes_next && next.is_some() {
            at += 1;
        }
    }
    line
}

/// Returns an option's name without its dashes, and its value if that is in the same word.
fn option(word: &str) -> Option<(&str, Option<&str>)> {
    let name = word.strip_prefix('-')?.trim_start_matches('-');
    Some(match name.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (name, None),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Line {
        let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
        read(&words)
    }

    fn at(path: &str) -> Bundle {
        Bundle::At(path.into())
    }

    #[test]
    fn the_verb_is_the_first_word_that_is_no_option() {
        let table = [
            ("create --bundle /b c", Some("create")),
            ("--root /run/r create -b /b c", Some("create")),
            (
                "--log /x --log-format json --systemd-cgroup run c",
                Some("run"),
            ),
            ("--root create state c", Some("state")),
            ("start --bundle create c", Some("start")),
            ("delete create", Some("delete")),
            ("exec c create", Some("exec")),
            ("--frob x create c", Some("create")),
            ("--version", None),
            ("", None),
        ];
        for (line, verb) in table {
            assert_eq!(of(line).verb.as_deref(), verb, "{line}");
        }
        assert_eq!(of("--root /r create -b /b c").container(), Some("c".into()));
        assert_eq!(of("create --bundle").container(), None);
        assert_eq!(of("delete c").container(), None);
        assert!(!of("delete create").starts_container());
        assert!(of("run c").starts_container());
        assert_eq!(
            of("--root create create -f x c").arguments,
            ["-f", "x", "c"]
        );
    }

    #[test]
    fn the_last_bundle_counts() {
        let table = [
            ("create c", Bundle::Here),
            ("create --bundle= c", Bundle::Here),
            ("create -b /b c", at("/b")),
            ("create --bundle=/b --pid-file /p c", at("/b")),
            ("create --b /a -bundle /b c", at("/b")),
            ("create -b -b c", at("-b")),
            ("create c --bundle", Bundle::Missing),
            ("create --pid-file --bundle -b /b c", at("/b")),
        ];
        for (line, bundle) in table {
            assert_eq!(of(line).bundle, bundle, "{line}");
        }
    }

    #[test]
    fn logs_are_found_before_and_behind_the_verb() {
        let line = of("--log=/x.log --log-format json --debug create c");
        assert_eq!(line.log, Some("/x.log".into()));
        assert!(line.json && line.debug);
        let line = of("create --log /x.log c");
        assert_eq!(line.log, Some("/x.log".into()));
        assert_eq!(of("--log= create c").log, None);
    }

    #[test]
    fn executed_programs_are_the_containers_own() {
        let line = of("exec c python --version --log /x -b /y");
        assert!(!line.version);
        assert_eq!(line.log, None);
        assert!(of("--version").version);
        assert!(of("-version=true").version);
        assert!(!of("run --version").version);
        assert!(!of("create --version c").version);
    }

    #[test]
    fn help_is_the_runtimes_and_not_a_verbs() {
        for line in ["--help", "-h", "--root /r --help", "help"] {
            assert!(of(line).help, "{line}");
        }
        assert!(read(&[]).help);
        for line in ["create --help", "exec c help", "help create", "--version"] {
            assert!(!of(line).help, "{line}");
        }
    }
}
