//! Calls libcuda, the CUDA driver library, for the few GPU facts that NVML lacks.
//!
//! No context is created on a GPU. Declarations follow CUDA's public driver interface and cover only the functions used
//! here.

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::mem::ManuallyDrop;

use libloading::os::unix::{Library, RTLD_NOW};

use super::nvml::loader_text;

/// The library's soname, for messages.
const LIBRARY: &str = "libcuda.so.1";

const SUCCESS: c_int = 0;
const NO_DEVICE: c_int = 100;

/// A GPU attribute, `CUdevice_attribute`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Attribute {
    /// Bytes of constant memory.
    ConstantMemory = 9,
    /// Number of multiprocessors.
    Multiprocessors = 16,
    /// 1 if ECC is enabled.
    Ecc = 32,
    /// Memory clock in kHz.
    MemoryClock = 36,
    /// Width of the memory bus in bits.
    BusWidth = 37,
    /// Bytes of the L2 cache.
    L2Cache = 38,
    CapabilityMajor = 75,
    CapabilityMinor = 76,
    /// Bytes of shared memory per multiprocessor.
    SharedMemory = 81,
}

/// A GPU, numbered in CUDA's order, which differs from NVML's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gpu(c_int);

type Init = unsafe extern "C" fn(u32) -> c_int;
type Number = unsafe extern "C" fn(*mut c_int) -> c_int;
type ByNumber = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type ByBusId = unsafe extern "C" fn(*mut c_int, *const c_char) -> c_int;
type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
type TotalMemory = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
type AccessPeer = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
type TextOfCode = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// The reason why CUDA does not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CudaError {
    /// The library or a function of it is missing; the loader's text.
    #[error("{0}")]
    Library(String),
    #[error("no bus id")]
    BusId,
    /// A call failed; CUDA's text, if it has one.
    #[error("{}", .text.clone().unwrap_or_else(|| format!("error {code}")))]
    Call { code: c_int, text: Option<String> },
}

/// The loaded library; never unloaded.
#[derive(Debug)]
pub(crate) struct Cuda(ManuallyDrop<Library>);

impl Cuda {
    /// Loads the library by name or path. The process must have a single thread, because this changes environment variables that the
    /// library reads: those that hide GPUs, and one that makes it write a cache.
    ///
    /// # Errors
    /// The loader's text.
    pub(crate) fn load(name: &OsStr) -> Result<Self, CudaError> {
        // SAFETY: the caller has a single thread.
        unsafe { std::env::remove_var("CUDA_VISIBLE_DEVICES") };
        // SAFETY: as above.
        unsafe { std::env::set_var("CUDA_CACHE_DISABLE", "1") };
        // SAFETY: runs the library's initialisers, which are made to run in any program. This process exists to load
        // such libraries and has no privileges.
        let library = unsafe { Library::open(Some(name), RTLD_NOW) }
            .map_err(|error| CudaError::Library(loader_text(&error)))?;
        Ok(Self(ManuallyDrop::new(library)))
    }

    /// Returns the newest CUDA version that the driver supports: 12020 is 12.2.
    pub(crate) fn version(&self) -> Result<i32, CudaError> {
        // SAFETY: the name has this type in CUDA's interface.
        let get = unsafe { self.find::<Number>(c"cuDriverGetVersion") }?;
        let mut version = 0;
        // SAFETY: writes one integer.
        self.check(unsafe { get(&raw mut version) })
            .map(|()| version)
    }

    /// Initialises the driver; returns true if there are GPUs.
    pub(crate) fn init(&self) -> Result<bool, CudaError> {
        // SAFETY: the name has this type in CUDA's interface.
        let init = unsafe { self.find::<Init>(c"cuInit") }?;
        // SAFETY: takes zero, may be called at any time.
        match unsafe { init(0) } {
            NO_DEVICE => Ok(false),
            code => self.check(code).map(|()| true),
        }
    }

