//! Runs the wrapper from its arguments until it executes docker.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

use libnvc::host::DriverVersions;

use super::arguments::{Classic, Mounting, of_engine, of_other_machine, of_this_machine, quoted};
use super::backend::{Backend, CDI_KIND, Choice, choose, names_of, users_own};
use super::docker::{Docker, DockerCall, Engine, configuration, engine};
use super::help::Help;
use super::host::{PluginHost, place};
use super::image::Image;
use super::line::{Command, CommandLine, read};
use super::local::{Local, control_devices};
use super::remote::Remote;
use super::selection::Selection;
use crate::cuda_version::{self, CudaVersion};
use crate::device_id::{choose as choose_devices, items};
use crate::driver_volume::{self, VOLUME};
use crate::failure::{Failure, Result};
use crate::log_line::{complain, say};
use crate::{VERSION, modprobe};

/// The first version of the engine's API that accepts a volume's driver in `--mount`.
const MOUNT_SINCE: (u32, u32) = (1, 30);

/// Runs the wrapper; returns the exit code if it does not execute docker.
pub fn run() -> u8 {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match hand_over(&words) {
        Ok(()) => 0,
        Err(failure) => {
            complain(&failure);
            1
        }
    }
}

/// The parts of an invocation.
struct Invocation<'a> {
    words: &'a [OsString],
    line: CommandLine,
    /// With the global options, for queries.
    docker: Docker,
    /// Without them, because they are part of the passed-on command line.
    bare: Docker,
    place: PluginHost,
    is_dry: bool,
}

fn hand_over(words: &[OsString]) -> Result<()> {
    if variable("DOCKER_HOST").is_none() && variable("NV_HOST").is_some() {
        say("Warning: NV_HOST is set but DOCKER_HOST is not");
    }
    let place = place(
        variable("NV_HOST").as_deref(),
        variable("DOCKER_HOST").as_deref(),
    )?;
    let nv_docker = variable("NV_DOCKER").unwrap_or_default();
    let texts: Vec<String> = words
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let mut help = Help::new(&nv_docker);
    let line = read(&texts, |scope, name| help.takes(scope, name))?;
    let globals = words.get(..line.globals).unwrap_or_default();
    let invocation = Invocation {
        words,
        docker: Docker::new(&nv_docker, globals),
        bare: Docker::bare(&nv_docker),
        place,
        is_dry: is_set("NV_DRY_RUN"),
        line,
    };
    match (invocation.line.command, invocation.line.image) {
        (Command::Run, Some(image)) => invocation.start_container(image, &texts),
        (Command::Version, _) => {
            // This output must precede docker's.
            use std::io::Write as _;
            let _ = writeln!(std::io::stdout(), "NVIDIA Docker: {VERSION}\n");
            let _ = std::io::stdout().flush();
            invocation.unchanged("not a command that starts a container")
        }
        _ => invocation.unchanged("not a command that starts a container"),
    }
}

