//! Carries out the kubelet's calls for one claim: gives it what it was allocated, as the machine is now, or says why not.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::resource::v1::DeviceRequestAllocationResult;
use kube::Client;
use libnvc::{Error, ErrorKind, Result};
use tokio::task::spawn_blocking;

use crate::api::claims::{Allocated, allocated};
use crate::api::events::Events;
use crate::devices;
use crate::grants::{Grant, Grants, Record, check_uid, qualified};
use crate::kubelet::pods::{Given, Pods};
use crate::machine::{Health, Watch, World};
use crate::proto::dra::{Claim, Device};

/// How often the specifications of claims are looked for.
const KEEP: Duration = Duration::from_secs(5);

/// Gives devices to claims of a node.
#[derive(Clone)]
pub(crate) struct Claims {
    pub(crate) client: Client,
    pub(crate) node: String,
    pub(crate) world: Watch,
    pub(crate) grants: Arc<Grants>,
    pub(crate) pods: Pods,
    pub(crate) events: Events,
}

impl Claims {
    /// Gives a claim its devices. Whether it had them makes no difference.
    ///
    /// # Errors
    /// It cannot have one of them; then it has none.
    pub(crate) async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>> {
        let Claim {
            namespace,
            name,
            uid,
        } = claim;
        check_uid(uid)?;
        let Allocated { results, since } = allocated(&self.client, namespace, name, uid).await?;
        let world = self.world.borrow().clone();
        let driver = world
            .as_ref()
            .as_ref()
            .map(|machine| machine.driver.clone());
        let mut grants: Vec<Grant> = Vec::new();
        for result in &results {
            let grant = self.grant(result)?;
            if grants.iter().all(|known| known.uuid != grant.uuid) {
                grants.push(grant);
            }
        }
        let record = Record {
            uid: uid.clone(),
            namespace: namespace.clone(),
            name: name.clone(),
            grants,
            since,
            driver: driver.unwrap_or_default(),
        };
        self.check_alone(&record).await?;
        let is_new = self.give(record.clone()).await?;
        // The kubelet shows what a plugin gives only after that has given it, so two at the same moment see each other
        // only now.
        if let Err(error) = self.check_alone(&record).await {
            if !is_new {
                // A container of the claim may run, after a restart of the kubelet.
                return Err(error);
            }
            let uid = uid.clone();
            self.locked(move |grants| grants.lock()?.take_back(&uid))
                .await?;
            return Err(error);
        }
        Ok(results
            .into_iter()
            .map(|result| device(uid, result))
            .collect())
    }

    /// Takes a claim's devices back. It may be unknown.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub(crate) async fn unprepare(&self, claim: &Claim) -> Result<()> {
        check_uid(&claim.uid)?;
        let uid = claim.uid.clone();
        self.locked(move |grants| grants.lock()?.take_back(&uid))
            .await
    }

    /// Keeps the specifications of claims that have been given devices, for ever: makes those again that are gone, or of
    /// another driver than now. Says which device a plugin has given since.
    pub(crate) async fn keep(self) {
        let (mut world, mut is_thorough) = (self.world.clone(), true);
        let mut given = self.pods.seen.subscribe();
        let mut said = BTreeSet::new();
        loop {
            let now = world.borrow_and_update().clone();
            let records = self.locked(|grants| grants.lock()?.records()).await;
            let records = records.unwrap_or_else(|error| {
                log::warn!("{}", error.message());
                Vec::new()
            });
            let plugins = given.borrow_and_update().clone();
            let mut failed = BTreeSet::new();
            for record in &records {
                let claim = format!("{}/{}", record.namespace, record.name);
                if let Some((device, pod)) = given_twice(record, &plugins) {
                    let text = format!(
                        "{device} is given to the claim {claim}, and by a device plugin to the pod {pod}"
                    );
                    if !said.contains(&text) {
                        self.events.warn("GivenTwice", "Comparing", &text).await;
                    }
                    failed.insert(text);
                }
                let Ok(machine) = &*now else { continue };
                let (file, driver) = (record.uid.clone(), machine.driver.clone());
                let renew =
                    move |grants: &Grants| grants.lock()?.renew(&file, &driver, is_thorough);
                match self.locked(renew).await {
                    Ok(false) => {}
                    Ok(true) => log::info!("Made the specification of {claim} again"),
                    Err(error) => {
                        let text = error.message();
                        let text = format!("{claim} has no specification now: {text}");
                        if !said.contains(&text) {
                            log::warn!("{text}");
                        }
                        failed.insert(text);
                    }
                }
            }
            said = failed;
            is_thorough = tokio::select! {
                _ = world.changed() => true,
                _ = given.changed() => false,
                () = tokio::time::sleep(KEEP) => false,
            };
        }
    }

    /// Remembers the names of a machine's devices, before they are published. Returns those that must not be yet.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) async fn name(&self, world: &World) -> Result<Vec<String>> {
        let entries = world.iter().flat_map(devices::entries);
        let names: Vec<_> = entries
            .map(|entry| (entry.name(), entry.gpu.uuid.clone()))
            .collect();
        let now = devices::now();
        self.locked(move |grants| grants.lock()?.name(&names, now))
            .await
    }

    /// Returns the device that was allocated, as the machine is now.
    fn grant(&self, result: &DeviceRequestAllocationResult) -> Result<Grant> {
        let refuse = |text: String| Err(Error::new(ErrorKind::NotFound, text));
        let (device, pool) = (&result.device, &result.pool);
        if *pool != self.node {
            return refuse(format!(
                "{device} is one of the pool {pool}, and this node is {}",
                self.node
            ));
        }
        let world = self.world.borrow().clone();
        let machine = match &*world {
            World::Ok(machine) => machine,
            World::Err(reason) => return refuse(format!("there is no {device} now: {reason}")),
        };
        let Some(entry) = devices::entries(machine).find(|entry| entry.name() == *device) else {
            return refuse(format!("there is no {device} now"));
        };
        let tolerations = result.tolerations.as_deref().unwrap_or_default();
        if let Health::Sick { reason, .. } = entry.health()
            && !devices::is_tolerable(entry.health(), tolerations)
        {
            return refuse(format!("{device} is not well: {reason}"));
        }
        Ok(Grant {
            name: device.clone(),
            uuid: entry.uuid().to_owned(),
            gpu: entry.gpu.uuid.clone(),
            is_shared: result.admin_access.unwrap_or(false),
        })
    }

    /// Checks that no device plugin has given a device.
    ///
    /// # Errors
    /// One has, or the kubelet does not say.
    async fn check_alone(&self, record: &Record) -> Result<()> {
        let given = self.pods.given().await?;
        given_twice(record, &given).map_or(Ok(()), |(device, pod)| {
            let text = format!("{device} is given to the pod {pod} by a device plugin");
            let error = Error::new(ErrorKind::NotFound, text);
            Err(error.hint("let one program give the GPUs of a node"))
        })
    }

    /// Writes what a claim gets, unless another one has a device. Returns true if it had nothing before.
    async fn give(&self, record: Record) -> Result<bool> {
        self.locked(move |grants| {
            let locked = grants.lock()?;
            if let Some(other) = conflict(&locked.records()?, &record) {
                let Record {
                    namespace, name, ..
                } = other;
                // Also of a claim that the API server no longer has: its container may still run.
                let text = format!("the claim {namespace}/{name} has the same device");
                let error = Error::new(ErrorKind::NotFound, text);
                let path = grants.record(&other.uid);
                return Err(error.hint(format!(
                    "the kubelet gives it back when the pod has ended; if the kubelet has forgotten that claim, remove {}",
                    path.display()
                )));
            }
            let is_new = !grants.record(&record.uid).exists();
            locked.give(&record)?;
            Ok(is_new)
        })
        .await
    }

    /// Runs what waits for the driver, a lock or a disk.
    async fn locked<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Grants) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let grants = Arc::clone(&self.grants);
        let done = spawn_blocking(move || work(&grants)).await;
        done.unwrap_or_else(|error| Err(Error::new(ErrorKind::System, error.to_string())))
    }
}

