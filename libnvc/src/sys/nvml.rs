//! Calls NVML, the driver's management library, loaded at run time.
//!
//! Each function is looked up when it is called, so an old or damaged library fails only the calls it lacks. NVML's
//! results are not trusted with memory: buffers are zeroed and larger than the length passed to NVML, and numbers are
//! only passed on. Declarations follow NVML's public interface and cover only the functions used here; handles never
//! leave this process.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_NOW};

mod events;
mod mig;
mod readings;

pub(crate) use events::{EventSet, WatchedEvent};
pub use mig::{MigAttributes, MigPlacement};
pub(crate) use readings::{Clock, Direction, Location};

/// Return code of a call, NVML's `nvmlReturn_t`; unknown values are kept.
pub(crate) type Code = c_uint;

/// This device lacks the feature.
pub(crate) const NOT_SUPPORTED: Code = 3;
/// The number or name that was looked up does not exist.
pub(crate) const NOT_FOUND: Code = 6;
/// The library has no such function.
pub(crate) const FUNCTION_NOT_FOUND: Code = 13;

const SUCCESS: Code = 0;

/// Length of string buffers as passed to NVML: the largest that its interface names (`NVML_DEVICE_NAME_V2…`).
const STRING_LENGTH: usize = 96;

/// A call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NvmlFailure {
    /// The function.
    pub(crate) function: &'static CStr,
    /// Why.
    pub(crate) reason: Reason,
}

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// NVML returned an error code.
    Code(Code),
    /// NVML reported success but filled the whole buffer without a NUL.
    Unterminated,
    /// NVML reported success but returned no device.
    NoHandle,
}

/// A GPU or MIG device, valid as long as its library, which is never unloaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device(*mut c_void);

/// PCI address of a GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PciAddress {
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
}

/// The start of `nvmlPciInfo_t`, the same in all its versions, with room for the rest of the largest version.
#[repr(C)]
struct PciInfo {
    legacy_bus_id: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    rest: [c_uint; 64],
}

type Plain = unsafe extern "C" fn() -> Code;
type TextOfCode = unsafe extern "C" fn(Code) -> *const c_char;
type SystemString = unsafe extern "C" fn(*mut c_char, c_uint) -> Code;
type SystemInt = unsafe extern "C" fn(*mut c_int) -> Code;
type SystemCount = unsafe extern "C" fn(*mut c_uint) -> Code;
type HandleByIndex = unsafe extern "C" fn(c_uint, *mut *mut c_void) -> Code;
type HandleByName = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> Code;
type DeviceString = unsafe extern "C" fn(*mut c_void, *mut c_char, c_uint) -> Code;
type DeviceNumber = unsafe extern "C" fn(*mut c_void, *mut c_uint) -> Code;
type DeviceTwoInts = unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> Code;
type DeviceTwoNumbers = unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut c_uint) -> Code;
type DevicePci = unsafe extern "C" fn(*mut c_void, *mut PciInfo) -> Code;
type DeviceHandle = unsafe extern "C" fn(*mut c_void, c_uint, *mut *mut c_void) -> Code;

/// The loaded library.
///
/// It is never unloaded: its exit handlers are foreign code that could crash, and the process ends soon anyway.
#[derive(Debug)]
pub(crate) struct Nvml(ManuallyDrop<Library>);

/// Loads a library of the calling process's root and keeps it, so that libraries that need it by name get this one.
///
/// A library that cannot be loaded is no failure: the library that needs it will report the error.
pub(crate) fn preload(name: &str) {
    // SAFETY: runs the library's initialisers. These are parts of the C library and the compiler's run time, which can
    // be loaded at any time.
    let library = unsafe { Library::open(Some(name), RTLD_LAZY) };
    let _kept = ManuallyDrop::new(library);
}

/// Returns true if a library of this name is already loaded.
pub(crate) fn is_loaded(name: &str) -> bool {
    // SAFETY: loads nothing, so no initialiser runs; the reference it may take is released.
    unsafe { Library::open(Some(name), RTLD_LAZY | libc::RTLD_NOLOAD) }.is_ok()
}

