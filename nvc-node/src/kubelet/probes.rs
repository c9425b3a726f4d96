//! Answers the kubelet's probes at a port: alive as long as it answers, ready if it is registered and the driver answers.
//!
//! Anybody in the cluster can connect. So there are few connections, the oldest of which makes room for a new one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::http2::{Call, INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED};
use super::registration::converse;
use crate::machine::Watch;
use crate::proto::health::health_check_response::ServingStatus;
use crate::proto::health::{HealthCheckRequest, HealthCheckResponse};

const CHECK: &str = "/grpc.health.v1.Health/Check";
/// A probe takes some milliseconds, so that it is long over when as many others have connected.
const MAX_CONNECTIONS: usize = 64;

/// What the probes ask for.
#[derive(Debug)]
pub(crate) struct Probes {
    pub(crate) registered: watch::Receiver<bool>,
    pub(crate) world: Watch,
}

/// Serves the probes for ever.
pub(crate) async fn serve(listener: TcpListener, probes: Probes) {
    let probes = Arc::new(probes);
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                log::debug!("no probe can be accepted: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if connections.len() == MAX_CONNECTIONS
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        let probes = Arc::clone(&probes);
        let served = tokio::spawn(async move {
            let answered = converse(stream, |call| probes.answer(call)).await;
            if let Err(error) = answered {
                log::debug!("probe: {error}");
            }
        });
        connections.push_back(served.abort_handle());
    }
}

impl Probes {
    fn answer(&self, call: &Call) -> Result<Vec<u8>, u8> {
        if call.path != CHECK {
            return Err(UNIMPLEMENTED);
        }
        let request = HealthCheckRequest::decode(call.message.as_slice());
        let is_ready = || *self.registered.borrow() && self.world.borrow().is_ok();
        let status = match request.map_err(|_| INVALID_ARGUMENT)?.service.as_str() {
            "liveness" => ServingStatus::Serving,
            "" if is_ready() => ServingStatus::Serving,
            "" => ServingStatus::NotServing,
            _ => return Err(NOT_FOUND),
        };
        let status = status.into();
        Ok(HealthCheckResponse { status }.encode_to_vec())
    }
}
