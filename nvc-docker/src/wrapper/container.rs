//! Decides how a new container gets GPUs: asks docker and the driver, and returns docker's additional arguments.

use std::io::IsTerminal as _;

use libnvc::{Error, ErrorKind, Result};
use nvc_cdi::Registry;

use super::arguments::{Classic, of_engine, of_other_machine, of_this_machine};
use super::backend::{Backend, Choice, choose, of_kind, users_own};
use super::docker::{DockerCall, Engine, configuration, engine};
use super::host::PluginHost;
use super::image::Image;
use super::invocation::{Invocation, variable};
use super::local::{Local, LocalQuery, require};
use super::local_plugin;
use super::remote::Remote;
use super::selection::Selection;
use crate::VOLUME_DRIVER;
use crate::cuda_version::{self, CudaVersion};
use crate::device_id::{choose as choose_devices, items};
use crate::device_nodes;
use crate::driver_volume::{self, VOLUME};
use crate::log_line::log_text;
use crate::modprobe;

/// The first version of the engine's API that accepts a volume's driver in `--mount`.
const MOUNT_SINCE: (u32, u32) = (1, 30);

/// How a command that starts a container is changed.
pub(super) enum Translation {
    /// Nothing, for this reason.
    Unchanged(String),
    /// It gets these arguments.
    With(Vec<String>, Choice),
}

