//! Reads what a MIG device consists of.

use std::ffi::{c_uint, c_ulonglong, c_void};

use serde::{Deserialize, Serialize};

use super::{Code, Device, Nvml, NvmlFailure, check, handle};

type Attributes = unsafe extern "C" fn(*mut c_void, *mut MigAttributes) -> Code;
type InstanceById = unsafe extern "C" fn(*mut c_void, c_uint, *mut *mut c_void) -> Code;
type InstanceInfo = unsafe extern "C" fn(*mut c_void, *mut Instance) -> Code;

/// `nvmlDeviceAttributes_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigAttributes {
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Shared copy engines.
    pub copy_engines: u32,
    /// Shared decoders.
    pub decoders: u32,
    /// Shared encoders.
    pub encoders: u32,
    /// Shared JPEG engines.
    pub jpeg_engines: u32,
    /// Shared optical-flow engines.
    pub ofa_engines: u32,
    /// Slices of its GPU instance.
    pub gpu_slices: u32,
    /// Slices of its compute instance.
    pub compute_slices: u32,
    /// Megabytes.
    pub memory: u64,
}

/// `nvmlGpuInstanceInfo_t`, with room.
#[repr(C)]
struct Instance {
    device: *mut c_void,
    id: c_uint,
    profile: c_uint,
    start: c_uint,
    size: c_uint,
    rest: [c_ulonglong; 8],
}

/// Where a GPU instance is on its GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigPlacement {
    /// The driver's number of the GPU instance's profile.
    pub profile: u32,
    /// Its first memory slice.
    pub start: u32,
    /// How many memory slices it has.
    pub size: u32,
}

impl Nvml {
    /// Returns what a MIG device consists of.
    pub(crate) fn mig_attributes(&self, mig: Device) -> Result<MigAttributes, NvmlFailure> {
        let function = c"nvmlDeviceGetAttributes_v2";
        // SAFETY: the name has this type in NVML's interface.
        let get = unsafe { self.find::<Attributes>(function) }?;
        let mut attributes = MigAttributes::default();
        // SAFETY: takes a device of this library, writes one structure.
        check(function, unsafe { get(mig.0, &raw mut attributes) }).map(|()| attributes)
    }

    /// Returns where a GPU instance is. NVML refuses that to users other than root.
    pub(crate) fn placement(&self, gpu: Device, id: u32) -> Result<MigPlacement, NvmlFailure> {
        let function = c"nvmlDeviceGetGpuInstanceById";
        // SAFETY: the name has this type in NVML's interface.
        let get = unsafe { self.find::<InstanceById>(function) }?;
        let instance = handle(function, |instance| {
            // SAFETY: takes a device of this library and any number, writes one pointer.
            unsafe { get(gpu.0, id, instance) }
        })?;
        let function = c"nvmlGpuInstanceGetInfo";
        // SAFETY: the name has this type in NVML's interface.
        let get = unsafe { self.find::<InstanceInfo>(function) }?;
        let mut info = Instance {
            device: std::ptr::null_mut(),
            id: 0,
            profile: 0,
            start: 0,
            size: 0,
            rest: [0; 8],
        };
        // SAFETY: takes an instance of this library, writes one structure; ours is larger.
        check(function, unsafe { get(instance.0, &raw mut info) })?;
        Ok(MigPlacement {
            profile: info.profile,
            start: info.start,
            size: info.size,
        })
    }
}
