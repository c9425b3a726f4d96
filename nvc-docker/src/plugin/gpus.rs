//! Queries the driver for requests: as fresh as possible, as seldom as necessary.
//!
//! A few requests get current answers. Under load, the driver is queried once a second, and other requests get the last
//! answer. Constant facts are queried again only when the driver's version, its GPUs or their MIG devices have changed,
//! because that needs the CUDA library and takes much longer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use libnvc::host::monitor::{self, DriverMessage, Facts, GpuFacts, GpuStatus};
use libnvc::host::query::{QueryProgram, QueryRequest};
use libnvc::{Error, ErrorKind, Result};
use tokio::sync::Mutex as TurnLock;
use tokio::task::spawn_blocking;

use crate::cuda_version::CudaVersion;
use crate::device_id::Candidate;
use crate::log_line::log_text;

/// Maximum age of an answer under load.
const SECOND: Duration = Duration::from_secs(1);
/// Number of queries in quick succession that still reach the driver.
const BURST: f64 = 6.0;
/// Time limit of a status query: clients wait, and upstream's gave up after five seconds.
const STATUS_DEADLINE: Duration = Duration::from_secs(4);
/// Time limit for connecting to all GPUs.
const FACTS_DEADLINE: Duration = Duration::from_secs(60);

/// What the answers lack without CUDA.
const UNKNOWN: &str = "the cores, memory and peers of GPUs stay unknown";

/// Current versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The driver's version, or NVML's error message.
    pub driver: Result<String, DriverMessage>,
    /// CUDA's version, or CUDA's error message.
    pub cuda: Result<CudaVersion, DriverMessage>,
}

/// The facts about the driver and its GPUs.
#[derive(Clone, Debug)]
pub struct DriverFacts {
    /// Current versions.
    pub versions: Versions,
    /// Usable GPUs, in NVML's order.
    pub gpus: Arc<Vec<GpuFacts>>,
}

/// Current state of the GPUs, in the order of [`DriverFacts::gpus`].
#[derive(Clone, Debug)]
pub struct GpuState {
    pub facts: DriverFacts,
    pub status: Arc<Vec<Result<GpuStatus>>>,
}

/// The driver, with cached answers.
#[derive(Debug)]
pub struct Gpus {
    program: QueryProgram,
    request: QueryRequest,
    identities: SharedAnswer<Facts>,
    facts: Mutex<Option<Arc<CachedFacts>>>,
    status: SharedAnswer<Vec<Result<GpuStatus>>>,
}

/// Facts, with the driver's identities at the time of the query.
#[derive(Debug)]
struct CachedFacts {
    identities: Vec<String>,
    gpus: Arc<Vec<GpuFacts>>,
}

impl Gpus {
    /// Returns the GPUs of this machine; an unprivileged process queries them.
    pub fn of_this_machine() -> Self {
        Self {
            program: QueryProgram::ThisExecutable,
            request: QueryRequest {
                root: "/".into(),
                user: None,
                dev_root: None,
                library_search: Vec::new(),
                wsl_library: None,
                deadline: FACTS_DEADLINE,
            },
            identities: SharedAnswer::default(),
            facts: Mutex::default(),
            status: SharedAnswer::default(),
        }
    }

    /// Queries all facts, or returns the reason why the plugin cannot start: NVML does not answer, or no GPU works.
    ///
    /// # Errors
    /// `could not load NVML library`, `nvml: …`, `cuda: …`, `unsupported GPU device`.
    pub async fn discover(&self) -> Result<(DriverFacts, Vec<String>)> {
        let facts = self.ask_facts().await?;
        facts.driver.clone()?;
        facts.cuda.clone()?;
        let problems = problems(&facts);
        let is_bad = |gpu: &Result<GpuFacts, DriverMessage>| {
            gpu.as_ref().map_or(true, |gpu| !gpu.problems.is_empty())
        };
        if !facts.gpus.is_empty() && facts.gpus.iter().all(is_bad) {
            let first = facts.gpus.into_iter().next();
            let text = match first {
                Some(Err(message)) => message.0,
                Some(Ok(gpu)) => gpu.problems.into_iter().next().unwrap_or_default(),
                None => String::new(),
            };
            return Err(
                Error::new(ErrorKind::DriverFailed, text).hint("no GPU of this machine works")
            );
        }
        let versions = versions(&facts);
        let gpus = self.remember(facts);
        Ok((DriverFacts { versions, gpus }, problems))
    }

