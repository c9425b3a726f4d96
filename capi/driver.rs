//! Finds the driver's files and gives them to containers.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use libc::dev_t;
use libnvc::container::ContainerFacts;
use libnvc::host::{DeviceNode, DeviceNumber, DriverInfo, DriverSession, DriverVersions, procfs};
use libnvc::options::{CudaCompatMode, DriverOptions};
use libnvc::{HostPath, Result, plan};

use crate::boundary::{call, guard};
use crate::container::{Container, nvc_container};
use crate::context::{Question, State, nvc_context};
use crate::handles::{self, Kind};
use crate::memory::{
    array, invalid_argument, one, path, release, release_strings, slice, string, text, value, words,
};

/// A device.
#[repr(C)]
#[derive(Debug)]
pub struct nvc_device_node {
    /// Path of its node.
    pub path: *mut c_char,
    /// Its number, as major(3), minor(3) and makedev(3) have it.
    pub id: dev_t,
}

/// What the driver consists of. Paths are below the driver root; none of the arrays has a terminating NULL.
#[repr(C)]
#[derive(Debug)]
pub struct nvc_driver_info {
    /// Version of the driver, for instance "535.261.03".
    pub nvrm_version: *mut c_char,
    /// Newest CUDA version that it supports, for instance "12.2".
    pub cuda_version: *mut c_char,
    /// Programs.
    pub bins: *mut *mut c_char,
    /// How many.
    pub nbins: usize,
    /// Libraries.
    pub libs: *mut *mut c_char,
    /// How many.
    pub nlibs: usize,
    /// 32-bit libraries.
    pub libs32: *mut *mut c_char,
    /// How many.
    pub nlibs32: usize,
    /// Sockets and directories of the driver's daemons.
    pub ipcs: *mut *mut c_char,
    /// How many.
    pub nipcs: usize,
    /// Devices that all GPUs share. Their paths are constant texts of the library.
    pub devs: *mut nvc_device_node,
    /// How many.
    pub ndevs: usize,
    /// Firmware.
    pub firmwares: *mut *mut c_char,
    /// How many.
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

/// A device's number as C has it.
pub(crate) fn device_id(number: DeviceNumber) -> dev_t {
    libc::makedev(number.major, number.minor)
}

impl nvc_driver_info {
    fn new(info: &DriverInfo) -> Self {
        let paths = |paths: &[HostPath]| array(paths.iter().map(|at| path(at.as_path())).collect());
        let (bins, nbins) = paths(&info.binaries);
        let (libs, nlibs) = paths(&info.libraries);
        let (libs32, nlibs32) = paths(&info.libraries32);
        let (ipcs, nipcs) = paths(&info.ipcs);
        let (firmwares, nfirmwares) = paths(&info.firmwares);
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

    /// The driver as a caller wants it mounted: perhaps less than was found.
    ///
    /// # Safety
    /// Unless NULL, `info` is as the header demands.
    unsafe fn to_driver(info: *const Self) -> Result<DriverInfo> {
        // SAFETY: the caller's promise.
        let info = unsafe { value(info) }?;
        let version = |at: *mut c_char| {
            // SAFETY: the caller's promise.
            let text = unsafe { text(at) }.ok_or_else(invalid_argument)?;
            Ok(text.to_string_lossy().into_owned())
        };
        // SAFETY: the caller's promise.
        let devices = unsafe { slice(info.devs, info.ndevs) }?.iter();
        Ok(DriverInfo {
            versions: DriverVersions {
                driver: version(info.nvrm_version)?,
                cuda: version(info.cuda_version)?,
            },
            // SAFETY: the caller's promise.
            binaries: unsafe { paths(info.bins, info.nbins) }?,
            // SAFETY: the caller's promise.
            libraries: unsafe { paths(info.libs, info.nlibs) }?,
            // SAFETY: the caller's promise.
            libraries32: unsafe { paths(info.libs32, info.nlibs32) }?,
            // SAFETY: the caller's promise.
            ipcs: unsafe { paths(info.ipcs, info.nipcs) }?,
            // SAFETY: the caller's promise.
            firmwares: unsafe { paths(info.firmwares, info.nfirmwares) }?,
            devices: devices
                .map(|node| {
                    // SAFETY: the caller's promise.
                    unsafe { node.to_node() }
                })
                .collect::<Result<_>>()?,
            // Not of C's concern: `nvc_driver_mount` looks.
            proc_files: Vec::new(),
            wsl: None,
        })
    }
}

impl nvc_device_node {
    /// The node that a caller means.
    ///
    /// # Safety
    /// Its path is a string or NULL.
    pub(crate) unsafe fn to_node(&self) -> Result<DeviceNode> {
        // SAFETY: the caller's promise.
        let path = unsafe { text(self.path) }.ok_or_else(invalid_argument)?;
        Ok(DeviceNode {
            path: HostPath::new(path),
            number: DeviceNumber::from_rdev(self.id),
        })
    }
}

fn shared_device(node: &DeviceNode) -> Option<nvc_device_node> {
    let bytes = node.path.as_path().as_os_str().as_encoded_bytes();
    let path = SHARED_DEVICES
        .iter()
        .find(|path| path.to_bytes() == bytes)?;
    Some(nvc_device_node {
        path: path.as_ptr().cast_mut(),
        id: device_id(node.number),
    })
}

/// The paths in a caller's array.
///
/// # Safety
/// The array has as many strings as said; NULL ones are left out.
unsafe fn paths(array: *mut *mut c_char, count: usize) -> Result<Vec<HostPath>> {
    // SAFETY: the caller's promise.
    let strings = unsafe { slice(array, count) }?.iter();
    // SAFETY: the caller's promise.
    Ok(strings
        .filter_map(|path| unsafe { text(*path) })
        .map(HostPath::new)
        .collect())
}

/// A driver of which nothing but what all plans ask about is known.
pub(crate) fn outline(
    session: &mut DriverSession,
    container: &ContainerFacts,
) -> Result<DriverInfo> {
    let needs_version = container.compat_mode == CudaCompatMode::Ldconfig;
    let unknown = || DriverVersions {
        driver: String::new(),
        cuda: String::new(),
    };
    Ok(DriverInfo {
        versions: if needs_version {
            session.versions()?
        } else {
            unknown()
        },
        binaries: Vec::new(),
        libraries: Vec::new(),
        libraries32: Vec::new(),
        ipcs: Vec::new(),
        devices: Vec::new(),
        firmwares: Vec::new(),
        proc_files: Vec::new(),
        wsl: session.wsl().cloned(),
    })
}

/// Finds what the driver consists of.
///
/// opts may be NULL: no options. It has words separated by spaces:
///   no-glvnd          the legacy OpenGL libraries in place of those for GLVND
///   no-uvm            without /dev/nvidia-uvm and /dev/nvidia-uvm-tools
///   no-modeset        without /dev/nvidia-modeset
///   no-mps            without the programs and the directory of MPS
///   no-persistenced   without the socket of nvidia-persistenced
///   no-fabricmanager  without the socket of nv-fabricmanager
///   no-gsp-firmware   without firmware
///
/// The first call on an initialised context tells what the driver said then; each later one asks it anew.
/// Programs are looked up in the directories that the environment variable PATH has.
///
/// Returns a record, to be released with nvc_driver_info_free; it does not depend on the context. Or NULL with an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_driver_info_new(
    ctx: *mut nvc_context,
    opts: *const c_char,
) -> *mut nvc_driver_info {
    // SAFETY: the header's demands on the caller.
    let options = unsafe { words(opts, "") };
    let body = |state: &mut State| {
        let driver = state.driver()?;
        let options = DriverOptions::parse(&options)?;
        let info = driver.ask(Question::Driver)?.info(options)?;
        Ok(handles::give(
            Kind::DriverInfo,
            one(nvc_driver_info::new(&info)),
        ))
    };
    // SAFETY: the header's demands on the caller.
    unsafe { call(ctx, body) }
}

/// Releases what nvc_driver_info_new returned, with all its strings. NULL is allowed.
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
        // SAFETY: as above.
        guard((), || unsafe { release_strings(strings, count) });
    }
    for text in [info.nvrm_version, info.cuda_version] {
        // SAFETY: as above.
        unsafe { release(text) };
    }
    // SAFETY: as above. The paths of the devices are constants.
    unsafe { release(info.devs) };
    // SAFETY: as above.
    unsafe { release(record) };
}

/// Gives a container the driver: programs, libraries, firmware, sockets, the devices that all GPUs share, and the driver's
/// files in /proc, as far as the container's options ask for them.
///
/// Either everything is done or nothing. info may be changed before, or made by the caller.
///
/// Returns 0, or -1 with an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_driver_mount(
    ctx: *mut nvc_context,
    cnt: *const nvc_container,
    info: *const nvc_driver_info,
) -> c_int {
    // SAFETY: the header's demands on the caller.
    let container = || unsafe { Container::of(cnt) };
    // SAFETY: the header's demands on the caller.
    let driver = || unsafe { nvc_driver_info::to_driver(info) };
    let body = |state: &mut State| {
        let session = &mut state.driver()?.session;
        let (container, mut driver) = (container()?, driver()?);
        driver.wsl = session.wsl().cloned();
        if driver.wsl.is_none() {
            driver.proc_files = procfs::files(session.root());
        }
        let plan = plan::driver(&driver, &container.facts()?, &[]);
        state.apply(container, &plan)
    };
    // SAFETY: the header's demands on the caller.
    unsafe { call(ctx, body) }
}
