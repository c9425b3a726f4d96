//! Converts intents to steps for this image.
//!
//! This resolves what a plan leaves open: the image's directories of programs and libraries, and its CUDA compatibility
//! libraries.

use std::collections::HashSet;

use crate::apply::cgroup::WantedDevice;
use crate::apply::look::{ContainerView, is_gpu_name};
use crate::apply::prepare::SkippedIntents;
use crate::apply::steps::{Action, BindKind, Source, Step, TmpfsFile, of_proc};
use crate::container::ImageFacts;
use crate::error::Result;
use crate::host::{DeviceRole, DriverFile, DriverRoot, ProcFile, nodes, procfs, sockets};
use crate::path::{ContainerPath, HostPath};
use crate::plan::{
    CapabilityFiles, CompatUse, CudaCompat, DriverProc, EglDevices, EglProfile, Intent,
    LibraryPath, ProcDevices, Sockets, What, profile,
};

/// Returns the steps of a plan without duplicates, in the plan's order; the update of the library path comes last.
///
/// `look` examines the container for intents that leave something open. `proc_files` are the host's files of
/// /proc/driver/nvidia, if they have been read.
///
/// # Errors
/// What a required intent leaves open cannot be found out.
pub(super) fn expand(
    intents: &[Intent],
    image: &ImageFacts,
    root: &DriverRoot,
    look: ContainerView<'_>,
    proc_files: Option<Vec<ProcFile>>,
) -> Result<(Vec<Step>, SkippedIntents)> {
    let mut expansion = Expansion {
        image,
        root,
        look,
        proc_files,
        searched_first: Vec::new(),
        has_compat: intents
            .iter()
            .any(|intent| matches!(intent.what, What::CudaCompat(_))),
        skipped: SkippedIntents::default(),
    };
    let mut seen = HashSet::new();
    let mut steps = Vec::with_capacity(intents.len() * 2);
    for (number, intent) in intents.iter().enumerate() {
        let actions = match expansion.actions(&intent.what) {
            Ok(actions) => actions,
            Err(error) => {
                expansion.skipped.add(number, intent.need, error)?;
                continue;
            }
        };
        let new = actions
            .into_iter()
            .filter(|action| seen.insert(action.clone()));
        steps.extend(new.map(|action| Step {
            intent: number,
            need: intent.need,
            action,
        }));
    }
    for step in &mut steps {
        if let Action::UpdateLdCache {
            directories, first, ..
        } = &mut step.action
        {
            directories.retain(|directory| !expansion.searched_first.contains(directory));
            directories.splice(0..0, expansion.searched_first.iter().cloned());
            *first += expansion.searched_first.len();
        }
    }
    steps.sort_by_key(|step| matches!(step.action, Action::UpdateLdCache { .. }));
    Ok((steps, expansion.skipped))
}

struct Expansion<'a> {
    image: &'a ImageFacts,
    root: &'a DriverRoot,
    look: ContainerView<'a>,
    /// The host's files, read when the first intent needs them.
    proc_files: Option<Vec<ProcFile>>,
    /// Directories of compatibility libraries that the loader searches first.
    searched_first: Vec<ContainerPath>,
    /// True if the plan decides about compatibility libraries.
    has_compat: bool,
    /// Failed best-effort intents, and other warnings.
    skipped: SkippedIntents,
}