impl Invocation<'_> {
    /// Decides about a container of the image.
    pub(super) fn translated(&self, name: &str) -> Result<Translation> {
        let unchanged = |reason: String| Ok(Translation::Unchanged(reason));
        if let Some(option) = users_own(&self.line) {
            return unchanged(format!("{option} decides about GPUs"));
        }
        if name.starts_with('-') {
            return unchanged("there is no image".into());
        }
        let forced = match variable("NV_BACKEND") {
            Some(text) => Some(Backend::parse(&text)?),
            None => None,
        };
        let is_checked = forced == Some(Backend::Volume) && self.names_this_machine();
        if is_checked {
            self.check_plugin()?;
        }
        // In parallel, because most of each call's time is docker's start; the image first, because its labels tell
        // what else to ask.
        let inspection = match self.pulls() {
            Some("always") => None,
            _ => Some(self.inspect(name)?),
        };
        let info = self.docker.ask(&["info", "--format", "{{json .}}"])?;
        let version = self.docker.ask(&["version", "--format", "{{json .}}"])?;
        let inspected = inspection.and_then(|call| call.answer().ok());
        let image = inspected.map(|bytes| self.read_image(&bytes)).transpose()?;
        let ahead = image
            .as_ref()
            .and_then(|image| self.ask_ahead(image, forced));
        let version = version.answer()?;
        let engine = engine(&version, info.answer().ok().as_deref())?;
        let Some(image) = image.map_or_else(|| self.pulled(name), |image| Ok(Some(image)))? else {
            return unchanged("the image is not there".into());
        };
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
            self.note_no_gpu(name, choice.backend);
            return unchanged(reason.into());
        }
        if choice.backend == Backend::Volume && !is_checked && is_local {
            self.check_plugin()?;
        }
        let arguments = match choice.backend {
            Backend::Volume => self.classic(&engine, &image, &nv_gpu, ahead)?,
            backend => self.modern(backend, &image, &nv_gpu, is_local, ahead)?,
        };
        Ok(Translation::With(arguments, choice))
    }

    /// Tells a person that the container gets no GPU. Nothing else gets this line: upstream writes none.
    fn note_no_gpu(&self, image: &str, backend: Backend) {
        // A dry run gives the reason.
        if self.is_dry || !std::io::stderr().is_terminal() {
            return;
        }
        let way = match backend {
            Backend::Volume => "NV_BACKEND=volume",
            _ => "NV_GPU=all",
        };
        log_text(&format!(
            "Note: no GPU for {image}, which requests none; {way} adds them"
        ));
    }

    /// Asks what an image's labels will make necessary, unless another machine's driver counts or this one's must be
    /// loaded first. It takes about as long as docker's own answer. A wrong guess costs CPU time only: the query is
    /// dropped, which ends it, and repeated if necessary.
    fn ask_ahead(&self, image: &Image, forced: Option<Backend>) -> Option<Result<LocalQuery>> {
        let may_be_classic = forced.is_none_or(|backend| backend == Backend::Volume);
        let wants_volume = may_be_classic && image.volumes.iter().any(|name| name == VOLUME);
        let is_wanted = wants_volume || !image.cuda.is_empty();
        let is_here = self.place == PluginHost::Here && self.names_this_machine();
        (is_wanted && is_here && modprobe::is_loaded()).then(Local::start)
    }

    /// Returns the value of `--pull`.
    fn pulls(&self) -> Option<&str> {
        self.line.options.text("pull")
    }

    fn inspect(&self, image: &str) -> Result<DockerCall> {
        self.docker.ask(&["inspect", "--type=image", image])
    }

    /// Pulls the image and returns its description; None if it must not be pulled.
    fn pulled(&self, name: &str) -> Result<Option<Image>> {
        if self.pulls() == Some("never") {
            return Ok(None);
        }
        if self.is_dry {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("the image {name} is not there"),
            )
            .hint("pull it first: its labels and environment say what it requests"));
        }
        let platform = self.line.options.text("platform");
        self.docker.pull(name, platform)?;
        let bytes = self.inspect(name)?.answer()?;
        self.read_image(&bytes).map(Some)
    }

    fn read_image(&self, inspected: &[u8]) -> Result<Image> {
        let configuration = configuration(inspected)?;
        Ok(Image::new(
            &configuration,
            self.line.options.list("env"),
            variable,
        ))
    }

    /// Returns true if the engine is this machine's, so that this machine's driver counts.
    fn is_local(&self, engine: &Engine) -> bool {
        let context = engine.context.as_deref().unwrap_or("default");
        self.names_this_machine() && (context == "default" || self.host().is_some())
    }

    /// Returns true if the command line, NV_DOCKER and DOCKER_HOST name no other machine's engine.
    fn names_this_machine(&self) -> bool {
        let words = variable("NV_DOCKER").unwrap_or_default();
        let has_other = words.split_whitespace().skip(1).any(|word| {
            word.starts_with("-H")
                || word.starts_with("--host")
                || word.starts_with("--context")
                || word == "-c"
        });
        let is_here = |host: &str| host.is_empty() || host.starts_with("unix://");
        !has_other && self.host().as_deref().is_none_or(is_here)
    }

    /// Returns the engine's address, if the command line or DOCKER_HOST has one.
    fn host(&self) -> Option<String> {
        let named = self.line.global_options.text("host").map(str::to_owned);
        named.or_else(|| variable("DOCKER_HOST"))
    }

    /// Returns the arguments for an engine that finds GPUs itself.
    fn modern(
        &self,
        backend: Backend,
        image: &Image,
        nv_gpu: &str,
        is_local: bool,
        ahead: Option<Result<LocalQuery>>,
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
            match Local::of(ahead) {
                Ok(local) => selection = checked(&local, selection, image, &requirements)?,
                Err(failure) if selection.has_prefixes() => return Err(failure),
                // The engine may find a driver in directories that this program does not search.
                Err(failure) => log_text(&format!(
                    "Warning: the image's requirements are not checked: {}",
                    failure.message()
                )),
            }
        }
        // A setting of the user or the image need not be repeated.
        let sets_visible = !items(nv_gpu).is_empty()
            || (image.visible().is_none() && image.visible_on_line.is_none());
        Ok(of_engine(backend, &selection, sets_visible))
    }

    /// Returns the arguments of the classic back end: devices, and the volume if the image requests it.
    fn classic(
        &self,
        engine: &Engine,
        image: &Image,
        nv_gpu: &str,
        ahead: Option<Result<LocalQuery>>,
    ) -> Result<Vec<String>> {
        let ids = items(nv_gpu);
        let by_mount = engine.api >= MOUNT_SINCE;
        // NV_BACKEND=volume, for an image that does not request a volume.
        let volumes = if image.volumes.is_empty() {
            vec![VOLUME.to_owned()]
        } else {
            image.volumes.clone()
        };
        if self.place != PluginHost::Here {
            return self.classic_elsewhere(image, &ids, &volumes, by_mount);
        }
        modprobe::load_unified_memory()?;
        let local = Local::of(ahead)?;
        check_cuda(local.cuda()?, image)?;
        let gpus = local.candidates();
        let chosen = choose_devices(&ids, &gpus).map_err(|failure| {
            failure.hint(format!(
                "there are {} GPUs; NV_GPU takes indices and prefixes of UUIDs, separated by spaces or commas",
                gpus.len()
            ))
        })?;
        local.require(&image.requirements(), |index| {
            chosen.iter().any(|gpu| gpu.index == index)
        })?;
        let devices = device_nodes::of_gpus(chosen.iter().map(|gpu| gpu.minor))?;
        let known = volumes.iter().filter(|name| name.as_str() == VOLUME);
        let classic = Classic {
            devices,
            volumes: known.map(|_| local.versions.driver.clone()).collect(),
        };
        self.make_volumes(&classic, by_mount)?;
        Ok(of_this_machine(&classic, by_mount))
    }

    /// Checks that this machine's plugin answers, if the command line is carried out.
    fn check_plugin(&self) -> Result<()> {
        if self.is_dry || self.place != PluginHost::Here {
            return Ok(());
        }
        local_plugin::check()
    }

    /// Makes the volumes for an engine that does not know `--mount`.
    fn make_volumes(&self, classic: &Classic, by_mount: bool) -> Result<()> {
        for version in classic.volumes.iter().filter(|_| !by_mount) {
            let driver = format!("--driver={VOLUME_DRIVER}");
            let name = format!("--name={}", driver_volume::name(version));
            if self.is_dry {
                log_text(&format!("before it: docker volume create {driver} {name}"));
            } else {
                self.docker
                    .ask(&["volume", "create", &driver, &name])?
                    .answer()?;
            }
        }
        Ok(())
    }

    fn classic_elsewhere(
        &self,
        image: &Image,
        ids: &[&str],
        volumes: &[String],
        by_mount: bool,
    ) -> Result<Vec<String>> {
        let remote = Remote(&self.place);
        let versions = remote.versions()?;
        if !image.cuda.is_empty() {
            let cuda = CudaVersion::parse(&versions.cuda)
                .map_err(|failure| failure.hint("the plugin's CUDA version is invalid"))?;
            check_cuda(cuda, image)?;
        }
        require(&image.requirements(), &versions, &[])?;
        let classic = remote.classic(ids, volumes)?;
        self.make_volumes(&classic, by_mount)?;
        Ok(of_other_machine(&classic, by_mount))
    }
}

/// Chooses the back end for an engine and an image.
fn automatic(engine: &Engine, image: &Image, nv_gpu: &str, is_local: bool) -> Choice {
    // The classic back end parses NV_GPU by other rules, and reports its own errors.
    let wanted = Selection::new(nv_gpu, image).unwrap_or(Selection::Nothing);
    choose(engine, image, &wanted, |directories| {
        if is_local {
            names_in(directories)
        } else {
            Vec::new()
        }
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
            log_text(&format!("Warning: {}", failure.message()));
            Ok(())
        }
        checked => checked,
    }
}

/// Returns the names of the GPUs in the CDI specifications of these directories, in the engine's order.
fn names_in(directories: &[String]) -> Vec<String> {
    let registry = Registry::load(directories);
    registry.device_names().filter_map(of_kind).collect()
}
