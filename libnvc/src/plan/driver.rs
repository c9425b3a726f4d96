//! Plans the intents of every GPU container: procfs, libraries, programs, firmware, sockets and the shared devices.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::chosen::Chosen;
use super::device::{device, driver_proc, egl_profile};
use super::{
    Alias, CapabilityFiles, CompatUse, CudaCompat, EglDevices, Env, Intent, LibraryPath, Link,
    Place, ProcDevices, Sockets, What,
};
use crate::capability::Capability;
use crate::container;
use crate::host::catalogue::is_wanted;
use crate::host::{Abi, DeviceRole, DriverFile, DriverInfo, FileClass, SharedDevice, catalogue};
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
    each_place_once(&mut intents);
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

/// Returns the directories of the planned libraries, in the order of the search; others follow, sorted.
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
    let mut directories: Vec<ContainerPath> = directories.into_iter().collect();
    let is_at = |place: &ContainerPath, home: &HostPath| home.as_path() == place.as_path();
    directories.sort_by_key(|place| {
        let homes = &driver.directories;
        homes
            .iter()
            .position(|home| is_at(place, home))
            .unwrap_or(homes.len())
    });
    directories.into_iter().map(Place::At).collect()
}

/// Plans the files of graphics.
pub(super) fn graphics(driver: &DriverInfo, request: &Request) -> Vec<Intent> {
    let chosen = Chosen::of(driver, request);
    let mut intents = Vec::new();
    files(driver.graphics.iter(), &chosen, request, &mut intents);
    intents.extend(named_by_manifests(driver, &chosen, request));
    each_place_once(&mut intents);
    intents
}

/// Plans the files of graphics for a container that gets the others by another plan: the loader must find its libraries.
pub(super) fn graphics_alone(driver: &DriverInfo, request: &Request) -> Vec<Intent> {
    let mut intents = graphics(driver, request);
    let is_library = |intent: &Intent| matches!(&intent.what, What::Mount(mount) if mount.class == FileClass::Library);
    if intents.iter().any(is_library) {
        intents.push(library_path(driver, request));
    }
    intents
}

/// Plans the mounts of files, each kind of program followed by its links.
fn files<'a>(
    files: impl Iterator<Item = &'a DriverFile>,
    chosen: &Chosen<'_>,
    request: &Request,
    intents: &mut Vec<Intent>,
) {
    let mut links = Vec::new();
    let mut last = Abi::Native;
    for file in files.filter(|file| chosen.has(file)) {
        if file.abi != last {
            intents.append(&mut links);
            last = file.abi;
        }
        let place = place(file, request.policy.placement);
        for link in &file.links {
            links.push(link_to(place.beside(&link.name), link.target.clone()));
        }
        links.extend(opened_by_path(file, &place, request));
        intents.push(Intent::mount(file.path.clone(), place, file.class));
    }
    intents.append(&mut links);
}

/// Plans a link of the driver, in place of what an image has there.
fn link_to(at: Place, target: PathBuf) -> Intent {
    Intent::best_effort(What::Link(Link {
        at,
        target,
        replaces: true,
    }))
}

fn alias(at: ContainerPath, of: &Place) -> Intent {
    let of = of.clone();
    Intent::best_effort(What::Alias(Alias { at, of }))
}