impl Expansion<'_> {
    fn actions(&mut self, what: &What) -> Result<Vec<Action>> {
        let layout = &self.image.layout;
        Ok(match what {
            What::Device(device) => {
                let bind = device.bind.then(|| Action::BindDevice {
                    source: device.source.clone(),
                    number: device.number,
                    at: device.at.clone(),
                });
                let allow = device.allow.then(|| Action::AllowDevice {
                    device: WantedDevice {
                        number: device.number,
                        is_vital: is_vital(&device.source),
                    },
                    node: device.source.clone(),
                });
                [bind, allow].into_iter().flatten().collect()
            }
            What::Mount(mount) => vec![Action::Bind {
                source: Source::Host(mount.source.clone()),
                at: mount.place.in_image(layout),
                kind: mount.class.into(),
            }],
            What::Link(link) => vec![Action::Symlink {
                at: link.at.in_image(layout),
                target: link.target.clone(),
                replaces: link.replaces,
            }],
            What::Alias(alias) => {
                let target = alias.of.in_image(layout);
                // In an image of the host's family it is the file's own place.
                let alias = (target != alias.at).then(|| Action::Symlink {
                    at: alias.at.clone(),
                    target: target.as_path().to_owned(),
                    replaces: true,
                });
                alias.into_iter().collect()
            }
            What::LibraryPath(libraries) => vec![self.library_path(libraries)],
            What::CudaCompat(compat) => self.compat(compat)?,
            What::DriverProc(shown) => self.driver_proc(shown)?,
            What::EglProfile(shown) => self.egl_profile(shown)?.into_iter().collect(),
            What::Sockets(sockets) => self.sockets(sockets)?,
            What::Mode(file) => vec![Action::SetMode {
                at: file.at.clone(),
                mode: file.mode,
            }],
            What::Env(variable) => {
                log::debug!(
                    "{} is set by the program that starts the container",
                    variable.name
                );
                Vec::new()
            }
        })
    }

    fn library_path(&self, libraries: &LibraryPath) -> Action {
        let layout = &self.image.layout;
        let places = libraries.directories.iter();
        let places = places.map(|place| place.in_image(layout)).collect();
        if !libraries.after_hooks {
            return Action::UpdateLdCache {
                directories: places,
                first: 0,
                folders: Vec::new(),
            };
        }
        let directories = if self.has_compat {
            Vec::new()
        } else {
            self.look.configured()
        };
        Action::UpdateLdCache {
            first: directories.len(),
            directories,
            folders: places,
        }
    }

    /// Returns the mounts of the sockets that exist now.
    fn sockets(&self, wanted: &Sockets) -> Result<Vec<Action>> {
        let place = self.root.join(&wanted.root);
        let found = sockets(&DriverRoot::open(&place)?, wanted.daemons.iter().copied());
        let bind = |socket: DriverFile| Action::Bind {
            source: Source::Host(HostPath::new(socket.path.below(wanted.root.as_path()))),
            at: ContainerPath::from(&socket.path),
            kind: BindKind::Ipc,
        };
        Ok(found.into_iter().map(bind).collect())
    }

    fn driver_proc(&mut self, shown: &DriverProc) -> Result<Vec<Action>> {
        let ProcDevices::Planned { gpus, capabilities } = &shown.devices else {
            let params = if shown.no_new_nodes {
                self.look.params()?
            } else {
                None
            };
            let hidden = match shown.devices {
                ProcDevices::Own => self.look.devices()?,
                _ => Vec::new(),
            };
            return Ok(params.into_iter().chain(hidden).collect());
        };
        let mut actions = vec![self.proc_directory()];
        let directory = HostPath::new(procfs::DIRECTORY).join("gpus");
        let gpus = gpus.iter().map(|gpu| directory.join(gpu));
        actions.extend(gpus.map(|path| of_proc(&path)));
        match capabilities {
            CapabilityFiles::None => {}
            CapabilityFiles::Some(files) => actions.extend(files.iter().map(of_proc)),
            CapabilityFiles::All => {
                let all = HostPath::new(procfs::DIRECTORY).join("capabilities");
                actions.push(of_proc(&all));
            }
        }
        Ok(actions)
    }

    fn egl_profile(&mut self, shown: &EglProfile) -> Result<Option<Action>> {
        match &shown.devices {
            EglDevices::Own => self.look.profile(&mut self.skipped.reasons),
            EglDevices::Planned(minors) => Ok(Some(Action::ShowInProfile {
                at: ContainerPath::new(profile::DIRECTORY),
                minors: minors.clone(),
            })),
        }
    }

    fn proc_directory(&mut self) -> Action {
        let root = self.root;
        let files = self.proc_files.get_or_insert_with(|| procfs::files(root));
        Action::MountTmpfs {
            at: ContainerPath::new(procfs::DIRECTORY),
            mode: 0o555,
            files: files.iter().cloned().map(TmpfsFile::from).collect(),
        }
    }

    fn compat(&mut self, compat: &CudaCompat) -> Result<Vec<Action>> {
        if compat.how == CompatUse::Configure {
            let configured = self.look.compat(compat, &mut self.skipped.reasons)?;
            let (actions, directories): (Vec<_>, Vec<_>) = configured.into_iter().unzip();
            self.searched_first.extend(directories);
            return Ok(actions);
        }
        let found = &self.image.compat_libraries;
        self.searched_first.extend(compat.searched(found));
        let bind = |library: &ContainerPath| Action::Bind {
            at: self.image.layout.libs_dir.join(library.file_name()),
            source: Source::Image(library.clone()),
            kind: BindKind::Library,
        };
        Ok(compat.mounted(found).into_iter().map(bind).collect())
    }
}

/// Returns true for the nodes without which a program cannot use a GPU or a MIG device that it was given.
fn is_vital(node: &HostPath) -> bool {
    [DeviceRole::Control, DeviceRole::Uvm]
        .iter()
        .any(|role| *node == HostPath::new(role.path()))
        || node.parent() == HostPath::new(nodes::CAPABILITY_DIRECTORY)
        || (node.parent() == HostPath::new("/dev") && is_gpu_name(node.file_name()))
}

#[cfg(test)]
mod tests;
