//! Generates specifications of this machine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use libnvc::options::Ldconfig;
use libnvc::{Error, ErrorKind, Result};
use log::{info, warn};
use nix::sys::stat;
use nvc_cdi::emit::{Format, text};
use nvc_cdi::{STANDARD_DIRECTORIES, Spec, file, names, registry, version};
use nvc_generate::{
    Channels, Csv, Files, Find, GeneratedSpecs, HookProgram, Hooks, Mode, Names, Naming, Options,
    PARTS, Rendering, generate, query_program,
};
use nvc_hostfile::programs::is_executable;
use nvc_hostfile::{HandedPaths, ours, system};
use nvc_oci::paths;
use nvc_policy::config::lookup::Place;
use nvc_policy::config::{self, Config};
use nvc_program::hook_names;

use super::machine::Machine;
use crate::ask::{ask, judged};
use crate::commands::invalid;
use crate::line::CommandLine;
use crate::logging::print;

/// Options that do not change a specification. Without them files of the same content are the same.
const NOT_RECORDED: [&str; 2] = ["output", "quiet"];

/// The hook program if none is found.
const DEFAULT_HOOK: &str = "/usr/bin/nvidia-cdi-hook";

const ROOTS: [&str; 2] = ["--driver-root", "--dev-root"];

pub(in crate::commands) fn run(line: &CommandLine) -> Result<()> {
    let options = options(line)?;
    let format = format(line)?;
    let output = line.text("output");
    let target = match Path::new(output) {
        path if output.ends_with('/') || path.is_dir() => {
            let file = path.join("nvidia.yaml");
            return Err(invalid(format!("--output={output} is a directory"))
                .hint(format!("name a file in it: {}", file.display())));
        }
        path => (!output.is_empty()).then(|| file::output(path, format)),
    };
    let most = most_recent(line)?;
    if options.has_one_hook() {
        check_applies(&options.rendering.hooks.program.path)?;
    }
    let hooks = &options.rendering.hooks;
    if !hooks.is_ours && !options.find.no_ipc {
        let program = &hooks.program.path;
        info!("Leaving out the sockets of daemons: {program} is of another build");
    }
    // Before NVML is asked: a change in between is seen later.
    let machine = Machine::here();
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
    let words = recorded(line.spelled_out_without(&NOT_RECORDED))?;
    let comment = file::comment(&words, &machine.to_text());
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
    if is_read_by_engines(&path, line) {
        for (path, spec) in &files {
            registry::check_siblings(path, spec)?;
        }
    }
    // Users read specifications, in new directories too.
    stat::umask(stat::Mode::S_IWGRP | stat::Mode::S_IWOTH);
    for (path, spec) in &files {
        file::write(path, spec, format, Some(&comment))?;
        info!("Generated CDI spec with version {}", spec.cdi_version);
        info!("Wrote {}", path.display());
    }
    Ok(())
}

/// Returns the words of a file's comment: with absolute paths, because it may be read in any directory.
fn recorded(words: Vec<String>) -> Result<Vec<String>> {
    let absolute = |word: String| match word.split_once('=') {
        // A hook program without a slash is looked up in PATH.
        Some((name, path))
            if ROOTS.contains(&name) && !path.is_empty()
                || name == "--nvidia-cdi-hook-path" && path.contains('/') =>
        {
            let path = made_absolute(path)?;
            Ok(format!("{name}={}", path.display()))
        }
        _ => Ok(word),
    };
    words.into_iter().map(absolute).collect()
}

