//! Reads the command line as glibc's getopt_long and argp do, and rewrites it in the one spelling that clap is given.
//!
//! Scripts and runtimes rely on what argp accepts: abbreviated long options, `--option value` beside
//! `--option=value`, bundled and attached short options, options after positionals. Everything that getopt itself would
//! answer (help, usage, version, complaints) is answered here, in its words; clap sees only well-formed lines.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{Arg, ArgAction, Command};

use crate::args::{ADDITIONS, PROGRAM};

mod layout;

pub(crate) use layout::usage;

/// What follows the global options, in usage texts.
const COMMANDS: &str = "COMMAND [ARG...]";

/// What the command line turns out to be.
#[derive(Debug)]
pub(crate) enum Line {
    /// A command to carry out.
    Run(Words),
    /// A question that is answered on standard output, about the program or one of its commands.
    Ask(Question, Option<String>),
    /// A mistake; the text goes to standard error.
    Mistake(String),
}

/// The questions that every command answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    Help,
    Usage,
    Version,
}

/// A well-formed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Words {
    /// For clap: the program's name, `--option` or `--option=value` each, the command, its options, `--`, positionals.
    pub(crate) args: Vec<OsString>,
    /// How many words the command and what follows it were, not counting options that upstream does not have.
    pub(crate) command_words: usize,
}

/// How the program was called.
#[derive(Debug)]
pub(crate) struct Caller {
    /// The first word as typed: getopt's complaints before the command start with it.
    typed: OsString,
    /// Its last component: everything else starts with it.
    pub(crate) name: String,
    /// Whether options end at the first positional.
    posixly_correct: bool,
}

impl Caller {
    /// From the first word of the command line and the environment.
    pub(crate) fn new(typed: Option<OsString>) -> Self {
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

/// Reads `words`, all but the first of the command line, against the table of options.
pub(crate) fn read(caller: &Caller, table: &Command, words: &[OsString]) -> Line {
    let mut args = vec![OsString::from(PROGRAM)];
    let typed = caller.typed.to_string_lossy();
    let rest = match Scan::new(table, Order::StopAtPositional, &mut args).run(words) {
        Ok(rest) => rest,
        Err(Stop::Question(question)) => return Line::Ask(question, None),
        Err(Stop::Complaint(text)) => {
            return Line::Mistake(layout::complaint(&typed, &text, &caller.name));
        }
    };

    let command = rest.positionals.first().and_then(|word| {
        let mut commands = table.get_subcommands();
        commands.find(|command| word.as_os_str() == command.get_name())
    });
    let Some(command) = command else {
        return Line::Mistake(layout::misuse(&caller.name, COMMANDS));
    };
    let command_name = command.get_name();
    let name = format!("{} {command_name}", caller.name);
    args.push(command_name.into());

    let order = if caller.posixly_correct {
        Order::PositionalsLast
    } else {
        Order::Any
    };
    let words = rest.positionals.get(1..).unwrap_or_default();
    let rest = match Scan::new(command, order, &mut args).run(words) {
        Ok(rest) => rest,
        Err(Stop::Question(question)) => return Line::Ask(question, Some(command_name.to_owned())),
        Err(Stop::Complaint(text)) => {
            return Line::Mistake(layout::complaint(&name, &text, &name));
        }
    };

    let wanted: Vec<&Arg> = command.get_positionals().collect();
    if rest.positionals.len() != wanted.len() {
        return Line::Mistake(match wanted.first().and_then(|arg| value_name(arg)) {
            Some(positional) => layout::misuse(&name, positional),
            None => layout::complaint(&name, "Too many arguments", &name),
        });
    }
    if !rest.positionals.is_empty() {
        args.push("--".into());
        args.extend(rest.positionals);
    }
    Line::Run(Words {
        args,
        command_words: 1 + words.len() - rest.added_words,
    })
}

fn value_name(arg: &Arg) -> Option<&str> {
    arg.get_value_names()?.first().map(|name| name.as_str())
}

/// Where options may stand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Anywhere.
    Any,
    /// Before the first positional; everything after it is positional.
    PositionalsLast,
    /// Before the first positional, and reading stops there: the rest belongs to a command.
    StopAtPositional,
}

/// Why reading stops early.
enum Stop {
    Question(Question),
    Complaint(String),
}

/// What reading leaves over.
struct Rest {
    positionals: Vec<OsString>,
    /// How many words were options that upstream does not have.
    added_words: usize,
}

/// Whether an option takes a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    None,
    Required,
    /// Only attached.
    Optional,
}

