//! Generates specifications of this machine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libnvc::{Error, ErrorKind, Result};
use log::{info, warn};
use nvc_cdi::emit::{Format, text};
use nvc_cdi::{Spec, file, names, version};
use nvc_generate::{
    Channels, Files, Flags, GeneratedSpecs, HookProgram, Hooks, Mode, Naming, Options, generate,
};
use nvc_policy::config;
use nvc_program::hook_names;

use crate::commands::invalid;
use crate::line::CommandLine;
use crate::logging::print;
use crate::query;

pub(in crate::commands) fn run(line: &CommandLine) -> Result<()> {
    let options = options(line)?;
    let format = format(line)?;
    let output = line.text("output");
    let target = (!output.is_empty()).then(|| file::output(Path::new(output), format));
    let most = most_recent(line)?;
    if options.has_one_hook() {
        check_merged(&options.hooks.program.path)?;
    }
    let made = match (generate(&options), &target) {
        (Err(error), Some((path, _))) if error.kind() == ErrorKind::NotFound => {
            return Err(without_devices(error, path));
        }
        (made, _) => made?,
    };
    report(&made);
    if let Some(most) = most {
        within(&made.spec, most)?;
    }
    let comment = file::comment(&line.spelled_out());
    let Some((path, format)) = target else {
        let format = format.unwrap_or(Format::Yaml);
        let parts = made.parts.iter().map(|(_, spec)| spec);
        let texts = std::iter::once(&made.spec)
            .chain(parts)
            .map(|spec| text(spec, format, Some(&comment)));
        return print(&texts.collect::<String>());
    };
    let parts = made
        .parts
        .iter()
        .map(|(part, spec)| (with_infix(&path, part), spec));
    let files: Vec<(PathBuf, &Spec)> = std::iter::once((path.clone(), &made.spec))
        .chain(parts)
        .collect();
    for (path, spec) in &files {
        file::check_siblings(path, spec)?;
    }
    for (path, spec) in &files {
        file::write(path, spec, format, Some(&comment))?;
        info!("Generated CDI spec with version {}", spec.cdi_version);
    }
    Ok(())
}

/// Inserts a word before a file name's extension.
fn with_infix(path: &Path, infix: &str) -> PathBuf {
    let ending = path
        .extension()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    path.with_extension(format!("{infix}.{ending}"))
}

/// Rejects a hook program that does not support the merged hook: it would exit 0 and do nothing.
pub(super) fn check_merged(program: &str) -> Result<()> {
    let words: &[&str] = if program.ends_with("/nvidia-ctk") {
        &["hook", hook_names::MERGED, "--help"]
    } else {
        &[hook_names::MERGED, "--help"]
    };
    let output = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .output();
    let knows =
        output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("--discover"));
    if knows {
        return Ok(());
    }
    Err(invalid(format!("{program} does not know the merged hook"))
        .hint("leave out --hooks=merged, or name our program with --nvidia-cdi-hook-path"))
}

/// Combines the options of a line with the environment and config.toml.
pub(super) fn options(line: &CommandLine) -> Result<Options> {
    let mode = line.text("mode");
    let mode =
        Mode::named(mode).ok_or_else(|| invalid(format!("invalid discovery mode: {mode}")))?;
    let (vendor, class) = (line.text("vendor"), line.text("class"));
    names::vendor(vendor).map_err(|text| invalid(format!("invalid CDI vendor name: {text}")))?;
    names::class(class).map_err(|text| invalid(format!("invalid CDI class name: {text}")))?;
    let root = |name: &str| {
        line.given(name)
            .filter(|root| !root.is_empty())
            .map(PathBuf::from)
    };
    let driver_root = root("driver-root").unwrap_or_else(|| configured_root(line));
    let dev_root = root("dev-root").unwrap_or_else(|| driver_root.clone());
    let naming = match line.list("device-name-strategy") {
        [] => vec![Naming::Index, Naming::Uuid],
        words => words
            .iter()
            .map(|word| naming(word))
            .collect::<Result<_>>()?,
    };
    Ok(Options {
        mode,
        naming,
        channels: match mode {
            Mode::Imex => Channels::of(line.list("device-id"))?,
            _ => Channels::All,
        },
        ids: line.list("device-id").to_vec(),
        no_all: line.flag("no-all-device"),
        vendor: vendor.into(),
        class: class.into(),
        hooks: hooks(line)?,
        ldconfig: line
            .given("ldconfig-path")
            .filter(|path| !path.is_empty())
            .map(String::from),
        files: match line.text("style") {
            "files" => Files::Listed,
            "live" => Files::AtStart,
            other => return Err(invalid(format!("invalid --style value: {other}"))),
        },
        displays: true,
        all_may_be_none: false,
        config_search: absolute(line, "config-search-path")?,
        library_search: absolute(line, "library-search-path")?,
        csv_files: line.list("csv.file").iter().map(PathBuf::from).collect(),
        csv_ignore: line.list("csv.ignore-pattern").to_vec(),
        csv_compat_root: line.text("csv.compat-container-root").into(),
        gids: line.flag("gids"),
        query: query::program(),
        flags: flags(line)?,
        path: std::env::var("PATH").unwrap_or_default(),
        data_dirs: std::env::var("XDG_DATA_DIRS").unwrap_or_default(),
        driver_root,
        dev_root,
    })
}

