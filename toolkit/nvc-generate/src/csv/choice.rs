//! Decides which GPUs of a Jetson a request means.
//!
//! The lists know one GPU, 0. On a machine with an integrated GPU 0 and a discrete GPU 1, as NVML numbers them, each
//! can be requested by index or UUID. If NVML's answer does not fit, a warning says why, and the lists alone count: a
//! request never gets more than they give.

use libnvc::host::{Gpu, ListedGpu};
use libnvc::select::{DeviceName, available_devices};
use libnvc::{Error, ErrorKind, Result};

use super::listing::Listing;
use crate::uuid::is_uuid_start;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestedGpus {
    None,
    /// These, by index, UUID or `all`; at least one.
    These(Vec<String>),
}

impl RequestedGpus {
    /// Returns those of these ids; without an id, none.
    pub fn of(ids: Vec<String>) -> Self {
        if ids.is_empty() {
            Self::None
        } else {
            Self::These(ids)
        }
    }
}

#[derive(Clone, Debug)]
pub enum ChosenGpu {
    /// The only GPU, with everything in the lists.
    Only,
    /// The GPU of the lists, on a machine whose NVML does not answer or lists other GPUs than a pair.
    OfLists,
    /// The integrated one of two GPUs.
    Integrated {
        /// Its UUID, which may lack the prefix `GPU-`.
        uuid: String,
    },
    /// The discrete one of two GPUs.
    Discrete(Box<Gpu>),
}

impl ChosenGpu {
    /// Returns its index.
    pub fn index(&self) -> u32 {
        match self {
            Self::Only | Self::OfLists | Self::Integrated { .. } => INTEGRATED,
            Self::Discrete(_) => DISCRETE,
        }
    }

    /// Returns its UUID; None if only the lists describe it.
    pub fn uuid(&self) -> Option<&str> {
        match self {
            Self::Only | Self::OfLists => None,
            Self::Integrated { uuid } => Some(uuid),
            Self::Discrete(gpu) => Some(&gpu.uuid),
        }
    }
}

/// The indices of the two GPUs.
const INTEGRATED: u32 = 0;
const DISCRETE: u32 = 1;

/// The GPUs of a request.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// The GPUs, each once.
    pub devices: Vec<ChosenGpu>,
    /// The reason why the lists alone count, if NVML listed several GPUs or failed.
    pub warning: Option<String>,
}

/// A request that cannot be granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The device that does not exist.
    pub id: String,
    /// The GPUs that exist, or the reason why only one does.
    pub hint: String,
}

/// Chooses the GPUs. `several` allows two GPUs; otherwise the lists alone count.
///
/// # Errors
/// There is no such GPU.
pub fn choose(wanted: &RequestedGpus, listing: &Listing, several: bool) -> Result<Choice, Refusal> {
    let RequestedGpus::These(ids) = wanted else {
        return Ok(Choice::default());
    };
    let found = match listing {
        Listing::Gpus(gpus) if several && gpus.len() > 1 => of_several(ids, gpus).map(Some),
        Listing::Failed(error) if several => Err(error.clone()),
        Listing::Gpus(_) | Listing::Failed(_) | Listing::Unknown => Ok(None),
    };
    let problem = match found {
        Ok(Some(devices)) => {
            return Ok(Choice {
                devices,
                warning: None,
            });
        }
        Ok(None) => None,
        Err(problem) => Some(problem),
    };
    if let Some(id) = ids
        .iter()
        .find(|id| *id != "0" && !id.eq_ignore_ascii_case("all"))
    {
        return Err(Refusal {
            id: id.clone(),
            hint: match problem {
                Some(error) => {
                    let problem = error.message();
                    format!("{problem}; by the lists alone, the GPU is 0, or all")
                }
                None => "the GPU of this machine is 0, or all".into(),
            },
        });
    }
    Ok(match problem {
        None => Choice {
            devices: vec![ChosenGpu::Only],
            warning: None,
        },
        Some(error) => Choice {
            devices: vec![ChosenGpu::OfLists],
            warning: Some(format!(
                "{}: the GPU is given by the lists alone, as the only one",
                error.message()
            )),
        },
    })
}

/// Chooses among several GPUs.
fn of_several(ids: &[String], gpus: &[ListedGpu]) -> Result<Vec<ChosenGpu>> {
    // The lists are those of the integrated GPU.
    gpus.first().map(one).transpose()?;
    let mut chosen: Vec<ChosenGpu> = Vec::new();
    let mut add = |gpu: &ListedGpu| -> Result<()> {
        let one = one(gpu)?;
        if !chosen.iter().any(|other| other.index() == one.index()) {
            chosen.push(one);
        }
        Ok(())
    };
    if ids.iter().any(|id| id.eq_ignore_ascii_case("all")) {
        gpus.iter().try_for_each(&mut add)?;
    } else {
        for id in ids {
            add(find(id, gpus)?)?;
        }
    }
    Ok(chosen)
}

