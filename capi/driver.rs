//! Finds the driver's files and adds them to containers.

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;
use std::ptr;

use libc::dev_t;
use libnvc::host::catalogue::{self, Pattern};
use libnvc::host::{
    Abi, DeviceNode, DeviceNumber, DeviceRole, DriverFile, DriverInfo, DriverVersions, FileClass,
    NVIDIA_MAJOR, SharedDevice,
};
use libnvc::plan::Item;
use libnvc::request::Capability;
use libnvc::{Error, HostPath, Result};

use crate::arg::{Arg, args};
use crate::boundary::{call, guard};
use crate::container::{Container, nvc_container};
use crate::handles::{self, Kind};
use crate::memory::{array, invalid_argument, one, path, release, release_strings, string};
use crate::options;
use crate::state::{Question, State, nvc_context};

/// A device.
#[repr(C)]
#[derive(Debug)]
pub struct nvc_device_node {
    /// Path of its node.
    pub path: *mut c_char,
    /// Its number, in the format of major(3), minor(3) and makedev(3).
    pub id: dev_t,
}

/// The parts of the driver. Paths are below the driver root; none of the arrays has a terminating NULL.
#[repr(C)]
#[derive(Debug)]
pub struct nvc_driver_info {
    /// Version of the driver, for instance "535.261.03".
    pub nvrm_version: *mut c_char,
    /// Newest CUDA version that it supports, for instance "12.2".
    pub cuda_version: *mut c_char,
    /// Programs.
    pub bins: *mut *mut c_char,
    /// Number of programs.
    pub nbins: usize,
    /// Libraries.
    pub libs: *mut *mut c_char,
    /// Number of libraries.
    pub nlibs: usize,
    /// 32-bit libraries.
    pub libs32: *mut *mut c_char,
    /// Number of 32-bit libraries.
    pub nlibs32: usize,
    /// Sockets and directories of the driver's daemons.
    pub ipcs: *mut *mut c_char,
    /// Number of sockets and directories.
    pub nipcs: usize,
    /// Devices that all GPUs share. Their paths are constant strings of the library.
    pub devs: *mut nvc_device_node,
    /// Number of devices.
    pub ndevs: usize,
    /// Firmware.
    pub firmwares: *mut *mut c_char,
    /// Number of firmware files.
    pub nfirmwares: usize,
}

/// Every device that all GPUs can share.
const SHARED_DEVICES: [&CStr; 5] = [
    c"/dev/nvidiactl",
    c"/dev/nvidia-uvm",
    c"/dev/nvidia-uvm-tools",
    c"/dev/nvidia-modeset",
    c"/dev/dxg",
];

/// Converts a device number to C's format.
pub(crate) fn device_id(number: DeviceNumber) -> dev_t {
    libc::makedev(number.major, number.minor)
}

impl nvc_driver_info {
    fn new(info: &DriverInfo) -> Self {
        let of_class = |class| strings(info.of_class(class));
        let (bins, nbins) = of_class(FileClass::Program);
        let (libs, nlibs) = strings(info.libraries(Abi::Native));
        let (libs32, nlibs32) = strings(info.libraries(Abi::Compat32));
        let (ipcs, nipcs) = of_class(FileClass::Socket);
        let (firmwares, nfirmwares) = of_class(FileClass::Firmware);
        let (devs, ndevs) = array(info.devices.iter().filter_map(shared_device).collect());
        Self {
            nvrm_version: string(&info.versions.driver),
            cuda_version: string(&info.versions.cuda),
            bins,
            nbins,
            libs,
            nlibs,
            libs32,
            nlibs32,
            ipcs,
            nipcs,
            devs,
            ndevs,
            firmwares,
            nfirmwares,
        }
    }

