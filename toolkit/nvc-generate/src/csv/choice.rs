//! Decides which GPUs of a Jetson a request means.
//!
//! The lists know one GPU, 0. On a machine with an integrated GPU 0 and a discrete GPU 1, as NVML numbers them, each
//! can be requested by index or UUID. If NVML's answer does not fit, a warning says why, and the lists alone count: a
//! request never gets more than they give.

use libnvc::host::{Gpu, ListedGpu};
use libnvc::select::{devices_here, select_devices};
use libnvc::{DeviceName, Error, ErrorKind, Result};

use super::listing::Listing;

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
    let is_only = |id: &&String| {
        let is_it = match listing {
            Listing::Gpus(gpus) if gpus.len() == 1 => find(id, gpus).is_ok(),
            _ => DeviceName::parse(id) == Some(DeviceName::Gpu(INTEGRATED)),
        };
        is_it || is_all(id)
    };
    if let Some(id) = ids.iter().find(|id| !is_only(id)) {
        let only = devices_here(["0"]).unwrap_or_default();
        return Err(Refusal {
            id: id.clone(),
            hint: match problem {
                Some(error) if error.kind() == ErrorKind::NotFound => {
                    error.advice().map_or(only, Into::into)
                }
                Some(error) => format!("{}; {only}", error.message()),
                None => only,
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

fn is_all(id: &str) -> bool {
    id.eq_ignore_ascii_case("all")
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
    if ids.iter().any(|id| is_all(id)) {
        gpus.iter().try_for_each(&mut add)?;
    } else {
        for id in ids {
            add(find(id, gpus)?)?;
        }
    }
    Ok(chosen)
}

/// Finds a GPU by its name. Some integrated GPUs have a UUID without `GPU-`, and so has the start of it.
fn find<'a>(id: &str, gpus: &'a [ListedGpu]) -> Result<&'a ListedGpu> {
    let is_mig = !matches!(
        DeviceName::parse(id),
        None | Some(DeviceName::Gpu(_) | DeviceName::Address(_))
    ) && !id.to_ascii_uppercase().starts_with("GPU-");
    if is_mig {
        let text = format!("\"{id}\" is a MIG device, which mode csv cannot add");
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    let bare = || gpus.iter().filter_map(|gpu| gpu.uuid.as_deref());
    let bare = bare().any(|uuid| !uuid.starts_with("GPU-") && uuid.starts_with(id));
    let known = gpus.iter().map(|gpu| Gpu {
        index: gpu.index,
        uuid: (gpu.uuid.as_deref()).map_or_else(String::new, |uuid| {
            format!("GPU-{}", uuid.strip_prefix("GPU-").unwrap_or(uuid))
        }),
        busid: (gpu.gpu.as_ref()).map_or_else(|_| String::new(), |gpu| gpu.busid.clone()),
        ..Gpu::default()
    });
    let known: Vec<Gpu> = known.collect();
    let name = match DeviceName::parse(id) {
        None if bare => format!("GPU-{id}"),
        _ => id.to_owned(),
    };
    let chosen = select_devices(&known, &[], &[name])?;
    let index = chosen.gpus.first().map(|gpu| gpu.index);
    let found = gpus.iter().find(|gpu| Some(gpu.index) == index);
    found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("NVML lists no GPU {id}")))
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
            (&["gpu-7D21"], "discrete"),
            (&["0005:09:00.0"], "discrete"),
            (&["ALL"], "integrated discrete"),
            (&[&BARE[..4]], "integrated"),
            (&["0", BARE, "0"], "integrated"),
            (&["none"], ""),
            (&["0", "None"], ""),
        ] {
            assert_eq!(outcome(ids, &listing, true), expected, "{ids:?}");
        }
    }

    #[test]
    fn other_ids_are_refused_with_the_reason() {
        let listing = Listing::Gpus(pair());
        let here = "devices here: 0, 1, or their UUIDs";
        for (id, reason) in [
            ("2", here),
            (
                "1:0",
                "\"1:0\" is a MIG device, which mode csv cannot add; devices here: 0",
            ),
            (
                "MIG-1d2e",
                "\"MIG-1d2e\" is a MIG device, which mode csv cannot add; devices here: 0",
            ),
            // The prefix belongs to the UUID.
            (&UUID[4..], here),
            ("GPU-first", here),
            ("99999999999", here),
        ] {
            assert_eq!(outcome(&[id], &listing, true), format!("no {id}: {reason}"));
        }
        // The only GPU has all of its names.
        let alone = Listing::Gpus(vec![integrated(0)]);
        for id in ["0", "All", BARE, &format!("gpu-{}", &BARE[..4])] {
            assert_eq!(outcome(&[id], &alone, true), "only", "{id}");
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
