//! Reads monitoring data from NVML and CUDA; each failure is attributed to its GPU.
//!
//! Facts are read from one GPU after the other. The state is read from all GPUs in parallel, with a thread each,
//! because the driver measures PCIe traffic for 40 ms and a hanging GPU must not delay the others.

use std::sync::mpsc::channel;
use std::thread;

use super::ask::{fault, gpu_count, mig};
use super::facts::{
    DriverMessage, Facts, GpuFacts, GpuStatus, MigFacts, MigStatus, Peer, ProcessStatus,
};
use super::protocol::{CudaReport, Fault};
use crate::sys::cuda::{Attribute, Cuda, CudaError, Gpu};
use crate::sys::dxcore::{self, Adapter};
use crate::sys::nvml::{
    Clock, Device, Direction, FUNCTION_NOT_FOUND, Location, NOT_SUPPORTED, Nvml, NvmlFailure,
    Reason,
};
use crate::sys::process::hide;

/// Length limit of strings, the same as NVML's.
const MAX_TEXT_LEN: usize = 96;
/// Clocks, limits and sizes above this are invalid; the limit keeps sums of them in range.
const MAX_READING: u64 = 1 << 60;

/// Reads the graphics adapters of WSL2; None without libdxcore.
pub(super) fn adapters() -> Option<Vec<(u32, String)>> {
    let adapter = |found: Adapter| {
        Some((
            found.wddm,
            found.driver_store.into_os_string().into_string().ok()?,
        ))
    };
    Some(dxcore::of_host()?.into_iter().filter_map(adapter).collect())
}

/// Reads the versions and the identity of each GPU.
pub(super) fn identities(nvml: &Nvml, cuda: &Result<Cuda, CudaError>) -> Result<Facts, Fault> {
    let gpus = (0..gpu_count(nvml)?).map(|index| {
        let (device, mut facts) = identity(nvml, index)?;
        facts.mig = mig_devices(nvml, device).unwrap_or_default();
        Ok(facts)
    });
    let gpus = gpus.collect();
    let (driver, cuda) = versions(nvml, cuda);
    Ok(Facts { driver, cuda, gpus })
}

/// Reads what an allocator needs to know about a GPU; fails if the GPU does.
pub(super) fn device(nvml: &Nvml, index: u32) -> Result<GpuFacts, DriverMessage> {
    let (device, mut facts) = identity(nvml, index)?;
    let failed = |failure| DriverMessage(fault(nvml, failure).to_string());
    facts.model = Some(plain(&nvml.name(device).map_err(failed)?));
    facts.arch = Some(nvml.compute_capability(device).map_err(failed)?);
    facts.brand = supported(nvml.brand(device)).map_err(failed)?;
    let memory = supported(nvml.memory(device)).map_err(failed)?;
    facts.memory = memory.map(|memory| sane(memory.total));
    facts.addressing = nvml.addressing_mode(device).ok();
    facts.recovery = nvml.recovery_action(device).ok();
    facts.is_divided = matches!(nvml.mig_mode(device), Ok((1, _)));
    facts.mig = mig_devices(nvml, device).map_err(|fault| DriverMessage(fault.to_string()))?;
    for mig in &mut facts.mig {
        let handle = nvml.mig_device(device, mig.index);
        mig.attributes = handle.and_then(|mig| nvml.mig_attributes(mig)).ok();
        mig.placement = nvml.placement(device, mig.gpu_instance).ok();
    }
    Ok(facts)
}

/// Reads the facts about the driver and its GPUs.
pub(super) fn facts(nvml: &Nvml, cuda: &Result<Cuda, CudaError>) -> Result<Facts, Fault> {
    let count = gpu_count(nvml)?;
    let (driver, mut version) = versions(nvml, cuda);
    let mut connected = None;
    if let (Ok(cuda), Ok(_)) = (cuda, &version) {
        match init(cuda) {
            Ok(true) => connected = Some(cuda),
            Ok(false) => {}
            Err(error) => version = Err(of_call(&error)),
        }
    }
    let mut found: Vec<GpuReading> = (0..count)
        .map(|index| gpu(nvml, index, connected))
        .collect();
    if let Some(cuda) = connected {
        find_peers(nvml, cuda, &mut found);
    }
    Ok(Facts {
        driver,
        cuda: version,
        gpus: found.into_iter().map(|known| known.facts).collect(),
    })
}