/// Returns the loader's text of a failure.
pub(crate) fn loader_text(error: &libloading::Error) -> String {
    match error {
        libloading::Error::DlOpen { source } => source.to_string(),
        other => other.to_string(),
    }
}

impl Nvml {
    /// Loads NVML by name or path.
    ///
    /// # Errors
    /// The loader's, with [`loader_text`].
    pub(crate) fn load(name: &OsStr) -> Result<Self, libloading::Error> {
        // SAFETY: runs the library's initialisers, which the driver vendor wrote to run in any program. This process
        // exists for them and has no privileges, and the parent handles its death.
        let library = unsafe { Library::open(Some(name), RTLD_NOW) }?;
        Ok(Self(ManuallyDrop::new(library)))
    }

    /// Connects to the kernel driver. All other calls but `error_text` require this first.
    pub(crate) fn init(&self) -> Result<(), NvmlFailure> {
        let names = [c"nvmlInit_v2", c"nvmlInit"];
        // SAFETY: both names have this type in NVML's interface.
        let (init, function) = unsafe { self.find_any::<Plain>(&names) }?;
        // SAFETY: takes nothing, may be called at any time.
        check(function, unsafe { init() })
    }

    /// Returns NVML's text for a code, if it has one.
    pub(crate) fn error_text(&self, code: Code) -> Option<String> {
        // SAFETY: the name has this type in NVML's interface.
        let text = unsafe { self.find::<TextOfCode>(c"nvmlErrorString") }.ok()?;
        // SAFETY: takes any number.
        let text = unsafe { text(code) };
        if text.is_null() {
            return None;
        }
        // SAFETY: NVML's interface promises a constant NUL-terminated string.
        let text = unsafe { CStr::from_ptr(text) };
        Some(text.to_string_lossy().into_owned()).filter(|text| !text.is_empty())
    }

    /// Returns the kernel driver's version.
    pub(crate) fn driver_version(&self) -> Result<String, NvmlFailure> {
        let function = c"nvmlSystemGetDriverVersion";
        // SAFETY: the name has this type in NVML's interface.
        let get = unsafe { self.find::<SystemString>(function) }?;
        string(function, |buffer, length| {
            // SAFETY: writes at most `length` bytes to the buffer, which has more.
            unsafe { get(buffer, length) }
        })
    }

    /// Returns the newest CUDA version that the driver supports, as one number: 12020 is 12.2.
    pub(crate) fn cuda_version(&self) -> Result<i32, NvmlFailure> {
        let names = [
            c"nvmlSystemGetCudaDriverVersion",
            c"nvmlSystemGetCudaDriverVersion_v2",
        ];
        // SAFETY: both names have this type in NVML's interface.
        let (get, function) = unsafe { self.find_any::<SystemInt>(&names) }?;
        let mut version = 0;
        // SAFETY: writes one integer.
        check(function, unsafe { get(&raw mut version) }).map(|()| version)
    }

    /// Returns the number of GPUs, broken ones included.
    pub(crate) fn gpu_count(&self) -> Result<u32, NvmlFailure> {
        let names = [c"nvmlDeviceGetCount_v2", c"nvmlDeviceGetCount"];
        // SAFETY: both names have this type in NVML's interface.
        let (get, function) = unsafe { self.find_any::<SystemCount>(&names) }?;
        let mut count = 0;
        // SAFETY: writes one integer.
        check(function, unsafe { get(&raw mut count) }).map(|()| count)
    }

    /// Returns a GPU by its index.
    pub(crate) fn gpu(&self, index: u32) -> Result<Device, NvmlFailure> {
        let names = [
            c"nvmlDeviceGetHandleByIndex_v2",
            c"nvmlDeviceGetHandleByIndex",
        ];
        // SAFETY: both names have this type in NVML's interface.
        let (get, function) = unsafe { self.find_any::<HandleByIndex>(&names) }?;
        handle(function, |handle| {
            // SAFETY: takes any number, writes one pointer.
            unsafe { get(index, handle) }
        })
    }