/// What an option means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// It is for clap.
    Option,
    Question(Question),
    /// argp has it for debugging; accepted and dropped.
    Nothing,
}

/// One long option, with its letter if it has one.
struct OptionEntry<'a> {
    long: &'a str,
    short: Option<u8>,
    value: Value,
    meaning: Meaning,
    addition: bool,
}

/// The options of one command, and where well-formed ones go.
struct Scan<'a> {
    options: Vec<OptionEntry<'a>>,
    order: Order,
    out: &'a mut Vec<OsString>,
    added_words: usize,
}

impl<'a> Scan<'a> {
    fn new(command: &'a Command, order: Order, out: &'a mut Vec<OsString>) -> Self {
        let question = |name| match name {
            "help" => Some(Question::Help),
            "usage" => Some(Question::Usage),
            "version" => Some(Question::Version),
            _ => None,
        };
        let mut options = Vec::with_capacity(32);
        let mut version = None;
        for arg in command.get_arguments() {
            let Some(long) = arg.get_long() else { continue };
            let entry = OptionEntry {
                long,
                short: arg.get_short().and_then(|c| u8::try_from(c).ok()),
                value: value_of(arg),
                meaning: question(long).map_or(Meaning::Option, Meaning::Question),
                // Hidden ones were upstream's for a few releases only.
                addition: ADDITIONS.contains(&long) || arg.is_hide_set(),
            };
            if long == "version" {
                version = Some(entry);
            } else {
                options.push(entry);
            }
        }
        // argp's own options follow the program's: that is the order in which getopt names candidates.
        options.sort_by_key(|option| matches!(option.meaning, Meaning::Question(_)));
        for (long, value) in [("program-name", Value::Required), ("HANG", Value::Optional)] {
            options.push(OptionEntry {
                long,
                short: None,
                value,
                meaning: Meaning::Nothing,
                addition: false,
            });
        }
        options.extend(version);
        Self {
            options,
            order,
            out,
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
                if self.order != Order::Any {
                    break;
                }
            }
        }
        positionals.extend(words.cloned());
        Ok(Rest {
            positionals,
            added_words: self.added_words,
        })
    }

    /// `--name` or `--name=value`, without the dashes.
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
        let value = match (option.value, attached) {
            (Value::None, Some(_)) => {
                return complain(format!("option '--{long}' doesn't allow an argument"));
            }
            (Value::Required, None) => match words.next() {
                Some(next) => Some(next.as_bytes()),
                None => return complain(format!("option '--{long}' requires an argument")),
            },
            _ => attached,
        };
        let used = 1 + usize::from(attached.is_none() && value.is_some());
        let (meaning, addition) = (option.meaning, option.addition);
        let rewritten = rewrite(long, value);
        if addition {
            self.added_words += used;
        }
        self.emit(meaning, rewritten)
    }

    /// The letters of one word, without the dash.
    fn short<'w>(
        &mut self,
        letters: &[u8],
        words: &mut impl Iterator<Item = &'w OsString>,
    ) -> Result<(), Stop> {
        let mut letters = letters;
        while let Some((&letter, rest)) = letters.split_first() {
            letters = rest;
            let known = self
                .options
                .iter()
                .find(|option| option.short == Some(letter));
            let Some(option) = known else {
                let shown = OsString::from_vec(vec![letter]);
                return complain(format!("invalid option -- '{}'", shown.display()));
            };
            let value = match option.value {
                Value::None => None,
                _ if !rest.is_empty() => Some(std::mem::take(&mut letters)),
                Value::Optional => None,
                Value::Required => match words.next() {
                    Some(next) => Some(next.as_bytes()),
                    None => {
                        let letter = char::from(letter);
                        return complain(format!("option requires an argument -- '{letter}'"));
                    }
                },
            };
            let (meaning, rewritten) = (option.meaning, rewrite(option.long, value));
            self.emit(meaning, rewritten)?;
        }
        Ok(())
    }

    /// The option of this name, or the only one whose name begins so. `word` is for complaints.
    fn find(&self, name: &[u8], word: &[u8]) -> Result<&OptionEntry<'a>, Stop> {
        let exact = |option: &&OptionEntry<'_>| option.long.as_bytes() == name;
        if let Some(option) = self.options.iter().find(exact) {
            return Ok(option);
        }
        for addition in [false, true] {
            let candidates: Vec<_> = self
                .options
                .iter()
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
                    return complain(text);
                }
            }
        }
        complain(format!("unrecognized option '--{}'", shown(word)))
    }

    fn emit(&mut self, meaning: Meaning, rewritten: OsString) -> Result<(), Stop> {
        match meaning {
            Meaning::Option => self.out.push(rewritten),
            Meaning::Question(question) => return Err(Stop::Question(question)),
            Meaning::Nothing => {}
        }
        Ok(())
    }
}

