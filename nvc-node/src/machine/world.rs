//! Makes one picture of the machine out of what its sources say. Pure: time and events come in from outside.

use std::collections::BTreeMap;

use libnvc::host::events::GpuEvent;

use super::look::{Found, Look};
use super::verdicts::{Kept, Verdict};
use super::xids::{Class, class};
use super::{Gpu, Health, Machine, Mig, World};

/// Seconds without any answer of NVML after which nothing counts as well.
const MAX_SILENCE: u64 = 60;
/// Seconds for which a GPU that was down must answer before it is well.
const SETTLED: u64 = 10;

/// What one of the sources says.
#[derive(Clone, Debug)]
pub(super) enum News {
    Look(Look),
    Event(GpuEvent),
    /// Only time has passed.
    Nothing,
}

/// What decides about verdicts.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    pub(super) ignored: Vec<u64>,
    /// Seconds of quiet after an error that passes.
    pub(super) quiet: u64,
}

/// All that is known.
#[derive(Clone, Debug)]
pub(super) struct State {
    rules: Rules,
    /// Versions of driver and CUDA, or why there is no driver.
    driver: Result<(String, String), String>,
    /// By UUID.
    gpus: BTreeMap<String, Known>,
    verdicts: BTreeMap<String, Verdict>,
    /// When NVML last answered, in seconds since the boot.
    answered: u64,
}

#[derive(Clone, Debug)]
struct Known {
    gpu: Gpu,
    /// NVML's index, if it answers.
    index: Option<u32>,
    /// Why it cannot be used, by its own words.
    failure: Option<String>,
}

impl State {
    pub(super) fn new(rules: Rules, kept: Kept) -> Self {
        let known = |gpu: Gpu| {
            let known = Known {
                gpu,
                index: None,
                failure: Some("it has not answered since the start".into()),
            };
            (known.gpu.uuid.clone(), known)
        };
        Self {
            rules,
            driver: Err("NVML has not answered yet".into()),
            gpus: kept.gpus.into_iter().map(known).collect(),
            verdicts: kept.verdicts,
            answered: 0,
        }
    }

    /// Returns what a restart must not forget.
    pub(super) fn kept(&self) -> Kept {
        let is_sick = |known: &&Known| self.verdicts.keys().any(|uuid| known.gpu.has(uuid));
        Kept {
            verdicts: self.verdicts.clone(),
            gpus: self
                .gpus
                .values()
                .filter(is_sick)
                .map(|known| known.gpu.clone())
                .collect(),
        }
    }

    /// Returns NVML's indices of the GPUs whose events are worth waiting for, with their UUIDs. A lost GPU is not: whoever
    /// waits for its events keeps it from being reset.
    pub(super) fn watchable(&self) -> Vec<(u32, String)> {
        let is_lost = |known: &Known| {
            let verdict = self.verdicts.get(&known.gpu.uuid);
            known.failure.is_some()
                || verdict.is_some_and(|it| class(it.xid, &self.rules.ignored) == Class::Lost)
        };
        let known = self.gpus.values().filter(|known| !is_lost(known));
        let mut all: Vec<_> = known
            .filter_map(|known| Some((known.index?, known.gpu.uuid.clone())))
            .collect();
        all.sort();
        if self.driver.is_ok() { all } else { Vec::new() }
    }

    /// Takes in what a source says at a moment, in seconds since the boot.
    pub(super) fn fold(&mut self, news: News, now: u64) {
        match news {
            // A look follows.
            News::Nothing | News::Event(GpuEvent::Changed) => {}
            News::Event(GpuEvent::Xid {
                gpu,
                instance,
                code,
            }) => self.xid(&gpu, instance, code, now),
            News::Look(Look::Silence(reason)) => {
                if self.answered == 0 {
                    self.driver = Err(reason);
                }
            }
            News::Look(Look::NoDriver { reason, is_loaded }) => {
                if !is_loaded {
                    // All of them start anew when it is loaded again.
                    self.fail(|_| Some(reason.clone()), now);
                }
                self.driver = Err(reason);
                self.answered = now;
            }
            News::Look(Look::Driver {
                version,
                cuda,
                gpus,
            }) => {
                self.driver = Ok((version, cuda));
                self.answered = now;
                self.look(gpus, now);
            }
        }
    }

    /// Returns the picture.
    pub(super) fn world(&self, now: u64) -> World {
        let (driver, cuda) = self.driver.clone()?;
        let mut gpus: Vec<Gpu> = self
            .gpus
            .values()
            .map(|known| self.judged(known, now))
            .collect();
        gpus.sort_by(|one, other| (one.minor, &one.uuid).cmp(&(other.minor, &other.uuid)));
        Ok(Machine { driver, cuda, gpus })
    }

    fn judged(&self, known: &Known, now: u64) -> Gpu {
        let verdict = self.verdicts.get(&known.gpu.uuid);
        let silent = now.saturating_sub(self.answered);
        let failure = known.failure.clone().or_else(|| {
            (silent > MAX_SILENCE).then(|| format!("NVML has not answered for {silent} s"))
        });
        let health = |verdict: Option<&Verdict>, failure: Option<String>| {
            let xid = verdict.map(|verdict| verdict.xid);
            let of_xid = |xid| match class(xid, &self.rules.ignored) {
                Class::Lost => format!("XID {xid}: it is unusable until it is reset"),
                _ => format!("XID {xid}: see the kernel log"),
            };
            match failure.or_else(|| xid.map(of_xid)) {
                Some(reason) => Health::Sick { reason, xid },
                None => Health::Well,
            }
        };
        let mig = |mig: &Mig| Mig {
            health: health(self.verdicts.get(&mig.uuid), None),
            ..mig.clone()
        };
        Gpu {
            health: health(verdict, failure),
            migs: known.gpu.migs.iter().map(mig).collect(),
            ..known.gpu.clone()
        }
    }