    /// Returns a GPU by its PCI address. By its documentation, NVML attaches no other GPU for that, but for one in SLI.
    pub(crate) fn gpu_at(&self, address: &CStr) -> Result<Device, NvmlFailure> {
        let function = c"nvmlDeviceGetHandleByPciBusId_v2";
        // SAFETY: the name has this type in NVML's interface.
        let get = unsafe { self.find::<HandleByName>(function) }?;
        handle(function, |handle| {
            // SAFETY: reads a NUL-terminated string, writes one pointer.
            unsafe { get(address.as_ptr(), handle) }
        })
    }

    /// Returns 1 if the driver keeps a GPU attached that nobody uses.
    pub(crate) fn persistence_mode(&self, gpu: Device) -> Result<u32, NvmlFailure> {
        self.device_number(c"nvmlDeviceGetPersistenceMode", gpu)
    }

    /// Returns a GPU's index.
    pub(crate) fn index(&self, gpu: Device) -> Result<u32, NvmlFailure> {
        self.device_number(c"nvmlDeviceGetIndex", gpu)
    }

    /// Returns a MIG device of a GPU by its slot; empty slots return `NOT_FOUND`.
    pub(crate) fn mig_device(&self, gpu: Device, slot: u32) -> Result<Device, NvmlFailure> {
        let function = c"nvmlDeviceGetMigDeviceHandleByIndex";
        // SAFETY: the name has this type in NVML's interface.
        let get = unsafe { self.find::<DeviceHandle>(function) }?;
        handle(function, |handle| {
            // SAFETY: takes a device of this library and any number, writes one pointer.
            unsafe { get(gpu.0, slot, handle) }
        })
    }

    /// Returns the product name.
    pub(crate) fn name(&self, device: Device) -> Result<String, NvmlFailure> {
        self.device_string(c"nvmlDeviceGetName", device)
    }

    /// Returns the UUID of a GPU or MIG device.
    pub(crate) fn uuid(&self, device: Device) -> Result<String, NvmlFailure> {
        self.device_string(c"nvmlDeviceGetUUID", device)
    }

    /// Returns the PCI address.
    pub(crate) fn pci(&self, device: Device) -> Result<PciAddress, NvmlFailure> {
        let names = [
            c"nvmlDeviceGetPciInfo",
            c"nvmlDeviceGetPciInfo_v3",
            c"nvmlDeviceGetPciInfo_v2",
        ];
        // SAFETY: the names have this type in NVML's interface, but for the structure's later fields.
        let (get, function) = unsafe { self.find_any::<DevicePci>(&names) }?;
        let mut info = PciInfo {
            legacy_bus_id: [0; 16],
            domain: 0,
            bus: 0,
            device: 0,
            rest: [0; 64],
        };
        // SAFETY: takes a device of this library, writes one structure; ours is larger than any version's.
        check(function, unsafe { get(device.0, &raw mut info) })?;
        Ok(PciAddress {
            domain: info.domain,
            bus: info.bus,
            device: info.device,
        })
    }

    /// Returns the compute capability, major and minor.
    pub(crate) fn compute_capability(&self, device: Device) -> Result<(i32, i32), NvmlFailure> {
        let function = c"nvmlDeviceGetCudaComputeCapability";
        // SAFETY: the name has this type in NVML's interface.
        let get = unsafe { self.find::<DeviceTwoInts>(function) }?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: takes a device of this library, writes two integers.
        let code = unsafe { get(device.0, &raw mut major, &raw mut minor) };
        check(function, code).map(|()| (major, minor))
    }

    /// Returns the brand as NVML's number.
    pub(crate) fn brand(&self, device: Device) -> Result<u32, NvmlFailure> {
        self.device_number(c"nvmlDeviceGetBrand", device)
    }