/// Initialises CUDA; returns true if there are GPUs.
fn init(cuda: &Cuda) -> Result<bool, CudaError> {
    let initialised = cuda.init();
    // Foreign code has run by now, and may have made the process dumpable.
    let _ = hide();
    initialised
}

/// Reads what containers may require of CUDA.
pub(super) fn cuda(cuda: &Result<Cuda, CudaError>) -> CudaReport {
    let cuda = match cuda {
        Ok(cuda) => cuda,
        Err(error) => {
            let message = not_loaded(error);
            return CudaReport {
                version: Err(message.clone()),
                compute_capability: Err(message),
            };
        }
    };
    let first = || -> Result<(i32, i32), CudaError> {
        init(cuda)?;
        let gpu = cuda.numbered(0)?;
        let major = cuda.attribute(gpu, Attribute::CapabilityMajor)?;
        Ok((major, cuda.attribute(gpu, Attribute::CapabilityMinor)?))
    };
    CudaReport {
        version: cuda.version().map_err(|error| of_call(&error)),
        compute_capability: first().map_err(|error| of_call(&error)),
    }
}

/// Reads the versions of the driver and of CUDA, or the reasons why they are unknown.
fn versions(
    nvml: &Nvml,
    cuda: &Result<Cuda, CudaError>,
) -> (Result<String, DriverMessage>, Result<i32, DriverMessage>) {
    let driver = nvml.driver_version().map(|version| plain(&version));
    let driver = driver.map_err(|f| DriverMessage(fault(nvml, f).to_string()));
    let cuda = match cuda {
        Ok(cuda) => cuda.version().map_err(|error| of_call(&error)),
        Err(error) => Err(not_loaded(error)),
    };
    (driver, cuda)
}

fn not_loaded(error: &CudaError) -> DriverMessage {
    let text = plain(&error.to_string());
    DriverMessage(format!("could not load the CUDA driver library: {text}"))
}

/// A GPU and its handles.
struct GpuReading {
    facts: Result<GpuFacts, DriverMessage>,
    handles: Option<(Device, Gpu)>,
}

fn gpu(nvml: &Nvml, index: u32, cuda: Option<&Cuda>) -> GpuReading {
    let (device, mut facts) = match identity(nvml, index) {
        Ok(known) => known,
        Err(message) => {
            return GpuReading {
                facts: Err(message),
                handles: None,
            };
        }
    };
    let mut read = GpuReader::new(nvml);
    facts.model = read.of(nvml.name(device)).map(|name| plain(&name));
    facts.power_limit = read.of(nvml.power_limit(device));
    facts.bar1 = read.of(nvml.bar1(device)).map(|memory| sane(memory.total));
    facts.link_generation = read.of(nvml.link_generation(device));
    facts.link_width = read.of(nvml.link_width(device));
    // Drivers before 470 lack it.
    facts.cores = nvml.cores(device).ok();
    facts.core_clock = read.of(nvml.max_clock(device, Clock::Multiprocessors));
    facts.memory_clock = read.of(nvml.max_clock(device, Clock::Memory));
    facts.arch = read.of(nvml.compute_capability(device));
    match mig_devices(nvml, device) {
        Ok(devices) => facts.mig = devices,
        Err(fault) => read.problems.push(fault.to_string()),
    }
    facts.problems = read.problems;
    let handles = cuda.and_then(|cuda| match of_cuda(cuda, &mut facts) {
        Ok(gpu) => Some((device, gpu)),
        Err(error) => {
            facts.problems.push(of_call(&error).0);
            None
        }
    });
    GpuReading {
        facts: Ok(facts),
        handles,
    }
}

/// Reads the MIG devices of a GPU.
fn mig_devices(nvml: &Nvml, device: Device) -> Result<Vec<MigFacts>, Fault> {
    let (_, reports) = mig(nvml, device)?;
    let devices = reports.into_iter().map(|report| MigFacts {
        index: report.slot,
        uuid: plain(&report.uuid),
        gpu_instance: report.gi,
        compute_instance: report.ci,
        name: report.name.map(|name| plain(&name)),
        attributes: None,
        placement: None,
    });
    Ok(devices.collect())
}