fn value_of(arg: &Arg) -> Value {
    match arg.get_action() {
        ArgAction::SetTrue => Value::None,
        _ if arg.is_require_equals_set() => Value::Optional,
        _ => Value::Required,
    }
}

fn rewrite(long: &str, value: Option<&[u8]>) -> OsString {
    let mut word = OsString::from("--");
    word.push(long);
    if let Some(value) = value {
        word.push("=");
        word.push(OsStr::from_bytes(value));
    }
    word
}

fn complain<T>(text: String) -> Result<T, Stop> {
    Err(Stop::Complaint(text))
}

fn shown(bytes: &[u8]) -> impl std::fmt::Display {
    OsStr::from_bytes(bytes).display()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::args::command;

    fn caller() -> Caller {
        Caller {
            typed: "./bin/nvidia-container-cli".into(),
            name: PROGRAM.to_owned(),
            posixly_correct: false,
        }
    }

    fn read_as(caller: &Caller, line: &str) -> Line {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        read(caller, &command(), &words)
    }

    fn rewritten(line: &str) -> String {
        match read_as(&caller(), line) {
            Line::Run(words) => words.args.join(OsStr::new(" ")).into_string().unwrap(),
            other => panic!("{line}: {other:?}"),
        }
    }

    fn complaint(line: &str) -> String {
        match read_as(&caller(), line) {
            Line::Mistake(text) => text.lines().next().unwrap().to_owned(),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn spellings() {
        for (typed, read) in [
            ("info", "info"),
            ("-k --deb=x info", "--load-kmods --debug=x info"),
            ("-kdx -u info", "--load-kmods --debug=x --user info"),
            ("-d info info --cs", "--debug=info info --csv"),
            ("-ku1:2 info", "--load-kmods --user=1:2 info"),
            ("--user info", "--user info"),
            ("--use= info", "--user= info"),
            ("--debug -k info", "--debug=-k info"),
            ("-- list -l", "list --libraries"),
            (
                "list -lbif",
                "list --libraries --binaries --ipcs --firmwares",
            ),
            ("list -d 0 -dall", "list --device=0 --device=all"),
            ("list --lib --fir", "list --libraries --firmwares"),
            // upstream's option although one of ours begins so too
            ("list --f", "list --firmwares"),
            ("info --f json", "info --format=json"),
            // ambiguous since upstream 1.17.4
            ("configure --no-c x", "configure --no-cgroups -- x"),
            ("configure --no-cn x", "configure --no-cntlibs -- x"),
            (
                "configure --cu=mount x",
                "configure --cuda-compat-mode=mount -- x",
            ),
            (
                "list --HANG --program-name x --HANG=3 -l",
                "list --libraries",
            ),
            (
                "configure -cug /x -p 3",
                "configure --compute --utility --graphics --pid=3 -- /x",
            ),
            ("configure --pid -- -- -x", "configure --pid=-- -- -x"),
            ("configure -d= /x", "configure --device== -- /x"),
        ] {
            assert_eq!(rewritten(typed), format!("{PROGRAM} {read}"), "{typed}");
        }
    }

    #[test]
    fn complaints() {
        let top = "./bin/nvidia-container-cli";
        for (typed, text) in [
            (
                "--frob=1 info",
                format!("{top}: unrecognized option '--frob=1'"),
            ),
            ("-kx info", format!("{top}: invalid option -- 'x'")),
            ("-d", format!("{top}: option requires an argument -- 'd'")),
            (
                "--no",
                format!(
                    "{top}: option '--no' is ambiguous; possibilities: '--no-pivot' \
                     '--no-create-imex-channels'"
                ),
            ),
            (
                "--us=3 info",
                format!("{top}: option '--us=3' is ambiguous; possibilities: '--user' '--usage'"),
            ),
            (
                "configure --v",
                format!(
                    "{PROGRAM} configure: option '--v' is ambiguous; possibilities: '--video' '--version'"
                ),
            ),
            (
                "configure --pi",
                format!("{PROGRAM} configure: option '--pid' requires an argument"),
            ),
            (
                "info --he=x",
                format!("{PROGRAM} info: option '--help' doesn't allow an argument"),
            ),
            ("info x", format!("{PROGRAM} info: Too many arguments")),
            ("info -", format!("{PROGRAM} info: Too many arguments")),
            ("list -- -l", format!("{PROGRAM} list: Too many arguments")),
            ("", format!("Usage: {PROGRAM} [OPTION...] COMMAND [ARG...]")),
            (
                "-u 3",
                format!("Usage: {PROGRAM} [OPTION...] COMMAND [ARG...]"),
            ),
            (
                "frob",
                format!("Usage: {PROGRAM} [OPTION...] COMMAND [ARG...]"),
            ),
            (
                "configure",
                format!("Usage: {PROGRAM} configure [OPTION...] ROOTFS"),
            ),
            (
                "configure a b",
                format!("Usage: {PROGRAM} configure [OPTION...] ROOTFS"),
            ),
        ] {
            assert_eq!(complaint(typed), text, "{typed}");
        }
    }

    #[test]
    fn questions() {
        for (typed, question, command) in [
            ("-?", Question::Help, None),
            ("-k --help --frob", Question::Help, None),
            ("info -V", Question::Version, Some("info")),
            ("configure --us", Question::Usage, Some("configure")),
            ("list --u x", Question::Usage, Some("list")),
        ] {
            match read_as(&caller(), typed) {
                Line::Ask(q, c) => assert_eq!((q, c.as_deref()), (question, command), "{typed}"),
                other => panic!("{typed}: {other:?}"),
            }
        }
    }

    #[test]
    fn posixly_correct_ends_options_at_the_first_positional() {
        let caller = Caller {
            posixly_correct: true,
            ..caller()
        };
        let Line::Run(words) = read_as(&caller, "configure -c /x") else {
            panic!()
        };
        assert_eq!(words.args.last().unwrap(), "/x");
        assert!(matches!(
            read_as(&caller, "configure /x -c"),
            Line::Mistake(_)
        ));
    }

    #[test]
    fn words_are_counted_as_upstream_does() {
        for (typed, count) in [
            ("-k list", 1),
            ("list --imex-channel=3", 2),
            ("list --imex-channel 3", 3),
            ("list --", 2),
            ("list --format=json", 1),
            ("list --format json --imex-channel=3", 2),
        ] {
            let Line::Run(words) = read_as(&caller(), typed) else {
                panic!("{typed}")
            };
            assert_eq!(words.command_words, count, "{typed}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_survive() {
        let odd = OsString::from_vec(b"/\xff".to_vec());
        let mut attached = OsString::from("-p");
        attached.push(&odd);
        let words = ["configure".into(), attached, odd.clone()];
        let Line::Run(words) = read(&caller(), &command(), &words) else {
            panic!()
        };
        assert_eq!(words.args.last(), Some(&odd));
        assert_eq!(words.args[2].as_bytes(), b"--pid=/\xff");
        let word = OsString::from_vec(b"-\xff".to_vec());
        let Line::Mistake(text) = read(&caller(), &command(), &["info".into(), word]) else {
            panic!()
        };
        assert!(text.starts_with("nvidia-container-cli info: invalid option -- '\u{fffd}'\n"));
    }
}
