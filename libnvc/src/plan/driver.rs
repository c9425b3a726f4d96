//! Plans the intents of every GPU container: procfs, libraries, programs, firmware, sockets and the shared devices.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::chosen::Chosen;
use super::device::{device, driver_proc, egl_profile};
use super::{
    CapabilityFiles, CompatUse, CudaCompat, EglDevices, Env, Intent, LibraryPath, Link, Place,
    ProcDevices, Sockets, What,
};
use crate::capability::Capability;
use crate::host::catalogue::is_wanted;
use crate::host::{Abi, DeviceRole, DriverFile, DriverInfo, FileClass, HostLink, SharedDevice};
use crate::options::CudaCompatMode;
use crate::path::{ContainerPath, HostPath};
use crate::request::{Placement, Request};

/// Plans the driver's part.
pub(super) fn common(driver: &DriverInfo, request: &Request) -> Vec<Intent> {
    let mut intents = Vec::new();
    let chosen = Chosen::of(driver, request);
    let is_native = driver.wsl.is_none();
    if is_native {
        // Another program may still add devices to a container that does not exist yet.
        let (shown, visible) = if request.policy.before_start {
            (ProcDevices::Own, EglDevices::Own)
        } else {
            let gpus = Vec::new();
            let capabilities = CapabilityFiles::None;
            let shown = ProcDevices::Planned { gpus, capabilities };
            (shown, EglDevices::Planned(Vec::new()))
        };
        intents.push(driver_proc(shown));
        if request.capabilities.include(Capability::Graphics) {
            intents.push(egl_profile(visible));
        }
    }
    intents.extend(graphics(driver, request));
    for class in [FileClass::Program, FileClass::Library] {
        files(driver.of_class(class), &chosen, request, &mut intents);
    }
    intents.extend(cuda_compat(driver, request));
    for class in [
        FileClass::Firmware,
        FileClass::Config,
        FileClass::Data,
        FileClass::Socket,
    ] {
        files(driver.of_class(class), &chosen, request, &mut intents);
    }
    intents.extend(sockets(driver, request));
    for shared in &driver.devices {
        if is_device_wanted(shared, request) {
            intents.extend(device(&shared.node, shared.role.need(), request));
        }
    }
    intents
}

/// Plans the sockets of daemons that no one has looked up yet.
fn sockets(driver: &DriverInfo, request: &Request) -> Option<Intent> {
    let is_wanted = is_wanted(
        FileClass::Socket,
        Some(Capability::Utility),
        request.capabilities,
    );
    (is_wanted && !driver.daemons.is_empty()).then(|| {
        Intent::best_effort(What::Sockets(Sockets {
            root: HostPath::new("/"),
            daemons: driver.daemons.clone(),
        }))
    })
}

/// Plans the loader's search path for the libraries.
pub(super) fn library_path(driver: &DriverInfo, request: &Request) -> Intent {
    let directories = match request.policy.placement {
        Placement::AsImage => vec![
            Place::Library(PathBuf::new()),
            Place::Library32(PathBuf::new()),
        ],
        Placement::AsHost => host_directories(driver, request),
    };
    Intent::required(What::LibraryPath(LibraryPath {
        directories,
        after_hooks: false,
    }))
}

/// Plans the environment variable by which hooks find the driver's libraries: one directory, that of CUDA's.
pub(super) fn library_directories(driver: &DriverInfo, request: &Request) -> Option<Intent> {
    if request.policy.placement != Placement::AsHost {
        return None;
    }
    // A driver store has none.
    let first = driver.directories.first()?;
    let is_cudas = |file: &&DriverFile| {
        let name = file.path.file_name().to_string_lossy();
        file.abi == Abi::Native && name.starts_with("libcuda.so.")
    };
    let found = driver.of_class(FileClass::Library).find(is_cudas);
    let directory = found.map(|file| file.path.parent());
    let directory = directory.unwrap_or_else(|| first.clone());
    Some(Intent::best_effort(What::Env(Env {
        name: "NVIDIA_CTK_LIBCUDA_DIR".into(),
        value: directory.to_string(),
    })))
}

