//! Carries out the kubelet's calls for one claim: gives it what it was allocated, as the machine is now, or says why not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use k8s_openapi::api::resource::v1::DeviceRequestAllocationResult;
use kube::Client;
use libnvc::{Error, ErrorKind, Result};
use tokio::time::sleep;

use crate::api::claims::{Allocated, allocated};
use crate::api::events::Events;
use crate::devices;
use crate::grants::{Grant, Record, check_uid, qualified};
use crate::kubelet::pods::{Given, Pods};
use crate::machine::{Health, Watch, World};
use crate::proto::dra::{Claim, Device};
use crate::sides::{Call, MachineSide};

/// How often claims are compared with what plugins have given.
const INTERVAL: Duration = Duration::from_secs(5);

/// Gives devices to claims of a node.
#[derive(Clone)]
pub(crate) struct Claims {
    pub(crate) client: Client,
    pub(crate) node: String,
    pub(crate) world: Watch,
    pub(crate) machine: Arc<MachineSide>,
    pub(crate) pods: Pods,
    pub(crate) events: Events,
    pub(crate) turns: Turns,
}

/// Whose turn it is with a claim, by its UID.
pub(crate) type Turns = Arc<Mutex<BTreeMap<String, Arc<Turn>>>>;
/// Goes to those who wait in the order in which they came.
type Turn = tokio::sync::Mutex<()>;

impl Claims {
    /// Gives a claim its devices, as long as the caller is there. Whether it had them makes no difference.
    ///
    /// # Errors
    /// It cannot have one of them; then it has none.
    pub(crate) async fn prepare(self, claim: Claim, caller: Weak<()>) -> Result<Vec<Device>> {
        let Claim {
            namespace,
            name,
            uid,
        } = claim;
        let whose = format!("{namespace}/{name}");
        check_uid(&uid)?;
        let allocated = allocated(&self.client, &namespace, &name, &uid).await?;
        let Allocated { results, since } = allocated;
        let mut grants: Vec<Grant> = Vec::new();
        for result in &results {
            let grant = self.grant(result)?;
            if grants.iter().all(|known| known.uuid != grant.uuid) {
                grants.push(grant);
            }
        }
        let record = Record {
            uid: uid.clone(),
            namespace,
            name,
            grants,
            since,
            ..Record::default()
        };
        self.check_wanted(&record, &caller).await?;
        log::info!("No plugin has given the devices of {whose}");
        let is_new = self.machine.ask(Call::Give(record.clone())).await?.is_new;
        // The kubelet shows what a plugin gives only after that has given it, so two at the same moment see each other
        // only now.
        if let Err(error) = self.check_wanted(&record, &caller).await {
            if !is_new {
                // A container of the claim may run, after a restart of the kubelet.
                return Err(error);
            }
            self.machine.ask(Call::TakeBack(uid.clone())).await?;
            return Err(error);
        }
        Ok(results
            .into_iter()
            .map(|result| device(&uid, result))
            .collect())
    }

    /// Takes a claim's devices back. It may be unknown.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub(crate) async fn unprepare(self, claim: Claim) -> Result<()> {
        check_uid(&claim.uid)?;
        let call = Call::TakeBack(claim.uid);
        self.machine.ask(call).await.map(drop)
    }

    /// Says which device of a claim a plugin has given since, for ever.
    pub(crate) async fn compare(self) {
        let mut given = self.pods.seen.subscribe();
        let mut said = BTreeSet::new();
        loop {
            let plugins = given.borrow_and_update().clone();
            let records = self.machine.ask(Call::Records).await;
            let records = records.map(|answer| answer.records);
            let records = records.unwrap_or_else(|error| {
                log::warn!("{}", error.message());
                Vec::new()
            });
            let mut found = BTreeSet::new();
            for record in &records {
                if let Some((device, pod)) = given_twice(record, &plugins) {
                    let text = format!(
                        "{device} is given to the claim {}/{}, and by a device plugin to the pod {pod}",
                        record.namespace, record.name
                    );
                    if !said.contains(&text) {
                        self.events.warn("GivenTwice", "Comparing", &text).await;
                    }
                    found.insert(text);
                }
            }
            said = found;
            tokio::select! {
                _ = given.changed() => {}
                () = sleep(INTERVAL) => {}
            }
        }
    }

    /// Has the names of a machine's devices remembered, before they are published. Returns those that must not be yet.
    ///
    /// # Errors
    /// The file cannot be written, or the machine has changed.
    pub(crate) async fn name(&self, world: &World) -> Result<Vec<String>> {
        let entries = world.iter().flat_map(devices::entries);
        let names = entries.map(|entry| (entry.name(), entry.gpu.uuid.clone()));
        let answer = self.machine.ask(Call::Name(names.collect())).await;
        answer.map(|answer| answer.names)
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
            instances: entry.mig.map(|mig| mig.instances),
            is_shared: result.admin_access.unwrap_or(false),
        })
    }

    /// Checks that no device plugin has given a device, and that the caller waits: another daemon may have been told to
    /// take back what the claim would get.
    ///
    /// # Errors
    /// One has, the caller has gone, or the kubelet does not say.
    async fn check_wanted(&self, record: &Record, caller: &Weak<()>) -> Result<()> {
        let given = self.pods.given().await?;
        if caller.strong_count() == 0 {
            return Err(Error::new(ErrorKind::System, "the kubelet waits no more"));
        }
        given_twice(record, &given).map_or(Ok(()), |(device, pod)| {
            let text = format!("{device} is given to the pod {pod} by a device plugin");
            let error = Error::new(ErrorKind::NotFound, text);
            Err(error.hint("let one program give the GPUs of a node"))
        })
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
