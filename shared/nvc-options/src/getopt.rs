//! Parses the command line like glibc's getopt_long and argp.
//!
//! Scripts and runtimes rely on everything that argp accepts: abbreviated long options, `--option value` besides
//! `--option=value`, bundled and attached short options, options after positionals. Help, usage, version and error
//! messages use the words of getopt and argp.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::args::{Command, HELP, Opt, PROGRAM, TABLE, Takes, USAGE, VERSION};

mod layout;

pub use layout::usage;

/// Text after the global options in usage messages.
const COMMANDS: &str = "COMMAND [ARG...]";

/// Options that argp adds to every command, in its order, which is that of getopt's candidates. Those without a help
/// text are for debugging: --program-name changes the name in later messages of argp, --HANG is ignored.
static AUTOMATIC: [Opt; 5] = [
    HELP,
    USAGE,
    Opt {
        long: "program-name",
        takes: Takes::Value("NAME"),
        ..HIDDEN
    },
    Opt {
        long: "HANG",
        takes: Takes::PerhapsValue("SECS"),
        ..HIDDEN
    },
    VERSION,
];

const HIDDEN: Opt = Opt {
    long: "",
    short: None,
    takes: Takes::Nothing,
    help: "",
    addition: false,
    hidden: true,
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
    /// A word that is no command, and the text for standard error.
    Unknown(String, String),
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
    pub global: GivenOptions,
    pub command: &'static Command,
    /// The command's options.
    pub options: GivenOptions,
    /// Present if the command has one.
    pub operand: Option<OsString>,
    /// Number of words of the command and its arguments, without options that upstream lacks.
    pub command_words: usize,
}

impl CommandLine {
    /// Returns the command line in canonical form: `--option` or `--option=value` each, the command, its options, `--`,
    /// the operand.
    pub fn spelt_out(&self) -> Vec<OsString> {
        let options = |given: &GivenOptions| -> Vec<OsString> {
            let spell = |(option, value): &(&Opt, Option<OsString>)| {
                let mut word = OsString::from(format!("--{}", option.long));
                if let Some(value) = value {
                    word.push("=");
                    word.push(value);
                }
                word
            };
            given.options.iter().map(spell).collect()
        };
        let mut words = options(&self.global);
        words.push(self.command.name.into());
        words.extend(options(&self.options));
        if let Some(operand) = &self.operand {
            words.extend(["--".into(), operand.clone()]);
        }
        words
    }
}

/// The given options, in order.
#[derive(Debug)]
pub struct GivenOptions {
    command: &'static Command,
    options: Vec<(&'static Opt, Option<OsString>)>,
}

impl GivenOptions {
    /// Returns true if the option was given.
    pub fn has(&self, long: &str) -> bool {
        self.place(long).is_some()
    }

    /// Returns the index of the last occurrence of an option.
    pub fn place(&self, long: &str) -> Option<usize> {
        debug_assert!(
            self.command
                .options
                .iter()
                .any(|option| option.long == long),
            "{} has no option {long}",
            self.command.name
        );
        self.options
            .iter()
            .rposition(|(option, _)| option.long == long)
    }

    /// Returns the value of the last occurrence, if it has one.
    pub fn last(&self, long: &str) -> Option<&OsStr> {
        let (_, value) = self.options.get(self.place(long)?)?;
        value.as_deref()
    }

    /// Returns the values of all occurrences.
    pub fn all(&self, long: &str) -> impl Iterator<Item = &OsStr> {
        let options = self.options.iter();
        options.filter_map(move |(option, value)| value.as_deref().filter(|_| option.long == long))
    }
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
        let bytes = typed.as_bytes();
        let base = bytes.rsplit(|b| *b == b'/').next().unwrap_or(bytes);
        Self {
            name: String::from_utf8_lossy(base).into_owned(),
            typed,
            posixly_correct: std::env::var_os("POSIXLY_CORRECT").is_some(),
        }
    }
}

