//! Parses nvidia-container-cli's command line like argp.
//!
//! Scripts and runtimes rely on everything that argp accepts: abbreviated long options, `--option value` besides
//! `--option=value`, bundled and attached short options, options after positionals. Help, usage, version and error
//! messages use the words of getopt and argp.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use crate::args::{AUTOMATIC, PROGRAM, TABLE};
use crate::given::Given;
use crate::mistake::{Fault, Mistake};
use crate::scan::{GETOPT, Grammar, scan};
use crate::table::{Command, Opt};

mod layout;

pub use layout::usage;

/// Text after the global options in usage messages.
const COMMANDS: &str = "COMMAND [ARG...]";

/// Options end at the first positional.
const ORDERED: Grammar = Grammar {
    stops: true,
    ..GETOPT
};

/// The kind of a command line.
#[derive(Debug)]
pub enum Parsed {
    /// A command to run.
    Run(CommandLine),
    /// A request for help or the like about the program or one of its commands, answered on standard output.
    Ask(Question, &'static Command),
    /// An error; the text goes to standard error.
    Mistake(String),
    /// A word that means nothing, and the text for standard error.
    Unknown(Slip, String),
}

/// A word that may be misspelt.
#[derive(Debug)]
pub enum Slip {
    /// One in a command's place.
    Command(String),
    /// The name of a long option, and those that are valid there.
    Option(String, Vec<&'static str>),
}

/// The questions that every command accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    Help,
    Usage,
    Version,
}

/// A well-formed command line.
#[derive(Debug)]
pub struct CommandLine {
    /// The options before the command.
    pub global: Given,
    pub command: &'static Command,
    /// The command's options.
    pub options: Given,
    /// Present if the command has one.
    pub operand: Option<OsString>,
    /// Number of words of the command and its arguments, without options that upstream lacks.
    pub command_words: usize,
}

/// The name by which the program was called.
#[derive(Debug)]
pub struct Caller {
    /// The first word as typed: getopt's messages before the command start with it.
    typed: OsString,
    /// Its last component: all other messages start with it.
    pub name: String,
    /// True if options end at the first positional.
    posixly_correct: bool,
}

impl Caller {
    /// Derives it from the first word of the command line and the environment.
    pub fn new(typed: Option<OsString>) -> Self {
        let typed = typed.unwrap_or_else(|| PROGRAM.into());
        Self {
            name: base_name(&typed),
            typed,
            posixly_correct: std::env::var_os("POSIXLY_CORRECT").is_some(),
        }
    }
}

/// Parses `words`, the command line without its first word.
pub fn read(caller: &Caller, words: &[OsString]) -> Parsed {
    let typed = caller.typed.to_string_lossy();
    let mut name = caller.name.clone();
    let first = scan(&ORDERED, &[TABLE.options, &AUTOMATIC], words);
    let global = match own_options(first.given, &mut name) {
        Ok(given) => given,
        Err(question) => return Parsed::Ask(question, &TABLE),
    };
    if let Some(mistake) = first.mistake {
        return mistaken(&mistake, TABLE.options, &typed, &name);
    }

    let Some((named, words)) = first.rest.split_first() else {
        return Parsed::Mistake(layout::misuse(&name, COMMANDS));
    };
    let mut known = TABLE.commands.iter();
    let Some(command) = known.find(|command| named == command.name) else {
        let word = named.to_string_lossy().into_owned();
        return Parsed::Unknown(Slip::Command(word), layout::misuse(&name, COMMANDS));
    };
    let typed = format!("{name} {}", command.name);
    let mut name = typed.clone();

    let grammar = if caller.posixly_correct {
        &ORDERED
    } else {
        &GETOPT
    };
    let own = scan(grammar, &[command.options, &AUTOMATIC], words);
    let options = match own_options(own.given, &mut name) {
        Ok(given) => given,
        Err(question) => return Parsed::Ask(question, command),
    };
    if let Some(mistake) = own.mistake {
        return mistaken(&mistake, command.options, &typed, &name);
    }

    let mut operands = own.words.into_iter().chain(own.rest).cloned();
    let operand = match (&command.operand, operands.next(), operands.next()) {
        (Some(_), Some(operand), None) => Some(operand),
        (None, None, _) => None,
        (Some(wanted), ..) => return Parsed::Mistake(layout::misuse(&name, wanted.name)),
        (None, ..) => {
            return Parsed::Mistake(layout::complaint(&name, "Too many arguments", &name));
        }
    };
    Parsed::Run(CommandLine {
        global,
        command,
        options,
        operand,
        command_words: 1 + words.len() - own.additions,
    })
}

/// Returns the answer to a mistake among these options.
fn mistaken(mistake: &Mistake<'_>, options: &'static [Opt], typed: &str, name: &str) -> Parsed {
    let text = layout::complaint(typed, &mistake.by_getopt(), name);
    if !matches!(mistake.fault, Fault::Unknown(_)) || mistake.is_letter {
        return Parsed::Mistake(text);
    }
    let options = options.iter().chain(&AUTOMATIC).filter(|opt| !opt.hidden);
    let word = mistake.name.to_string_lossy().into_owned();
    Parsed::Unknown(
        Slip::Option(word, options.map(|opt| opt.long).collect()),
        text,
    )
}

/// Handles argp's options, which are valid also before a mistake; returns the others, or the first question.
///
/// `name` is that of argp's messages, which `--program-name` changes.
fn own_options(given: Given, name: &mut String) -> Result<Given, Question> {
    for (opt, value) in given.iter() {
        match opt.long {
            "help" => return Err(Question::Help),
            "usage" => return Err(Question::Usage),
            "version" => return Err(Question::Version),
            "program-name" => *name = base_name(value.unwrap_or_default()),
            _ => {}
        }
    }
    Ok(given)
}

/// Returns the last component of a path.
fn base_name(path: &OsStr) -> String {
    let bytes = path.as_bytes();
    let base = bytes.rsplit(|byte| *byte == b'/').next().unwrap_or(bytes);
    String::from_utf8_lossy(base).into_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
