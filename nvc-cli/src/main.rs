//! `nvidia-container-cli`: injects NVIDIA GPUs and their driver into Linux containers.
//!
//! nvc-options parses the command line like argp ([`getopt`]), according to the table in [`args`], which nvc-help
//! renders; nvc-commands runs the command.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), no_main)] // see libnvc::main!

mod version;

use std::ffi::OsString;

use libnvc::host::query::serve_if_asked;
use nvc_options::args;
use nvc_options::getopt::{self, Caller, Parsed, Question, Slip};
use nvc_options::table::Command;
use nvc_program::hints;

libnvc::main!(run);

/// Runs the program; returns its exit code.
fn run() -> u8 {
    nvc_program::messages::take_panics();
    // The NVML query is this program, executed again.
    serve_if_asked();
    nvc_commands::start_for_hook();

    let mut words = std::env::args_os();
    let caller = Caller::new(words.next());
    let words: Vec<OsString> = words.collect();
    // The query takes longer than everything else, so it starts before the command line is parsed.
    let asks = words.iter().any(|word| {
        args::TABLE
            .commands
            .iter()
            .any(|command| word == command.name)
    });
    let query = asks.then(nvc_commands::start_query);

    let done = match getopt::read(&caller, &words) {
        Parsed::Run(words) => nvc_commands::run(&words, query, &caller.name),
        Parsed::Ask(question, command) => {
            nvc_commands::write(answer(question, command, &caller.name).as_bytes())
        }
        Parsed::Mistake(text) => {
            nvc_program::messages::write_lines(text.lines());
            return 1;
        }
        Parsed::Unknown(slip, text) => {
            let hint = hint(&slip).map(|hint| format!("hint: {hint}"));
            nvc_program::messages::write_lines(text.lines().chain(hint.as_deref()));
            return 1;
        }
    };
    match done {
        Ok(()) => 0,
        Err(failure) => {
            failure.report(&caller.name);
            1
        }
    }
}

/// Says what a misspelt word probably means.
fn hint(slip: &Slip) -> Option<String> {
    match slip {
        Slip::Command(word) => {
            let commands = args::TABLE.commands.iter();
            let known: Vec<_> = commands.map(|command| command.name).collect();
            let hint = hints::did_you_mean(word, &known);
            Some(format!("{word} is no command: {hint}"))
        }
        Slip::Option(name, known) => hints::nearest_option(name, known),
    }
}

/// Returns the answer to `question` about the program or one of its commands.
fn answer(question: Question, command: &Command, program: &str) -> String {
    match question {
        Question::Help => nvc_help::text(nvc_help::cli(), &[command.name]),
        Question::Usage if command.name == args::PROGRAM => getopt::usage(program, command),
        Question::Usage => getopt::usage(&format!("{program} {}", command.name), command),
        Question::Version => version::text(),
    }
}
