//! Says in the log, and in an Event of the node, that there is a driver or none.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use super::answer;
use crate::machine::Watch;
use crate::options::DRIVER;

/// The length limit of a note.
const MAX_NOTE: usize = 1024;

/// Makes Events of the node.
#[derive(Clone)]
pub(crate) struct Events {
    client: Client,
    reporter: Reporter,
    node: ObjectReference,
}

impl Events {
    pub(crate) fn new(client: Client, node: &str) -> Self {
        let reporter = Reporter {
            controller: DRIVER.into(),
            instance: Some(node.into()),
        };
        Self {
            client,
            reporter,
            node: ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Node".into()),
                name: Some(node.into()),
                // As the kubelet's own events.
                uid: Some(node.into()),
                ..ObjectReference::default()
            },
        }
    }

    /// Makes a warning of a few words.
    pub(crate) async fn warn(&self, reason: &str, action: &str, note: &str) {
        log::warn!("{note}");
        let event = Event {
            type_: EventType::Warning,
            reason: reason.into(),
            note: Some(note.chars().take(MAX_NOTE / 4).collect()),
            action: action.into(),
            secondary: None,
        };
        // One that has not published anything only creates: the account may not change Events.
        let recorder = Recorder::new(self.client.clone(), self.reporter.clone());
        if let Err(failure) = answer(recorder.publish(&event, &self.node)).await {
            log::warn!("no event: {failure}");
        }
    }
}

/// Reports each change for ever.
pub(crate) async fn report(events: Events, mut world: Watch) {
    let mut last = String::new();
    loop {
        let now = world.borrow_and_update().clone();
        let text = match &*now {
            Ok(machine) => format!("Driver {}, {} GPUs", machine.driver, machine.gpus.len()),
            Err(reason) => format!("no device can be given: {reason}"),
        };
        if text != last {
            match &*now {
                Ok(_) => log::info!("{text}"),
                Err(_) => events.warn("NoDriver", "Discovering", &text).await,
            }
            last = text;
        }
        if world.changed().await.is_err() {
            return;
        }
    }
}
