//! Reads a GPU's monitoring data: limits, clocks, power, memory, errors, traffic, processes, topology.
//!
//! Declarations follow NVML's public interface. Each reading is one call; the caller interprets a missing one.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use super::{Code, Device, Nvml, NvmlFailure, Reason, check, string};

/// The caller's buffer is too small; NVML returns the required size.
const INSUFFICIENT_SIZE: Code = 7;
/// Upper bound of the process count; a GPU has contexts for fewer, so a larger number is invalid.
const MAX_PROCESSES: u32 = 1 << 16;
/// `NVML_VALUE_NOT_AVAILABLE` as a number of bytes.
const BYTES_UNKNOWN: u64 = u64::MAX;
/// `NVML_TEMPERATURE_GPU`
const GPU_SENSOR: c_uint = 0;
/// `NVML_MEMORY_ERROR_TYPE_UNCORRECTED` and `NVML_VOLATILE_ECC`
const UNCORRECTED: c_uint = 1;
const VOLATILE: c_uint = 0;

/// A clock domain, `nvmlClockType_t`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    Multiprocessors = 1,
    Memory = 2,
}

/// A place where memory errors are counted, `nvmlMemoryLocation_t`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Location {
    L1Cache = 0,
    L2Cache = 1,
    /// `DEVICE_MEMORY`, or `DRAM`.
    DeviceMemory = 2,
    Sram = 7,
}

/// A direction of PCIe traffic, `nvmlPcieUtilCounter_t`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    Sent = 0,
    Received = 1,
}

/// Total, free and used bytes, the start of both `nvmlMemory_t` and `nvmlBAR1Memory_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Memory {
    pub(crate) total: c_ulonglong,
    pub(crate) free: c_ulonglong,
    pub(crate) used: c_ulonglong,
}

/// A process that uses a GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuProcess {
    pub(crate) pid: u32,
    /// Bytes used, if the driver knows.
    pub(crate) memory: Option<u64>,
}

/// `nvmlProcessInfo_v1_t`
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct ProcessV1 {
    pid: c_uint,
    memory: c_ulonglong,
}

/// `nvmlProcessInfo_v2_t`, also what the third version of the function fills.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct ProcessV2 {
    pid: c_uint,
    memory: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

type OfKind = unsafe extern "C" fn(*mut c_void, c_uint, *mut c_uint) -> Code;
type WithPeriod = unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut c_uint) -> Code;
type Rates = unsafe extern "C" fn(*mut c_void, *mut [c_uint; 2]) -> Code;
type MemoryInfo = unsafe extern "C" fn(*mut c_void, *mut Memory) -> Code;
type ErrorCount =
    unsafe extern "C" fn(*mut c_void, c_uint, c_uint, c_uint, *mut c_ulonglong) -> Code;
type ProcessList<P> = unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut P) -> Code;
type OfTwo = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int) -> Code;
type NameOfProcess = unsafe extern "C" fn(c_uint, *mut std::ffi::c_char, c_uint) -> Code;

impl Nvml {
    /// Returns the power limit in milliwatts.
    pub(crate) fn power_limit(&self, device: Device) -> Result<u32, NvmlFailure> {
        self.device_number(c"nvmlDeviceGetPowerManagementLimit", device)
    }

    /// Returns the power draw in milliwatts.
    pub(crate) fn power(&self, device: Device) -> Result<u32, NvmlFailure> {
        self.device_number(c"nvmlDeviceGetPowerUsage", device)
    }

    /// Returns the newest PCIe generation that both the GPU and its slot support.
    pub(crate) fn link_generation(&self, device: Device) -> Result<u32, NvmlFailure> {
        self.device_number(c"nvmlDeviceGetMaxPcieLinkGeneration", device)
    }

    /// Returns the largest number of lanes that both the GPU and its slot have.
    pub(crate) fn link_width(&self, device: Device) -> Result<u32, NvmlFailure> {
        self.device_number(c"nvmlDeviceGetMaxPcieLinkWidth", device)
    }

    /// Returns the number of cores.
    pub(crate) fn cores(&self, device: Device) -> Result<u32, NvmlFailure> {
        self.device_number(c"nvmlDeviceGetNumGpuCores", device)
    }

    /// Returns a clock's highest frequency in MHz.
    pub(crate) fn max_clock(&self, device: Device, clock: Clock) -> Result<u32, NvmlFailure> {
        self.of_kind(c"nvmlDeviceGetMaxClockInfo", device, clock as c_uint)
    }

    /// Returns a clock's current frequency in MHz.
    pub(crate) fn clock(&self, device: Device, clock: Clock) -> Result<u32, NvmlFailure> {
        self.of_kind(c"nvmlDeviceGetClockInfo", device, clock as c_uint)
    }