/// Returns true if engines read specifications in a file's directory: elsewhere, two may define the same device.
fn is_read_by_engines(path: &Path, line: &CommandLine) -> bool {
    let Some(directory) = path.parent() else {
        return false;
    };
    let here = directory.as_os_str().is_empty();
    let directory = if here { Path::new(".") } else { directory };
    // One that does not exist yet has no other specifications.
    let Ok(directory) = directory.canonicalize() else {
        return false;
    };
    let is_this = |other: &Path| other.canonicalize().is_ok_and(|other| other == directory);
    let known = STANDARD_DIRECTORIES.iter().chain(&["/run/cdi"]);
    if known.map(Path::new).any(is_this) {
        return true;
    }
    let loaded = config::lookup::load(&config_place(line), false);
    loaded.is_ok_and(|loaded| {
        let directories = &loaded.config.runtime.cdi_spec_dirs;
        directories.iter().map(Path::new).any(is_this)
    })
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

/// Returns the `--output` of the command that wrote a file, which may be one of its parts.
pub(super) fn whole(path: &Path) -> PathBuf {
    let stem = path.file_stem().map(Path::new).unwrap_or(path);
    let is_part = stem
        .extension()
        .is_some_and(|part| PARTS.iter().any(|known| part == *known));
    match (stem.file_stem(), path.extension()) {
        (Some(name), Some(ending)) if is_part => path.with_file_name(name).with_extension(ending),
        _ => path.to_owned(),
    }
}

/// Rejects a hook program that does not apply plans: it would exit 0 and do nothing.
pub(super) fn check_applies(program: &str) -> Result<()> {
    let words: &[&str] = if program.ends_with("/nvidia-ctk") {
        &["hook", hook_names::APPLY, "--help"]
    } else {
        &[hook_names::APPLY, "--help"]
    };
    if ask(program, words).is_ok_and(|text| text.contains("--plan")) {
        return Ok(());
    }
    Err(invalid(format!("{program} does not know the hook {}", hook_names::APPLY)).hint(
        "leave out --hooks=merged and --style=live, or name our program with --nvidia-cdi-hook-path",
    ))
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
        let root = line.given(name).filter(|root| !root.is_empty());
        root.map(made_absolute).transpose()
    };
    let config = configured(line);
    let configured = || made_absolute(&config.driver_root().to_string_lossy());
    let driver_root = root("driver-root")?.map_or_else(configured, Ok)?;
    let dev_root = root("dev-root")?.unwrap_or_else(|| driver_root.clone());
    let naming = match line.list("device-name-strategy") {
        [] => vec![Naming::Index, Naming::Uuid],
        words => words
            .iter()
            .map(|word| naming(word))
            .collect::<Result<_>>()?,
    };
    let hooks = hooks(line)?;
    let flags = Flags::of(line);
    let find = Find {
        driver_root,
        dev_root,
        ids: line.list("device-id").to_vec(),
        channels: match mode {
            Mode::Imex => Channels::of(line.list("device-id"))?,
            _ => Channels::All,
        },
        files: match line.text("style") {
            "files" => Files::Listed,
            "live" => Files::AtStart,
            other => return Err(invalid(format!("invalid --style value: {other}"))),
        },
        config_search: absolute(line, "config-search-path")?,
        library_search: absolute(line, "library-search-path")?,
        explicit_driver_libraries: flags.explicit_driver_libraries,
        no_ipc: flags.no_ipc,
        no_compat32: line.flag("no-compat32"),
        coherence: flags.coherent_annotations,
        csv: Csv {
            files: line.list("csv.file").iter().map(PathBuf::from).collect(),
            ignore: line.list("csv.ignore-pattern").to_vec(),
            compat_root: line.text("csv.compat-container-root").into(),
            no_compat: hooks.is_off(hook_names::ENABLE_CUDA_COMPAT),
            single_device: flags.single_csv_device,
        },
        query: query_program(),
        path: std::env::var("PATH").unwrap_or_default(),
        data_dirs: std::env::var("XDG_DATA_DIRS").unwrap_or_default(),
        ..Find::new(mode)
    };
    let names = Names {
        naming,
        no_all: line.flag("no-all-device"),
        vendor: vendor.into(),
        class: class.into(),
    };
    let rendering = Rendering {
        hooks,
        ldconfig: ldconfig(line, &config),
        gids: line.flag("gids"),
        additional_gids: line.flag("gids") && !flags.no_additional_gids,
    };
    Ok(Options {
        find,
        names,
        rendering,
    })
}

/// Returns the location of config.toml.
fn config_place(line: &CommandLine) -> Place {
    let given = line
        .given("config")
        .filter(|path| !path.is_empty())
        .map(Path::new);
    config::lookup::place(given, |name| std::env::var_os(name))
}

/// Returns config.toml; the default if the file cannot be read.
fn configured(line: &CommandLine) -> Config {
    let place = config_place(line);
    match config::lookup::load(&place, false) {
        Ok(loaded) => loaded.config,
        Err(error) => {
            // Most of them name the file.
            let (text, file) = (error.to_string(), place.file.display().to_string());
            if text.contains(&file) {
                warn!("{text}");
            } else {
                warn!("{file}: {text}");
            }
            Config::default()
        }
    }
}

/// Returns the path of the host's ldconfig for the hooks: that of the command line, or else of config.toml.
fn ldconfig(line: &CommandLine, config: &Config) -> Option<String> {
    match line.given("ldconfig-path") {
        None | Some("") => {}
        Some(path) if Ldconfig::parse(path.as_ref()) == Ldconfig::Auto => return None,
        Some(path) => return Some(path.to_owned()),
    }
    config::ldconfig::for_hooks(config)
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
    let path = std::env::var("PATH").unwrap_or_default();
    let path = hook_path(line.given("nvidia-cdi-hook-path"), &path, DEFAULT_HOOK)?;
    Ok(Hooks {
        is_ours: is_ours(Path::new(&path)),
        program: HookProgram { path },
        disabled: set(disabled),
        enabled: set(enabled),
        merged,
    })
}

/// Returns true if a hook program is one of this build. An installer may have put a script into its place.
fn is_ours(program: &Path) -> bool {
    let record = ours::record(&std::env::current_exe().unwrap_or_default());
    let program = ours::behind_script(program.to_owned());
    let names = ["nvidia-cdi-hook", "nvidia-ctk"];
    names
        .iter()
        .any(|name| ours::is_recorded(&program, name, &record))
}

