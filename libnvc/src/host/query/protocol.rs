//! Defines the messages between the two processes of a query: one request, one reply in pieces.
//!
//! The asking process is privileged, and the other one hosts a large foreign library, so the reply is parsed as hostile
//! input. The contents of its strings are validated where they are used, in [`device`](crate::host::device).

use std::ffi::OsString;
use std::fmt;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::facts::{DriverMessage, Facts, GpuEvent, GpuFacts, GpuStatus};
use super::{CREATION, HINT_TO_SERVE, NOT_SERVED};
use crate::error::{Error, ErrorKind};

/// Size limit of a message. A GPU with seven MIG devices takes about 1 kB.
pub(crate) const MAX_SIZE: usize = 8 << 20;

/// The request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireRequest {
    /// Driver root as named by the caller.
    pub(crate) root: OsString,
    /// User the process changes to.
    pub(crate) uid: u32,
    /// Group the process changes to.
    pub(crate) gid: u32,
    /// Libraries to load before the root is changed; see `needs`.
    pub(crate) host_libraries: Vec<String>,
    /// Directories below the driver root in which NVML and libcuda are sought first.
    #[serde(default)]
    pub(crate) directories: Vec<OsString>,
    /// The kernel module's version, if it is known: that of the library to load.
    #[serde(default)]
    pub(crate) version: Option<String>,
    /// NVML's path under WSL2, where minor numbers and MIG do not exist.
    pub(crate) wsl_library: Option<OsString>,
    /// Pid of the asking process, to notice that it has already ended.
    pub(crate) parent: i32,
    /// For [`Question::Identity`]: the GPUs to ask about; all if None.
    #[serde(default)]
    pub(crate) only: Option<Only>,
    pub(crate) question: Question,
}

/// Some GPUs, found in the kernel module's list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Only {
    pub(crate) gpus: Vec<AskedGpu>,
    /// How many GPUs NVML must list if the module's list is about the same machine.
    pub(crate) listed: u32,
}

/// A GPU to ask about, and what must be true of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AskedGpu {
    /// The GPU with NVML's index; with a MIG device in a slot.
    Index { index: u32, slot: Option<u32> },
    /// The GPU at a PCI address; with a UUID, if the module knows it, and a MIG device of these instances.
    Address {
        address: String,
        uuid: Option<String>,
        instances: Option<(u32, u32)>,
    },
}

/// The question.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Question {
    /// Versions, and the facts about GPUs that containers need.
    #[default]
    Identity,
    /// GPUs and MIG devices, for monitoring: the facts that do not require connecting to each GPU.
    Identities,
    /// All constant facts, for monitoring.
    Facts,
    /// Current state of these GPUs.
    Status(Vec<u32>),
    /// Versions, and what an allocator of GPUs needs to know about each; without these GPUs.
    Devices { skip: Vec<u32> },
    /// Events of these GPUs, until the asking process closes its socket.
    Events(Vec<u32>),
    /// CUDA's version and the architecture of its first GPU, without NVML.
    Cuda,
    /// WSL2's graphics adapters, without NVML.
    Adapters,
}

/// A piece of the reply, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// NVML could not be loaded or initialised. Last message.
    Unavailable(Fault),
    /// NVML is initialised.
    Ready(Versions),
    /// This GPU is next; a crash or hang can then be attributed to it.
    Asking(u32),
    /// The GPU at this address is next.
    AskingAt(String),
    /// The GPUs in NVML's order, or the reason why there is no list. Last message.
    Gpus(Result<Vec<GpuAnswer>, Fault>),
    /// The facts. Last message.
    Facts(Result<Facts, Fault>),
    /// CUDA's facts. Last message.
    Cuda(CudaReport),
    /// The adapters of libdxcore, if it can be loaded: version of the driver model, driver store. Last message.
    Adapters(Option<Vec<(u32, String)>>),
    /// Facts about one GPU, for [`Question::Devices`].
    Device(u32, Result<GpuFacts, DriverMessage>),
    /// UUIDs of the GPUs whose events follow.
    Watching(Vec<String>),
    /// An event of a GPU; None is a sign of life.
    Event(Option<GpuEvent>),
    /// State of one GPU; the GPUs may come in any order.
    Status(u32, Result<GpuStatus, Fault>),
    /// The end of a status, or of the devices.
    Done,
}