    fn xid(&mut self, gpu: &str, instance: Option<(u32, Option<u32>)>, xid: u64, now: u64) {
        let severity = |xid| class(xid, &self.rules.ignored);
        if severity(xid) == Class::Program {
            log::debug!("GPU {gpu}: XID {xid} is of a program");
            return;
        }
        let migs = self.gpus.get(gpu).map(|known| known.gpu.migs.as_slice());
        let is_meant = |mig: &&Mig| {
            instance.is_some_and(|(gi, ci)| {
                mig.instances.0 == gi && ci.is_none_or(|ci| ci == mig.instances.1)
            })
        };
        let migs = migs.unwrap_or_default().iter().filter(is_meant);
        let mut whom: Vec<String> = migs.map(|mig| mig.uuid.clone()).collect();
        // A GPU that is lost is so for all of its MIG devices.
        if whom.is_empty() || severity(xid) == Class::Lost {
            whom = vec![gpu.to_owned()];
        }
        for uuid in whom {
            let known = self.verdicts.get(&uuid);
            // The first of equal ones stays, so that a stream of them changes nothing but the time.
            let worst = known.filter(|known| severity(known.xid) >= severity(xid));
            let verdict = Verdict {
                xid: worst.map_or(xid, |worst| worst.xid),
                since: now,
                was_down: known.is_some_and(|known| known.was_down),
            };
            self.verdicts.insert(uuid, verdict);
        }
    }

    fn look(&mut self, answers: Vec<Result<Found, String>>, now: u64) {
        let mut found = BTreeMap::new();
        let mut failures = BTreeMap::new();
        for (index, answer) in (0..).zip(answers) {
            match answer {
                Ok(gpu) => drop(found.insert(gpu.gpu.uuid.clone(), (index, gpu))),
                Err(reason) => drop(failures.insert(index, reason)),
            }
        }
        // Another GPU in its place: the old one is gone for good.
        let is_replaced = |known: &Known| {
            let mut others = found.values().map(|(_, found)| &found.gpu);
            others.any(|other| {
                other.uuid != known.gpu.uuid
                    && (other.minor == known.gpu.minor || other.busid == known.gpu.busid)
            })
        };
        let verdicts = &self.verdicts;
        self.gpus.retain(|uuid, known| {
            let is_missed = !failures.is_empty() || verdicts.contains_key(uuid);
            found.contains_key(uuid) || is_missed && !is_replaced(known)
        });
        self.fail(
            |known| {
                if found.contains_key(&known.gpu.uuid) {
                    return None;
                }
                let own = known.index.and_then(|index| failures.get(&index));
                let reason = own.or_else(|| failures.values().next()).cloned();
                Some(reason.unwrap_or_else(|| "the driver does not list it".into()))
            },
            now,
        );
        for (uuid, (index, Found { gpu, needs })) in found {
            let failure = match needs {
                None | Some(0) => None,
                Some(2) => Some("it needs a reboot of the machine"),
                Some(_) => Some("it needs a reset"),
            };
            self.recover(&gpu, needs, now);
            let known = Known {
                gpu,
                index: Some(index),
                failure: failure.map(Into::into),
            };
            self.gpus.insert(uuid, known);
        }
        // A MIG device that was made anew is well.
        let gpus = &self.gpus;
        let is_known = |uuid: &str| gpus.values().any(|known| known.gpu.has(uuid));
        self.verdicts.retain(|uuid, _| is_known(uuid));
    }

    /// Notes which of the GPUs do not answer, and that their next answers are those of GPUs that were reset.
    fn fail(&mut self, reason: impl Fn(&Known) -> Option<String>, now: u64) {
        for known in self.gpus.values_mut() {
            let Some(reason) = reason(known) else {
                continue;
            };
            known.failure = Some(reason);
            was_down(&mut self.verdicts, &known.gpu, now);
        }
    }

    /// Ends the verdicts about a GPU that answers, if it has recovered.
    fn recover(&mut self, gpu: &Gpu, needs: Option<u32>, now: u64) {
        if !matches!(needs, None | Some(0)) {
            was_down(&mut self.verdicts, gpu, now);
            return;
        }
        let (ignored, quiet) = (&self.rules.ignored, self.rules.quiet);
        let is_over = |verdict: &Verdict| {
            let since = now.saturating_sub(verdict.since);
            if verdict.was_down {
                return since >= SETTLED;
            }
            // A driver that knows what a lost GPU needs says if it needs nothing any more.
            let may_pass = class(verdict.xid, ignored) < Class::Lost || needs == Some(0);
            may_pass && since >= quiet
        };
        self.verdicts
            .retain(|uuid, verdict| !gpu.has(uuid) || !is_over(verdict));
    }
}

/// Notes in the verdicts about a GPU and its MIG devices that it is down.
fn was_down(verdicts: &mut BTreeMap<String, Verdict>, gpu: &Gpu, now: u64) {
    for (_, verdict) in verdicts.iter_mut().filter(|(uuid, _)| gpu.has(uuid)) {
        verdict.was_down = true;
        verdict.since = now;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