    /// Returns the minor number of the device node.
    pub(crate) fn minor(&self, device: Device) -> Result<u32, NvmlFailure> {
        self.device_number(c"nvmlDeviceGetMinorNumber", device)
    }

    /// Returns the current and the pending MIG mode; 1 is on.
    pub(crate) fn mig_mode(&self, device: Device) -> Result<(u32, u32), NvmlFailure> {
        let function = c"nvmlDeviceGetMigMode";
        // SAFETY: the name has this type in NVML's interface.
        let get = unsafe { self.find::<DeviceTwoNumbers>(function) }?;
        let (mut current, mut pending) = (0, 0);
        // SAFETY: takes a device of this library, writes two integers.
        let code = unsafe { get(device.0, &raw mut current, &raw mut pending) };
        check(function, code).map(|()| (current, pending))
    }

    /// Returns a GPU's addressing mode for host memory as NVML's number; 2 is coherent, by the CPU's page tables.
    pub(crate) fn addressing_mode(&self, device: Device) -> Result<u32, NvmlFailure> {
        let function = c"nvmlDeviceGetAddressingMode";
        // SAFETY: the name has this type in NVML's interface.
        let get = unsafe { self.find::<DeviceNumber>(function) }?;
        // A structure of two integers: its size and version, and the mode.
        let mut answer: [c_uint; 2] = [8 | 1 << 24, 0];
        // SAFETY: takes a device of this library, writes to a structure of the size that its first member says.
        let code = unsafe { get(device.0, answer.as_mut_ptr()) };
        check(function, code).map(|()| answer[1])
    }

    /// Returns the number of MIG slots of a GPU.
    pub(crate) fn mig_slots(&self, device: Device) -> Result<u32, NvmlFailure> {
        self.device_number(c"nvmlDeviceGetMaxMigDeviceCount", device)
    }

    /// Returns the GPU instance id of a MIG device.
    pub(crate) fn gpu_instance(&self, device: Device) -> Result<u32, NvmlFailure> {
        self.device_number(c"nvmlDeviceGetGpuInstanceId", device)
    }

    /// Returns the compute instance id of a MIG device.
    pub(crate) fn compute_instance(&self, device: Device) -> Result<u32, NvmlFailure> {
        self.device_number(c"nvmlDeviceGetComputeInstanceId", device)
    }

    fn device_string(
        &self,
        function: &'static CStr,
        device: Device,
    ) -> Result<String, NvmlFailure> {
        // SAFETY: all callers pass functions that have this type in NVML's interface.
        let get = unsafe { self.find::<DeviceString>(function) }?;
        string(function, |buffer, length| {
            // SAFETY: takes a device of this library, writes at most `length` bytes to the buffer, which has more.
            unsafe { get(device.0, buffer, length) }
        })
    }

    fn device_number(&self, function: &'static CStr, device: Device) -> Result<u32, NvmlFailure> {
        // SAFETY: all callers pass functions that have this type in NVML's interface (enums are unsigned integers).
        let get = unsafe { self.find::<DeviceNumber>(function) }?;
        let mut number = 0;
        // SAFETY: takes a device of this library, writes one integer.
        check(function, unsafe { get(device.0, &raw mut number) }).map(|()| number)
    }