/// Versions, as returned by NVML.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Versions {
    pub(crate) driver: Result<String, Fault>,
    pub(crate) cuda: Result<i32, Fault>,
}

/// A GPU, as NVML describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GpuReport {
    /// NVML's index, if it is not the position in the list.
    #[serde(default)]
    pub(crate) index: Option<u32>,
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) pci: PciReport,
    pub(crate) compute_capability: (i32, i32),
    pub(crate) brand: u32,
    /// None under WSL2.
    pub(crate) minor: Option<u32>,
    pub(crate) mig_capable: bool,
    /// MIG mode is on, possibly without MIG devices yet.
    pub(crate) mig_enabled: bool,
    /// Persistence mode is on.
    #[serde(default)]
    pub(crate) persistent: bool,
    /// True if it addresses the host's memory coherently; None if NVML does not know.
    pub(crate) coherent: Option<bool>,
    pub(crate) mig_devices: Vec<MigReport>,
}

/// A PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PciReport {
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
}

impl fmt::Display for PciReport {
    /// Formats as upstream: `00000000:3b:00.0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:08x}:{:02x}:{:02x}.0",
            self.domain, self.bus, self.device
        )
    }
}

/// A MIG device, as NVML describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MigReport {
    pub(crate) slot: u32,
    pub(crate) uuid: String,
    pub(crate) gi: u32,
    pub(crate) ci: u32,
    /// Its name, which ends with its profile; None if NVML does not tell it.
    pub(crate) name: Option<String>,
}

/// NVML's answers about one GPU.
pub(crate) type GpuAnswer = Result<GpuReport, Box<GpuFault>>;

/// Returns the answers with NVML's index of each GPU.
pub(crate) fn numbered(answers: &[GpuAnswer]) -> impl Iterator<Item = (u32, &GpuAnswer)> {
    let own = |answer: &GpuAnswer| answer.as_ref().ok()?.index;
    (0..)
        .zip(answers)
        .map(move |(place, answer)| (own(answer).unwrap_or(place), answer))
}

/// A GPU that NVML lists but fails on, with its known properties.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GpuFault {
    pub(crate) name: Option<String>,
    pub(crate) uuid: Option<String>,
    pub(crate) pci: Option<PciReport>,
    /// NVML does not support the question for its PCI address.
    pub(crate) no_pci: bool,
    pub(crate) compute_capability: Option<(i32, i32)>,
    pub(crate) fault: Fault,
}

/// The facts of CUDA, or its error messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CudaReport {
    pub(crate) version: Result<i32, DriverMessage>,
    pub(crate) compute_capability: Result<(i32, i32), DriverMessage>,
}

/// A failure in the query process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// A system call failed.
    System { operation: String, errno: i32 },
    /// NVML could not be loaded; the loader's text.
    Load(String),
    /// An NVML function failed.
    Nvml {
        function: String,
        code: u32,
        text: String,
    },
    /// NVML reported success but returned garbage; the whole text.
    Nonsense { function: String, text: String },
    /// The program does not serve, but went on to start a query of its own.
    NotServed,
}

/// The error of a query in a process that should have answered one.
pub(crate) fn not_served() -> Error {
    let error = Error::new(ErrorKind::DriverUnavailable, CREATION);
    error.with_cause(NOT_SERVED).hint(HINT_TO_SERVE)
}

