//! Finds the GPUs and adds them to containers.

use std::ffi::{c_char, c_int, c_uint};
use std::ptr;

use libnvc::host::{DeviceInfo, DriverSession, Gpu, MigDevice, procfs};
use libnvc::plan::{Item, PartKind};
use libnvc::{HostPath, Result};

use crate::arg::{Arg, args};
use crate::boundary::{call, guard};
use crate::container::{Container, nvc_container};
use crate::driver::{device_id, nvc_device_node};
use crate::handles::{self, Kind};
use crate::memory::{array, invalid_argument, one, optional_path, path, release, slice, string};
use crate::state::{Question, State, nvc_context};

/// A MIG device: a compute instance of a GPU instance.
#[repr(C)]
#[derive(Debug)]
pub struct nvc_mig_device {
    /// Its GPU, in the same record.
    pub parent: *mut nvc_device,
    /// "MIG-...".
    pub uuid: *mut c_char,
    /// Number of the GPU instance.
    pub gi: c_uint,
    /// Number of the compute instance.
    pub ci: c_uint,
    /// Directory of the GPU instance's capability.
    pub gi_caps_path: *mut c_char,
    /// Directory of the compute instance's capability.
    pub ci_caps_path: *mut c_char,
}

/// The MIG devices of a GPU.
#[repr(C)]
#[derive(Debug)]
pub struct nvc_mig_device_info {
    /// An array; NULL if there are none.
    pub devices: *mut nvc_mig_device,
    /// Number of devices.
    pub ndevices: usize,
}

/// A GPU.
#[repr(C)]
#[derive(Debug)]
pub struct nvc_device {
    /// Product name.
    pub model: *mut c_char,
    /// "GPU-...".
    pub uuid: *mut c_char,
    /// PCI address, domain:bus:device.function with 8, 2, 2 and 1 hexadecimal digits.
    pub busid: *mut c_char,
    /// Compute capability, for instance "9.0".
    pub arch: *mut c_char,
    /// Brand, for instance "Tesla".
    pub brand: *mut c_char,
    /// Its device node; the path is NULL under WSL.
    pub node: nvc_device_node,
    /// True if it supports MIG mode.
    pub mig_capable: bool,
    /// Directory of its MIG capabilities; NULL under WSL.
    pub mig_caps_path: *mut c_char,
    /// Its MIG devices; none unless it is in MIG mode.
    pub mig_devices: nvc_mig_device_info,
}

/// The GPUs of the machine.
#[repr(C)]
#[derive(Debug)]
pub struct nvc_device_info {
    /// An array in NVML's order.
    pub gpus: *mut nvc_device,
    /// Number of GPUs.
    pub ngpus: usize,
}

impl nvc_device_info {
    fn new(info: &DeviceInfo) -> Self {
        let (gpus, ngpus) = array(info.gpus.iter().map(nvc_device::new).collect());
        for (index, gpu) in info.gpus.iter().enumerate() {
            // SAFETY: the array has as many records as there are GPUs.
            let parent = unsafe { gpus.add(index) };
            let devices = nvc_mig_device_info::new(gpu, parent);
            // SAFETY: as above; each record is complete.
            unsafe { (*parent).mig_devices = devices };
        }
        Self { gpus, ngpus }
    }
}

impl nvc_device {
    fn new(gpu: &Gpu) -> Self {
        let node = gpu.node.as_ref();
        Self {
            model: string(&gpu.model),
            uuid: string(&gpu.uuid),
            busid: string(&gpu.busid),
            arch: string(&gpu.arch),
            brand: string(&gpu.brand),
            node: nvc_device_node {
                path: optional_path(node.map(|node| node.path.as_path())),
                id: node.map_or(0, |node| device_id(node.number)),
            },
            mig_capable: gpu.mig_capable,
            mig_caps_path: optional_path(gpu.mig_caps_path.as_ref().map(HostPath::as_path)),
            mig_devices: nvc_mig_device_info {
                devices: ptr::null_mut(),
                ndevices: 0,
            },
        }
    }

    /// Converts the GPU that a caller wants to mount: the fields that planning needs.
    fn to_gpu(device: Arg<'_, Self>) -> Result<Gpu> {
        let busid = device.string(|device| &device.busid)?.unwrap_or_default();
        let node = nvc_device_node::to_node(device.part(|device| &device.node)?).ok();
        Ok(Gpu {
            busid: busid.to_string_lossy().into_owned(),
            minor: node.as_ref().map_or(0, |node| node.number.minor),
            node,
            ..Gpu::default()
        })
    }
}

impl nvc_mig_device_info {
    fn new(gpu: &Gpu, parent: *mut nvc_device) -> Self {
        let device = |mig: &MigDevice| nvc_mig_device {
            parent,
            uuid: string(&mig.uuid),
            gi: mig.gi,
            ci: mig.ci,
            gi_caps_path: path(mig.gi_caps_path.as_path()),
            ci_caps_path: path(mig.ci_caps_path.as_path()),
        };
        let (devices, ndevices) = match gpu.mig_devices.as_slice() {
            [] => (ptr::null_mut(), 0),
            devices => array(devices.iter().map(device).collect()),
        };
        Self { devices, ndevices }
    }

