//! Passes on NVML's events, in a query process that ends with the asking one.

use std::io;

use super::ask::fault;
use super::facts::GpuEvent;
use super::protocol::Message;
use crate::sys::nvml::{Device, EventSet, Nvml, NvmlFailure, WatchedEvent};

/// Milliseconds after which a process without events gives a sign of life.
const PULSE: u32 = 2000;

/// Registers for the events of GPUs and sends each one. Ends if NVML fails or nobody listens.
pub(super) fn watch(
    nvml: &Nvml,
    indices: &[u32],
    mut send: impl FnMut(Message) -> io::Result<()>,
) -> io::Result<()> {
    let set = match nvml.event_set() {
        Ok(set) => set,
        Err(failure) => return send(Message::Unavailable(fault(nvml, failure))),
    };
    let mut gpus = Vec::new();
    for index in indices {
        send(Message::Asking(*index))?;
        match register(nvml, &set, *index) {
            Ok(known) => gpus.push(known),
            // Its reader sees that it is missing.
            Err(failure) => log::debug!("{}", fault(nvml, failure)),
        }
    }
    let uuids = gpus.iter().map(|(_, uuid)| uuid.clone()).collect();
    send(Message::Watching(uuids))?;
    loop {
        send(match nvml.next_event(&set, PULSE) {
            Ok(None) => Message::Event(None),
            Ok(Some(event)) => Message::Event(Some(in_words(nvml, &gpus, event))),
            Err(failure) => return send(Message::Unavailable(fault(nvml, failure))),
        })?;
    }
}

/// Registers a GPU for the events that it has.
fn register(nvml: &Nvml, set: &EventSet, index: u32) -> Result<(Device, String), NvmlFailure> {
    let gpu = nvml.gpu(index)?;
    let uuid = nvml.uuid(gpu)?;
    let wanted = Nvml::XID | Nvml::MIG_CHANGE | Nvml::RECOVERY_CHANGE;
    let types = nvml.event_types(gpu)? & wanted;
    // A driver may refuse this user some of them.
    nvml.register_events(set, gpu, types)
        .or_else(|_| nvml.register_events(set, gpu, Nvml::XID))?;
    Ok((gpu, uuid))
}

fn in_words(nvml: &Nvml, gpus: &[(Device, String)], event: WatchedEvent) -> GpuEvent {
    if event.kind != Nvml::XID {
        return GpuEvent::Changed;
    }
    let known = gpus.iter().find(|(gpu, _)| gpu.is(event.gpu));
    let uuid = known.map(|(_, uuid)| uuid.clone());
    // An event of a MIG device names its GPU.
    let Some(gpu) = uuid.or_else(|| nvml.uuid(event.gpu).ok()) else {
        return GpuEvent::Changed;
    };
    let some = |number: u32| Some(number).filter(|number| *number != u32::MAX);
    GpuEvent::Xid {
        gpu,
        instance: some(event.gpu_instance).map(|gi| (gi, some(event.compute_instance))),
        code: event.data,
    }
}
