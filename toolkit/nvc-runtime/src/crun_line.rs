//! Finds the config.json that crun will read in its words after `create` or `run`, by the rules of getopt_long.
//!
//! Other runtimes have no option for it. crun's `--config` names any file, so a container's request could be elsewhere
//! than in its bundle. A relative name is relative to the current directory, the default to the bundle.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// The long options, which can be abbreviated; true if one takes a value.
const OPTIONS: [(&str, bool); 14] = [
    ("bundle", true),
    ("config", true),
    ("console-socket", true),
    ("detach", false),
    ("help", false),
    ("keep", false),
    ("no-new-keyring", false),
    ("no-pivot", false),
    ("no-subreaper", false),
    ("pid-file", true),
    ("preserve-fds", true),
    ("program-name", true),
    ("usage", false),
    ("version", false),
];

/// The name that stands for the file in the bundle, also as an option's value.
const DEFAULT: &str = "config.json";

/// Returns the bundle and the file. For a line that crun refuses, the result does not matter.
pub(crate) fn specification(words: &[OsString]) -> (PathBuf, PathBuf) {
    let mut bundle: &OsStr = OsStr::new(".");
    let mut config: &OsStr = OsStr::new(DEFAULT);
    let mut words = words.iter().map(OsString::as_os_str);
    // crun stops at the container's name, but nothing may follow that. Continuing finds the options after the value of
    // an option that is newer than this program.
    while let Some(word) = words.next() {
        if word == "--" {
            break;
        }
        let Some((option, value)) = option(word) else {
            continue;
        };
        let value = match value {
            Value::None => continue,
            Value::Attached(value) => Some(value),
            Value::Next => words.next(),
        };
        match (option.as_ref(), value) {
            ("bundle", Some(value)) => bundle = value,
            ("config", Some(value)) => config = value,
            _ => {}
        }
    }
    let bundle = PathBuf::from(bundle);
    let file = if config == DEFAULT {
        bundle.join(config)
    } else {
        config.into()
    };
    (bundle, file)
}

/// Where an option's value is.
enum Value<'a> {
    None,
    Attached(&'a OsStr),
    Next,
}

/// Returns the last option in a word, which is the only one that can have a value.
fn option(word: &OsStr) -> Option<(Cow<'_, str>, Value<'_>)> {
    if let Some(long) = word.as_bytes().strip_prefix(b"--") {
        let (name, value) = match long.iter().position(|&byte| byte == b'=') {
            Some(at) => {
                let (name, value) = long.split_at(at);
                (name, Some(OsStr::from_bytes(value.get(1..)?)))
            }
            None => (long, None),
        };
        let name = String::from_utf8_lossy(name);
        let (name, is_valued) = unabbreviated(&name)?;
        let value = match value {
            _ if !is_valued => Value::None,
            Some(value) => Value::Attached(value),
            None => Value::Next,
        };
        return Some((name.into(), value));
    }
    let letters = word.as_bytes().strip_prefix(b"-")?;
    let at = letters.iter().position(|letter| b"bf".contains(letter))?;
    let name = if letters.get(at) == Some(&b'b') {
        "bundle"
    } else {
        "config"
    };
    let value = match letters.get(at + 1..) {
        None | Some([]) => Value::Next,
        Some(rest) => Value::Attached(OsStr::from_bytes(rest)),
    };
    Some((name.into(), value))
}

/// Returns the option with this name, or the only one that it abbreviates.
fn unabbreviated(name: &str) -> Option<(&'static str, bool)> {
    let mut fitting = OPTIONS
        .into_iter()
        .filter(|(option, _)| option.starts_with(name));
    let first = fitting.next()?;
    fitting.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Compared with crun 1.8.1.
    #[test]
    fn the_file_is_that_of_crun() {
        for (line, file) in [
            ("c", "./config.json"),
            ("-b /b c", "/b/config.json"),
            ("--bundle=/b -f /x/y.json c", "/x/y.json"),
            ("-f y.json -b /b c", "y.json"),
            ("--config y.json c", "y.json"),
            ("--config=y.json c", "y.json"),
            ("--conf=y.json c", "y.json"),
            ("--conf y.json --bun /b c", "y.json"),
            // The default's name is no name.
            ("--config config.json -b b c", "b/config.json"),
            ("--config ./config.json -b b c", "./config.json"),
            ("-fy.json c", "y.json"),
            ("-dfy.json c", "y.json"),
            ("-df y.json c", "y.json"),
            ("-db /b c", "/b/config.json"),
            // Not as in Go.
            ("-bundle c", "undle/config.json"),
            ("-config x c", "ig"),
            ("-f a -f b c", "b"),
            ("--pid-file --config -f y c", "y"),
            ("--pid --config c", "./config.json"),
            ("--console-socket=/s --preserve-fds 3 --config y c", "y"),
            ("--detach --no-pivot --config y c", "y"),
            ("--no-pivot=x --config y c", "y"),
            ("-- -f", "./config.json"),
            ("--new-option value --config y c", "y"),
            // Refused by crun: ambiguous, without a value.
            ("--con y c", "./config.json"),
            ("c -f", "./config.json"),
            ("- --= -", "./config.json"),
        ] {
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            assert_eq!(specification(&words).1, Path::new(file), "{line}");
        }
        let (bundle, file) = specification(&["--config=".into()]);
        assert_eq!((bundle, file), (".".into(), PathBuf::new()));
    }

    #[test]
    fn names_need_not_be_text() {
        let word = OsStr::from_bytes(b"--config=/\xff=");
        let (_, file) = specification(&[word.into()]);
        assert_eq!(file.as_os_str().as_bytes(), b"/\xff=");
    }
}