    /// Releases the devices.
    ///
    /// # Safety
    /// It came from `new` and is not used afterwards.
    unsafe fn release(&self) {
        // SAFETY: the array of `new`, without another user.
        for device in unsafe { slice(self.devices, self.ndevices) }.unwrap_or_default() {
            for text in [device.uuid, device.gi_caps_path, device.ci_caps_path] {
                // SAFETY: `new` made these strings, or C put others of malloc(3) there.
                unsafe { release(text) };
            }
        }
        // SAFETY: `new` made the array in a block of malloc(3), or it is NULL.
        unsafe { release(self.devices) };
    }
}

/// Completes a native GPU with information from the driver root.
fn look_up(mut gpu: Gpu, session: &DriverSession) -> Result<Gpu> {
    // Accepts a file name only, so that the path cannot leave its directory.
    if gpu.node.is_none() || gpu.busid.is_empty() || gpu.busid.contains('/') {
        return Err(invalid_argument());
    }
    gpu.proc_dir = procfs::gpu_directory(session.root(), &gpu.busid);
    Ok(gpu)
}

/// Finds the GPUs. GPUs that NVML fails on are omitted, unless it fails on all of them.
///
/// opts is ignored. The first call on an initialised context returns the driver's answers from that time; each later
/// one queries it again.
///
/// Returns a record, to be released with nvc_device_info_free; it does not depend on the context. Returns NULL with an
/// error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_device_info_new(
    ctx: *mut nvc_context,
    opts: *const c_char,
) -> *mut nvc_device_info {
    let _ = opts;
    // SAFETY: nvc.h requires of the caller what `args` requires.
    let ctx = unsafe { args(ctx) };
    let body = |state: &mut State| {
        let info = state.driver()?.ask(Question::Devices)?.devices()?;
        Ok(handles::give(
            Kind::DeviceInfo,
            one(nvc_device_info::new(&info)),
        ))
    };
    call(ctx, body)
}

/// Releases a record of nvc_device_info_new, with all GPUs and MIG devices. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_device_info_free(info: *mut nvc_device_info) {
    let Some(record) = handles::take(Kind::DeviceInfo, info) else {
        return;
    };
    // SAFETY: `nvc_device_info_new` made it, and the caller gives it up.
    let info = unsafe { ptr::read(record) };
    // SAFETY: the array of the same record, whose owner gives it up.
    for gpu in unsafe { slice(info.gpus, info.ngpus) }.unwrap_or_default() {
        for text in [
            gpu.model,
            gpu.uuid,
            gpu.busid,
            gpu.arch,
            gpu.brand,
            gpu.node.path,
            gpu.mig_caps_path,
        ] {
            // SAFETY: strings of that record, on the C library's heap.
            unsafe { release(text) };
        }
        // SAFETY: the array of that record, not used afterwards.
        guard((), || unsafe { gpu.mig_devices.release() });
    }
    // SAFETY: the array is a block of malloc(3), read for the last time above.
    unsafe { release(info.gpus) };
    // SAFETY: the record is a block of malloc(3), read for the last time above.
    unsafe { release(record) };
}

/// Adds a GPU to a container: its device node, the right to open it, and its entry in /proc/driver/nvidia/gpus.
///
/// Call nvc_driver_mount first. Everything is done or nothing. The caller may construct dev; only busid and node are
/// used.
///
/// Returns 0, or -1 with an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_device_mount(
    ctx: *mut nvc_context,
    cnt: *const nvc_container,
    dev: *const nvc_device,
) -> c_int {
    // SAFETY: nvc.h requires of the caller what `args` requires.
    let (ctx, cnt, dev) = unsafe { args((ctx, cnt, dev)) };
    let body = |state: &mut State| {
        let session = &mut state.driver()?.session;
        let (container, mut gpu) = (Container::of(cnt)?, nvc_device::to_gpu(dev)?);
        let wsl = session.wsl().cloned();
        if wsl.is_none() {
            gpu = look_up(gpu, session)?;
        }
        let item = Item::Gpu(&gpu, wsl.as_ref());
        container.apply_device(state, PartKind::Gpu, gpu.busid.clone(), item)
    };
    call(ctx, body)
}

/// Allows a container to open the capability devices of all of a GPU's MIG instances, including future ones.
///
/// For containers that configure or monitor MIG. Mounts nothing: nvc_mig_config_global_caps_mount and
/// nvc_mig_monitor_global_caps_mount do.
///
/// Returns 0, or -1 with an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_device_mig_caps_mount(
    ctx: *mut nvc_context,
    cnt: *const nvc_container,
    dev: *const nvc_device,
) -> c_int {
    // SAFETY: nvc.h requires of the caller what `args` requires.
    let (ctx, cnt, dev) = unsafe { args((ctx, cnt, dev)) };
    let body = |state: &mut State| {
        let capabilities = state.driver()?.session.capabilities();
        let (container, gpu) = (Container::of(cnt)?, nvc_device::to_gpu(dev)?);
        let Some(nodes) = capabilities.of_gpus(&[gpu.minor])? else {
            return Ok(());
        };
        let nodes = nodes.concat();
        container.apply(state, &Item::Capabilities(&nodes).plan(&container.request))
    };
    call(ctx, body)
}
