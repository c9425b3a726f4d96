//! Writes the manual page and the completions of nvidia-ctk, from its own table of commands and options.

use std::io;
use std::path::Path;

use clap::Command;
use clap::builder::PossibleValuesParser;
use clap_mangen::Man;
use nvc_help::ctk;
use nvc_options::ctk::PROGRAM;
use nvc_policy::config::keys::KEYS;

use crate::completions;

/// Sections that the table does not contain.
const SECTIONS: &str = include_str!("../../man/nvidia-ctk.sections");

/// The description, which says more than the name does.
const DESCRIPTION: &str = "Prepares a machine for containers with GPUs: writes the CDI specifications that engines read, \
    compares them with the machine and lists their devices; registers the runtime nvidia with docker, containerd and \
    CRI-O, and undoes that; changes config.toml; and finds out why a container gets no GPU. It changes no running \
    container. The command to begin with is doctor.";

/// The modes of `cdi generate`.
const MODES: [&str; 11] = [
    "auto",
    "csv",
    "gdrcopy",
    "gds",
    "imex",
    "management",
    "mig-caps",
    "mofed",
    "nvml",
    "nvswitch",
    "wsl",
];

/// Writes below `share`.
pub(crate) fn write(share: &Path, date: &str) -> io::Result<()> {
    crate::save(&share.join(format!("man/man1/{PROGRAM}.1")), &page(date)?)?;
    completions::write_of(PROGRAM, table, share)
}

/// The table, with the values that a shell can offer.
fn table() -> Command {
    described(ctk())
}

fn described(command: Command) -> Command {
    let command = match command.get_name() {
        "config" => command.mut_arg("set", |arg| {
            let keys: Vec<&'static str> = KEYS.iter().map(|key| key.name).collect();
            arg.value_parser(PossibleValuesParser::new(keys))
        }),
        "list" | "verify" | "info" | "doctor" => {
            command.mut_arg("format", |arg| arg.value_parser(["text", "json"]))
        }
        _ => command,
    };
    command
        .mut_args(|arg| {
            let values: &[&str] = match arg.get_id().as_str() {
                "mode" => &MODES,
                "format" if arg.get_possible_values().is_empty() => &["json", "yaml"],
                "device-name-strategy" => &["index", "uuid", "type-index"],
                "device-id" => &["all", "none", completions::GPUS],
                "hooks" => &["separate", "merged"],
                "style" => &["files", "live"],
                "relative-to" => &["host", "container"],
                "runtime" => &["docker", "containerd", "crio"],
                "config-source" => &["file", "command"],
                "config-mode" => &["config-file", "oci-hook"],
                _ => return arg,
            };
            arg.value_parser(PossibleValuesParser::new(values.to_vec()))
        })
        .mut_subcommands(described)
}

/// One page: the program, then each command with its options.
fn page(date: &str) -> io::Result<Vec<u8>> {
    let version = env!("CARGO_PKG_VERSION");
    let program = ctk();
    let about = program
        .get_about()
        .map(ToString::to_string)
        .unwrap_or_default();
    let man = Man::new(program.clone().about(lower_case(&about)))
        .title(PROGRAM.to_uppercase())
        .section("1")
        .date(date)
        .source(format!("nvidia-container-toolkit {version}"))
        .manual("NVIDIA containers");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    let synopsis =
        ".SH SYNOPSIS\n.B nvidia\\-ctk\n[\\fIOPTION\\fR...] \\fICOMMAND\\fR [\\fIOPTION\\fR...]\n";
    text.extend_from_slice(synopsis.as_bytes());
    text.extend(format!(".SH DESCRIPTION\n{}\n", escaped(DESCRIPTION)).bytes());
    man.render_options_section(&mut text)?;
    text.extend_from_slice(b".SH COMMANDS\n");
    commands(&program, PROGRAM, &mut text);
    text.extend_from_slice(SECTIONS.as_bytes());
    Ok(text)
}

/// A text whose first letter is small, as the names of manual pages have it.
fn lower_case(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(char::to_lowercase);
    first.into_iter().flatten().chain(letters).collect()
}

/// A command's subcommands, each with its options, and theirs.
fn commands(of: &Command, path: &str, text: &mut Vec<u8>) {
    for command in of.get_subcommands() {
        let path = format!("{path} {}", command.get_name());
        let is_group = command.get_subcommands().next().is_some() && command.get_name() != "config";
        if !is_group {
            let about = command
                .get_about()
                .map(ToString::to_string)
                .unwrap_or_default();
            let mut lines = format!(".SS {path}\n{}.\n", escaped(&about));
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let Some(long) = arg.get_long() else {
                    continue;
                };
                let value = arg
                    .get_value_names()
                    .filter(|_| arg.get_action().takes_values());
                let value = value
                    .and_then(<[_]>::first)
                    .map(|name| format!(" \\fI{name}\\fR"));
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                lines += &format!(
                    ".TP\n\\fB\\-\\-{}\\fR{}\n{}\n",
                    escaped(long),
                    value.unwrap_or_default(),
                    escaped(&help)
                );
            }
            text.extend_from_slice(lines.as_bytes());
        }
        commands(command, &path, text);
    }
}

/// A text as roff shows it unchanged.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::completions::tests::offered_by_bash;

    #[test]
    fn bash_completes_commands_and_options() {
        let share = std::env::temp_dir().join(format!("nvc-toolkit-{}", std::process::id()));
        write(&share, "2026-01-01").unwrap();
        let script = share.join("bash-completion/completions").join(PROGRAM);
        for (words, offered) in [
            (&["doc"][..], "doctor"),
            (&["runtime", "conf"], "configure"),
            (&["cdi", "generate", "--outp"], "--output"),
            (&["cdi", "transform", "root", "--fr"], "--from"),
            (&["cdi", "generate", "--mode", "man"], "management"),
            (
                &["runtime", "configure", "--runtime", "c"],
                "containerd crio",
            ),
            (&["doctor", "--format", "j"], "json"),
            (&["cdi", "generate", "--format", "y"], "yaml"),
            (&["config", "--set", "disable-r"], "disable-require"),
            (&["cdi", "generate", "--device-i"], "--device-id"),
            (
                &["system", "create-device-nodes", "--contr"],
                "--control-devices",
            ),
        ] {
            let words = [&[PROGRAM], words].concat();
            assert_eq!(offered_by_bash(&script, &words), offered, "{words:?}");
        }
        std::fs::remove_dir_all(share).unwrap();
    }

    #[test]
    fn the_page_has_every_command_and_option() {
        let page = String::from_utf8(page("2026-01-01").unwrap())
            .unwrap()
            .replace('\\', "");
        for word in [
            "nvidia-ctk cdi transform root",
            "--nvidia-cdi-hook-path",
            "nvidia-ctk config default",
            "--remove",
            "--quiet",
            "generate CDI specifications",
            "The command to begin with",
        ] {
            assert!(page.contains(word), "{word}");
        }
    }
}