/// Plans what leads to a file in the directories where programs look for it, not the loader. In an unknown image these
/// are the directories of each family of distributions.
fn opened_by_path(file: &DriverFile, place: &Place, request: &Request) -> Vec<Intent> {
    let is_for_unknown = request.policy.placement == Placement::AsHost;
    let families = || container::FAMILIES.iter().map(ContainerPath::new);
    if file.class == FileClass::XModule {
        let name = catalogue::x_module(file.path.file_name()).filter(|_| is_for_unknown);
        let all =
            name.map(|name| families().map(move |libs| container::x_modules(&libs).join(&name)));
        let all = all.into_iter().flatten();
        return all.map(|at| alias(at, place)).collect();
    }
    let opened = catalogue::opened_by_path(file.path.file_name());
    let Some(opened) = opened.filter(|opened| request.capabilities.include(opened.capability))
    else {
        return Vec::new();
    };
    let (name, above) = (
        Path::new(opened.directory).join(opened.name),
        Path::new(".."),
    );
    let own = link_to(place.beside(&name), above.join(opened.soname));
    match place {
        Place::At(path) if is_for_unknown && file.abi == Abi::Native => {
            // The library may lie in that directory itself.
            let is_there = path.parent().file_name() == opened.directory;
            let others = families().map(|libs| alias(libs.join(&name), place));
            let own = Some(own).filter(|_| !is_there);
            own.into_iter().chain(others).collect()
        }
        _ => vec![own],
    }
}

/// Plans the paths by which mounted manifests name mounted libraries.
fn named_by_manifests(driver: &DriverInfo, chosen: &Chosen<'_>, request: &Request) -> Vec<Intent> {
    let files = || driver.files.iter().chain(&driver.graphics);
    let wanted = || files().filter(|file| chosen.has(file));
    if wanted().all(|file| file.names.is_empty()) {
        return Vec::new();
    }
    let places: HashMap<_, _> = wanted()
        .map(|file| (&file.path, place(file, request.policy.placement)))
        .collect();
    let named = wanted().flat_map(|manifest| &manifest.names);
    // In mode legacy nvidia-container-cli mounts the catalogue's libraries, after this plan.
    let by_another = |library: &HostPath| {
        let known = catalogue::library_of(library.file_name());
        let is_as_image = request.policy.placement == Placement::AsImage;
        let is_known = known.is_some_and(|known| known.is_wanted(request.capabilities));
        (is_as_image && is_known).then(|| Place::Library(library.file_name().into()))
    };
    let found = named.filter_map(|name| {
        let place = places.get(&name.library).cloned();
        let place = place.or_else(|| by_another(&name.library))?;
        Some(alias(name.at.clone(), &place))
    });
    found.collect()
}

/// Removes links at a place that a file has, or another link; an alias gives way to a link.
fn each_place_once(intents: &mut Vec<Intent>) {
    let place_of = |what: &What| match what {
        What::Mount(mount) => Some((0, mount.place.clone())),
        What::Link(link) => Some((1, link.at.clone())),
        What::Alias(alias) => Some((2, Place::At(alias.at.clone()))),
        _ => None,
    };
    let mut owners: HashMap<Place, u8> = HashMap::new();
    for (rank, place) in intents.iter().filter_map(|intent| place_of(&intent.what)) {
        let owner = owners.entry(place).or_insert(rank);
        *owner = rank.min(*owner);
    }
    let mut seen = HashSet::new();
    intents.retain(|intent| match place_of(&intent.what) {
        None | Some((0, _)) => true,
        Some((rank, place)) => owners.get(&place) == Some(&rank) && seen.insert(place),
    });
}

/// Returns the place of a file. Programs are in a directory that every PATH has, wherever the host has them.
fn place(file: &DriverFile, placement: Placement) -> Place {
    let at = file_path(file);
    let name = PathBuf::from(at.file_name());
    match (placement, file.class) {
        (Placement::AsImage, FileClass::Library) if file.at.is_none() => match file.abi {
            Abi::Native => Place::Library(file.path.file_name().into()),
            Abi::Compat32 => Place::Library32(file.path.file_name().into()),
        },
        (Placement::AsImage, FileClass::XModule) => {
            catalogue::x_module(at.file_name()).map_or(Place::At(at), Place::XModule)
        }
        (Placement::AsImage, FileClass::Program) => Place::Program(name),
        (Placement::AsHost, FileClass::Program) => {
            Place::At(ContainerPath::new(container::PROGRAMS).join(name))
        }
        _ => Place::At(at),
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
