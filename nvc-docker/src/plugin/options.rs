//! Parses the plugin's command line, with Go's grammar.

use std::ffi::{OsStr, OsString};

use nvc_options::Opt;
use nvc_options::scan::{GO, Scanned, scan};
use nvc_options::table::{flag, value};

use crate::VERSION;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// Address of the REST interface, `HOST:PORT`.
    pub(super) listen: String,
    /// Directory of the volumes.
    pub(super) volumes: String,
    /// Directory of the plugin's socket.
    pub(super) sockets: String,
    /// Call nvidia-modprobe at the start.
    pub(super) loads_module: bool,
    /// Host names that browsers may use, besides those of this machine.
    pub(super) hosts: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Invocation {
    Serve(Options),
    /// Print a text and exit successfully.
    Print(String),
    /// Print an error and the options, and exit.
    Misuse(String),
}

/// Describes the options.
pub(super) const OPTIONS: &str = "\
  -allow-host NAME
    \tAnswer browsers that know this machine by that name; may be repeated
  -d string
    \tPath where to store the volumes (default \"/var/lib/nvidia-docker/volumes\")
  -l string
    \tServer listen address (default \"localhost:3476\")
  -no-modprobe
    \tDo not call nvidia-modprobe: the driver is loaded already
  -s string
    \tPath to the plugin socket (default \"/run/docker/plugins\")
  -v\tShow the plugin version information
";

static TABLE: [Opt; 7] = [
    value("allow-host", "NAME", ""),
    value("d", "string", ""),
    value("l", "string", ""),
    flag("no-modprobe", ""),
    value("s", "string", ""),
    flag("v", "").short('V'),
    flag("help", "").short('h'),
];

/// Parses the words after the program's name. The first one that is not an option ends them; the rest is ignored.
pub(super) fn read(program: &str, words: &[OsString]) -> Invocation {
    let Scanned { given, mistake, .. } = scan(&GO, &[&TABLE], words);
    if given.has("help") {
        return Invocation::Print(format!("Usage of {program}:\n{OPTIONS}"));
    }
    if let Some(mistake) = mistake {
        return Invocation::Misuse(mistake.by_go());
    }
    if given.flag("v") {
        return Invocation::Print(format!("NVIDIA Docker plugin: {VERSION}\n"));
    }
    let text = |name, default| lossy(given.last(name).unwrap_or(OsStr::new(default)));
    Invocation::Serve(Options {
        listen: text("l", "localhost:3476"),
        volumes: text("d", "/var/lib/nvidia-docker/volumes"),
        sockets: text("s", "/run/docker/plugins"),
        loads_module: !given.flag("no-modprobe"),
        hosts: given.all("allow-host").map(lossy).collect(),
    })
}

pub(super) fn lossy(value: &OsStr) -> String {
    value.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invocation(text: &str) -> Invocation {
        let words: Vec<OsString> = text.split_whitespace().map(OsString::from).collect();
        read("p", &words)
    }

    fn listen(text: &str) -> String {
        match invocation(text) {
            Invocation::Serve(options) => options.listen,
            Invocation::Print(text) | Invocation::Misuse(text) => text,
        }
    }

    #[test]
    fn forms_of_options() {
        for (text, expected) in [
            ("", "localhost:3476"),
            ("-l a:1", "a:1"),
            ("--l=a:1 -d x word -l b:2", "a:1"),
            ("-v=false -l a:1", "a:1"),
        ] {
            assert_eq!(listen(text), expected, "{text}");
        }
    }

    #[test]
    fn mistakes_and_questions() {
        assert_eq!(
            invocation("-l"),
            Invocation::Misuse("flag needs an argument: -l".into())
        );
        for version in ["-v", "-V"] {
            assert!(
                matches!(invocation(version), Invocation::Print(text) if text.starts_with("NVIDIA Docker plugin: "))
            );
        }
        assert!(
            matches!(invocation("-h"), Invocation::Print(text) if text.starts_with("Usage of p:\n"))
        );
    }
}