/// Reads the facts that identify a GPU.
fn identity(nvml: &Nvml, index: u32) -> Result<(Device, GpuFacts), DriverMessage> {
    // Monitoring cannot use a GPU without one of these.
    let failed = |failure: NvmlFailure| {
        DriverMessage(if is_missing(failure) {
            "unsupported GPU device".to_owned()
        } else {
            fault(nvml, failure).to_string()
        })
    };
    let device = nvml.gpu(index).map_err(failed)?;
    let uuid = nvml.uuid(device).map_err(failed)?;
    let minor = nvml.minor(device).map_err(failed)?;
    let pci = nvml.pci(device).map_err(failed)?;
    Ok((
        device,
        GpuFacts {
            index,
            uuid: plain(&uuid),
            minor,
            busid: format!("{:04X}:{:02X}:{:02X}.0", pci.domain, pci.bus, pci.device),
            ..GpuFacts::default()
        },
    ))
}

/// Adds facts that only CUDA has.
fn of_cuda(cuda: &Cuda, facts: &mut GpuFacts) -> Result<Gpu, CudaError> {
    let gpu = cuda.gpu(&facts.busid)?;
    let fact = |attribute| {
        cuda.attribute(gpu, attribute)
            .map(|value| u32::try_from(value).unwrap_or_default())
    };
    let major = cuda.attribute(gpu, Attribute::CapabilityMajor)?;
    facts.arch = Some((major, cuda.attribute(gpu, Attribute::CapabilityMinor)?));
    facts.multiprocessors = Some(fact(Attribute::Multiprocessors)?);
    facts.ecc = Some(fact(Attribute::Ecc)? != 0);
    facts.memory = Some(sane(cuda.memory(gpu)?));
    facts.shared_memory = Some(fact(Attribute::SharedMemory)?);
    facts.constant_memory = Some(fact(Attribute::ConstantMemory)?);
    facts.l2_cache = Some(fact(Attribute::L2Cache)?);
    facts.bus_width = Some(fact(Attribute::BusWidth)?);
    facts.cuda_memory_clock = Some(fact(Attribute::MemoryClock)?);
    Ok(gpu)
}

/// Adds to each GPU those with peer access.
fn find_peers(nvml: &Nvml, cuda: &Cuda, gpus: &mut [GpuReading]) {
    for later in 1..gpus.len() {
        let (before, rest) = gpus.split_at_mut(later);
        let Some(one) = rest.first_mut() else { break };
        let Some((device, number)) = one.handles else {
            continue;
        };
        for other in before {
            let Some((other_device, other_number)) = other.handles else {
                continue;
            };
            let (Ok(one), Ok(other)) = (&mut one.facts, &mut other.facts) else {
                continue;
            };
            match cuda.reaches(other_number, number) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    one.problems.push(of_call(&error).0);
                    continue;
                }
            }
            let mut read = GpuReader::new(nvml);
            let level = read.of(nvml.common_ancestor(other_device, device));
            one.problems.append(&mut read.problems);
            let (to_one, to_other) = (one.busid.clone(), other.busid.clone());
            one.peers.push(Peer {
                busid: to_other,
                level,
            });
            other.peers.push(Peer {
                busid: to_one,
                level,
            });
        }
    }
}

/// Reads the state of GPUs, all in parallel, and passes on each answer as it arrives.
pub(super) fn status(
    nvml: &Nvml,
    indices: &[u32],
    mut answer: impl FnMut(u32, Result<GpuStatus, Fault>),
) {
    let (sender, answers) = channel();
    thread::scope(|threads| {
        for index in indices {
            let sender = sender.clone();
            let asked =
                thread::Builder::new()
                    .stack_size(256 << 10)
                    .spawn_scoped(threads, move || {
                        // The receiver is gone: the process is about to end.
                        let _ = sender.send((*index, status_of(nvml, *index)));
                    });
            if let Err(error) = asked {
                answer(
                    *index,
                    Err(Fault::System {
                        operation: "thread creation failed".into(),
                        errno: error.raw_os_error().unwrap_or_default(),
                    }),
                );
            }
        }
        drop(sender);
        for (index, status) in answers {
            answer(index, status);
        }
    });
}