/// Returns a path absolute and cleaned: engines read a specification in directories of their own.
fn made_absolute(path: &str) -> Result<PathBuf> {
    let here = if path.starts_with('/') {
        Ok(PathBuf::new())
    } else {
        std::env::current_dir()
    };
    let here = here.map_err(|error| system("making a path absolute failed", path, &error))?;
    Ok(paths::absolute(path, &here))
}

/// Returns the hook program: a path made absolute, or a name looked up in `path`; else the default.
fn hook_path(given: Option<&str>, path: &str, default: &str) -> Result<String> {
    let given = given.filter(|name| !name.is_empty());
    let name = given.unwrap_or("nvidia-cdi-hook");
    if name.starts_with('/') {
        return Ok(name.into());
    }
    let found = if name.contains('/') {
        Some(made_absolute(name)?).filter(|path| is_executable(path))
    } else {
        // One that nobody named is judged: root will execute it for each container.
        let mut paths = HandedPaths::default();
        let directories = path.split(':').filter(|place| place.starts_with('/'));
        let directories: Vec<_> = directories.map(PathBuf::from).collect();
        judged(name, &directories, |path| match given {
            Some(_) => Ok(()),
            None => paths.check(path),
        })
    };
    if let Some(found) = found {
        return Ok(found.display().to_string());
    }
    match given {
        Some(name) if name.contains('/') || !is_executable(Path::new(default)) => {
            let text = format!("--nvidia-cdi-hook-path \"{name}\" is no executable file");
            return Err(invalid(text).hint("give an absolute path if it will exist later"));
        }
        Some(name) => warn!("{name} is not in PATH: the hook program is {default}"),
        None => {}
    }
    Ok(default.into())
}

/// Optional features.
#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    explicit_driver_libraries: bool,
    coherent_annotations: bool,
    no_additional_gids: bool,
    no_ipc: bool,
    single_csv_device: bool,
}

impl Flags {
    fn of(line: &CommandLine) -> Self {
        let mut flags = Self::default();
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
        flags
    }
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_output_of_a_part_is_that_of_the_whole() {
        for (path, expected) in [
            ("/etc/cdi/a.yaml", "/etc/cdi/a.yaml"),
            ("/etc/cdi/a.b.yaml", "/etc/cdi/a.b.yaml"),
            ("/etc/cdi/a.coherent.json", "/etc/cdi/a.json"),
            ("/etc/cdi/a.noncoherent.yaml", "/etc/cdi/a.yaml"),
        ] {
            assert_eq!(whole(Path::new(path)), Path::new(expected));
        }
    }

    #[test]
    fn recorded_paths_are_absolute() {
        let here = std::env::current_dir().unwrap();
        let words = [
            "--driver-root=a/b",
            "--dev-root=/c",
            "--nvidia-cdi-hook-path=h",
            "--mode=x",
        ];
        let words = words.map(String::from).to_vec();
        let absolute = format!("--driver-root={}/a/b", here.display());
        let expected = [
            &absolute,
            "--dev-root=/c",
            "--nvidia-cdi-hook-path=h",
            "--mode=x",
        ];
        assert_eq!(recorded(words).unwrap(), expected);
    }

    #[test]
    fn a_hook_program_is_an_absolute_path() {
        let here = std::env::current_dir().unwrap();
        let default = env!("CARGO").to_owned();
        let in_path = Path::new(&default).parent().unwrap().to_str().unwrap();
        let hook = |given: &str, default: &str| {
            hook_path(Some(given), in_path, default).map_err(|error| error.message())
        };
        let refused = |name: &str| {
            Err(format!(
                "--nvidia-cdi-hook-path \"{name}\" is no executable file"
            ))
        };
        for (given, expected) in [
            ("/no/such/hook", Ok("/no/such/hook".to_owned())),
            ("cargo", Ok(default.clone())),
            ("no-such-hook", Ok(default.clone())),
            ("no/hook", refused("no/hook")),
            ("./Cargo.toml", refused("./Cargo.toml")),
        ] {
            assert_eq!(hook(given, &default), expected, "{given}");
        }
        assert_eq!(hook("no-such-hook", "/no/such"), refused("no-such-hook"));
        let scratch = tempfile::tempdir().unwrap();
        let (in_path, exposed) = (scratch.path(), scratch.path().join("nvidia-cdi-hook"));
        fs::copy("/bin/sh", &exposed).unwrap();
        fs::set_permissions(in_path, Permissions::from_mode(0o777)).unwrap();
        let hook = |given| hook_path(given, in_path.to_str().unwrap(), &default).unwrap();
        assert_eq!(hook(None), default);
        assert_eq!(Path::new(&hook(Some("nvidia-cdi-hook"))), exposed);
        assert_eq!(made_absolute("./x/../a//b/").unwrap(), here.join("a/b"));
        assert_eq!(made_absolute("/usr/..").unwrap(), Path::new("/"));
    }
}