/// Finds a GPU by its index or UUID.
fn find<'a>(id: &str, gpus: &'a [ListedGpu]) -> Result<&'a ListedGpu> {
    let is_mig = |uuid: &str| uuid.starts_with(['M', 'm']);
    let found = match DeviceName::parse(id) {
        Some(DeviceName::Mig(..)) => Err("is a MIG device, which mode csv cannot add"),
        Some(DeviceName::Uuid(uuid)) if is_mig(uuid) => {
            Err("is a MIG device, which mode csv cannot add")
        }
        Some(DeviceName::Gpu(index)) => Ok(gpus.iter().find(|gpu| gpu.index == index)),
        Some(DeviceName::Address(address)) => Ok(gpus.iter().find(|gpu| {
            let of_nvml = gpu.gpu.as_ref();
            of_nvml.is_ok_and(|gpu| gpu.busid.eq_ignore_ascii_case(&address))
        })),
        // NVML's UUID of an integrated GPU may have no prefix.
        Some(DeviceName::Uuid(uuid)) if uuid.get("GPU-".len()..).is_some_and(is_uuid_start) => {
            Ok(by_uuid(id, gpus)?)
        }
        None if is_uuid_start(id) => Ok(by_uuid(id, gpus)?),
        Some(DeviceName::Uuid(_)) | None => Err("is neither an index nor a UUID"),
    };
    let there = || hint(gpus);
    let found = found.map_err(|what| invalid(format!("\"{id}\" {what}")).hint(there()))?;
    found.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, format!("NVML lists no GPU {id}")).hint(there())
    })
}

/// Lists the GPUs that there are.
fn hint(gpus: &[ListedGpu]) -> String {
    let numbered = |gpu: &ListedGpu| Gpu {
        index: gpu.index,
        ..Gpu::default()
    };
    available_devices(&gpus.iter().map(numbered).collect::<Vec<_>>(), &[])
}

/// Finds a GPU by its UUID or the start of it.
fn by_uuid<'a>(id: &str, gpus: &'a [ListedGpu]) -> Result<Option<&'a ListedGpu>> {
    let uuids = || (gpus.iter()).filter_map(|gpu| Some((gpu.uuid.as_deref()?, gpu)));
    if let Some((_, gpu)) = uuids().find(|(uuid, _)| uuid.eq_ignore_ascii_case(id)) {
        return Ok(Some(gpu));
    }
    let starts = |uuid: &str| {
        let start = uuid.get(..id.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(id))
    };
    let found: Vec<_> = uuids().filter(|(uuid, _)| starts(uuid)).collect();
    match &found[..] {
        [] => Ok(None),
        [(_, gpu)] => Ok(Some(gpu)),
        several => {
            let uuids: Vec<_> = several.iter().map(|(uuid, _)| *uuid).collect();
            let uuids = uuids.join(", ");
            Err(invalid(format!(
                "several GPUs have a UUID like \"{id}\": {uuids}"
            )))
        }
    }
}

/// Checks that a GPU is one of the pair.
fn one(gpu: &ListedGpu) -> Result<ChosenGpu> {
    let index = gpu.index;
    let failed = || {
        let failure = gpu.gpu.as_ref().err().map(|error| error.message());
        let failure = failure.unwrap_or_else(|| "NVML does not report its UUID".into());
        let text = format!("GPU {index}: {failure}");
        unexpected(text)
    };
    match gpu.integrated {
        Some(true) if index == INTEGRATED => {
            let uuid = gpu.uuid.clone().ok_or_else(failed)?;
            Ok(ChosenGpu::Integrated { uuid })
        }
        Some(true) => Err(unexpected(format!(
            "GPU {index} is integrated, which only GPU 0 may be"
        ))),
        Some(false) if index == DISCRETE => match &gpu.gpu {
            Ok(gpu) => Ok(ChosenGpu::Discrete(Box::new(gpu.clone()))),
            Err(_) => Err(failed()),
        },
        Some(false) => Err(unexpected(format!(
            "GPU {index} is discrete, which only GPU 1 may be"
        ))),
        None => Err(failed()),
    }
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}