    /// Converts the driver that a caller wants to mount, possibly less than was found.
    fn to_driver(info: Arg<'_, Self>) -> Result<DriverInfo> {
        let version = |field| {
            let text = info.string(field)?.ok_or_else(invalid_argument)?;
            Ok::<_, Error>(text.to_string_lossy().into_owned())
        };
        let devices = info.array(|info| (&info.devs, &info.ndevs))?;
        let bins = paths(info, |info| (&info.bins, &info.nbins))?;
        let libs = paths(info, |info| (&info.libs, &info.nlibs))?;
        let libs32 = paths(info, |info| (&info.libs32, &info.nlibs32))?;
        let ipcs = paths(info, |info| (&info.ipcs, &info.nipcs))?;
        let firmwares = paths(info, |info| (&info.firmwares, &info.nfirmwares))?;
        Ok(DriverInfo {
            versions: DriverVersions {
                driver: version(|info| &info.nvrm_version)?,
                cuda: version(|info| &info.cuda_version)?,
            },
            files: [
                program(bins),
                library(libs, Abi::Native),
                library(libs32, Abi::Compat32),
                of_class(firmwares, FileClass::Firmware),
                socket(ipcs),
            ]
            .concat(),
            devices: devices
                .map(|node| {
                    let node = nvc_device_node::to_node(node)?;
                    let role = role(&node);
                    Ok(SharedDevice { node, role })
                })
                .collect::<Result<_>>()?,
            // Not available to C.
            ..DriverInfo::default()
        })
    }
}

/// Converts the paths of files.
fn strings<'a>(files: impl Iterator<Item = &'a DriverFile>) -> (*mut *mut c_char, usize) {
    array(files.map(|file| path(file.path.as_path())).collect())
}

// C passes only paths. Their class and capability are derived here, once, from the name.

fn program(paths: Vec<HostPath>) -> Vec<DriverFile> {
    by_name(paths, catalogue::program_of, Abi::Native)
}

fn library(paths: Vec<HostPath>, abi: Abi) -> Vec<DriverFile> {
    by_name(paths, catalogue::library_of, abi)
}

/// Returns the files that the catalogue knows; other files belong to no capability.
fn by_name(
    paths: Vec<HostPath>,
    find: fn(&std::ffi::OsStr) -> Option<&'static Pattern>,
    abi: Abi,
) -> Vec<DriverFile> {
    let file = |path: HostPath| {
        let file = find(path.file_name())?.file(path);
        Some(DriverFile { abi, ..file })
    };
    paths.into_iter().filter_map(file).collect()
}

fn of_class(paths: Vec<HostPath>, class: FileClass) -> Vec<DriverFile> {
    let file = |path| DriverFile::new(path, class);
    paths.into_iter().map(file).collect()
}

/// Describes sockets: the daemons' belong to utility, the others (MPS's directory) to compute.
fn socket(paths: Vec<HostPath>) -> Vec<DriverFile> {
    let daemons = ["nvidia-persistenced/socket", "nvidia-fabricmanager/socket"];
    let file = |path: HostPath| {
        let is_daemons = daemons.iter().any(|tail| path.as_path().ends_with(tail));
        let capability = if is_daemons {
            Capability::Utility
        } else {
            Capability::Compute
        };
        DriverFile {
            capability: Some(capability),
            ..DriverFile::new(path, FileClass::Socket)
        }
    };
    paths.into_iter().map(file).collect()
}

/// Returns a device's purpose by its number, or by its path if the number is dynamic.
fn role(node: &DeviceNode) -> DeviceRole {
    const MODESET: DeviceNumber = DeviceNumber {
        major: NVIDIA_MAJOR,
        minor: 254,
    };
    let dynamic = [DeviceRole::Uvm, DeviceRole::UvmTools, DeviceRole::Dxg];
    let by_path = dynamic
        .into_iter()
        .find(|role| node.path.as_path() == Path::new(role.path()));
    match (node.number, by_path) {
        (MODESET, _) => DeviceRole::Modeset,
        (number, _) if number.major == NVIDIA_MAJOR => DeviceRole::Control,
        (_, Some(role)) => role,
        _ => DeviceRole::Uvm,
    }
}

impl nvc_device_node {
    /// Converts a caller's node.
    pub(crate) fn to_node(node: Arg<'_, Self>) -> Result<DeviceNode> {
        let path = node
            .string(|node| &node.path)?
            .ok_or_else(invalid_argument)?;
        Ok(DeviceNode {
            path: HostPath::new(path),
            number: DeviceNumber::from_rdev(node.get()?.id),
            owner: None,
        })
    }
}

