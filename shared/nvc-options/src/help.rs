//! Converts the option table to a clap command, which renders help, manual page and completions.
//!
//! Command lines are parsed by [`getopt`](crate::getopt): building clap's table would take as long as the rest of a
//! short command.

use std::ffi::OsString;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, Command, value_parser};

use crate::args::{self, HELP, Opt, PROGRAM, TABLE, Takes, USAGE, VERSION};

/// Returns the whole program.
pub fn command() -> Command {
    let usage = format!("{PROGRAM} [OPTION...] COMMAND [ARG...]");
    describe(&TABLE, usage)
        .subcommands(TABLE.commands.iter().map(subcommand))
        .subcommand_help_heading("Commands")
}

/// Returns the help text of the program or one of its commands.
pub fn text(table: &args::Command) -> String {
    let mut program = command();
    let found = match program.find_subcommand_mut(table.name) {
        Some(found) => found,
        None => &mut program,
    };
    // The short layout, one option per line, with the full description of the command.
    let mut whole = found.clone();
    if let Some(text) = found.get_long_about() {
        whole = whole.about(text.clone());
    }
    whole.render_help().to_string()
}

fn subcommand(table: &'static args::Command) -> Command {
    let mut usage = format!("{PROGRAM} {} [OPTION...]", table.name);
    if let Some(operand) = &table.operand {
        usage = format!("{usage} {}", operand.name);
    }
    let mut command = describe(table, usage);
    if let Some(operand) = &table.operand {
        let arg = Arg::new(operand.name)
            .value_name(operand.name)
            .value_parser(any_bytes())
            .required(true)
            .help(operand.help);
        command = command.arg(arg);
    }
    if let Some(text) = table.long_about {
        command = command.long_about(text);
    }
    command
}

fn describe(table: &'static args::Command, usage: String) -> Command {
    let automatic = [&HELP, &USAGE, &VERSION];
    Command::new(table.name)
        .about(table.about)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .disable_help_subcommand(true)
        .max_term_width(100)
        .args(automatic.map(|option| arg(option).display_order(999)))
        .args(table.options.iter().map(arg))
        .override_usage(usage)
        .after_help(table.after)
}

fn arg(option: &'static Opt) -> Arg {
    let arg = Arg::new(option.long)
        .long(option.long)
        .short(option.short)
        .help(option.help)
        .hide(option.hidden);
    let Some(name) = option.takes.name() else {
        return arg.action(ArgAction::SetTrue);
    };
    let arg = arg.value_name(name).value_parser(any_bytes());
    match option.takes {
        Takes::PerhapsValue(_) => arg.num_args(0..=1).require_equals(true),
        Takes::Values(_) => arg.action(ArgAction::Append),
        Takes::Nothing | Takes::Value(_) => arg,
    }
}

/// Paths need not be UTF-8.
fn any_bytes() -> ValueParser {
    value_parser!(OsString)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_finds_the_table_consistent() {
        command().debug_assert();
    }
}
