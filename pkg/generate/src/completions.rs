//! Writes the completions, each at the place where its shell looks.
//!
//! The table takes any bytes as a value, because the commands check values themselves and say more than a table could.
//! What a shell can offer is therefore added here.

use std::io;
use std::path::Path;

use clap::{Arg, Command, ValueHint};
use clap_complete::{Shell, generate};
use nvc_options::args::PROGRAM;
use nvc_options::node;

/// Stands for the UUIDs of GPUs among the values of an option.
pub(crate) const GPUS: &str = "@gpus@";

/// Lists them in each of the shells. The module has them without waking a GPU.
const LIST: &str = r#"$(grep -rhosE "GPU-[0-9a-f-]+" /proc/driver/nvidia/gpus)"#;

/// Writes below `share`.
pub(crate) fn write(share: &Path) -> io::Result<()> {
    write_of(PROGRAM, table, share)?;
    write_of(node::PROGRAM, node_table, share)
}

/// Writes those of a program with this table.
pub(crate) fn write_of(program: &str, table: fn() -> Command, share: &Path) -> io::Result<()> {
    for (shell, place) in [
        (
            Shell::Bash,
            format!("bash-completion/completions/{program}"),
        ),
        (Shell::Zsh, format!("zsh/site-functions/_{program}")),
        (
            Shell::Fish,
            format!("fish/vendor_completions.d/{program}.fish"),
        ),
    ] {
        let mut script = Vec::new();
        generate(shell, &mut table(), program, &mut script);
        if shell == Shell::Bash {
            script = fix_bash(script, program)?;
        }
        let script = String::from_utf8(script).map_err(io::Error::other)?;
        let script = with_gpus(&script);
        crate::save(&share.join(place), script.as_bytes())?;
    }
    Ok(())
}

/// Puts the command in the place of [`GPUS`]. fish has a value and its description in each line; zsh's list in round
/// brackets is not expanded, and a command in curly ones is.
fn with_gpus(script: &str) -> String {
    let mut text = script.replace(&format!("{GPUS}\\t''"), LIST);
    for values in ["all", "all none"] {
        let action = format!("{{compadd {values} {LIST}}}");
        text = text.replace(&format!("({values} {GPUS})"), &action);
    }
    text.replace(GPUS, LIST)
}

/// Makes the completions of bash work where clap_complete does not:
///
/// * It spells the states of a command's options in two ways where the program's name has a hyphen
///   (<https://github.com/clap-rs/clap/issues/6421>).
/// * It knows `--option value` only, and bash makes three words of `--option=value`.
fn fix_bash(script: Vec<u8>, program: &str) -> io::Result<Vec<u8>> {
    let mut script = String::from_utf8(script).map_err(io::Error::other)?;
    let state = program.replace('-', "__");
    let misspelt = program.replace('-', "__subcmd__");
    script = script.replace(&misspelt, &state);
    let previous = "    prev=\"$3\"\n";
    let fixed = format!(
        "{previous}    \
         if [[ ${{COMP_WORDS[COMP_CWORD]}} == = ]]; then\n        \
             cur=\n    \
         elif [[ ${{prev}} == = ]]; then\n        \
             prev=\"${{COMP_WORDS[COMP_CWORD-2]}}\"\n    \
         fi\n"
    );
    if !script.contains(previous) {
        return Err(io::Error::other("the completions of bash look different"));
    }
    Ok(script.replacen(previous, &fixed, 1).into_bytes())
}

/// The option table, with what is known of the values.
fn table() -> Command {
    nvc_help::cli()
        .mut_args(describe)
        .mut_subcommands(|command| command.mut_args(describe))
}

/// The options of gpu-kubelet-plugin.
fn node_table() -> Command {
    nvc_help::node().mut_args(describe)
}