    /// Looks up the first of several functions that the library has; returns it with its name.
    ///
    /// # Safety
    /// As `find`, for all names.
    unsafe fn find_any<F: Copy>(
        &self,
        names: &[&'static CStr],
    ) -> Result<(F, &'static CStr), NvmlFailure> {
        let mut missing = None;
        for name in names {
            // SAFETY: passed on to our caller.
            match unsafe { self.find::<F>(name) } {
                Ok(function) => return Ok((function, name)),
                Err(failure) => missing = missing.or(Some(failure)),
            }
        }
        Err(missing.unwrap_or(NvmlFailure {
            function: c"",
            reason: Reason::Code(FUNCTION_NOT_FOUND),
        }))
    }

    /// Looks up a function of the library; a missing one yields NVML's own code for that.
    ///
    /// # Safety
    /// `F` must be the type that the function has in NVML's interface.
    unsafe fn find<F: Copy>(&self, name: &'static CStr) -> Result<F, NvmlFailure> {
        // SAFETY: the caller vouches for the type.
        let symbol = unsafe { self.0.get::<F>(name) };
        symbol.map(|symbol| *symbol).map_err(|_| NvmlFailure {
            function: name,
            reason: Reason::Code(FUNCTION_NOT_FOUND),
        })
    }
}

fn check(function: &'static CStr, code: Code) -> Result<(), NvmlFailure> {
    let reason = Reason::Code(code);
    match code {
        SUCCESS => Ok(()),
        _ => Err(NvmlFailure { function, reason }),
    }
}

/// Calls a function that fills a string buffer. Bytes that are not UTF-8 are replaced.
fn string(
    function: &'static CStr,
    call: impl FnOnce(*mut c_char, c_uint) -> Code,
) -> Result<String, NvmlFailure> {
    // Twice the length passed to NVML, because old versions of its functions wrote past it.
    let mut buffer = [0u8; 2 * STRING_LENGTH];
    #[allow(clippy::cast_possible_truncation)] // a constant that fits
    let code = call(buffer.as_mut_ptr().cast(), STRING_LENGTH as c_uint);
    check(function, code)?;
    let told = buffer.get(..STRING_LENGTH).unwrap_or_default();
    match CStr::from_bytes_until_nul(told) {
        Ok(text) => Ok(text.to_string_lossy().into_owned()),
        Err(_) => Err(NvmlFailure {
            function,
            reason: Reason::Unterminated,
        }),
    }
}

/// Calls a function that returns a device.
fn handle(
    function: &'static CStr,
    call: impl FnOnce(*mut *mut c_void) -> Code,
) -> Result<Device, NvmlFailure> {
    let mut handle = std::ptr::null_mut();
    check(function, call(&raw mut handle))?;
    if handle.is_null() {
        let reason = Reason::NoHandle;
        return Err(NvmlFailure { function, reason });
    }
    Ok(Device(handle))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Fills the buffer through a stub of an NVML function.
    fn filled(bytes: &[u8]) -> Result<String, NvmlFailure> {
        string(c"f", |buffer, length| {
            let length = usize::try_from(length).unwrap();
            for (offset, byte) in bytes.iter().take(length).enumerate() {
                // SAFETY: the offset is below the length passed for the buffer.
                let place = unsafe { buffer.add(offset) };
                // SAFETY: inside the buffer, see above.
                unsafe { place.cast::<u8>().write(*byte) };
            }
            SUCCESS
        })
    }

    #[test]
    fn strings_end_inside_the_buffer() {
        assert_eq!(filled(b"NVIDIA A10\0rest").unwrap(), "NVIDIA A10");
        assert_eq!(filled(b"").unwrap(), "");
        assert_eq!(filled(b"a\xffb").unwrap(), "a\u{fffd}b");
        assert_eq!(filled(&[b'x'; 95]).unwrap().len(), 95);
        for length in [96, 97, 500] {
            let failure = filled(&vec![b'x'; length]).unwrap_err();
            assert_eq!(failure.reason, Reason::Unterminated);
        }
    }

    #[test]
    fn success_without_a_device_is_a_failure() {
        let failure = handle(c"f", |_| SUCCESS).unwrap_err();
        assert_eq!(failure.reason, Reason::NoHandle);
        let failure = handle(c"f", |_| 15).unwrap_err();
        assert_eq!(failure.reason, Reason::Code(15));
    }

    #[test]
    fn a_missing_library_gives_the_loaders_text() {
        let error = Nvml::load(OsStr::new("libnvc-no-such-library.so.1")).unwrap_err();
        assert_eq!(
            loader_text(&error),
            "libnvc-no-such-library.so.1: cannot open shared object file: No such file or directory"
        );
    }
}
