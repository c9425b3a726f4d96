//! Says in the log, and in an Event of the node, that there is a driver or none.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use super::answer;
use crate::machine::Watch;
use crate::options::DRIVER;

/// The length limit of a note.
const MAX_NOTE: usize = 1024;

/// Reports each change for ever.
pub(crate) async fn report(client: Client, node: String, mut world: Watch) {
    let reporter = Reporter {
        controller: DRIVER.into(),
        instance: Some(node.clone()),
    };
    let recorder = Recorder::new(client, reporter);
    let object = ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        name: Some(node.clone()),
        // As the kubelet's own events.
        uid: Some(node),
        ..ObjectReference::default()
    };
    let mut last = String::new();
    loop {
        let now = world.borrow_and_update().clone();
        match &*now {
            Ok(machine) => {
                let (driver, gpus) = (&machine.driver, machine.gpus.len());
                let text = format!("Driver {driver}, {gpus} GPUs");
                if text != last {
                    log::info!("{text}");
                    last = text;
                }
            }
            Err(reason) if *reason != last => {
                log::warn!("no device can be given: {reason}");
                last.clone_from(reason);
                let event = Event {
                    type_: EventType::Warning,
                    reason: "NoDriver".into(),
                    note: Some(reason.chars().take(MAX_NOTE / 4).collect()),
                    action: "Discovering".into(),
                    secondary: None,
                };
                if let Err(failure) = answer(recorder.publish(&event, &object)).await {
                    log::warn!("no event: {failure}");
                }
            }
            Err(_) => {}
        }
        if world.changed().await.is_err() {
            return;
        }
    }
}
