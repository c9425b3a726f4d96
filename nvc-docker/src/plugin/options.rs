//! Parses the plugin's command line like Go programs: `-x V`, `-x=V`, and the same with two dashes.

use crate::VERSION;

/// The command line's options.
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

/// The action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Serve(Options),
    /// Print a text and exit successfully.
    Print(String),
    /// Print an error and exit.
    Complain(String),
}

const USAGE: &str = "\
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
pub(super) fn read(program: &str, words: &[String]) -> Wish {
    let mut options = Options {
        listen: "localhost:3476".into(),
        volumes: "/var/lib/nvidia-docker/volumes".into(),
        sockets: "/run/docker/plugins".into(),
        loads_module: true,
        hosts: Vec::new(),
    };
    let mistake = |text: String| Wish::Complain(format!("{text}\nUsage of {program}:\n{USAGE}"));
    let mut wants_version = false;
    let mut words = words.iter();
    // The first word that is not an option ends them; it and the rest are ignored.
    while let Some(word) = words.next() {
        let Some(name) = word.strip_prefix('-').filter(|name| !name.is_empty()) else {
            break;
        };
        let name = name.strip_prefix('-').unwrap_or(name);
        if name.is_empty() {
            break;
        }
        if name.starts_with(['-', '=']) {
            return mistake(format!("bad flag syntax: {word}"));
        }
        let (name, attached) = match name.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (name, None),
        };
        let switch = |on: bool| match attached {
            None => Ok(on),
            Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(on),
            Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(!on),
            Some(value) => Err(mistake(format!(
                "invalid boolean value \"{value}\" for -{name}: parse error"
            ))),
        };
        let place = match name {
            "v" => {
                match switch(true) {
                    Ok(on) => wants_version = on,
                    Err(wish) => return wish,
                }
                continue;
            }
            "no-modprobe" => {
                match switch(false) {
                    Ok(on) => options.loads_module = on,
                    Err(wish) => return wish,
                }
                continue;
            }
            "l" => &mut options.listen,
            "d" => &mut options.volumes,
            "s" => &mut options.sockets,
            "allow-host" => {
                options.hosts.push(String::new());
                match options.hosts.last_mut() {
                    Some(last) => last,
                    None => continue,
                }
            }
            "h" | "help" => return Wish::Print(format!("Usage of {program}:\n{USAGE}")),
            _ => return mistake(format!("flag provided but not defined: -{name}")),
        };
        match attached.or_else(|| words.next().map(String::as_str)) {
            Some(value) => value.clone_into(place),
            None => return mistake(format!("flag needs an argument: -{name}")),
        }
    }
    match wants_version {
        true => Wish::Print(format!("NVIDIA Docker plugin: {VERSION}\n")),
        false => Wish::Serve(options),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(text: &str) -> Wish {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        read("p", &words)
    }

    fn listen(text: &str) -> String {
        match wish(text) {
            Wish::Serve(options) => options.listen,
            Wish::Print(text) | Wish::Complain(text) => text,
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
            ("--frob", "flag provided but not defined: -frob\n"),
            ("-l", "flag needs an argument: -l\n"),
            ("-v=x", "invalid boolean value \"x\" for -v: parse error\n"),
            ("---l", "bad flag syntax: ---l\n"),
            ("-=l", "bad flag syntax: -=l\n"),
        ] {
            let Wish::Complain(complaint) = wish(text) else {
                panic!("{text}")
            };
            assert!(complaint.starts_with(expected), "{complaint}");
            assert!(complaint.contains("\nUsage of p:\n"));
        }
        assert!(
            matches!(wish("-v"), Wish::Print(text) if text.starts_with("NVIDIA Docker plugin: "))
        );
        assert!(matches!(wish("-h"), Wish::Print(text) if text.starts_with("Usage of p:\n")));
    }
}
