//! Parses the plugin's command line, with Go's grammar.

use libnvc::{Error, ErrorKind, Result};
use nvc_program::goflag::Flags;

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

/// Parses the words after the program's name.
pub(super) fn read(program: &str, words: &[String]) -> Invocation {
    match parse(words) {
        Ok(Parsed::Options(options)) => Invocation::Serve(options),
        Ok(Parsed::Version) => Invocation::Print(format!("NVIDIA Docker plugin: {VERSION}\n")),
        Ok(Parsed::Help) => Invocation::Print(format!("Usage of {program}:\n{OPTIONS}")),
        Err(error) => Invocation::Misuse(error.message()),
    }
}

enum Parsed {
    Options(Options),
    Version,
    Help,
}

fn parse(words: &[String]) -> Result<Parsed> {
    let mut options = Options {
        listen: "localhost:3476".into(),
        volumes: "/var/lib/nvidia-docker/volumes".into(),
        sockets: "/run/docker/plugins".into(),
        loads_module: true,
        hosts: Vec::new(),
    };
    let mut wants_version = false;
    // The first word that is not an option ends them; it and the rest are ignored.
    let mut flags = Flags::new(words);
    while let Some(flag) = flags.take().map_err(invalid)? {
        let mut text = || flags.text(flag).map(str::to_owned).map_err(invalid);
        match flag.name {
            "v" => wants_version = flag.boolean().map_err(invalid)?,
            "no-modprobe" => options.loads_module = !flag.boolean().map_err(invalid)?,
            "l" => options.listen = text()?,
            "d" => options.volumes = text()?,
            "s" => options.sockets = text()?,
            "allow-host" => options.hosts.push(text()?),
            "h" | "help" => return Ok(Parsed::Help),
            _ => return Err(invalid(flag.unknown())),
        }
    }
    Ok(if wants_version {
        Parsed::Version
    } else {
        Parsed::Options(options)
    })
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invocation(text: &str) -> Invocation {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
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
            ("--l a:1", "a:1"),
            ("-l=a:1", "a:1"),
            ("--l=a:1 -d x", "a:1"),
            ("-l a:1 word -l b:2", "a:1"),
            ("- -l b:2", "localhost:3476"),
            ("-- -l b:2", "localhost:3476"),
            ("-v=false -l a:1", "a:1"),
        ] {
            assert_eq!(listen(text), expected, "{text}");
        }
    }

    #[test]
    fn mistakes_and_questions() {
        for (text, expected) in [
            ("--frob", "flag provided but not defined: -frob"),
            ("-l", "flag needs an argument: -l"),
            ("-v=x", "invalid boolean value \"x\" for -v: parse error"),
        ] {
            let Invocation::Misuse(message) = invocation(text) else {
                panic!("{text}")
            };
            assert_eq!(message, expected);
        }
        assert!(
            matches!(invocation("-v"), Invocation::Print(text) if text.starts_with("NVIDIA Docker plugin: "))
        );
        assert!(
            matches!(invocation("-h"), Invocation::Print(text) if text.starts_with("Usage of p:\n"))
        );
    }
}