fn shared_device(device: &SharedDevice) -> Option<nvc_device_node> {
    let node = &device.node;
    let bytes = node.path.as_path().as_os_str().as_encoded_bytes();
    let path = SHARED_DEVICES
        .iter()
        .find(|path| path.to_bytes() == bytes)?;
    Some(nvc_device_node {
        path: path.as_ptr().cast_mut(),
        id: device_id(node.number),
    })
}

/// Returns the paths in a caller's array; NULL entries are skipped.
fn paths(
    info: Arg<'_, nvc_driver_info>,
    fields: for<'x> fn(&'x nvc_driver_info) -> (&'x *mut *mut c_char, &'x usize),
) -> Result<Vec<HostPath>> {
    let texts = info.array(fields)?.filter_map(Arg::<*mut c_char>::text);
    Ok(texts.map(HostPath::new).collect())
}

/// Finds the parts of the driver.
///
/// opts may be NULL: no options. Words are separated by spaces:
///   no-glvnd          the legacy OpenGL libraries in place of those for GLVND
///   no-uvm            without /dev/nvidia-uvm and /dev/nvidia-uvm-tools
///   no-modeset        without /dev/nvidia-modeset
///   no-mps            without the programs and the directory of MPS
///   no-persistenced   without the socket of nvidia-persistenced
///   no-fabricmanager  without the socket of nv-fabricmanager
///   no-gsp-firmware   without firmware
///
/// The first call on an initialised context returns the driver's answers from that time; each later one queries it
/// again. Programs are looked up in the directories of the environment variable PATH.
///
/// Returns a record, to be released with nvc_driver_info_free; it does not depend on the context. Returns NULL with an
/// error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_driver_info_new(
    ctx: *mut nvc_context,
    opts: *const c_char,
) -> *mut nvc_driver_info {
    // SAFETY: nvc.h requires of the caller what `args` requires.
    let (ctx, opts) = unsafe { args((ctx, opts)) };
    let body = |state: &mut State| {
        let driver = state.driver()?;
        let options = libnvc::options::parse(&opts.words(""), options::OF_DRIVER)?;
        let info = driver.ask(Question::Driver)?.info(options)?;
        Ok(handles::give(
            Kind::DriverInfo,
            one(nvc_driver_info::new(&info)),
        ))
    };
    call(ctx, body)
}

/// Releases a record of nvc_driver_info_new, with all its strings. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_driver_info_free(info: *mut nvc_driver_info) {
    let Some(record) = handles::take(Kind::DriverInfo, info) else {
        return;
    };
    // SAFETY: `nvc_driver_info_new` made it, and the caller gives it up.
    let info = unsafe { ptr::read(record) };
    for (strings, count) in [
        (info.bins, info.nbins),
        (info.libs, info.nlibs),
        (info.libs32, info.nlibs32),
        (info.ipcs, info.nipcs),
        (info.firmwares, info.nfirmwares),
    ] {
        // SAFETY: arrays of strings of that record, on the C library's heap.
        guard((), || unsafe { release_strings(strings, count) });
    }
    for text in [info.nvrm_version, info.cuda_version] {
        // SAFETY: strings of that record, on the C library's heap.
        unsafe { release(text) };
    }
    // SAFETY: the array is a block of malloc(3). The paths of the devices are constants.
    unsafe { release(info.devs) };
    // SAFETY: the record is a block of malloc(3), read for the last time above.
    unsafe { release(record) };
}

/// Adds the driver to a container: programs, libraries, firmware, sockets, the devices that all GPUs share, and the
/// driver's files in /proc, as far as the container's options request them.
///
/// Everything is done or nothing. The caller may change info before the call, or construct it.
///
/// Returns 0, or -1 with an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_driver_mount(
    ctx: *mut nvc_context,
    cnt: *const nvc_container,
    info: *const nvc_driver_info,
) -> c_int {
    // SAFETY: nvc.h requires of the caller what `args` requires.
    let (ctx, cnt, info) = unsafe { args((ctx, cnt, info)) };
    let body = |state: &mut State| {
        let session = &mut state.driver()?.session;
        let container = Container::of(cnt)?;
        let mut driver = nvc_driver_info::to_driver(info)?;
        driver.wsl = session.wsl().cloned();
        libnvc::host::search::connect_files(session.root(), &mut driver.files);
        let intents = Item::Driver(&driver).plan(&container.request);
        container.apply(state, &intents)
    };
    call(ctx, body)
}
