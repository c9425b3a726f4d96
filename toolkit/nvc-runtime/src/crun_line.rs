//! Finds the config.json that crun will read in its words after `create` or `run`, by the rules of getopt_long.
//!
//! Other runtimes have no option for it. crun's `--config` names any file, so a container's request could be elsewhere
//! than in its bundle. A relative name is relative to the current directory, the default to the bundle.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use nvc_options::Opt;
use nvc_options::scan::{GETOPT, known};
use nvc_options::table::{flag, value};

/// The long options, which can be abbreviated, and the letters that matter here.
static OPTIONS: [Opt; 14] = [
    value("bundle", "DIR", "").short('b'),
    value("config", "FILE", "").short('f'),
    value("console-socket", "FILE", ""),
    flag("detach", ""),
    flag("help", ""),
    flag("keep", ""),
    flag("no-new-keyring", ""),
    flag("no-pivot", ""),
    flag("no-subreaper", ""),
    value("pid-file", "FILE", ""),
    value("preserve-fds", "NUMBER", ""),
    value("program-name", "NAME", ""),
    flag("usage", ""),
    flag("version", ""),
];

/// The name that stands for the file in the bundle, also as an option's value.
const DEFAULT: &str = "config.json";

/// Returns the bundle and the file. For a line that crun refuses, the result does not matter.
pub(crate) fn specification(words: &[OsString]) -> (PathBuf, PathBuf) {
    // crun stops at the container's name, but nothing may follow that. Continuing finds the options after the value of
    // an option that is newer than this program.
    let given = known(&GETOPT, &OPTIONS, words);
    let bundle = PathBuf::from(given.last("bundle").unwrap_or(OsStr::new(".")));
    let file = match given.last("config") {
        Some(file) if file != DEFAULT => file.into(),
        _ => bundle.join(DEFAULT),
    };
    (bundle, file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;
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
