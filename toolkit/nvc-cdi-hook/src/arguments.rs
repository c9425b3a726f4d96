//! Parses a hook's arguments.

use std::ffi::OsString;

use libnvc::{Error, ErrorKind, Result};
use nvc_options::scan::{Grammar, URFAVE, scan};
use nvc_options::table::{flag, value};
use nvc_options::{Given, Opt};
use nvc_program::hints;

/// The options before a hook's name end there.
pub(crate) const BEFORE: Grammar = Grammar {
    stops: true,
    ..URFAVE
};

/// Options before a hook's name.
pub(crate) static PROGRAM: [Opt; 4] = [
    DEBUG,
    QUIET,
    HELP,
    flag("version", "Print the version")
        .short('v')
        .aliases(&["V"]),
];

/// Options of every hook.
pub(crate) static EVERY: [Opt; 4] = [
    // For tests; upstream's help does not name it either.
    value(
        "container-spec",
        "FILE",
        "Read the container's state from here",
    )
    .hidden(),
    DEBUG,
    QUIET,
    HELP,
];

const DEBUG: Opt = flag("debug", "Log every step").short('d');
const QUIET: Opt = flag("quiet", "Log errors only");
const HELP: Opt = flag("help", "Print help").short('h');

/// Parses the words after a hook's name; ignores those that are no options, as upstream does.
pub(crate) fn options(known: &'static [Opt], words: &[OsString]) -> Result<Given> {
    let read = scan(&URFAVE, &[known, &EVERY], words);
    let Some(mistake) = read.mistake else {
        return Ok(read.given);
    };
    let options = known.iter().chain(&EVERY).filter(|opt| !opt.hidden);
    let known: Vec<_> = options.map(|opt| opt.long).collect();
    let error = invalid(mistake.by_urfave());
    Err(
        match hints::nearest_option(&mistake.name.to_string_lossy(), &known) {
            Some(hint) => error.hint(hint),
            None => error,
        },
    )
}

pub(crate) fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_the_program_may_follow_the_hook() {
        let read = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            options(&[], &words)
        };
        let given = read("-d --quiet=false word --container-spec=x");
        let given = given.unwrap_or_else(|error| panic!("{error}"));
        assert!(given.flag("debug") && !given.flag("quiet"));
        assert_eq!(given.text("container-spec"), Some("x"));
        assert!(read("--debug=maybe").is_err());
        assert!(read("--container-spec").is_err());
    }
}