impl Invocation<'_> {
    /// Passes the command on unchanged.
    fn unchanged(&self, reason: &str) -> Result<()> {
        self.finish(self.words, &format!("unchanged: {reason}"))
    }

    /// Passes the command on with additional arguments before the image.
    fn with(&self, image: usize, arguments: Vec<String>, choice: &Choice) -> Result<()> {
        let (before, after) = self.words.split_at(image);
        // After `--` an option would be taken for the image.
        let (before, dashes) = match before.split_last() {
            Some((last, rest)) if last == "--" && self.is_end_of_options(image) => {
                (rest, Some(last.clone()))
            }
            _ => (before, None),
        };
        let words = before.iter().cloned();
        let words = words
            .chain(arguments.into_iter().map(OsString::from))
            .chain(dashes)
            .chain(after.iter().cloned())
            .collect::<Vec<_>>();
        let Choice { backend, reason } = choice;
        self.finish(&words, &format!("back end {}: {reason}", backend.name()))
    }

    /// Returns true if the word before the image is the `--` that ends the options, rather than an option's value.
    fn is_end_of_options(&self, image: usize) -> bool {
        let last = self.line.options.last();
        !last.is_some_and(|given| {
            given.value.as_deref() == Some("--")
                && image
                    .checked_sub(2)
                    .and_then(|at| self.words.get(at))
                    .is_some_and(|word| {
                        let word = word.to_string_lossy();
                        word.starts_with('-') && !word.contains('=')
                    })
        })
    }

    fn finish(&self, words: &[OsString], explanation: &str) -> Result<()> {
        if self.is_dry {
            say(explanation);
            let mut line = quoted(&self.bare.line(words)).into_bytes();
            line.push(b'\n');
            use std::io::Write as _;
            return std::io::stdout()
                .write_all(&line)
                .map_err(|error| Failure::new(format!("standard output: {error}")));
        }
        Err(self.bare.become_it(words))
    }

    fn start_container(&self, at: usize, texts: &[String]) -> Result<()> {
        if let Some(option) = users_own(&self.line) {
            return self.unchanged(&format!("{option} decides about GPUs"));
        }
        let name = texts.get(at).map(String::as_str).unwrap_or_default();
        if name.starts_with('-') {
            return self.unchanged("there is no image");
        }
        let forced = match variable("NV_BACKEND") {
            Some(text) => Some(Backend::parse(&text)?),
            None => None,
        };
        // In parallel, because most of each call's time is docker's start.
        let version = self.docker.ask(&["version", "--format", "{{json .}}"])?;
        let info = self.docker.ask(&["info", "--format", "{{json .}}"])?;
        let inspection = match self.pulls() {
            Some("always") => None,
            _ => Some(self.inspect(name)?),
        };
        let version = version.answer()?;
        let engine = engine(&version, info.answer().ok().as_deref())?;
        let Some(inspected) = self.inspected(name, inspection)? else {
            return self.unchanged("the image is not there");
        };
        let configuration = configuration(&inspected)?;
        let image = Image::new(&configuration, self.line.values("env"), |name| {
            variable(name)
        });
        let is_local = self.is_local(&engine);
        let nv_gpu = variable("NV_GPU").unwrap_or_default();
        let choice = match forced {
            Some(backend) => Choice {
                backend,
                reason: "NV_BACKEND says so".into(),
            },
            None => automatic(&engine, &image, &nv_gpu, is_local),
        };
        if let Some(reason) = needs_nothing(&image, &nv_gpu, &choice, forced.is_some()) {
            return self.unchanged(reason);
        }
        let arguments = match choice.backend {
            Backend::Volume => self.classic(&engine, &image, &nv_gpu)?,
            backend => self.modern(backend, &image, &nv_gpu, is_local)?,
        };
        self.with(at, arguments, &choice)
    }

    /// Returns the value of `--pull`.
    fn pulls(&self) -> Option<&str> {
        self.line.values("pull").last()
    }

    fn inspect(&self, image: &str) -> Result<DockerCall> {
        self.docker.ask(&["inspect", "--type=image", image])
    }

    /// Returns docker's description of the image, pulled if necessary; None if it is absent and must not be pulled.
    fn inspected(&self, image: &str, started: Option<DockerCall>) -> Result<Option<Vec<u8>>> {
        if let Some(found) = started.and_then(|question| question.answer().ok()) {
            return Ok(Some(found));
        }
        if self.pulls() == Some("never") {
            return Ok(None);
        }
        if self.is_dry {
            return Err(Failure::new(format!("the image {image} is not there"))
                .hint("pull it first: what it wants is in its labels and environment"));
        }
        let platform = self.line.values("platform").last();
        self.docker.pull(image, platform)?;
        self.inspect(image)?.answer().map(Some)
    }

    /// Returns true if the engine is this machine's, so that this machine's driver counts.
    fn is_local(&self, engine: &Engine) -> bool {
        let mut hosts = self
            .line
            .global_options
            .iter()
            .filter(|given| given.name == "host");
        let named = hosts.next_back().and_then(|given| given.value.clone());
        let words = variable("NV_DOCKER").unwrap_or_default();
        let has_other = words.split_whitespace().skip(1).any(|word| {
            word.starts_with("-H")
                || word.starts_with("--host")
                || word.starts_with("--context")
                || word == "-c"
        });
        let host = named.or_else(|| variable("DOCKER_HOST"));
        let is_here = |host: &str| host.is_empty() || host.starts_with("unix://");
        let context = engine.context.as_deref().unwrap_or("default");
        !has_other
            && host.as_deref().is_none_or(is_here)
            && (context == "default" || host.is_some())
    }

    /// Returns the arguments for an engine that finds GPUs itself.
    fn modern(
        &self,
        backend: Backend,
        image: &Image,
        nv_gpu: &str,
        is_local: bool,
    ) -> Result<Vec<String>> {
        let mut selection = Selection::new(nv_gpu, image)?;
        // The runtime and `--gpus` check requirements when the container starts.
        let requirements = match backend {
            Backend::Cdi => image.requirements(),
            _ => Vec::new(),
        };
        let is_checked = !image.cuda.is_empty() || !requirements.is_empty();
        let asks = is_checked || selection.has_prefixes();
        if is_local && selection != Selection::Nothing && asks {
            match Local::ask() {
                Ok(local) => selection = checked(&local, selection, image, &requirements)?,
                Err(failure) if selection.has_prefixes() => return Err(failure),
                // The engine may find a driver in directories that this program does not search.
                Err(failure) => say(&format!(
                    "Warning: the image's requirements are not checked: {failure}"
                )),
            }
        }
        // A setting of the user or the image need not be repeated.
        let sets_visible = !items(nv_gpu).is_empty()
            || (image.visible().is_none() && image.visible_on_line.is_none());
        Ok(of_engine(backend, &selection, sets_visible))
    }

    /// Returns the arguments of the classic back end: devices, and the volume if the image requests it.
    fn classic(&self, engine: &Engine, image: &Image, nv_gpu: &str) -> Result<Vec<String>> {
        let ids = items(nv_gpu);
        let has_driver = self
            .line
            .options
            .iter()
            .any(|given| given.name == "volume-driver");
        let mounting = match has_driver && engine.api >= MOUNT_SINCE {
            true => Mounting::Apart,
            false => Mounting::WithDriver,
        };
        // NV_BACKEND=volume, for an image that does not request a volume.
        let volumes = match image.volumes.is_empty() {
            true => vec![VOLUME.to_owned()],
            false => image.volumes.clone(),
        };
        if self.place != PluginHost::Here {
            return self.classic_elsewhere(image, &ids, &volumes, mounting);
        }
        modprobe::load_unified_memory()?;
        let local = Local::ask()?;
        check_cuda(local.cuda()?, image)?;
        let gpus = local.candidates();
        let chosen = choose_devices(&ids, &gpus).map_err(|failure| {
            failure.hint(format!(
                "there are {} GPUs; NV_GPU takes indices and beginnings of UUIDs, separated by spaces or commas",
                gpus.len()
            ))
        })?;
        local.require(&image.requirements(), |index| {
            chosen.iter().any(|gpu| gpu.index == index)
        })?;
        let mut devices = control_devices()?;
        devices.extend(chosen.iter().map(|gpu| format!("/dev/nvidia{}", gpu.minor)));
        let known = volumes.iter().filter(|name| name.as_str() == VOLUME);
        let classic = Classic {
            devices,
            volumes: known.map(|_| local.versions.driver.clone()).collect(),
        };
        let mounting = match classic.volumes.first() {
            Some(version) if self.has_volume(version)? => Mounting::Existing,
            _ => mounting,
        };
        Ok(of_this_machine(&classic, mounting))
    }

    fn has_volume(&self, version: &str) -> Result<bool> {
        let name = driver_volume::name(version);
        let question = self.docker.ask(&["volume", "inspect", &name])?;
        Ok(question.answer().is_ok())
    }

    fn classic_elsewhere(
        &self,
        image: &Image,
        ids: &[&str],
        volumes: &[String],
        mounting: Mounting,
    ) -> Result<Vec<String>> {
        let remote = Remote(&self.place);
        let versions = remote.versions()?;
        if !image.cuda.is_empty() {
            let cuda = CudaVersion::parse(&versions.cuda)
                .map_err(|failure| failure.hint("the plugin's CUDA version is no version"))?;
            check_cuda(cuda, image)?;
        }
        let requirements = image.requirements();
        if !requirements.is_empty() {
            let requirements: Vec<_> = requirements
                .into_iter()
                .map(libnvc::require::Requirement::new)
                .collect();
            let versions = DriverVersions {
                driver: versions.driver,
                cuda: versions.cuda,
            };
            libnvc::require::check(&requirements, &versions, &[])?;
        }
        Ok(of_other_machine(&remote.classic(ids, volumes)?, mounting))
    }
}

