//! Writes the manual pages of nvidia-container-cli, one for the program and one for each command, which `man
//! nvidia-container-cli configure` finds; and that of gpu-kubelet-plugin.

use std::io;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;
use nvc_options::args::PROGRAM;
use nvc_options::node;

/// Returns the sections after the options on the page of the program, or of one of its commands.
fn further_sections(command: &str) -> Option<&'static str> {
    match command {
        PROGRAM => Some(include_str!("../../man/nvidia-container-cli.sections")),
        "info" => Some(include_str!("../../man/nvidia-container-cli-info.sections")),
        "list" => Some(include_str!("../../man/nvidia-container-cli-list.sections")),
        "configure" => Some(include_str!(
            "../../man/nvidia-container-cli-configure.sections"
        )),
        _ => None,
    }
}

/// The description on the program's page; those of its commands are their own.
const DESCRIPTION: &str = "Finds the driver on this machine, and puts it and chosen GPUs into a container that exists: \
    device nodes, libraries, programs, a filtered /proc/driver/nvidia, device rules and the loader's cache. Hooks of \
    container runtimes call it, and so can anybody who makes a container by hand.";

/// Writes below `share`.
pub(crate) fn write(share: &Path, date: &str) -> io::Result<()> {
    let directory = share.join("man/man1");
    let program = nvc_help::cli();
    for command in std::iter::once(&program).chain(program.get_subcommands()) {
        let name = match command.get_name() {
            PROGRAM => PROGRAM.to_owned(),
            name => format!("{PROGRAM}-{name}"),
        };
        let sections = further_sections(command.get_name())
            .ok_or_else(|| io::Error::other(format!("no sections for {name}")))?;
        let page = page(command, &name, "1", "libnvidia-container", date, sections)?;
        crate::save(&directory.join(format!("{name}.1")), &page)?;
    }
    let sections = include_str!("../../man/gpu-kubelet-plugin.sections");
    let program = nvc_help::node().after_help("");
    let source = "nvidia-dra-driver-gpu";
    let page = page(&program, node::PROGRAM, "8", source, date, sections)?;
    let file = format!("man/man8/{}.8", node::PROGRAM);
    crate::save(&share.join(file), &page)
}

/// One page, of the package that is its `source`.
fn page(
    command: &Command,
    name: &str,
    section: &str,
    source: &str,
    date: &str,
    sections: &str,
) -> io::Result<Vec<u8>> {
    let version = env!("CARGO_PKG_VERSION");
    // A name's description is no sentence.
    let about = command.get_about().map(ToString::to_string);
    let about = about.unwrap_or_default().trim_end_matches('.').to_owned();
    let is_program = command.get_name() == PROGRAM;
    let command = command.clone().display_name(name).about(about);
    let man = Man::new(command)
        .title(name.to_uppercase())
        .section(section)
        .date(date)
        .source(format!("{source} {version}"))
        .manual("NVIDIA containers");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    if is_program {
        text.extend(format!(".SH DESCRIPTION\n{DESCRIPTION}\n").bytes());
    } else {
        man.render_description_section(&mut text)?;
    }
    man.render_options_section(&mut text)?;
    text.extend_from_slice(sections.as_bytes());
    Ok(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_all_its_options() {
        let directory = std::env::temp_dir().join(format!("nvc-manual-{}", std::process::id()));
        write(&directory, "2026-01-01").unwrap();
        let program = nvc_help::cli();
        for command in program.get_subcommands() {
            let file = format!("{PROGRAM}-{}.1", command.get_name());
            assert_complete(&directory.join("man/man1").join(file), command);
        }
        let page = directory.join("man/man8/gpu-kubelet-plugin.8");
        assert_complete(&page, &nvc_help::node());
        std::fs::remove_dir_all(directory).unwrap();
    }

    fn assert_complete(page: &Path, command: &Command) {
        let page = std::fs::read_to_string(page).unwrap().replace('\\', "");
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let long = arg.get_long().unwrap_or("");
            assert!(page.contains(&format!("--{long}")), "{long}");
        }
    }
}