    /// Returns the GPU with a number of CUDA's.
    pub(crate) fn numbered(&self, number: c_int) -> Result<Gpu, CudaError> {
        // SAFETY: the name has this type in CUDA's interface.
        let get = unsafe { self.find::<ByNumber>(c"cuDeviceGet") }?;
        let mut gpu = 0;
        // SAFETY: takes any number, writes one integer.
        self.check(unsafe { get(&raw mut gpu, number) })
            .map(|()| Gpu(gpu))
    }

    /// Returns the GPU at a PCI address such as `0000:05:00.0`.
    pub(crate) fn gpu(&self, busid: &str) -> Result<Gpu, CudaError> {
        // SAFETY: the name has this type in CUDA's interface.
        let get = unsafe { self.find::<ByBusId>(c"cuDeviceGetByPCIBusId") }?;
        let busid = CString::new(busid).map_err(|_| CudaError::BusId)?;
        let mut gpu = 0;
        // SAFETY: reads a NUL-terminated string, writes one integer.
        self.check(unsafe { get(&raw mut gpu, busid.as_ptr()) })
            .map(|()| Gpu(gpu))
    }

    /// Returns an attribute of a GPU.
    pub(crate) fn attribute(&self, gpu: Gpu, attribute: Attribute) -> Result<i32, CudaError> {
        // SAFETY: the name has this type in CUDA's interface.
        let get = unsafe { self.find::<GetAttribute>(c"cuDeviceGetAttribute") }?;
        let mut value = 0;
        // SAFETY: takes any numbers, writes one integer.
        self.check(unsafe { get(&raw mut value, attribute as c_int, gpu.0) })
            .map(|()| value)
    }

    /// Returns the bytes of memory available to programs.
    pub(crate) fn memory(&self, gpu: Gpu) -> Result<u64, CudaError> {
        // SAFETY: the name has this type in CUDA's interface.
        let get = unsafe { self.find::<TotalMemory>(c"cuDeviceTotalMem_v2") }?;
        let mut bytes = 0;
        // SAFETY: takes any number, writes one size.
        self.check(unsafe { get(&raw mut bytes, gpu.0) })
            .map(|()| bytes as u64)
    }

    /// Returns true if one GPU can read the other's memory.
    pub(crate) fn reaches(&self, one: Gpu, other: Gpu) -> Result<bool, CudaError> {
        // SAFETY: the name has this type in CUDA's interface.
        let get = unsafe { self.find::<AccessPeer>(c"cuDeviceCanAccessPeer") }?;
        let mut yes = 0;
        // SAFETY: takes any numbers, writes one integer.
        self.check(unsafe { get(&raw mut yes, one.0, other.0) })
            .map(|()| yes != 0)
    }

    fn check(&self, code: c_int) -> Result<(), CudaError> {
        match code {
            SUCCESS => Ok(()),
            _ => Err(CudaError::Call {
                code,
                text: self.text(code),
            }),
        }
    }

    fn text(&self, code: c_int) -> Option<String> {
        // SAFETY: the name has this type in CUDA's interface.
        let get = unsafe { self.find::<TextOfCode>(c"cuGetErrorString") }.ok()?;
        let mut text = std::ptr::null();
        // SAFETY: takes any number, writes one pointer.
        let known = unsafe { get(code, &raw mut text) };
        if known != SUCCESS || text.is_null() {
            return None;
        }
        // SAFETY: CUDA's interface promises a constant NUL-terminated string.
        Some(
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned(),
        )
    }

    /// Looks up a function of the library.
    ///
    /// # Safety
    /// `F` must be the type that the function has in CUDA's interface.
    unsafe fn find<F: Copy>(&self, name: &'static CStr) -> Result<F, CudaError> {
        // SAFETY: the caller vouches for the type.
        let symbol = unsafe { self.0.get::<F>(name) };
        symbol.map(|symbol| *symbol).map_err(|_| {
            let text = format!("{LIBRARY} has no {}", name.to_string_lossy());
            CudaError::Library(text)
        })
    }
}
