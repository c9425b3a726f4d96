//! Formats usage texts and error messages like argp: lines of at most 79 columns, continuations indented.

use crate::args::TABLE;
use crate::table::{Command, Opt, Takes};

/// argp's right margin: the last text of a line must end before this column.
const MARGIN: usize = 79;

/// Indent of continuation lines in a usage text.
const USAGE_INDENT: usize = 12;

/// Formats an error about a word, with a reference to the help.
pub(super) fn complaint(prefix: &str, text: &str, name: &str) -> String {
    format!("{prefix}: {text}\n{}", where_to_find_help(name))
}

/// Formats the error for a missing or surplus positional.
pub(super) fn misuse(name: &str, positionals: &str) -> String {
    let pieces = [("[OPTION...]", false), (positionals, true)].map(|(text, careful)| Piece {
        text: text.to_owned(),
        careful,
    });
    fill(format!("Usage: {name}"), &pieces) + &where_to_find_help(name)
}

fn where_to_find_help(name: &str) -> String {
    wrap(&format!(
        "Try `{name} --help' or `{name} --usage' for more information."
    ))
}

/// Formats the output of `--usage`: upstream's options in argp's order.
pub fn usage(name: &str, command: &Command) -> String {
    let options = TABLE.options_of(command);
    let mut options: Vec<&Opt> = options
        .filter(|option| !option.addition && !option.hidden)
        .collect();
    options.sort_by_key(|option| sort_key(option));

    let letters: String = options
        .iter()
        .filter(|option| option.takes == Takes::Flag)
        .filter_map(|option| option.short)
        .collect();
    let mut pieces = vec![Piece {
        text: format!("[-{letters}]"),
        careful: false,
    }];
    for option in &options {
        let (Some(short), Some(value)) = (option.short, option.takes.name()) else {
            continue;
        };
        let optional = matches!(option.takes, Takes::PerhapsValue(_));
        pieces.push(Piece {
            text: if optional {
                format!("[-{short}[{value}]]")
            } else {
                format!("[-{short} {value}]")
            },
            careful: !optional,
        });
    }
    for Opt { long, takes, .. } in options {
        pieces.push(Piece {
            text: match takes {
                Takes::Flag => format!("[--{long}]"),
                Takes::PerhapsValue(value) => format!("[--{long}[={value}]]"),
                Takes::Value(value) | Takes::Values(value) => format!("[--{long}={value}]"),
            },
            careful: false,
        });
    }
    let commands = (!command.commands.is_empty()).then_some(super::COMMANDS);
    let operand = command.operand.as_ref().map(|operand| operand.name);
    pieces.extend(commands.into_iter().chain(operand).map(|text| Piece {
        text: text.to_owned(),
        careful: true,
    }));
    fill(format!("Usage: {name}"), &pieces)
}

/// Sorts by first letter; among equal ones those without a letter first, by name, and lower case before upper case.
fn sort_key(option: &Opt) -> (char, bool, bool, &'static str) {
    let first = option.short.or_else(|| option.long.chars().next());
    let first = first.unwrap_or_default();
    let has_letter = option.short.is_some();
    (
        first.to_ascii_lowercase(),
        has_letter,
        first.is_ascii_uppercase(),
        if has_letter { "" } else { option.long },
    )
}

/// An unbreakable piece of a usage text.
struct Piece {
    text: String,
    /// Placed on a line by argp itself, which is stricter than its line breaker.
    careful: bool,
}

/// Fills lines with as many pieces as fit.
fn fill(start: String, pieces: &[Piece]) -> String {
    let mut done = String::new();
    let mut line = start;
    for (i, piece) in pieces.iter().enumerate() {
        // The line breaker lets a word end exactly at the margin if it has already seen the next one.
        let next_is_seen = pieces.get(i + 1).is_some_and(|next| !next.careful);
        let widest = MARGIN - usize::from(piece.careful || !next_is_seen);
        if line.len() + 1 + piece.text.len() > widest {
            done += &line;
            done.push('\n');
            line = " ".repeat(USAGE_INDENT);
        } else {
            line.push(' ');
        }
        line += &piece.text;
    }
    done += &line;
    done.push('\n');
    done
}

/// Breaks one paragraph at blanks and appends a newline. A line that continues may be one column longer than the last
/// one.
fn wrap(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while rest.len() >= MARGIN {
        let fits = rest.bytes().take(MARGIN + 1).rposition(|b| b == b' ');
        // A word that is too long for any line gets its own line.
        let Some(end) = fits.or_else(|| rest.find(' ')) else {
            break;
        };
        let (line, next) = rest.split_at(end);
        out += line.trim_end();
        out.push('\n');
        rest = next.trim_start();
    }
    out += rest;
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::PROGRAM;

    #[test]
    fn usage_of_the_program() {
        assert_eq!(
            usage(PROGRAM, &TABLE),
            "\
Usage: nvidia-container-cli [-?knV] [-d FILE] [-l FILE] [-r PATH]
            [-u[UID[:GID]]] [--help] [--debug=FILE] [--load-kmods]
            [--ldcache=FILE] [--no-create-imex-channels] [--no-pivot]
            [--root=PATH] [--usage] [--user[=UID[:GID]]] [--version]
            COMMAND [ARG...]
"
        );
    }

    #[test]
    fn usage_of_a_command() {
        let usage = |name: &str| {
            let found = TABLE.commands.iter().find(|command| command.name == name);
            found.map(|found| usage(&format!("{PROGRAM} {name}"), found))
        };
        assert_eq!(
            usage("list").as_deref(),
            Some(
                "\
Usage: nvidia-container-cli list [-?bfilV] [-d ID] [--help] [--binaries]
            [--compat32] [--device=ID] [--firmwares] [--imex-channel=CHANNEL]
            [--ipcs] [--libraries] [--mig-config=ID] [--mig-monitor=ID]
            [--no-fabricmanager] [--no-gsp-firmware] [--no-persistenced]
            [--usage] [--version]
"
            )
        );
        assert_eq!(
            usage("configure").as_deref(),
            Some(
                "\
Usage: nvidia-container-cli configure [-?cDgnuvV] [-d ID] [-l PATH] [-p PID]
            [-r EXPR] [--help] [--compat32] [--compute] [--device=ID]
            [--display] [--graphics] [--imex-channel=CHANNEL] [--ldconfig=PATH]
            [--mig-config=ID] [--mig-monitor=ID] [--no-cgroups] [--no-devbind]
            [--no-fabricmanager] [--no-gsp-firmware] [--no-persistenced]
            [--ngx] [--pid=PID] [--require=EXPR] [--usage] [--utility]
            [--video] [--version] ROOTFS
"
            )
        );
    }

    #[test]
    fn complaints_are_wrapped() {
        assert_eq!(
            where_to_find_help("nvidia-container-cli configure"),
            "\
Try `nvidia-container-cli configure --help' or `nvidia-container-cli configure
--usage' for more information.
"
        );
        assert_eq!(
            where_to_find_help("cli"),
            "Try `cli --help' or `cli --usage' for more information.\n"
        );
        let long = "x".repeat(90);
        assert_eq!(
            where_to_find_help(&long),
            format!("Try\n`{long}\n--help' or\n`{long}\n--usage' for more information.\n")
        );
    }
}