fn unexpected(text: String) -> Error {
    Error::new(ErrorKind::DriverFailed, text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use super::*;

    pub(crate) const BARE: &str = "3f6c5d0e-52b1-5f9a-8e47-c2d90a7b1846";
    pub(crate) const UUID: &str = "GPU-7d21c3aa-93b5-4e8e-b7f6-10e4c59a2f33";

    fn failure() -> Error {
        Error::new(ErrorKind::DriverFailed, "nvml error: not supported")
    }

    /// Returns the integrated GPU of an Orin.
    pub(crate) fn integrated(index: u32) -> ListedGpu {
        ListedGpu {
            index,
            uuid: Some(BARE.into()),
            model: Some("Orin (nvgpu)".into()),
            arch: Some("8.7".into()),
            integrated: Some(true),
            gpu: Err(failure()),
        }
    }

    /// Returns a discrete GPU with a minor number.
    pub(crate) fn discrete(index: u32, minor: u32) -> ListedGpu {
        ListedGpu {
            index,
            uuid: Some(UUID.into()),
            model: Some("NVIDIA RTX A6000".into()),
            arch: Some("8.6".into()),
            integrated: Some(false),
            gpu: Ok(Gpu {
                index,
                uuid: UUID.into(),
                busid: "00000005:09:00.0".into(),
                minor,
                ..Gpu::default()
            }),
        }
    }

    fn pair() -> Vec<ListedGpu> {
        vec![integrated(0), discrete(1, 1)]
    }

    /// Chooses, and describes the result in words.
    fn outcome(ids: &[&str], listing: &Listing, several: bool) -> String {
        let wanted = match crate::ids(ids) {
            Ok(ids) => ids,
            Err(error) => return error.message(),
        };
        match choose(&RequestedGpus::of(wanted), listing, several) {
            Ok(choice) => {
                let names = choice.devices.iter().map(|chosen| match chosen {
                    ChosenGpu::Only | ChosenGpu::OfLists => "only",
                    ChosenGpu::Integrated { .. } => "integrated",
                    ChosenGpu::Discrete(_) => "discrete",
                });
                let warned = choice.warning.map(|_| "warning");
                names.chain(warned).collect::<Vec<_>>().join(" ")
            }
            Err(refusal) => format!("no {}: {}", refusal.id, refusal.hint),
        }
    }

    #[test]
    fn both_gpus_have_an_index_and_a_uuid() {
        let listing = Listing::Gpus(pair());
        for (ids, expected) in [
            (&[][..], "integrated discrete"),
            (&["all"], "integrated discrete"),
            (&["1", "all"], "integrated discrete"),
            (&["0"], "integrated"),
            (&["1"], "discrete"),
            (&["1", "0"], "discrete integrated"),
            (&[BARE], "integrated"),
            (&[UUID], "discrete"),
            (&[&UUID[.."GPU-1234".len()]], "discrete"),
            (&[&BARE[..4]], "integrated"),
            (&["0", BARE, "0"], "integrated"),
            (&["none"], ""),
            (&["0", "none"], ""),
        ] {
            assert_eq!(outcome(ids, &listing, true), expected, "{ids:?}");
        }
    }

    #[test]
    fn other_ids_are_refused_with_the_reason() {
        let listing = Listing::Gpus(pair());
        for (id, reason) in [
            ("2", "NVML lists no GPU 2"),
            ("1:0", "\"1:0\" is a MIG device"),
            (
                "MIG-1d2e3f40-5a6b-57c8-9d0e-1f2a3b4c5d11",
                "is a MIG device",
            ),
            // The prefix belongs to the UUID.
            (&UUID[4..], "NVML lists no GPU 7d21"),
            ("GPU-first", "neither an index nor a UUID"),
            ("99999999999", "neither an index nor a UUID"),
        ] {
            let said = outcome(&[id], &listing, true);
            assert!(said.starts_with(&format!("no {id}: ")), "{said}");
            assert!(said.contains(reason), "{said}");
            assert!(said.ends_with("by the lists alone, the GPU is 0, or all"));
        }
        // One bad id spoils the list, as the lists alone do not know the other either.
        let said = outcome(&["1", "1:0"], &listing, true);
        assert!(said.starts_with("no 1: "), "{said}");
    }

    #[test]
    fn without_a_pair_the_lists_count() {
        let failed = || Listing::Failed(failure());
        let nameless = || ListedGpu {
            uuid: None,
            ..integrated(0)
        };
        let lost = || ListedGpu {
            integrated: None,
            gpu: Err(failure()),
            ..discrete(1, 1)
        };
        for (listing, several, expected) in [
            (Listing::Unknown, true, "only"),
            (Listing::Gpus(vec![]), true, "only"),
            (Listing::Gpus(vec![integrated(0)]), true, "only"),
            (Listing::Gpus(pair()), false, "only"),
            (failed(), false, "only"),
            (failed(), true, "only warning"),
            (
                Listing::Gpus(vec![discrete(0, 0), discrete(1, 1)]),
                true,
                "only warning",
            ),
            (
                Listing::Gpus(vec![discrete(0, 0), integrated(1)]),
                true,
                "only warning",
            ),
            (
                Listing::Gpus(vec![integrated(0), integrated(1)]),
                true,
                "only warning",
            ),
            (
                Listing::Gpus(vec![nameless(), discrete(1, 1)]),
                true,
                "only warning",
            ),
            (
                Listing::Gpus(vec![integrated(0), lost()]),
                true,
                "only warning",
            ),
            (
                Listing::Gpus(vec![integrated(0), discrete(1, 1), discrete(2, 2)]),
                true,
                "only warning",
            ),
        ] {
            assert_eq!(
                outcome(&["all"], &listing, several),
                expected,
                "{listing:?}"
            );
            let said = outcome(&["1"], &listing, several);
            let has_second = matches!(&listing, Listing::Gpus(gpus) if gpus.len() == 3);
            assert_eq!(
                said.starts_with("no 1: "),
                !has_second,
                "{said} {listing:?}"
            );
        }
        // Only the requested GPUs are checked.
        let third = Listing::Gpus(vec![integrated(0), discrete(1, 1), discrete(2, 2)]);
        assert_eq!(outcome(&["0"], &third, true), "integrated");
        assert!(outcome(&["2"], &third, true).starts_with("no 2: GPU 2 is discrete"));
    }
}
