//! Publishes the devices of this node as ResourceSlices, and keeps them there.
//!
//! The kubelet deletes all slices of its node when it starts, and those of a driver that is away for 30 seconds. So what
//! the API server has is watched, and compared with what the machine has at each change of either.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{Device, ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_stream::StreamExt as _;

use super::{Failure, answer};
use crate::causes::chain;
use crate::claims::Claims;
use crate::devices;
use crate::kubelet::pods::{Given, Pods};
use crate::lock;
use crate::machine::World;
use crate::options::DRIVER;

/// The most devices of a slice if one has taints.
const MAX_DEVICES: usize = 64;
/// Waiting times after a failed call: each twice as long as the one before.
const SOON: Duration = Duration::from_millis(200);
const LATE: Duration = Duration::from_secs(5);
/// How often the kubelet is asked what device plugins have given. It may take long to answer.
const LOOK: Duration = Duration::from_secs(5);
/// How long a slice may stay the way it is, so that a device that flaps does not flood the API server.
const PAUSE: Duration = Duration::from_millis(100);

/// Publishes as long as the program runs: after the kubelet has said that the driver is registered, since a pod that is
/// scheduled before fails once and waits.
pub(crate) async fn publish(
    claims: Claims,
    (lock, path): (File, PathBuf),
    mut registered: watch::Receiver<bool>,
) {
    let (client, node) = (claims.client.clone(), claims.node.clone());
    let mut world = claims.world.clone();
    // The sender lives as long as the program.
    let _ = registered.wait_for(|is| *is).await;
    // In a rolling update, two versions would replace each other's slices for ever.
    let Ok(Ok(_lock)) = spawn_blocking(move || lock::wait(lock, &path)).await else {
        return;
    };
    let mut publisher = Publisher {
        owner: owner(&client, &node).await,
        api: Api::all(client),
        node,
        known: BTreeMap::new(),
        kept: BTreeMap::new(),
        moving: Vec::new(),
        generation: 0,
        has_taints: true,
        is_listed: false,
    };
    let fields = format!("spec.driver={DRIVER},spec.nodeName={}", publisher.node);
    let events = watcher(publisher.api.clone(), Config::default().fields(&fields));
    let mut events = pin!(events.backoff(Delay(SOON)));
    let (mut delay, mut given) = (Delay(SOON), claims.pods.seen.subscribe());
    tokio::spawn(look(claims.pods.clone()));
    // When to compare; None until something changes.
    let mut due = None::<Instant>;
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(event)) => {
                    publisher.take(event);
                    due = Some(Instant::now());
                }
                Some(Err(error)) => log::warn!("the watch of ResourceSlices: {}", chain(&error)),
                // It never ends.
                None => return,
            },
            // Prepare looks, too.
            _ = given.changed() => due = Some(Instant::now()),
            _ = world.changed() => due = Some(Instant::now() + PAUSE),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                due = None;
                if !publisher.is_listed {
                    continue;
                }
                let wanted = world.borrow_and_update().clone();
                let given = given.borrow_and_update().clone();
                match claims.name(&wanted).await {
                    Ok(moving) => publisher.moving = moving,
                    Err(error) => {
                        log::warn!("{}", error.message());
                        due = Some(Instant::now() + LATE);
                        continue;
                    }
                }
                due = (!publisher.moving.is_empty()).then(|| Instant::now() + LATE);
                match publisher.compare(&wanted, &given).await {
                    Ok(()) => delay.reset(),
                    Err(failure) => {
                        log::warn!("the devices cannot be published: {failure}");
                        due = delay.next().map(|delay| Instant::now() + delay);
                    }
                }
            }
        }
    }
}

/// Asks the kubelet what device plugins have given, for ever.
async fn look(pods: Pods) {
    loop {
        if let Err(error) = pods.given().await {
            log::warn!("{}", error.message());
        }
        sleep(LOOK).await;
    }
}

struct Delay(Duration);

impl Iterator for Delay {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let delay = self.0;
        self.0 = (2 * delay).min(LATE);
        Some(delay)
    }
}

impl Backoff for Delay {
    fn reset(&mut self) {
        self.0 = SOON;
    }
}