/// Returns which of a claim's devices a plugin has given, and the pod that has it.
fn given_twice<'r>(record: &'r Record, given: &'r Given) -> Option<(&'r str, &'r str)> {
    let mut grants = record.grants.iter().filter(|grant| !grant.is_shared);
    grants.find_map(|grant| {
        let pod = given.get(&grant.uuid).or_else(|| given.get(&grant.gpu))?;
        Some((grant.name.as_str(), pod.as_str()))
    })
}

/// Returns the record of another claim that has one of the devices.
fn conflict<'r>(records: &'r [Record], wanted: &Record) -> Option<&'r Record> {
    let has = |other: &Record| {
        let mut pairs = wanted
            .grants
            .iter()
            .flat_map(|one| other.grants.iter().map(move |two| (one, two)));
        pairs.any(|(one, two)| one.overlaps(two) && !one.is_shared && !two.is_shared)
    };
    let mut others = records.iter().filter(|other| other.uid != wanted.uid);
    others.find(|other| has(other))
}

/// Returns what the kubelet passes on to the engine.
fn device(uid: &str, result: DeviceRequestAllocationResult) -> Device {
    // Of a subrequest, the kubelet knows the request alone.
    let request = result.request.split('/').next().unwrap_or_default();
    Device {
        request_names: vec![request.to_owned()],
        cdi_device_ids: vec![qualified(uid, &result.device)],
        pool_name: result.pool,
        device_name: result.device,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_and_its_parts_are_not_given_to_two() {
        let record = |uid: &str, uuid: &str, gpu: &str, is_shared| Record {
            uid: uid.into(),
            namespace: "ns".into(),
            name: uid.into(),
            grants: vec![Grant {
                name: uuid.to_lowercase(),
                uuid: uuid.into(),
                gpu: gpu.into(),
                is_shared,
            }],
            since: 0,
            driver: String::new(),
        };
        let known = [
            record("a", "GPU-0", "GPU-0", false),
            record("b", "MIG-1", "GPU-1", false),
            record("c", "GPU-2", "GPU-2", true),
        ];
        let conflict = |uuid, gpu, is_shared| {
            let found = conflict(&known, &record("d", uuid, gpu, is_shared));
            found.map(|other| other.uid.clone())
        };
        let is = |uid: &str| Some(uid.to_owned());
        assert_eq!(conflict("GPU-0", "GPU-0", false), is("a"));
        assert_eq!(conflict("GPU-0", "GPU-0", true), None);
        assert_eq!(conflict("MIG-0", "GPU-0", false), is("a"));
        assert_eq!(conflict("MIG-1", "GPU-1", false), is("b"));
        assert_eq!(conflict("MIG-2", "GPU-1", false), None);
        // Its container sees the whole GPU as soon as MIG mode is off.
        assert_eq!(conflict("GPU-1", "GPU-1", false), is("b"));
        assert_eq!(conflict("GPU-2", "GPU-2", false), None);
    }
}
