//! Defines what passes between a query's two processes: one request, one reply in pieces.
//!
//! Each message is its length (four bytes, little-endian) and JSON. The asking process is privileged and the other one
//! hosts a large foreign library, so the reply is parsed as something hostile: bounded, and free of panics. What its
//! texts may look like is checked where they are used, in [`device`](crate::host::device).

use std::ffi::OsString;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::host::monitor::{Facts, GpuStatus};

/// Longest message. A GPU with seven MIG devices takes about 1 kB.
const LONGEST: usize = 8 << 20;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Driver root as the caller names it.
    pub(crate) root: OsString,
    /// User the process becomes.
    pub(crate) uid: u32,
    /// Group the process becomes.
    pub(crate) gid: u32,
    /// Libraries to load before the root is changed; see `needs`.
    pub(crate) host_libraries: Vec<String>,
    /// NVML's path under WSL2, where there are no minor numbers and no MIG.
    pub(crate) wsl_library: Option<OsString>,
    /// The asking process, to notice that it is gone already.
    pub(crate) parent: i32,
    /// What is asked for.
    pub(crate) question: Question,
}

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Question {
    /// Versions, and what a container needs to know of the GPUs.
    #[default]
    Identity,
    /// Which GPUs and MIG devices there are, for monitoring: the part of the facts that is had without connecting to
    /// each GPU.
    Identities,
    /// All that does not change, for monitoring.
    Facts,
    /// What these GPUs do now.
    Status(Vec<u32>),
}

/// A piece of the reply, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// NVML could not be loaded or initialised. The end.
    Unavailable(Fault),
    /// NVML is initialised.
    Ready(Versions),
    /// This GPU is next; so a crash or hang can be laid at its door.
    Asking(u32),
    /// The GPUs in NVML's order, or why there is no list. The end.
    Gpus(Result<Vec<Result<GpuReport, GpuFault>>, Fault>),
    /// The facts. The end.
    Facts(Result<Facts, Fault>),
    /// What one GPU does; the others' may come before.
    Status(u32, Result<GpuStatus, Fault>),
    /// The end of a status.
    Done,
}

/// Versions, as NVML gives them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Versions {
    pub(crate) driver: Result<String, Fault>,
    pub(crate) cuda: Result<i32, Fault>,
}

/// A GPU, as NVML describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GpuReport {
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) pci: PciReport,
    pub(crate) compute_capability: (i32, i32),
    pub(crate) brand: u32,
    /// None under WSL2.
    pub(crate) minor: Option<u32>,
    pub(crate) mig_capable: bool,
    /// It is divided, perhaps into nothing yet.
    pub(crate) mig_enabled: bool,
    /// Whether it addresses the host's memory coherently, if NVML could say.
    pub(crate) coherent: Option<bool>,
    pub(crate) mig_devices: Vec<MigReport>,
}

/// A GPU's place on the PCI bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PciReport {
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
}

/// A MIG device, as NVML describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MigReport {
    pub(crate) slot: u32,
    pub(crate) uuid: String,
    pub(crate) gi: u32,
    pub(crate) ci: u32,
}

/// A GPU that NVML lists but fails on, and what was learnt of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GpuFault {
    pub(crate) uuid: Option<String>,
    pub(crate) pci: Option<PciReport>,
    pub(crate) fault: Fault,
}

/// Why something could not be done in the query process.
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
    /// NVML claims success and answers nonsense; the whole text.
    Nonsense { function: String, text: String },
}

/// Bytes that are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Garbled;

/// The bytes of a message.
pub(crate) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, Garbled> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message).map_err(|_| Garbled)?;
    let length = bytes.len().checked_sub(4).filter(|n| *n <= LONGEST);
    let length = length.and_then(|n| u32::try_from(n).ok()).ok_or(Garbled)?;
    for (byte, value) in bytes.iter_mut().zip(length.to_le_bytes()) {
        *byte = value;
    }
    Ok(bytes)
}

/// Takes the first message off the front of `bytes`; none if it is not complete yet.
pub(crate) fn take<T: DeserializeOwned>(bytes: &mut Vec<u8>) -> Result<Option<T>, Garbled> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| Garbled)?;
    if length > LONGEST {
        return Err(Garbled);
    }
    let Some(body) = rest.get(..length) else {
        return Ok(None);
    };
    let message = serde_json::from_slice(body).map_err(|_| Garbled)?;
    bytes.drain(..4 + length);
    Ok(Some(message))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use proptest::prelude::*;

    use super::*;

    fn gpu(minor: u32) -> Result<GpuReport, GpuFault> {
        Ok(GpuReport {
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
            coherent: Some(false),
            mig_devices: (0..7)
                .map(|slot| MigReport {
                    slot,
                    uuid: format!("MIG-00000000-0000-5000-8000-{minor:06}{slot:06}"),
                    gi: slot + 7,
                    ci: 0,
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
        let lost = Err(GpuFault {
            uuid: None,
            pci: None,
            fault: fault.clone(),
        });
        let messages = [
            Message::Unavailable(Fault::Load("x: y".into())),
            Message::Ready(Versions {
                driver: Ok("535.261.03".into()),
                cuda: Err(fault.clone()),
            }),
            Message::Asking(3),
            Message::Gpus(Err(fault)),
            Message::Gpus(Ok((0..4096).map(gpu).chain([lost]).collect())),
        ];
        let mut stream = Vec::new();
        for message in &messages {
            stream.extend(encode(message).unwrap());
        }
        for message in &messages {
            assert_eq!(take(&mut stream), Ok(Some(message.clone())));
        }
        assert!(stream.is_empty());
    }

    #[test]
    fn a_root_need_not_be_text() {
        let request = Request {
            root: OsString::from_vec(b"/mnt/\xff\n".to_vec()),
            uid: 65534,
            gid: 65534,
            host_libraries: vec!["libm.so.6".into()],
            wsl_library: None,
            parent: 1,
            question: Question::Status(vec![0, 3]),
        };
        let mut bytes = encode(&request).unwrap();
        assert_eq!(take(&mut bytes), Ok(Some(request)));
    }

    #[test]
    fn halves_wait_and_nonsense_is_refused() {
        let whole = encode(&Message::Asking(7)).unwrap();
        for end in 0..whole.len() {
            let mut half = whole.get(..end).unwrap().to_vec();
            assert_eq!(take::<Message>(&mut half), Ok(None), "{end}");
        }
        for bytes in [
            &b"\xff\xff\xff\xff"[..],
            b"\x01\x00\x80\x00",
            b"\x00\x00\x00\x00",
            b"\x02\x00\x00\x00{}",
            b"\x03\x00\x00\x00\xff\xfe\xfd",
            b"\x0b\x00\x00\x00{\"Asking\":-1}",
        ] {
            let mut bytes = bytes.to_vec();
            assert_eq!(take::<Message>(&mut bytes), Err(Garbled), "{bytes:?}");
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_not_sent() {
        let message = Message::Unavailable(Fault::Load("x".repeat(LONGEST)));
        assert_eq!(encode(&message), Err(Garbled));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut framed = u32::try_from(bytes.len()).unwrap().to_le_bytes().to_vec();
            framed.extend(&bytes);
            let _ = take::<Message>(&mut framed);
            let mut bytes = bytes;
            let _ = take::<Message>(&mut bytes);
        }
    }
}