/// Returns `nvidia-container-cli.root` of config.toml; the default if the file cannot be read.
fn configured_root(line: &CommandLine) -> PathBuf {
    let given = line
        .given("config")
        .filter(|path| !path.is_empty())
        .map(Path::new);
    let place = config::lookup::place(given, |name| std::env::var_os(name));
    let root = match config::lookup::load(&place, false) {
        Ok(loaded) => loaded.config.cli.root,
        Err(error) => {
            warn!("{}: {error}", place.file.display());
            String::new()
        }
    };
    PathBuf::from(if root.is_empty() { "/" } else { &root })
}

fn naming(word: &str) -> Result<Naming> {
    Naming::named(word).ok_or_else(|| invalid(format!("invalid device name strategy: {word}")))
}

fn absolute(line: &CommandLine, name: &str) -> Result<Vec<PathBuf>> {
    let paths = line.list(name).iter().filter(|path| !path.is_empty());
    let checked = paths.map(|path| {
        if path.starts_with('/') {
            Ok(PathBuf::from(path))
        } else {
            Err(invalid(format!(
                "--{name} \"{path}\" is not an absolute path"
            )))
        }
    });
    checked.collect()
}

fn hooks(line: &CommandLine) -> Result<Hooks> {
    let (disabled, enabled) = (line.list("disable-hook"), line.list("enable-hook"));
    if enabled.iter().any(|name| name == "all") {
        return Err(invalid("enabling all hooks is not supported"));
    }
    for name in disabled.iter().chain(enabled) {
        if name != "all" && !hook_names::SELECTABLE.contains(&name.as_str()) {
            warn!(
                "unknown hook {name}; known: {}",
                hook_names::SELECTABLE.join(", ")
            );
        }
    }
    let merged = match line.text("hooks") {
        "merged" => true,
        "separate" => false,
        other => return Err(invalid(format!("invalid --hooks value: {other}"))),
    };
    let set = |names: &[String]| names.iter().cloned().collect::<BTreeSet<_>>();
    Ok(Hooks {
        program: HookProgram {
            path: hook_path(line.given("nvidia-cdi-hook-path")),
        },
        disabled: set(disabled),
        enabled: set(enabled),
        merged,
    })
}

/// Returns the hook program: a path unchanged, a name looked up in PATH.
fn hook_path(given: Option<&str>) -> String {
    let name = given
        .filter(|name| !name.is_empty())
        .unwrap_or("nvidia-cdi-hook");
    if name.contains('/') {
        return name.into();
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let found = path
        .split(':')
        .filter(|directory| directory.starts_with('/'))
        .find_map(|directory| {
            let path = Path::new(directory).join(name);
            path.is_file().then(|| path.display().to_string())
        });
    found.unwrap_or_else(|| format!("/usr/bin/{name}"))
}

fn flags(line: &CommandLine) -> Result<Flags> {
    let mut flags = Flags::default();
    for name in line.list("feature-flag") {
        match name.as_str() {
            // Our query never uses that library.
            "disable-nvsandboxutils" | "disable-nvsandbox-utils" => {}
            "disable-multiple-csv-devices" => flags.single_csv_device = true,
            "enable-explicit-driver-libraries" => flags.explicit_driver_libraries = true,
            "enable-coherent-annotations" => flags.coherent_annotations = true,
            "no-additional-gids-for-device-nodes" => flags.no_additional_gids = true,
            "disable-ipc-discoverer" => flags.no_ipc = true,
            other => warn!("unknown feature flag {other}"),
        }
    }
    Ok(flags)
}

fn format(line: &CommandLine) -> Result<Option<Format>> {
    let Some(word) = line.given("format") else {
        return Ok(None);
    };
    let format = Format::named(word);
    format
        .map(Some)
        .ok_or_else(|| invalid(format!("invalid output format: {word}")))
}

/// Returns the latest allowed version.
fn most_recent(line: &CommandLine) -> Result<Option<&str>> {
    let Some(most) = line.given("cdi-version") else {
        return Ok(None);
    };
    match version::rank(most) {
        Some(_) => Ok(Some(most)),
        None => Err(invalid(format!(
            "unknown CDI version \"{most}\": there are {}",
            version::KNOWN.join(", ")
        ))),
    }
}

fn within(spec: &Spec, most: &str) -> Result<()> {
    let (least, feature) = version::minimum(spec);
    if version::rank(least) <= version::rank(most) {
        return Ok(());
    }
    Err(invalid(format!(
        "the specification needs CDI {least} for {feature}, and --cdi-version allows {most}"
    )))
}

fn report(made: &GeneratedSpecs) {
    for warning in &made.warnings {
        warn!("{warning}");
    }
}

/// Removes a specification whose devices are gone: a MIG capability's number may belong to another tenant by now.
fn without_devices(error: Error, path: &Path) -> Error {
    match file::remove_own(path) {
        Ok(true) => error.context(format!("{} was removed", path.display())),
        Ok(false) => error,
        Err(cleanup) => error.with_cleanup([cleanup]),
    }
}