    /// Returns the driver's versions, and the facts about each GPU.
    ///
    /// # Errors
    /// `could not load NVML library`, `nvml: …`.
    pub async fn facts(&self) -> Result<DriverFacts> {
        let identities = self
            .identities
            .get(|| {
                let (program, request) = (self.program.clone(), self.request.clone());
                move || monitor::identities(&program, &request)
            })
            .await?;
        let now = names(&identities);
        let remembered = self.deep().filter(|deep| deep.identities == now);
        let gpus = match remembered {
            Some(deep) => Arc::clone(&deep.gpus),
            None => {
                let facts = self.ask_facts().await?;
                for problem in problems(&facts) {
                    log_text(&format!("Warning: {problem}"));
                }
                self.remember(facts)
            }
        };
        Ok(DriverFacts {
            versions: versions(&identities),
            gpus,
        })
    }

    /// Returns the last known facts, without a query.
    pub fn remembered(&self) -> Arc<Vec<GpuFacts>> {
        self.deep()
            .map(|deep| Arc::clone(&deep.gpus))
            .unwrap_or_default()
    }

    /// Returns the state of the GPUs.
    ///
    /// # Errors
    /// Those of [`facts`](Self::facts).
    pub async fn state(&self) -> Result<GpuState> {
        let facts = self.facts().await?;
        let indices: Vec<u32> = facts.gpus.iter().map(|gpu| gpu.index).collect();
        let count = indices.len();
        let status = self
            .status
            .get(|| {
                let program = self.program.clone();
                let request = QueryRequest {
                    deadline: STATUS_DEADLINE,
                    ..self.request.clone()
                };
                move || {
                    if indices.is_empty() {
                        return Ok(Vec::new());
                    }
                    monitor::status(&program, &request, &indices)
                }
            })
            .await?;
        // A cached answer from before the GPUs changed.
        let status = if status.len() == count {
            status
        } else {
            let text = "nvml: the GPUs have changed";
            Arc::new(vec![Err(Error::new(ErrorKind::DriverFailed, text)); count])
        };
        Ok(GpuState { facts, status })
    }

    async fn ask_facts(&self) -> Result<Facts> {
        let (program, request) = (self.program.clone(), self.request.clone());
        let asked = spawn_blocking(move || monitor::facts(&program, &request)).await;
        match asked {
            Ok(facts) => facts,
            Err(error) => Err(Error::new(ErrorKind::System, error.to_string())),
        }
    }