    /// Returns the temperature in degrees Celsius.
    pub(crate) fn temperature(&self, device: Device) -> Result<u32, NvmlFailure> {
        self.of_kind(c"nvmlDeviceGetTemperature", device, GPU_SENSOR)
    }

    /// Returns PCIe throughput in kB/s. The driver measures for 20 ms during the call.
    pub(crate) fn throughput(
        &self,
        device: Device,
        direction: Direction,
    ) -> Result<u32, NvmlFailure> {
        self.of_kind(c"nvmlDeviceGetPcieThroughput", device, direction as c_uint)
    }

    /// Returns the utilisation of the GPU and of its memory, in percent.
    pub(crate) fn utilization(&self, device: Device) -> Result<[u32; 2], NvmlFailure> {
        let function = c"nvmlDeviceGetUtilizationRates";
        // SAFETY: the name has this type in NVML's interface: `nvmlUtilization_t` is two integers.
        let get = unsafe { self.find::<Rates>(function) }?;
        let mut rates = [0; 2];
        // SAFETY: takes a device of this library, writes two integers.
        check(function, unsafe { get(device.0, &raw mut rates) }).map(|()| rates)
    }

    /// Returns the utilisation of the video encoder in percent.
    pub(crate) fn encoder(&self, device: Device) -> Result<u32, NvmlFailure> {
        self.with_period(c"nvmlDeviceGetEncoderUtilization", device)
    }

    /// Returns the utilisation of the video decoder in percent.
    pub(crate) fn decoder(&self, device: Device) -> Result<u32, NvmlFailure> {
        self.with_period(c"nvmlDeviceGetDecoderUtilization", device)
    }

    /// Returns the memory of a GPU or MIG device.
    pub(crate) fn memory(&self, device: Device) -> Result<Memory, NvmlFailure> {
        self.memory_info(c"nvmlDeviceGetMemoryInfo", device)
    }

    /// Returns the size and use of BAR1, through which CPUs access the memory.
    pub(crate) fn bar1(&self, device: Device) -> Result<Memory, NvmlFailure> {
        self.memory_info(c"nvmlDeviceGetBAR1MemoryInfo", device)
    }

    /// Returns the number of uncorrectable memory errors since the driver was loaded.
    pub(crate) fn memory_errors(
        &self,
        device: Device,
        location: Location,
    ) -> Result<u64, NvmlFailure> {
        let function = c"nvmlDeviceGetMemoryErrorCounter";
        // SAFETY: the name has this type in NVML's interface (enums are unsigned integers).
        let get = unsafe { self.find::<ErrorCount>(function) }?;
        let mut count = 0;
        let at = location as c_uint;
        // SAFETY: takes a device of this library and any numbers, writes one integer.
        let code = unsafe { get(device.0, UNCORRECTED, VOLATILE, at, &raw mut count) };
        check(function, code).map(|()| count)
    }

    /// Returns the processes with a compute context.
    pub(crate) fn processes(&self, device: Device) -> Result<Vec<GpuProcess>, NvmlFailure> {
        let newer = [
            c"nvmlDeviceGetComputeRunningProcesses_v3",
            c"nvmlDeviceGetComputeRunningProcesses_v2",
        ];
        // SAFETY: both names have this type in NVML's interface.
        match unsafe { self.find_any::<ProcessList<ProcessV2>>(&newer) } {
            Ok((get, function)) => list(function, |count, room| {
                // SAFETY: takes a device of this library, writes at most `count` structures to the room for as many.
                unsafe { get(device.0, count, room) }
            })
            .map(|found| found.iter().map(|p| process(p.pid, p.memory)).collect()),
            Err(_) => {
                let function = c"nvmlDeviceGetComputeRunningProcesses";
                // SAFETY: the name has this type in NVML's interface.
                let get = unsafe { self.find::<ProcessList<ProcessV1>>(function) }?;
                list(function, |count, room| {
                    // SAFETY: as above, with the first version's structure.
                    unsafe { get(device.0, count, room) }
                })
                .map(|found| found.iter().map(|p| process(p.pid, p.memory)).collect())
            }
        }
    }

    /// Returns the name of a process that uses a GPU.
    pub(crate) fn process_name(&self, pid: u32) -> Result<String, NvmlFailure> {
        let function = c"nvmlSystemGetProcessName";
        // SAFETY: the name has this type in NVML's interface.
        let get = unsafe { self.find::<NameOfProcess>(function) }?;
        string(function, |buffer, length| {
            // SAFETY: takes any number, writes at most `length` bytes to the buffer, which has more.
            unsafe { get(pid, buffer, length) }
        })
    }