/// Returns the directories of the planned libraries, sorted, without duplicates.
fn host_directories(driver: &DriverInfo, request: &Request) -> Vec<Place> {
    // A driver store also contains other files; the loader only finds libraries with such names.
    let is_library = |path: &ContainerPath| {
        let name = path.file_name().to_string_lossy();
        name.starts_with("lib") && (name.ends_with(".so") || name.contains(".so."))
    };
    let chosen = Chosen::of(driver, request);
    let libraries = driver.of_class(FileClass::Library);
    let paths = libraries.filter(|file| chosen.has(file)).map(file_path);
    let directories: BTreeSet<_> = paths.filter(is_library).map(|path| path.parent()).collect();
    directories.into_iter().map(Place::At).collect()
}

/// Plans the files of graphics, then their links, those that belong to no file first.
pub(super) fn graphics(driver: &DriverInfo, request: &Request) -> Vec<Intent> {
    let link = |link: &HostLink| {
        Intent::best_effort(What::Link(Link {
            at: Place::same(&link.at),
            target: link.target.clone(),
            replaces: false,
        }))
    };
    let links = if request.capabilities.include(Capability::Graphics) {
        driver.graphics_links.iter().map(link).collect()
    } else {
        Vec::new()
    };
    let chosen = Chosen::of(driver, request);
    let mut intents = Vec::new();
    files_and(
        links,
        driver.graphics.iter(),
        &chosen,
        request,
        &mut intents,
    );
    intents
}

/// Plans the mounts of files, each kind of program followed by its links.
fn files<'a>(
    files: impl Iterator<Item = &'a DriverFile>,
    chosen: &Chosen<'_>,
    request: &Request,
    intents: &mut Vec<Intent>,
) {
    files_and(Vec::new(), files, chosen, request, intents);
}

/// Plans mounts and links like [`files`], with additional links before those of the files.
fn files_and<'a>(
    mut links: Vec<Intent>,
    files: impl Iterator<Item = &'a DriverFile>,
    chosen: &Chosen<'_>,
    request: &Request,
    intents: &mut Vec<Intent>,
) {
    let mut last = Abi::Native;
    for file in files.filter(|file| chosen.has(file)) {
        if file.abi != last {
            intents.append(&mut links);
            last = file.abi;
        }
        let place = place(file, request.policy.placement);
        for link in &file.links {
            let link = Link {
                at: place.beside(&link.name),
                target: link.target.clone(),
                replaces: false,
            };
            links.push(Intent::best_effort(What::Link(link)));
        }
        intents.push(Intent::mount(file.path.clone(), place, file.class));
    }
    intents.append(&mut links);
}

fn place(file: &DriverFile, placement: Placement) -> Place {
    let at = file
        .at
        .as_ref()
        .filter(|_| file.class == FileClass::Program);
    let name = || PathBuf::from(at.map_or(file.path.file_name(), ContainerPath::file_name));
    match (placement, file.class, file.abi, &file.at) {
        (Placement::AsImage, FileClass::Library, Abi::Native, None) => Place::Library(name()),
        (Placement::AsImage, FileClass::Library, Abi::Compat32, None) => Place::Library32(name()),
        (Placement::AsImage, FileClass::Program, ..) => Place::Program(name()),
        _ => Place::At(file_path(file)),
    }
}

/// Returns a file's path in a container that is laid out like the host.
fn file_path(file: &DriverFile) -> ContainerPath {
    let same = || ContainerPath::from(&file.path);
    file.at.clone().unwrap_or_else(same)
}

/// Plans the use of the image's CUDA compatibility libraries, unless policy or capabilities exclude them.
pub(super) fn cuda_compat(driver: &DriverInfo, request: &Request) -> Option<Intent> {
    let how = match request.policy.cuda_compat {
        CudaCompatMode::Mount => CompatUse::Mount,
        CudaCompatMode::Ldconfig => CompatUse::Search,
        CudaCompatMode::Disabled => return None,
    };
    let cudart_dir = request.policy.image.cudart_dir.as_ref();
    request.capabilities.include(Capability::Compute).then(|| {
        Intent::best_effort(What::CudaCompat(CudaCompat {
            host_driver: driver.versions.driver.clone(),
            host_cuda: Some(driver.versions.cuda.clone()).filter(|version| !version.is_empty()),
            root: cudart_dir.map(ContainerPath::new),
            how,
            capabilities: request.capabilities,
        }))
    })
}

fn is_device_wanted(device: &SharedDevice, request: &Request) -> bool {
    match device.role {
        DeviceRole::Control | DeviceRole::Dxg => true,
        DeviceRole::Uvm | DeviceRole::UvmTools => request.capabilities.include(Capability::Compute),
        DeviceRole::Modeset => request.capabilities.include(Capability::Display),
    }
}
