//! Asks NVML what there is now, in a process of its own.

use std::time::Duration;

use libnvc::host::Identity;
use libnvc::host::monitor::{self, GpuFacts, MigFacts};
use libnvc::host::query::QueryRequest;
use libnvc::{Error, ErrorKind};
use nvc_program::hints::{Reader, one_line};

use super::{Gpu, Health, Mig, Source};

/// Time limit of a question, for each GPU.
const DEADLINE: Duration = Duration::from_secs(10);

/// What NVML answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Driver {
        version: String,
        cuda: String,
        /// In NVML's order; the reason of one that fails.
        gpus: Vec<Result<Found, String>>,
    },
    /// There is no driver, or none that works.
    NoDriver {
        reason: String,
        /// The kernel module is there.
        is_loaded: bool,
    },
    /// No answer: nothing is known.
    Silence(String),
}

/// A GPU that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) gpu: Gpu,
    /// What it needs to recover, NVML's number; None if the driver does not know.
    pub(super) needs: Option<u32>,
}

/// Asks, and remembers as which user.
#[derive(Debug)]
pub(super) struct Looker {
    source: Source,
    /// NVML tells no other user where MIG devices are.
    as_root: bool,
}

impl Looker {
    pub(super) fn new(source: Source) -> Self {
        Self {
            source,
            as_root: false,
        }
    }

    pub(super) fn look(&mut self) -> Look {
        let mut answer = self.ask();
        let is_placed = |mig: &MigFacts| mig.placement.is_some();
        if let Ok((_, gpus)) = &answer
            && !self.as_root
            && !gpus
                .iter()
                .flatten()
                .flat_map(|gpu| &gpu.mig)
                .all(is_placed)
        {
            self.as_root = true;
            answer = self.ask();
        }
        match answer {
            Ok((versions, gpus)) => Look::Driver {
                version: versions.driver,
                cuda: versions.cuda,
                gpus: gpus
                    .into_iter()
                    .map(|gpu| gpu.as_ref().map(found).map_err(Error::message))
                    .collect(),
            },
            Err(error) if error.kind() == ErrorKind::DriverUnavailable => Look::NoDriver {
                reason: one_line(&error, Reader::Node),
                is_loaded: self.source.is_loaded(),
            },
            Err(error) => Look::Silence(one_line(&error, Reader::Node)),
        }
    }

    fn ask(&self) -> libnvc::Result<(libnvc::host::DriverVersions, Vec<libnvc::Result<GpuFacts>>)> {
        let root = Identity { uid: 0, gid: 0 };
        let request = QueryRequest {
            user: self.as_root.then_some(root),
            ..request(&self.source)
        };
        monitor::devices(&self.source.query, &request)
    }
}

/// Returns how to reach the driver.
pub(super) fn request(source: &Source) -> QueryRequest {
    QueryRequest {
        root: source.driver_root.clone(),
        dev_root: Some(source.dev_root.clone()).filter(|root| *root != source.driver_root),
        user: None,
        library_search: Vec::new(),
        wsl_library: None,
        deadline: DEADLINE,
    }
}

fn found(facts: &GpuFacts) -> Found {
    let gpu = Gpu {
        minor: facts.minor,
        uuid: facts.uuid.clone(),
        busid: facts.busid.to_ascii_lowercase(),
        model: facts.model.clone().unwrap_or_default(),
        brand: facts.brand.map(monitor::brand).unwrap_or_default().into(),
        compute: facts.arch.unwrap_or_default(),
        memory: facts.memory,
        addressing: match facts.addressing {
            Some(0) => Some("None".into()),
            Some(1) => Some("HMM".into()),
            Some(2) => Some("ATS".into()),
            _ => None,
        },
        is_divided: facts.is_divided,
        migs: facts.mig.iter().filter_map(mig).collect(),
        health: Health::Well,
    };
    Found {
        gpu,
        needs: facts.recovery,
    }
}

/// Returns None for a MIG device of which NVML does not tell enough.
fn mig(facts: &MigFacts) -> Option<Mig> {
    let (_, profile) = facts.name.as_deref()?.rsplit_once("MIG ")?;
    let (attributes, placement) = (facts.attributes?, facts.placement?);
    // Nor of one whose bytes are no number.
    attributes.memory.checked_mul(1 << 20)?;
    Some(Mig {
        uuid: facts.uuid.clone(),
        profile: profile.into(),
        instances: (facts.gpu_instance, facts.compute_instance),
        placement,
        attributes,
        health: Health::Well,
    })
}