    /// Returns the topology level that two GPUs share, `nvmlGpuTopologyLevel_t`.
    pub(crate) fn common_ancestor(&self, one: Device, other: Device) -> Result<i32, NvmlFailure> {
        let function = c"nvmlDeviceGetTopologyCommonAncestor";
        // SAFETY: the name has this type in NVML's interface.
        let get = unsafe { self.find::<OfTwo>(function) }?;
        let mut level = 0;
        // SAFETY: takes two devices of this library, writes one integer.
        check(function, unsafe { get(one.0, other.0, &raw mut level) }).map(|()| level)
    }

    fn of_kind(
        &self,
        function: &'static std::ffi::CStr,
        device: Device,
        kind: c_uint,
    ) -> Result<u32, NvmlFailure> {
        // SAFETY: all callers pass functions that have this type in NVML's interface (enums are unsigned integers).
        let get = unsafe { self.find::<OfKind>(function) }?;
        let mut number = 0;
        // SAFETY: takes a device of this library and any number, writes one integer.
        check(function, unsafe { get(device.0, kind, &raw mut number) }).map(|()| number)
    }

    fn with_period(
        &self,
        function: &'static std::ffi::CStr,
        device: Device,
    ) -> Result<u32, NvmlFailure> {
        // SAFETY: all callers pass functions that have this type in NVML's interface.
        let get = unsafe { self.find::<WithPeriod>(function) }?;
        let (mut number, mut period) = (0, 0);
        // SAFETY: takes a device of this library, writes two integers.
        let code = unsafe { get(device.0, &raw mut number, &raw mut period) };
        check(function, code).map(|()| number)
    }

    fn memory_info(
        &self,
        function: &'static std::ffi::CStr,
        device: Device,
    ) -> Result<Memory, NvmlFailure> {
        // SAFETY: all callers pass functions that have this type in NVML's interface.
        let get = unsafe { self.find::<MemoryInfo>(function) }?;
        let mut memory = Memory::default();
        // SAFETY: takes a device of this library, writes three integers.
        check(function, unsafe { get(device.0, &raw mut memory) }).map(|()| memory)
    }
}

fn process(pid: u32, memory: u64) -> GpuProcess {
    let memory = Some(memory).filter(|bytes| *bytes != BYTES_UNKNOWN);
    GpuProcess { pid, memory }
}

/// Calls a function that fills a list; retries with a larger buffer while NVML asks for one.
fn list<P: Copy + Default>(
    function: &'static std::ffi::CStr,
    call: impl Fn(*mut c_uint, *mut P) -> Code,
) -> Result<Vec<P>, NvmlFailure> {
    let mut room = 32;
    loop {
        let mut found = vec![P::default(); usize::try_from(room).unwrap_or_default()];
        let mut count = room;
        match call(&raw mut count, found.as_mut_ptr()) {
            INSUFFICIENT_SIZE if room < MAX_PROCESSES => {
                // More processes may have started since NVML counted.
                room = count.saturating_add(8).max(2 * room).min(MAX_PROCESSES);
            }
            code => {
                check(function, code)?;
                if count > room {
                    let reason = Reason::Unterminated;
                    return Err(NvmlFailure { function, reason });
                }
                found.truncate(usize::try_from(count).unwrap_or_default());
                return Ok(found);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lists_grow_until_they_fit() {
        for processes in [0u32, 1, 32, 33, 100] {
            let found = list(c"f", |count: *mut c_uint, room: *mut u32| {
                // SAFETY: `list` passes a valid pointer.
                let given = unsafe { count.read() };
                // SAFETY: as above.
                unsafe { count.write(processes) };
                if given < processes {
                    return INSUFFICIENT_SIZE;
                }
                for place in 0..processes {
                    // SAFETY: the index is below the count passed for the buffer.
                    let at = unsafe { room.add(place as usize) };
                    // SAFETY: inside the room, see above.
                    unsafe { at.write(place) };
                }
                0
            });
            assert_eq!(found.unwrap(), (0..processes).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_list_that_claims_more_than_its_room_fails() {
        let found = list(c"f", |count: *mut c_uint, _: *mut u32| {
            // SAFETY: `list` passes a valid pointer.
            unsafe { count.write(1 << 20) };
            0
        });
        assert_eq!(found.unwrap_err().reason, Reason::Unterminated);
        let found = list(c"f", |_, _: *mut u32| INSUFFICIENT_SIZE);
        assert_eq!(found.unwrap_err().reason, Reason::Code(INSUFFICIENT_SIZE));
    }
}