/// Parses `words`, the command line without its first word.
pub fn read(caller: &Caller, words: &[OsString]) -> Parsed {
    let typed = caller.typed.to_string_lossy();
    let mut name = caller.name.clone();
    let first = match Scan::new(&TABLE, OptionOrder::StopAtPositional, &mut name).run(words) {
        Ok(first) => first,
        Err(Stop::Question(question)) => return Parsed::Ask(question, &TABLE),
        Err(Stop::Mistake(text)) => {
            return Parsed::Mistake(layout::complaint(&typed, &text, &name));
        }
    };

    let mut positionals = first.positionals.into_iter();
    let named = positionals.next();
    let Some(named) = named else {
        return Parsed::Mistake(layout::misuse(&name, COMMANDS));
    };
    let mut known = TABLE.commands.iter();
    let Some(command) = known.find(|command| named == command.name) else {
        let word = named.to_string_lossy().into_owned();
        return Parsed::Unknown(word, layout::misuse(&name, COMMANDS));
    };
    let typed = format!("{name} {}", command.name);
    let mut name = typed.clone();

    let order = if caller.posixly_correct {
        OptionOrder::PositionalsLast
    } else {
        OptionOrder::Any
    };
    let words = positionals.as_slice();
    let rest = match Scan::new(command, order, &mut name).run(words) {
        Ok(rest) => rest,
        Err(Stop::Question(question)) => return Parsed::Ask(question, command),
        Err(Stop::Mistake(text)) => {
            return Parsed::Mistake(layout::complaint(&typed, &text, &name));
        }
    };

    let mut operands = rest.positionals.into_iter();
    let operand = match (&command.operand, operands.next(), operands.next()) {
        (Some(_), Some(operand), None) => Some(operand),
        (None, None, _) => None,
        (Some(wanted), ..) => return Parsed::Mistake(layout::misuse(&name, wanted.name)),
        (None, ..) => {
            return Parsed::Mistake(layout::complaint(&name, "Too many arguments", &name));
        }
    };
    Parsed::Run(CommandLine {
        global: first.given,
        command,
        options: rest.given,
        operand,
        command_words: 1 + words.len() - rest.added_words,
    })
}

/// The allowed positions of options.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OptionOrder {
    Any,
    /// Before the first positional; everything after it is positional.
    PositionalsLast,
    /// Before the first positional, where parsing stops: the rest belongs to a command.
    StopAtPositional,
}

/// The reason for stopping early.
enum Stop {
    Question(Question),
    Mistake(String),
}

/// Result of parsing options.
struct Rest {
    given: GivenOptions,
    positionals: Vec<OsString>,
    /// Number of words that were options upstream lacks.
    added_words: usize,
}

/// Parser state for one command's options.
struct Scan<'n> {
    order: OptionOrder,
    /// The name in argp's messages, which `--program-name` changes.
    name: &'n mut String,
    given: GivenOptions,
    added_words: usize,
}

impl<'n> Scan<'n> {
    fn new(command: &'static Command, order: OptionOrder, name: &'n mut String) -> Self {
        Self {
            order,
            name,
            given: GivenOptions {
                command,
                options: Vec::new(),
            },
            added_words: 0,
        }
    }