/// Returns the reference that makes the slices go with the node, as soon as the API server has the node.
async fn owner(client: &Client, node: &str) -> OwnerReference {
    let (nodes, mut delay) = (Api::<Node>::all(client.clone()), Delay(SOON));
    let found = loop {
        match answer(nodes.get(node)).await {
            Ok(found) => break found,
            Err(failure) => log::warn!("the node: {failure}"),
        }
        sleep(delay.next().unwrap_or(LATE)).await;
    };
    OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.into(),
        uid: found.metadata.uid.unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

struct Publisher {
    api: Api<ResourceSlice>,
    node: String,
    owner: OwnerReference,
    /// What the API server has, by name.
    known: BTreeMap<String, ResourceSlice>,
    /// What was written last under a name, and what the API server kept of it.
    kept: BTreeMap<String, [Vec<Device>; 2]>,
    /// Names of devices that must not be claimed yet.
    moving: Vec<String>,
    /// The newest generation that was seen.
    generation: i64,
    /// The API server keeps taints.
    has_taints: bool,
    /// `known` is whole.
    is_listed: bool,
}

impl Publisher {
    fn take(&mut self, event: Event<ResourceSlice>) {
        match event {
            Event::Init => {
                self.known.clear();
                self.is_listed = false;
            }
            Event::Apply(slice) | Event::InitApply(slice) => self.remember(slice),
            Event::Delete(slice) => {
                let name = slice.metadata.name.unwrap_or_default();
                self.known.remove(&name);
                self.kept.remove(&name);
            }
            Event::InitDone => self.is_listed = true,
        }
    }

    fn remember(&mut self, slice: ResourceSlice) {
        self.generation = self.generation.max(slice.spec.pool.generation);
        let name = slice.metadata.name.clone().unwrap_or_default();
        self.known.insert(name, slice);
    }

    /// Makes the API server's slices those of the machine: an empty one if it has no device.
    async fn compare(&mut self, world: &World, given: &Given) -> Result<(), Failure> {
        loop {
            let mut devices = match world {
                Ok(machine) => {
                    devices::published(machine, Path::new("/sys"), self.has_taints, given)
                }
                Err(_) => Vec::new(),
            };
            devices.retain(|device| !self.moving.contains(&device.name));
            let had_taints = self.has_taints;
            for step in steps(&self.known, &self.kept, &devices, self.generation) {
                self.execute(step).await?;
            }
            // The API server has dropped them: without taints such devices are left out.
            if self.has_taints == had_taints {
                return Ok(());
            }
        }
    }

    async fn execute(&mut self, step: Step) -> Result<(), Failure> {
        let (old, devices, generation, count) = match step {
            Step::Delete(name) => {
                let done = answer(self.api.delete(&name, &DeleteParams::default())).await;
                self.known.remove(&name);
                return match done {
                    Err(failure) if failure.code != 404 => Err(failure),
                    _ => Ok(()),
                };
            }
            Step::Write {
                old,
                index,
                devices,
                generation,
                count,
            } => {
                let old = old
                    .and_then(|name| self.known.get(&name))
                    .map(|slice| slice.metadata.clone());
                let new = || ObjectMeta {
                    // The order of names is that of allocation.
                    generate_name: Some(format!("{index:05x}-{DRIVER}-{}-", self.node)),
                    ..ObjectMeta::default()
                };
                (old.unwrap_or_else(new), devices, generation, count)
            }
        };
        let slice = ResourceSlice {
            metadata: ObjectMeta {
                owner_references: Some(vec![self.owner.clone()]),
                managed_fields: None,
                ..old
            },
            spec: ResourceSliceSpec {
                driver: DRIVER.into(),
                node_name: Some(self.node.clone()),
                pool: ResourcePool {
                    name: self.node.clone(),
                    generation,
                    resource_slice_count: count,
                },
                devices: Some(devices.clone()),
                ..ResourceSliceSpec::default()
            },
        };
        let params = PostParams::default();
        let name = slice.metadata.name.clone();
        let written = match &name {
            Some(name) => answer(self.api.replace(name, &params, &slice)).await,
            None => answer(self.api.create(&params, &slice)).await,
        };
        let written = match (written, name) {
            // Somebody has deleted it, and the watch will say so too.
            (Err(failure), Some(name)) if failure.code == 404 => {
                self.known.remove(&name);
                return Err(failure);
            }
            (written, _) => written?,
        };
        let kept = without_times(&written);
        let has_taints = |devices: &[Device]| devices.iter().any(|device| device.taints.is_some());
        if has_taints(&devices) && !has_taints(&kept) {
            log::info!("The API server keeps no taints of devices: sick ones are left out");
            self.has_taints = false;
        } else if kept != devices {
            log::debug!("the API server has changed a slice");
        }
        let name = written.metadata.name.clone().unwrap_or_default();
        log::info!(
            "Published {} devices in {name}, generation {generation}",
            devices.len()
        );
        self.kept.insert(name, [devices, kept]);
        self.remember(written);
        Ok(())
    }
}

/// A call that brings the API server nearer to what the machine has.
#[derive(Debug, PartialEq)]
enum Step {
    Write {
        /// The slice to replace; None for a new one.
        old: Option<String>,
        index: usize,
        devices: Vec<Device>,
        generation: i64,
        count: i64,
    },
    Delete(String),
}

/// Returns the calls that are needed. One changed slice keeps the generation; more than one, or another number of them,
/// raise it, since a pool counts only if all slices of its newest generation are there.
fn steps(
    known: &BTreeMap<String, ResourceSlice>,
    kept: &BTreeMap<String, [Vec<Device>; 2]>,
    devices: &[Device],
    generation: i64,
) -> Vec<Step> {
    let mut wanted: Vec<Vec<Device>> = devices.chunks(MAX_DEVICES).map(<[_]>::to_vec).collect();
    if wanted.is_empty() {
        wanted.push(Vec::new());
    }
    let count = i64::try_from(wanted.len()).unwrap_or(i64::MAX);
    let fits = |slice: &ResourceSlice, devices: &Vec<Device>| {
        let found = without_times(slice);
        let name = slice.metadata.name.as_deref().unwrap_or_default();
        // What was dropped once would be dropped again.
        let is_kept = kept
            .get(name)
            .is_some_and(|[sent, kept]| sent == devices && *kept == found);
        is_kept || found == *devices
    };
    let is_pool = |slice: &ResourceSlice| {
        let pool = &slice.spec.pool;
        pool.generation == generation
            && pool.resource_slice_count == count
            && Some(&pool.name) == slice.spec.node_name.as_ref()
    };
    let is_complete = known.len() == wanted.len() && known.values().all(is_pool);
    let pairs = known.values().zip(&wanted);
    let changed = pairs
        .filter(|(slice, devices)| !fits(slice, devices))
        .count();
    if is_complete && changed == 0 {
        return Vec::new();
    }
    let is_alone = is_complete && changed == 1;
    let generation = if is_alone { generation } else { generation + 1 };
    let mut old = known.iter();
    let mut steps = Vec::new();
    for (index, devices) in wanted.into_iter().enumerate() {
        let old = old.next();
        if is_alone && old.is_some_and(|(_, slice)| fits(slice, &devices)) {
            continue;
        }
        let old = old.map(|(name, _)| name.clone());
        steps.push(Step::Write {
            old,
            index,
            devices,
            generation,
            count,
        });
    }
    steps.extend(old.map(|(name, _)| Step::Delete(name.clone())));
    steps
}

/// Returns the devices of a slice without what the API server adds: when they were tainted.
fn without_times(slice: &ResourceSlice) -> Vec<Device> {
    let mut devices = slice.spec.devices.clone().unwrap_or_default();
    for taint in devices
        .iter_mut()
        .flat_map(|device| device.taints.iter_mut().flatten())
    {
        taint.time_added = None;
    }
    devices
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn devices(count: usize) -> Vec<Device> {
        let device = |n| Device {
            name: format!("gpu-{n}"),
            ..Device::default()
        };
        (0..count).map(device).collect()
    }

    /// Executes steps as an API server does.
    fn execute(known: &mut BTreeMap<String, ResourceSlice>, steps: Vec<Step>) -> i64 {
        let mut newest = 0;
        for step in steps {
            match step {
                Step::Delete(name) => {
                    known.remove(&name);
                }
                Step::Write {
                    old,
                    index,
                    devices,
                    generation,
                    count,
                } => {
                    let name = old.unwrap_or_else(|| format!("{index:05x}"));
                    let mut slice = ResourceSlice::default();
                    slice.metadata.name = Some(name.clone());
                    slice.spec.node_name = Some("n1".into());
                    slice.spec.pool = ResourcePool {
                        name: "n1".into(),
                        generation,
                        resource_slice_count: count,
                    };
                    slice.spec.devices = Some(devices);
                    known.insert(name, slice);
                    newest = generation;
                }
            }
        }
        newest
    }

    #[test]
    fn a_pool_is_whole_after_each_change() {
        let (mut known, kept, mut generation) = (BTreeMap::new(), BTreeMap::new(), 0);
        for (count, calls, expected) in [
            (0, 1, 1),   // an empty slice rather than none
            (3, 1, 1),   // one changed slice
            (112, 2, 2), // 16 GPUs with seven MIG devices
            (111, 1, 2),
            (64, 2, 3), // one is replaced, one deleted
            (0, 1, 3),
        ] {
            let wanted = steps(&known, &kept, &devices(count), generation);
            assert_eq!(wanted.len(), calls, "{count}");
            generation = generation.max(execute(&mut known, wanted));
            assert_eq!(generation, expected, "{count}");
            assert!(steps(&known, &kept, &devices(count), generation).is_empty());
        }
        // The kubelet has deleted them.
        known.clear();
        let wanted = steps(&known, &kept, &devices(2), generation);
        assert!(matches!(
            &wanted[..],
            [Step::Write {
                old: None,
                generation: 4,
                ..
            }]
        ));
    }

    #[test]
    fn what_the_server_drops_is_not_written_again() {
        let mut known = BTreeMap::new();
        let sent = vec![Device {
            allow_multiple_allocations: Some(true),
            ..devices(1).remove(0)
        }];
        let wanted = steps(&known, &BTreeMap::new(), &sent, 0);
        execute(&mut known, wanted);
        let slice = known.get_mut("00000").unwrap();
        slice.spec.devices = Some(devices(1));
        let kept = BTreeMap::from([("00000".to_owned(), [sent.clone(), devices(1)])]);
        assert!(steps(&known, &kept, &sent, 1).is_empty());
        // Another program has changed it.
        known.get_mut("00000").unwrap().spec.devices = Some(Vec::new());
        assert_eq!(steps(&known, &kept, &sent, 1).len(), 1);
    }
}