fn status_of(nvml: &Nvml, index: u32) -> Result<GpuStatus, Fault> {
    let device = nvml.gpu(index).map_err(|f| fault(nvml, f))?;
    let read = |failure: NvmlFailure| fault(nvml, failure);
    let errors = |location| supported(nvml.memory_errors(device, location));
    let memory = supported(nvml.memory(device)).map_err(read)?;
    let busy = supported(nvml.utilization(device)).map_err(read)?;
    Ok(GpuStatus {
        power: supported(nvml.power(device)).map_err(read)?,
        temperature: supported(nvml.temperature(device)).map_err(read)?,
        busy: busy.map(|[gpu, _]| gpu),
        memory_busy: busy.map(|[_, memory]| memory),
        encoder: supported(nvml.encoder(device)).map_err(read)?,
        decoder: supported(nvml.decoder(device)).map_err(read)?,
        memory_used: memory.map(|memory| sane(memory.used)),
        memory_total: memory.map(|memory| sane(memory.total)),
        ecc_errors: [
            errors(Location::L1Cache).map_err(read)?,
            errors(Location::L2Cache).map_err(read)?,
            errors(Location::DeviceMemory).map_err(read)?,
        ],
        // Older drivers do not know the place.
        sram_errors: errors(Location::Sram).ok().flatten(),
        core_clock: supported(nvml.clock(device, Clock::Multiprocessors)).map_err(read)?,
        memory_clock: supported(nvml.clock(device, Clock::Memory)).map_err(read)?,
        bar1_used: supported(nvml.bar1(device))
            .map_err(read)?
            .map(|memory| sane(memory.used)),
        received: supported(nvml.throughput(device, Direction::Received)).map_err(read)?,
        sent: supported(nvml.throughput(device, Direction::Sent)).map_err(read)?,
        processes: processes(nvml, device)?,
        mig: mig_status(nvml, device),
    })
}

fn processes(nvml: &Nvml, device: Device) -> Result<Vec<ProcessStatus>, Fault> {
    let found = supported(nvml.processes(device)).map_err(|f| fault(nvml, f))?;
    let named = found
        .unwrap_or_default()
        .into_iter()
        .map(|process| ProcessStatus {
            pid: process.pid,
            // The process may have ended meanwhile.
            name: nvml.process_name(process.pid).ok().map(|name| plain(&name)),
            memory: process.memory.map(sane),
        });
    Ok(named.collect())
}

/// Reads the memory of a GPU's MIG devices. Omits devices that cannot be read.
fn mig_status(nvml: &Nvml, device: Device) -> Vec<MigStatus> {
    let reports = mig(nvml, device)
        .map(|(_, reports)| reports)
        .unwrap_or_default();
    let read = reports.into_iter().filter_map(|report| {
        let mig = nvml.mig_device(device, report.slot).ok()?;
        let memory = nvml.memory(mig).ok();
        Some(MigStatus {
            uuid: plain(&report.uuid),
            memory_used: memory.map(|memory| sane(memory.used)),
            memory_total: memory.map(|memory| sane(memory.total)),
        })
    });
    read.collect()
}

/// Reads values of a GPU and collects the errors of unexpected failures.
struct GpuReader<'a> {
    nvml: &'a Nvml,
    problems: Vec<String>,
}

impl<'a> GpuReader<'a> {
    fn new(nvml: &'a Nvml) -> Self {
        Self {
            nvml,
            problems: Vec::new(),
        }
    }

    /// Returns the value; None if the GPU does not have it or reading it failed.
    fn of<T>(&mut self, value: Result<T, NvmlFailure>) -> Option<T> {
        supported(value).unwrap_or_else(|failure| {
            self.problems.push(fault(self.nvml, failure).to_string());
            None
        })
    }
}

/// Returns None for a value that the GPU or the driver does not have.
fn supported<T>(value: Result<T, NvmlFailure>) -> Result<Option<T>, NvmlFailure> {
    match value {
        Ok(value) => Ok(Some(value)),
        Err(failure) if is_missing(failure) => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn is_missing(failure: NvmlFailure) -> bool {
    matches!(
        failure.reason,
        Reason::Code(NOT_SUPPORTED | FUNCTION_NOT_FOUND)
    )
}

fn sane(number: u64) -> u64 {
    number.min(MAX_READING)
}

/// Describes a failed call of CUDA.
fn of_call(error: &CudaError) -> DriverMessage {
    DriverMessage(format!("cuda: {}", plain(&error.to_string())))
}

/// Removes control characters from a string and cuts it to NVML's length.
fn plain(text: &str) -> String {
    text.chars()
        .take(MAX_TEXT_LEN)
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}
