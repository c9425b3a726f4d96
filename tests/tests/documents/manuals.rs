//! Compares the options on manual pages with those that the programs print.
//!
//! The pages of nvidia-container-cli, nvidia-ctk and gpu-kubelet-plugin are generated from the tables of options
//! (pkg/generate). The others are written by hand.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use nvc_testkit::cli;
use nvc_testkit::harness::Test;
use nvc_testkit::machine::Scratch;
use nvc_testkit::tests;

use super::world::repository;

pub(crate) fn tests() -> Vec<Test> {
    tests![&[];
        the_page_of_the_cdi_hook_is_complete,
        the_page_of_the_runtime_hook_is_complete,
        the_page_of_the_plugin_is_complete,
        the_page_of_nvidia_docker_is_complete,
        the_page_of_the_runtime_is_complete,
        pages_have_the_names_of_their_files,
    ]
}

/// Returns a page as it is read: without markup.
fn page(name: &str) -> String {
    let path = repository().join("pkg/man").join(name);
    let text = fs::read_to_string(path).unwrap();
    text.replace("\\-", "-")
        .replace("\\fR", " ")
        .replace('"', " ")
}

/// Returns what a program prints, to either output, whatever its exit code.
fn printed(program: &str, words: &[&str]) -> String {
    let scratch = Scratch::new().unwrap();
    let config = scratch.join("config.toml");
    let runtimes = "[nvidia-container-runtime]\nruntimes = [\"true\"]\n";
    fs::write(&config, runtimes).unwrap();
    let output = Command::new(cli::beside(program).unwrap())
        .args(words)
        // Instead of docker and runc.
        .env("NV_DOCKER", "true")
        .env("NVIDIA_CTK_CONFIG_FILE_PATH", config)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let both = [output.stdout, output.stderr].concat();
    String::from_utf8(both).unwrap()
}

/// Returns the options in a text: words that begin with a dash.
fn options(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let words = text.split(|c: char| !is_part(c));
    let options = words.filter(|word| {
        let name = word.trim_start_matches('-');
        name.len() < word.len() && name.starts_with(|c: char| c.is_ascii_lowercase())
    });
    options.map(str::to_owned).collect()
}

/// Returns the first words of indented lines.
fn entries(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().filter(|line| line.starts_with([' ', '-']));
    lines.filter_map(|line| line.split_whitespace().next())
}

#[track_caller]
fn assert_all<'a>(page: &str, wanted: impl IntoIterator<Item = &'a str>) {
    for word in wanted {
        assert!(page.contains(word), "the page lacks {word}");
    }
}

fn the_page_of_the_cdi_hook_is_complete() {
    let page = page("nvidia-cdi-hook.8");
    let help = printed("nvidia-cdi-hook", &["--help"]);
    let hooks: Vec<_> = entries(&help).collect();
    assert!(hooks.len() > 8, "{help}");
    assert_all(&page, hooks.iter().copied());
    let mut known = options(&help);
    for hook in hooks {
        known.extend(options(&printed("nvidia-cdi-hook", &[hook, "--help"])));
    }
    let shown = options(&page);
    assert_eq!(known.difference(&shown).collect::<Vec<_>>(), [""; 0]);
    assert_eq!(shown.difference(&known).collect::<Vec<_>>(), [""; 0]);
}

fn the_page_of_the_runtime_hook_is_complete() {
    let page = page("nvidia-container-runtime-hook.8");
    let help = printed("nvidia-container-runtime-hook", &["-help"]);
    let words: Vec<_> = entries(&help)
        .filter(|word| word.starts_with('-') || word.starts_with("p"))
        .collect();
    assert!(
        words.contains(&"-config") && words.contains(&"prestart"),
        "{help}"
    );
    assert_all(&page, words);
}

fn the_page_of_the_plugin_is_complete() {
    let page = page("nvidia-docker-plugin.8");
    let help = printed("nvidia-docker-plugin", &["-help"]);
    let (shown, known) = (options(&page), options(&help));
    assert!(known.contains("-allow-host"), "{help}");
    assert_eq!(known.difference(&shown).collect::<Vec<_>>(), [""; 0]);
}

fn the_page_of_nvidia_docker_is_complete() {
    let page = page("nvidia-docker.1");
    let help = printed("nvidia-docker", &["--help"]);
    let variables = |text: &str| -> BTreeSet<String> {
        let is_part = |c: char| c.is_ascii_uppercase() || c == '_';
        let words = text.split(|c: char| !is_part(c));
        let ours = words.filter(|word| word.starts_with("NV_"));
        ours.map(str::to_owned).collect()
    };
    assert!(help.contains("NV_DRY_RUN"), "{help}");
    assert_eq!(variables(&page), variables(&help));
}

/// Its help begins with its own lines; then comes that of runc.
fn the_page_of_the_runtime_is_complete() {
    let page = page("nvidia-container-runtime.8");
    for words in [&["--help"][..], &["help"], &[]] {
        let help = printed("nvidia-container-runtime", words);
        for text in [
            "NVIDIA_VISIBLE_DEVICES",
            "config.toml",
            "NVIDIA_CTK_CONFIG_FILE_PATH",
        ] {
            assert!(help.contains(text), "{words:?}: {help}");
            assert!(page.contains(text), "{text}");
        }
    }
    assert_all(&page, ["--help", "--version", "--log"]);
}

fn pages_have_the_names_of_their_files() {
    let mut count = 0;
    for entry in fs::read_dir(repository().join("pkg/man")).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        // Parts of generated pages.
        if file.ends_with(".sections") {
            continue;
        }
        let (name, section) = file.rsplit_once('.').unwrap();
        let title = format!(".TH {} {section} ", name.to_uppercase());
        assert!(page(&file).starts_with(&title), "{file} lacks {title}");
        count += 1;
    }
    assert!(count > 5);
}
