//! Extracts the runtime's parameters from a command line that belongs to another program: the verb, the bundle, the
//! log.
//!
//! The options are those of runc, crun and youki, which differ. Unknown options are passed on.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use nvc_options::Opt;
use nvc_options::given::is_on;
use nvc_options::mistake::{Fault, Mistake};
use nvc_options::scan::{Event, GO, Grammar, Scanner};
use nvc_options::table::{flag, value};

/// Options that concern this program, before the verb and behind it.
static OURS: [Opt; 4] = [
    value("bundle", "DIR", "").short('b'),
    value("log", "FILE", ""),
    value("log-format", "FORMAT", ""),
    flag("debug", ""),
];

/// Other options before the verb: all that take the next word.
static BEFORE: [Opt; 7] = [
    value("log-level", "LEVEL", ""),
    value("root", "DIR", "").short('r'),
    value("criu", "FILE", ""),
    value("rootless", "WHETHER", ""),
    value("cgroup-manager", "NAME", ""),
    flag("version", ""),
    flag("help", "").short('h'),
];

/// Other options behind the verb that take the next word.
static BEHIND: [Opt; 3] = [
    value("pid-file", "FILE", ""),
    value("console-socket", "FILE", ""),
    value("preserve-fds", "NUMBER", ""),
];

/// runc's grammar, as far as that is also that of the others; [`crun_line`](crate::crun_line) has crun's.
const GRAMMAR: Grammar = Grammar { stops: false, ..GO };

/// Verbs of the runtimes; any other word is the value of an unknown option.
const VERBS: &str = "checkpoint create delete events exec features help info init kill list mounts pause ps restore \
    resume run spec start state update version";

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
    let mut line = Line {
        help: words.is_empty(),
        ..Line::default()
    };
    let mut scanner = Scanner::new(&GRAMMAR, words);
    let mut tables = [&OURS[..], &BEFORE];
    while let Some(event) = scanner.next(&tables) {
        match event {
            Ok(Event::Option(opt, value)) => line.take(opt, value.unwrap_or_default()),
            Ok(Event::Word(word)) if line.verb.is_none() => {
                line.start(word, scanner.rest());
                if line.verb.is_some() {
                    tables = [&OURS, &BEHIND];
                }
                if line.verb.is_some() && !line.starts_container() {
                    return line;
                }
            }
            Err(Mistake {
                fault: Fault::Missing(opt),
                ..
            }) if opt.long == "bundle" => line.bundle = Bundle::Missing,
            // The real runtime says what is wrong.
            Ok(Event::Word(_)) | Err(_) => {}
        }
    }
    if let (None, Some((word, rest))) = (&line.verb, scanner.rest().split_first()) {
        line.start(word, rest);
    }
    line
}

impl Line {
    /// Takes a word that may be the verb. One that is no runtime's verb belongs to an unknown option.
    fn start(&mut self, word: &OsStr, rest: &[OsString]) {
        let Some(verb) = VERBS.split(' ').find(|verb| word == *verb) else {
            return;
        };
        self.verb = Some(verb.to_owned());
        self.arguments = rest.to_vec();
        self.help |= verb == "help" && rest.is_empty();
    }

    fn take(&mut self, opt: &Opt, value: &OsStr) {
        match opt.long {
            "bundle" if value.is_empty() => self.bundle = Bundle::Here,
            "bundle" => self.bundle = Bundle::At(value.into()),
            "log" => self.log = Some(PathBuf::from(value)).filter(|_| !value.is_empty()),
            "log-format" => self.json = value == "json",
            "debug" => self.debug = is_on(value),
            "version" => self.version = is_on(value),
            "help" => self.help = is_on(value),
            _ => {}
        }
    }
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
