//! Waits for events of GPUs, and asks what a GPU needs to recover.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use super::{Code, Device, Nvml, NvmlFailure, check, handle};

/// Nothing happened in time.
const TIMED_OUT: Code = 10;

/// Kinds of events, NVML's bits.
pub(crate) type EventTypes = u64;
impl Nvml {
    /// A critical error.
    pub(crate) const XID: EventTypes = 8;
    /// The MIG configuration has changed.
    pub(crate) const MIG_CHANGE: EventTypes = 0x100;
    /// What the GPU needs to recover has changed.
    pub(crate) const RECOVERY_CHANGE: EventTypes = 0x8000;
}

/// The field with what a GPU needs to recover, `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
const RECOVERY_ACTION: c_uint = 230;

type Create = unsafe extern "C" fn(*mut *mut c_void) -> Code;
type Types = unsafe extern "C" fn(*mut c_void, *mut c_ulonglong) -> Code;
type Register = unsafe extern "C" fn(*mut c_void, c_ulonglong, *mut c_void) -> Code;
type Wait = unsafe extern "C" fn(*mut c_void, *mut EventData, c_uint) -> Code;
type FieldValues = unsafe extern "C" fn(*mut c_void, c_int, *mut FieldValue) -> Code;

/// `nvmlEventData_t`, with room.
#[repr(C)]
struct EventData {
    device: *mut c_void,
    kind: c_ulonglong,
    data: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
    rest: [c_uint; 16],
}

/// `nvmlFieldValue_t`, with room.
#[repr(C)]
#[derive(Default)]
struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: i64,
    latency: i64,
    kind: c_uint,
    code: Code,
    /// A union: its first bytes are an unsigned integer of this field's kind.
    value: [c_uint; 2],
    rest: [c_uint; 16],
}

/// The registered GPUs; valid as long as its library, which is never unloaded.
#[derive(Debug)]
pub(crate) struct EventSet(*mut c_void);

/// Something that happened to a GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchedEvent {
    pub(crate) gpu: Device,
    pub(crate) kind: EventTypes,
    /// Of an XID: its number.
    pub(crate) data: u64,
    /// `u32::MAX` if it is not of one instance.
    pub(crate) gpu_instance: u32,
    pub(crate) compute_instance: u32,
}

impl Nvml {
    /// Returns a set without GPUs.
    pub(crate) fn event_set(&self) -> Result<EventSet, NvmlFailure> {
        let function = c"nvmlEventSetCreate";
        // SAFETY: the name has this type in NVML's interface.
        let create = unsafe { self.find::<Create>(function) }?;
        let set = handle(function, |set| {
            // SAFETY: writes one pointer.
            unsafe { create(set) }
        })?;
        Ok(EventSet(set.0))
    }

    /// Returns the kinds of events that a GPU has.
    pub(crate) fn event_types(&self, gpu: Device) -> Result<EventTypes, NvmlFailure> {
        let function = c"nvmlDeviceGetSupportedEventTypes";
        // SAFETY: the name has this type in NVML's interface.
        let get = unsafe { self.find::<Types>(function) }?;
        let mut types = 0;
        // SAFETY: takes a device of this library, writes one integer.
        check(function, unsafe { get(gpu.0, &raw mut types) }).map(|()| types)
    }

    /// Adds a GPU's events of these kinds to a set.
    pub(crate) fn register_events(
        &self,
        set: &EventSet,
        gpu: Device,
        types: EventTypes,
    ) -> Result<(), NvmlFailure> {
        let function = c"nvmlDeviceRegisterEvents";
        // SAFETY: the name has this type in NVML's interface.
        let register = unsafe { self.find::<Register>(function) }?;
        // SAFETY: takes a device and a set of this library, and any bits.
        check(function, unsafe { register(gpu.0, types, set.0) })
    }

    /// Waits for the next event; returns None if there is none within some milliseconds.
    pub(crate) fn next_event(
        &self,
        set: &EventSet,
        patience: u32,
    ) -> Result<Option<WatchedEvent>, NvmlFailure> {
        // The first version does not tell instances; the second is of driver 450.
        let function = c"nvmlEventSetWait_v2";
        // SAFETY: the name has this type in NVML's interface.
        let wait = unsafe { self.find::<Wait>(function) }?;
        let mut event = EventData {
            device: std::ptr::null_mut(),
            kind: 0,
            data: 0,
            gpu_instance: c_uint::MAX,
            compute_instance: c_uint::MAX,
            rest: [0; 16],
        };
        // SAFETY: takes a set of this library, writes one structure; ours is larger.
        match unsafe { wait(set.0, &raw mut event, patience) } {
            TIMED_OUT => Ok(None),
            code => check(function, code).map(|()| {
                Some(WatchedEvent {
                    gpu: Device(event.device),
                    kind: event.kind,
                    data: event.data,
                    gpu_instance: event.gpu_instance,
                    compute_instance: event.compute_instance,
                })
            }),
        }
    }

    /// Returns what a GPU needs to recover, NVML's number; 0 is nothing. Drivers before 560 do not know.
    pub(crate) fn recovery_action(&self, gpu: Device) -> Result<u32, NvmlFailure> {
        let function = c"nvmlDeviceGetFieldValues";
        // SAFETY: the name has this type in NVML's interface.
        let get = unsafe { self.find::<FieldValues>(function) }?;
        let mut field = FieldValue {
            field: RECOVERY_ACTION,
            ..FieldValue::default()
        };
        // SAFETY: takes a device of this library, reads and writes one structure; ours is larger.
        check(function, unsafe { get(gpu.0, 1, &raw mut field) })?;
        check(function, field.code).map(|()| field.value[0])
    }
}

impl Device {
    /// Returns true if both are handles of the same device.
    pub(crate) fn is(self, other: Self) -> bool {
        self.0 == other.0
    }
}
