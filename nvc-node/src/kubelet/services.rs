//! The services at the driver's socket.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use libnvc::{Error, ErrorKind, Result, printable_up_to};
use nvc_program::hints::{Reader, one_line};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinError;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::sockets;
use crate::claims::{Claims, Turns};
use crate::devices;
use crate::machine::{Health, Machine, Watch};
use crate::proto::device_health::dra_resource_health_server::{
    DraResourceHealth, DraResourceHealthServer,
};
use crate::proto::device_health::{
    DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesRequest,
    NodeWatchResourcesResponse,
};
use crate::proto::dra::dra_plugin_server::{DraPlugin, DraPluginServer};
use crate::proto::dra::{
    NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};

/// The older name of the same service.
const OLDER: &str = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/";
const PLUGIN: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/";
const HEALTH: &str = "/v1alpha1.DRAResourceHealth/";

/// How often the kubelet hears of each device: it forgets one after 30 seconds.
const INTERVAL: Duration = Duration::from_secs(5);
const KEEP_ALIVE: Duration = Duration::from_secs(60);
/// The length limit of a message about a device.
const MAX_TEXT: usize = 1024;
/// The size limit of a request: some hundred claims.
const MAX_REQUEST: usize = 64 << 10;

/// A receiver that changes when the program ends.
pub(crate) type Stop = watch::Receiver<bool>;

pub(crate) async fn stopped(mut stop: Stop) {
    // The sender is gone only at the end.
    let _ = stop.wait_for(|is| *is).await;
}

/// Serves the kubelet until the end, and then finishes the calls that have begun.
pub(crate) async fn serve(
    listener: UnixListener,
    claims: Claims,
    stop: Stop,
) -> Result<(), tonic::transport::Error> {
    let health = DeviceReports {
        pool: claims.node.clone(),
        world: claims.world.clone(),
        stop: stop.clone(),
    };
    let services = Services {
        plugin: DraPluginServer::new(claims).max_decoding_message_size(MAX_REQUEST),
        health: DraResourceHealthServer::new(health),
    };
    let (sender, accepted) = mpsc::channel(1);
    let accepting = tokio::spawn(async move {
        while sender
            .send(Ok::<_, Infallible>(sockets::accept(&listener).await))
            .await
            .is_ok()
        {}
    });
    let served = Server::builder()
        // A kubelet may take an idle connection for a dead one.
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .serve_with_incoming_shutdown(services, ReceiverStream::new(accepted), stopped(stop))
        .await;
    accepting.abort();
    served
}

/// All services at one socket.
#[derive(Clone)]
struct Services {
    plugin: DraPluginServer<Claims>,
    health: DraResourceHealthServer<DeviceReports>,
}

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

impl Service<http::Request<Body>> for Services {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Answer {
        if let Some(method) = request.uri().path().strip_prefix(OLDER) {
            // What came with the path does not matter to gRPC.
            if let Ok(uri) = Uri::try_from(format!("{PLUGIN}{method}")) {
                *request.uri_mut() = uri;
            }
        }
        if request.uri().path().starts_with(HEALTH) {
            self.health.call(request)
        } else {
            self.plugin.call(request)
        }
    }
}

#[tonic::async_trait]
impl DraPlugin for Claims {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            let caller = Arc::new(());
            let work = self.clone().prepare(claim.clone(), Arc::downgrade(&caller));
            let mut answer = NodePrepareResourceResponse::default();
            match in_turn(&self.turns, &claim.uid, work).await {
                Ok(devices) => {
                    log::info!("Prepared {}/{}", claim.namespace, claim.name);
                    answer.devices = devices;
                }
                Err(error) => {
                    answer.error = said("not prepared", &claim.namespace, &claim.name, &error);
                }
            }
            claims.insert(claim.uid, answer);
        }
        Ok(Response::new(NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            let work = self.clone().unprepare(claim.clone());
            let error = match in_turn(&self.turns, &claim.uid, work).await {
                Ok(()) => {
                    log::info!("Unprepared {}/{}", claim.namespace, claim.name);
                    String::new()
                }
                Err(error) => said("not unprepared", &claim.namespace, &claim.name, &error),
            };
            claims.insert(claim.uid, NodeUnprepareResourceResponse { error });
        }
        Ok(Response::new(NodeUnprepareResourcesResponse { claims }))
    }
}

/// Does what has begun for a claim to its end, also if the kubelet hangs up, and after what began before it for the same
/// claim: a pod that is given up is prepared and unprepared at the same moment. A panic costs that claim alone.
async fn in_turn<T: Send + 'static>(
    turns: &Turns,
    uid: &str,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let turn = {
        let mut turns = turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(uid.to_owned()).or_default())
    };
    let done = tokio::spawn(async move {
        let _turn = turn.lock_owned().await;
        work.await
    });
    let panicked = |error: JoinError| Error::new(ErrorKind::System, error.to_string());
    done.await.map_err(panicked)?
}

/// Returns an error with its way out, for the pod's events, after logging it. An API server's answer or a claim may be
/// in it.
fn said(what: &str, namespace: &str, name: &str, error: &Error) -> String {
    let text = one_line(error, Reader::Node);
    let text = printable_up_to(MAX_TEXT, &text);
    log::warn!("{namespace}/{name} is {what}: {text}");
    text.into_owned()
}

/// Reports the health of each device to the kubelet.
struct DeviceReports {
    pool: String,
    world: Watch,
    stop: Stop,
}

#[tonic::async_trait]
impl DraResourceHealth for DeviceReports {
    type NodeWatchResourcesStream = ReceiverStream<Result<NodeWatchResourcesResponse, Status>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        // A reader that is slow gets the newest report, not all.
        let (sender, receiver) = mpsc::channel(1);
        let (pool, mut world, stop) = (self.pool.clone(), self.world.clone(), self.stop.clone());
        tokio::spawn(async move {
            loop {
                let now = world.borrow_and_update().clone();
                let devices = now.as_ref().as_ref().map(|machine| reports(&pool, machine));
                let report = NodeWatchResourcesResponse {
                    devices: devices.unwrap_or_default(),
                };
                if sender.send(Ok(report)).await.is_err() {
                    return;
                }
                tokio::select! {
                    _ = world.changed() => {}
                    () = tokio::time::sleep(INTERVAL) => {}
                    () = sender.closed() => return,
                    () = stopped(stop.clone()) => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

fn reports(pool: &str, machine: &Machine) -> Vec<DeviceHealth> {
    let now = devices::now();
    let report = |entry: devices::Entry<'_>| {
        let (health, message) = match entry.health() {
            Health::Well => (HealthStatus::Healthy, ""),
            Health::Sick { reason, .. } => (HealthStatus::Unhealthy, reason.as_str()),
        };
        DeviceHealth {
            device: Some(DeviceIdentifier {
                pool_name: pool.to_owned(),
                device_name: entry.name(),
            }),
            health: health.into(),
            last_updated_time: now,
            health_check_timeout_seconds: 30,
            message: message.chars().take(MAX_TEXT / 4).collect(),
        }
    };
    devices::entries(machine).map(report).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_costs_its_claim_alone() {
        let bug = async { Ok("".parse::<u32>().unwrap()) };
        let turns = Turns::default();
        let said = in_turn(&turns, "a", bug).await.unwrap_err().message();
        assert!(said.contains("panicked"), "{said}");
        assert!(in_turn(&turns, "a", async { Ok(()) }).await.is_ok());
    }
}