/// The words of nvidia-docker 1.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System { operation, errno } => {
                f.write_str(&Error::system(operation, Errno::from_raw(*errno)).message())
            }
            Self::Load(_) => f.write_str("could not load NVML library"),
            Self::Nvml { text, .. } => write!(f, "nvml: {text}"),
            Self::Nonsense { text, .. } => f.write_str(text),
            Self::NotServed => f.write_str(NOT_SERVED),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;
    use crate::frame::{encode, take};

    fn gpu(minor: u32) -> GpuAnswer {
        Ok(GpuReport {
            index: None,
            name: "NVIDIA A100-SXM4-40GB".into(),
            uuid: format!("GPU-00000000-0000-4000-8000-{minor:012}"),
            pci: PciReport {
                domain: 0,
                bus: 0xaf,
                device: 0,
            },
            compute_capability: (8, 0),
            brand: 14,
            minor: Some(minor),
            mig_capable: true,
            mig_enabled: true,
            persistent: false,
            coherent: Some(false),
            mig_devices: (0..7)
                .map(|slot| MigReport {
                    slot,
                    uuid: format!("MIG-00000000-0000-5000-8000-{minor:06}{slot:06}"),
                    gi: slot + 7,
                    ci: 0,
                    name: Some("NVIDIA A100-SXM4-40GB MIG 1g.5gb".into()),
                })
                .collect(),
        })
    }

    #[test]
    fn messages_survive_the_way() {
        let fault = Fault::Nvml {
            function: "nvmlDeviceGetUUID".into(),
            code: 15,
            text: "GPU is lost".into(),
        };
        let lost = Err(Box::new(GpuFault {
            name: Some("Orin (nvgpu)".into()),
            uuid: None,
            pci: None,
            no_pci: true,
            compute_capability: Some((8, 7)),
            fault: fault.clone(),
        }));
        let messages = [
            Message::Unavailable(Fault::Load("x: y".into())),
            Message::Ready(Versions {
                driver: Ok("535.261.03".into()),
                cuda: Err(fault.clone()),
            }),
            Message::Asking(3),
            Message::Gpus(Err(fault)),
            Message::Gpus(Ok((0..4096).map(gpu).chain([lost]).collect())),
            Message::Cuda(CudaReport {
                version: Ok(12060),
                compute_capability: Err(DriverMessage("invalid device ordinal".into())),
            }),
        ];
        let mut stream = Vec::new();
        for message in &messages {
            stream.extend(encode(message, MAX_SIZE).unwrap());
        }
        for message in &messages {
            assert_eq!(take(&mut stream, MAX_SIZE).unwrap(), Some(message.clone()));
        }
        assert!(stream.is_empty());
    }

    #[test]
    fn a_root_need_not_be_text() {
        let request = WireRequest {
            root: OsString::from_vec(b"/mnt/\xff\n".to_vec()),
            uid: 65534,
            gid: 65534,
            host_libraries: vec!["libm.so.6".into()],
            directories: vec![OsString::from_vec(b"/lib/\xff".to_vec())],
            version: Some("550.1".into()),
            wsl_library: None,
            parent: 1,
            only: Some(Only {
                gpus: vec![
                    AskedGpu::Index {
                        index: 1,
                        slot: Some(3),
                    },
                    AskedGpu::Address {
                        address: "0000:3b:00.0".into(),
                        uuid: None,
                        instances: Some((1, 0)),
                    },
                ],
                listed: 2,
            }),
            question: Question::Status(vec![0, 3]),
        };
        let mut bytes = encode(&request, MAX_SIZE).unwrap();
        assert_eq!(take(&mut bytes, MAX_SIZE).unwrap(), Some(request));
    }

    /// During an update, one of the two programs may be of the former version.
    #[test]
    fn messages_of_the_former_version_are_understood() {
        let request = r#"{"root":{"Unix":[47]},"uid":1,"gid":1,"host_libraries":[],"directories":[],"version":null,
            "wsl_library":null,"parent":1,"question":"Identity"}"#;
        let request: WireRequest = serde_json::from_str(request).unwrap();
        assert_eq!(request.only, None);
        let reply = r#"{"Gpus":{"Ok":[{"Ok":{"name":"x","uuid":"GPU-1","pci":{"domain":0,"bus":1,"device":0},
            "compute_capability":[8,0],"brand":14,"minor":0,"mig_capable":false,"mig_enabled":false,"coherent":null,
            "mig_devices":[]}}]}}"#;
        let Message::Gpus(Ok(gpus)) = serde_json::from_str(reply).unwrap() else {
            panic!("{reply}");
        };
        assert_eq!(numbered(&gpus).next().unwrap().0, 0);
    }
}