    fn remember(&self, facts: Facts) -> Arc<Vec<GpuFacts>> {
        let identities = names(&facts);
        let gpus: Vec<GpuFacts> = facts.gpus.into_iter().filter_map(Result::ok).collect();
        let gpus = Arc::new(gpus);
        let deep = CachedFacts {
            identities,
            gpus: Arc::clone(&gpus),
        };
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(deep));
        gpus
    }

    fn deep(&self) -> Option<Arc<CachedFacts>> {
        self.facts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Returns the GPUs that can be selected.
pub fn candidates(gpus: &[GpuFacts]) -> Vec<Candidate> {
    gpus.iter()
        .map(|gpu| Candidate {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            minor: gpu.minor,
            busid: gpu.busid.clone(),
        })
        .collect()
}

/// Returns what is wrong with the driver and its GPUs.
fn problems(facts: &Facts) -> Vec<String> {
    let mut problems = Vec::new();
    for gpu in &facts.gpus {
        match gpu {
            Err(message) => problems.push(message.to_string()),
            Ok(gpu) => {
                let own = gpu.problems.iter();
                problems.extend(own.map(|text| format!("{}: {text}", gpu.uuid)));
            }
        }
    }
    let mut gpus = facts.gpus.iter().flatten();
    if let Err(message) = &facts.cuda {
        problems.push(format!("{message}: {UNKNOWN}"));
    } else if gpus.any(|gpu| gpu.problems.is_empty() && gpu.multiprocessors.is_none()) {
        // cuInit finds no device, though NVML does.
        problems.push(format!(
            "cuda: it finds no GPU (is /dev/nvidia-uvm missing, or CUDA_VISIBLE_DEVICES set?): {UNKNOWN}"
        ));
    }
    problems
}

fn versions(facts: &Facts) -> Versions {
    Versions {
        driver: facts.driver.clone(),
        cuda: facts.cuda.clone().map(CudaVersion::from_number),
    }
}

/// Returns the properties whose change invalidates the facts.
fn names(facts: &Facts) -> Vec<String> {
    let driver = facts.driver.clone().ok();
    let gpus = facts.gpus.iter().map(|gpu| match gpu {
        Ok(gpu) => {
            let mig: Vec<&str> = gpu.mig.iter().map(|mig| mig.uuid.as_str()).collect();
            format!("{} {} {} {}", gpu.uuid, gpu.minor, gpu.busid, mig.join(" "))
        }
        Err(_) => String::new(),
    });
    driver.into_iter().chain(gpus).collect()
}

/// An answer shared by requests.
#[derive(Debug)]
struct SharedAnswer<T> {
    last: Mutex<LastAnswer<T>>,
    turn: TurnLock<()>,
}

#[derive(Debug)]
struct LastAnswer<T> {
    /// Time of the query, and the answer.
    answer: Option<(Instant, Result<Arc<T>>)>,
    /// Number of queries currently allowed.
    credit: f64,
    /// Time of the last increase of the credit.
    counted: Instant,
}

impl<T> Default for SharedAnswer<T> {
    fn default() -> Self {
        Self {
            last: Mutex::new(LastAnswer {
                answer: None,
                credit: BURST,
                counted: Instant::now(),
            }),
            turn: TurnLock::new(()),
        }
    }
}

impl<T: Send + Sync + 'static> SharedAnswer<T> {
    /// Returns the answer to a new query, or that of another request.
    async fn get<F>(&self, question: impl FnOnce() -> F) -> Result<Arc<T>>
    where
        F: FnOnce() -> Result<T> + Send + 'static,
    {
        let came = Instant::now();
        if let Some(answer) = self.recent(came) {
            return answer;
        }
        let _turn = self.turn.lock().await;
        // Another request may have queried while this one waited.
        if let Some(answer) = self.since(came) {
            return answer;
        }
        let asked = Instant::now();
        let answer = match spawn_blocking(question()).await {
            Ok(answer) => answer.map(Arc::new),
            Err(error) => Err(Error::new(ErrorKind::System, error.to_string())),
        };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.answer = Some((asked, answer.clone()));
        answer
    }

    /// Returns the last answer if it is recent and there is no credit for another query; otherwise takes the credit.
    fn recent(&self, now: Instant) -> Option<Result<Arc<T>>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_duration_since(last.counted);
        last.credit = (last.credit + passed.as_secs_f64()).min(BURST);
        last.counted = now;
        if last.credit >= 1.0 {
            last.credit -= 1.0;
            return None;
        }
        let (asked, answer) = last.answer.as_ref()?;
        // Up to twice as old: another request is already querying, and this one need not wait for it.
        (now.saturating_duration_since(*asked) < 2 * SECOND).then(|| answer.clone())
    }

    fn since(&self, came: Instant) -> Option<Result<Arc<T>>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (asked, answer) = last.answer.as_ref()?;
        (*asked >= came).then(|| answer.clone())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn gpus_without_facts_from_cuda_have_a_reason() {
        let gpu = |multiprocessors| {
            let mut gpu = GpuFacts::default();
            gpu.uuid = "GPU-1".into();
            gpu.multiprocessors = multiprocessors;
            gpu
        };
        let problems = |cuda: Result<i32, DriverMessage>, gpu: GpuFacts| {
            let driver = Ok("570.1".to_owned());
            let gpus = vec![Ok(gpu)];
            super::problems(&Facts { driver, cuda, gpus }).join("; ")
        };
        assert_eq!(problems(Ok(12080), gpu(Some(8))), "");
        // cuInit finds no device.
        let said = problems(Ok(12080), gpu(None));
        assert!(
            said.starts_with("cuda: it finds no GPU ") && said.ends_with(UNKNOWN),
            "{said}"
        );
        let failed = DriverMessage("cuda: unknown error".into());
        let said = problems(Err(failed), gpu(None));
        assert_eq!(said, format!("cuda: unknown error: {UNKNOWN}"));
        // The GPU itself has a reason.
        let mut lost = gpu(None);
        lost.problems.push("cuda: invalid device".into());
        assert_eq!(problems(Ok(12080), lost), "GPU-1: cuda: invalid device");
    }

    #[tokio::test]
    async fn a_burst_asks_no_more_than_it_may() {
        let (shared, start) = (SharedAnswer::<u32>::default(), Instant::now());
        let count = Arc::new(AtomicU32::new(0));
        for round in 0..100u32 {
            let count = Arc::clone(&count);
            let answer = shared
                .get(|| move || Ok(count.fetch_add(1, Ordering::SeqCst)))
                .await;
            // The first requests get their own answers.
            if round < 6 {
                assert_eq!(*answer.unwrap(), round);
            }
        }
        // One more in every second that this takes.
        let most = 8 + start.elapsed().as_secs();
        let count = u64::from(count.load(Ordering::SeqCst));
        assert!((6..=most).contains(&count), "{count}");
    }

    #[tokio::test]
    async fn failures_are_answers_too() {
        let shared = SharedAnswer::<u32>::default();
        for _ in 0..50 {
            let answer = shared
                .get(|| || Err(Error::new(ErrorKind::System, "x")))
                .await;
            assert_eq!(answer.unwrap_err().message(), "x");
        }
        tokio::time::sleep(Duration::from_millis(1100)).await;
        assert_eq!(*shared.get(|| || Ok(1)).await.unwrap(), 1);
    }
}