fn describe(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "debug" | "ldcache" | "kubeconfig" | "nvidia-cdi-hook-path" => {
            arg.value_hint(ValueHint::FilePath)
        }
        "root"
        | "ROOTFS"
        | "cdi-root"
        | "nvidia-driver-root"
        | "container-driver-root"
        | "kubelet-registrar-directory-path"
        | "kubelet-plugins-directory-path" => arg.value_hint(ValueHint::DirPath),
        "node-name" => arg.value_hint(ValueHint::Hostname),
        "healthcheck-port" | "additional-xids-to-ignore" | "feature-gates" | "v" => {
            arg.value_hint(ValueHint::Other)
        }
        "ldconfig" => arg.value_hint(ValueHint::AnyPath),
        "user" => arg.value_hint(ValueHint::Username),
        "format" => arg.value_parser(["text", "json"]),
        "cuda-compat-mode" => arg.value_parser(["mount", "ldconfig", "disabled"]),
        "mig-config" | "mig-monitor" => arg.value_parser(["all"]),
        "device" => arg.value_parser(["all", GPUS]),
        // There is no telling what channels and so on there are, but files they are not.
        "help" => arg.short(None), // fish would take `?' for a pattern
        "imex-channel" | "require" | "pid" | "process-user" => arg.value_hint(ValueHint::Other),
        _ => arg,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn every_value_is_described() {
        let (table, node) = (table(), node_table());
        let commands = [&table, &node].into_iter().chain(table.get_subcommands());
        for arg in commands.flat_map(Command::get_arguments) {
            let described =
                arg.get_value_hint() != ValueHint::Unknown || !arg.get_possible_values().is_empty();
            assert!(
                described || !arg.get_action().takes_values(),
                "{}",
                arg.get_id()
            );
        }
    }

    /// Returns bash's completions for the last of these words.
    pub(crate) fn offered_by_bash(script: &Path, words: &[&str]) -> String {
        let driver = r#"
            compopt() { :; }
            grep() { [ "$*" = "-rhosE GPU-[0-9a-f-]+ /proc/driver/nvidia/gpus" ] && echo GPU-1 GPU-2; }
            _comp_load() { complete -F "_$1" "$1"; }
            _docker() { COMPREPLY=("docker's"); }
            . "$1"
            shift
            COMP_WORDS=("$@")
            COMP_CWORD=$(($# - 1))
            function=$(complete -p "$1" | sed 's/.*-F \([^ ]*\).*/\1/')
            "$function" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
            echo "${COMPREPLY[*]}""#;
        let output = std::process::Command::new("bash")
            .args(["--norc", "-c", driver, "bash"])
            .arg(script)
            .args(words)
            .output()
            .unwrap();
        assert!(output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    #[test]
    fn nvidia_docker_has_dockers() {
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../completions/nvidia-docker.bash"
        );
        let offered = offered_by_bash(Path::new(script), &["nvidia-docker", "ru"]);
        assert_eq!(offered, "docker's");
    }

    #[test]
    fn bash_completes_commands_options_and_values() {
        let share = std::env::temp_dir().join(format!("nvc-completions-{}", std::process::id()));
        write(&share).unwrap();
        let script = share.join("bash-completion/completions").join(PROGRAM);
        for (words, offered) in [
            (&["con"][..], "configure"),
            (&["--ldc"], "--ldcache"),
            (&["configure", "--cuda"], "--cuda-compat-mode"),
            (&["--load-kmods", "configure", "--dry"], "--dry-run"),
            (&["configure", "--cuda-compat-mode", "m"], "mount"),
            (&["configure", "--cuda-compat-mode", "=", "m"], "mount"),
            (&["list", "--format", "="], "text json"),
            (&["info", "--c"], "--csv"),
            (&["list", "--device", "GPU"], "GPU-1 GPU-2"),
        ] {
            let words = [&[PROGRAM], words].concat();
            assert_eq!(offered_by_bash(&script, &words), offered, "{words:?}");
        }
        let plugin = "gpu-kubelet-plugin";
        let script = share.join("bash-completion/completions").join(plugin);
        for (word, offered) in [("--kubec", "--kubeconfig"), ("--image", "")] {
            assert_eq!(offered_by_bash(&script, &[plugin, word]), offered);
        }
        // Neither need be installed here.
        for (place, action) in [
            (
                "zsh/site-functions/_nvidia-container-cli",
                ":{compadd all $(grep ",
            ),
            (
                "fish/vendor_completions.d/nvidia-container-cli.fish",
                "-a \"all\\t''\n$(grep ",
            ),
        ] {
            let text = std::fs::read_to_string(share.join(place)).unwrap();
            assert!(text.contains(action) && !text.contains(GPUS), "{place}");
        }
        std::fs::remove_dir_all(share).unwrap();
    }
}
