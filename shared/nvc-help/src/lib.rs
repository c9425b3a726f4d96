//! Converts the tables of nvc-options to clap commands, which render help, manual pages and completions.
//!
//! Command lines are parsed by nvc-options: building clap's table would take as long as the rest of a short command.

#![forbid(unsafe_code)]

use std::ffi::OsString;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, Command, value_parser};
use nvc_options::{Command as Table, Opt, Takes, args, ctk, node};

/// Returns nvidia-container-cli.
pub fn cli() -> Command {
    let program = &args::TABLE;
    let mut command = described(program, program);
    for table in program.commands {
        let operand = table.operand.as_ref();
        let operand = operand.map_or_else(String::new, |operand| format!(" {}", operand.name));
        let usage = format!("{} {} [OPTION...]{operand}", program.name, table.name);
        command = command.mut_subcommand(table.name, |command| command.override_usage(usage));
    }
    command
        .override_usage(format!("{} [OPTION...] COMMAND [ARG...]", program.name))
        .subcommand_help_heading("Commands")
}

/// Returns nvidia-ctk.
pub fn ctk() -> Command {
    described(&ctk::ROOT, &ctk::ROOT).version(env!("CARGO_PKG_VERSION"))
}

/// Returns gpu-kubelet-plugin.
pub fn node() -> Command {
    described(&node::ROOT, &node::ROOT).version(env!("CARGO_PKG_VERSION"))
}

/// Returns the help of a program, or of the command below it with this path.
pub fn text(mut program: Command, path: &[&str]) -> String {
    program.build();
    for word in path {
        if let Some(inner) = program.find_subcommand(word) {
            program = inner.clone();
        }
    }
    // The short layout, one option per line, with the full description of the command.
    if let Some(text) = program.get_long_about() {
        program = program.clone().about(text.clone());
    }
    program.render_help().to_string()
}

fn described(program: &'static Table, table: &'static Table) -> Command {
    let options = program.options_of(table).filter(|_| !table.passes_on);
    let mut command = Command::new(table.name)
        .about(table.about)
        .aliases(table.aliases)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .disable_help_subcommand(true)
        .max_term_width(100)
        // Options without a help text are for debugging.
        .args(options.filter(|option| !option.help.is_empty()).map(arg))
        .subcommands(table.commands.iter().map(|inner| described(program, inner)))
        .after_help(table.after);
    if let Some(operand) = &table.operand {
        let arg = Arg::new(operand.name).value_name(operand.name);
        let arg = arg.value_parser(any_bytes()).required(true);
        command = command.arg(arg.help(operand.help));
    }
    match table.long_about {
        Some(text) => command.long_about(text),
        None => command,
    }
}

fn arg(option: &'static Opt) -> Arg {
    let mut help = option.help.to_owned();
    if !option.default.is_empty() {
        help += &format!(" [default: {}]", option.default);
    }
    if let Some(variable) = option.env.first() {
        help += &format!(" [${variable}]");
    }
    let arg = Arg::new(option.long)
        .long(option.long)
        .short(option.short)
        .aliases(option.aliases)
        .help(help)
        .hide(option.hidden);
    let Some(name) = option.takes.name() else {
        return arg.action(ArgAction::SetTrue);
    };
    let arg = arg.value_name(name).value_parser(any_bytes());
    match option.takes {
        Takes::PerhapsValue(_) => arg.num_args(0..=1).require_equals(true),
        Takes::Values(_) => arg.action(ArgAction::Append),
        Takes::Flag | Takes::Value(_) => arg,
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
    fn clap_finds_the_tables_consistent() {
        cli().debug_assert();
        ctk().debug_assert();
        node().debug_assert();
    }
}