/// Chooses the back end for an engine and an image.
fn automatic(engine: &Engine, image: &Image, nv_gpu: &str, is_local: bool) -> Choice {
    // The classic way reads NV_GPU otherwise, and complains otherwise.
    let wanted = Selection::new(nv_gpu, image).unwrap_or(Selection::Nothing);
    choose(engine, image, &wanted, |directories| match is_local {
        true => names_in(directories),
        false => Vec::new(),
    })
}

/// Returns why the command is passed on unchanged: image and user request neither volume nor GPU.
fn needs_nothing(
    image: &Image,
    nv_gpu: &str,
    choice: &Choice,
    is_forced: bool,
) -> Option<&'static str> {
    if !image.volumes.is_empty() {
        return None;
    }
    if choice.backend == Backend::Volume && !is_forced {
        return Some("the image has no label com.nvidia.volumes.needed");
    }
    (nv_gpu.is_empty() && !image.uses_gpus()).then_some(
        "NV_GPU is not set, and the image has neither com.nvidia.volumes.needed, nor NVIDIA_VISIBLE_DEVICES, nor \
         CUDA_VERSION",
    )
}

/// Completes a selection and checks an image's requirements on it.
fn checked(
    local: &Local,
    selection: Selection,
    image: &Image,
    requirements: &[&str],
) -> Result<Selection> {
    let gpus = local.candidates();
    let selection = selection.complete(&gpus)?;
    check_cuda(CudaVersion::parse(&local.versions.cuda)?, image)?;
    local.require(requirements, |index| match &selection {
        Selection::These(names) => gpus.iter().any(|gpu| {
            gpu.index == index && (names.contains(&gpu.uuid) || names.contains(&index.to_string()))
        }),
        _ => true,
    })?;
    Ok(selection)
}

/// Checks an image's CUDA label; only warns if the image disables requirements.
fn check_cuda(driver: CudaVersion, image: &Image) -> Result<()> {
    match cuda_version::check(driver, &image.cuda) {
        Err(failure) if image.ignores_requirements() => {
            say(&format!("Warning: {failure}"));
            Ok(())
        }
        checked => checked,
    }
}

/// Returns the names of the GPUs in the CDI specifications of these directories.
fn names_in(directories: &[String]) -> Vec<String> {
    let mut names = Vec::new();
    for directory in directories {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_spec = path
                .extension()
                .is_some_and(|extension| extension == "json" || extension == "yaml");
            let text = match is_spec {
                true => std::fs::read(path).unwrap_or_default(),
                false => continue,
            };
            let text = String::from_utf8_lossy(&text);
            if text.contains(CDI_KIND) {
                names.extend(names_of(&text));
            }
        }
    }
    names
}

/// Returns a variable's value; an empty one counts as unset.
fn variable(name: &str) -> Option<String> {
    let value = std::env::var_os(name)?;
    let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
    Some(text).filter(|text| !text.is_empty())
}

fn is_set(name: &str) -> bool {
    variable(name).is_some_and(|value| value != "0")
}