    fn run(mut self, words: &[OsString]) -> Result<Rest, Stop> {
        let mut positionals = Vec::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let bytes = word.as_bytes();
            if bytes == b"--" {
                break;
            } else if let Some(long) = bytes.strip_prefix(b"--") {
                self.long(long, &mut words)?;
            } else if let Some(letters @ [_, ..]) = bytes.strip_prefix(b"-") {
                self.short(letters, &mut words)?;
            } else {
                positionals.push(word.clone());
                if self.order != OptionOrder::Any {
                    break;
                }
            }
        }
        positionals.extend(words.cloned());
        Ok(Rest {
            given: self.given,
            positionals,
            added_words: self.added_words,
        })
    }

    /// Parses `--name` or `--name=value`, without the dashes.
    fn long<'w>(
        &mut self,
        word: &[u8],
        words: &mut impl Iterator<Item = &'w OsString>,
    ) -> Result<(), Stop> {
        let mut parts = word.splitn(2, |b| *b == b'=');
        let name = parts.next().unwrap_or_default();
        let attached = parts.next();
        let option = self.find(name, word)?;
        let long = option.long;
        let value = match (option.takes, attached) {
            (Takes::Nothing, Some(_)) => {
                return mistake(format!("option '--{long}' doesn't allow an argument"));
            }
            (Takes::Value(_) | Takes::Values(_), None) => match words.next() {
                Some(next) => Some(next.as_bytes()),
                None => return mistake(format!("option '--{long}' requires an argument")),
            },
            _ => attached,
        };
        if option.addition {
            self.added_words += 1 + usize::from(attached.is_none() && value.is_some());
        }
        self.take(option, value)
    }

    /// Parses the letters of one word, without the dash.
    fn short<'w>(
        &mut self,
        letters: &[u8],
        words: &mut impl Iterator<Item = &'w OsString>,
    ) -> Result<(), Stop> {
        let mut letters = letters;
        while let Some((&letter, rest)) = letters.split_first() {
            letters = rest;
            let mut options = self.options();
            let Some(option) = options.find(|option| option.short == Some(letter.into())) else {
                let shown = OsString::from_vec(vec![letter]);
                return mistake(format!("invalid option -- '{}'", shown.display()));
            };
            let value = match option.takes {
                Takes::Nothing => None,
                _ if !rest.is_empty() => Some(std::mem::take(&mut letters)),
                Takes::PerhapsValue(_) => None,
                Takes::Value(_) | Takes::Values(_) => match words.next() {
                    Some(next) => Some(next.as_bytes()),
                    None => {
                        let letter = char::from(letter);
                        return mistake(format!("option requires an argument -- '{letter}'"));
                    }
                },
            };
            self.take(option, value)?;
        }
        Ok(())
    }

    fn options(&self) -> impl Iterator<Item = &'static Opt> + use<> {
        self.given.command.options.iter().chain(&AUTOMATIC)
    }

    /// Returns the option of this name, or the only one with this prefix. `word` is for messages.
    fn find(&self, name: &[u8], word: &[u8]) -> Result<&'static Opt, Stop> {
        let exact = |option: &&Opt| option.long.as_bytes() == name;
        if let Some(option) = self.options().find(exact) {
            return Ok(option);
        }
        for addition in [false, true] {
            let candidates: Vec<_> = self
                .options()
                .filter(|option| option.addition == addition)
                .filter(|option| option.long.as_bytes().starts_with(name))
                .collect();
            match candidates[..] {
                [] => {}
                [option] => return Ok(option),
                _ => {
                    let mut text =
                        format!("option '--{}' is ambiguous; possibilities:", shown(word));
                    for option in candidates {
                        text += &format!(" '--{}'", option.long);
                    }
                    return mistake(text);
                }
            }
        }
        mistake(format!("unrecognized option '--{}'", shown(word)))
    }

    fn take(&mut self, option: &'static Opt, value: Option<&[u8]>) -> Result<(), Stop> {
        match option.long {
            "help" => Err(Stop::Question(Question::Help)),
            "usage" => Err(Stop::Question(Question::Usage)),
            "version" => Err(Stop::Question(Question::Version)),
            "program-name" => {
                let bytes = value.unwrap_or_default();
                let base = bytes.rsplit(|b| *b == b'/').next().unwrap_or(bytes);
                *self.name = String::from_utf8_lossy(base).into_owned();
                Ok(())
            }
            _ => {
                if !option.help.is_empty() {
                    let value = value.map(|bytes| OsStr::from_bytes(bytes).to_owned());
                    self.given.options.push((option, value));
                }
                Ok(())
            }
        }
    }
}

fn mistake<T>(text: String) -> Result<T, Stop> {
    Err(Stop::Mistake(text))
}

fn shown(bytes: &[u8]) -> impl std::fmt::Display {
    OsStr::from_bytes(bytes).display()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
