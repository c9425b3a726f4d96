//! Answers the kubelet's probes at a port: alive as long as it answers, ready if it is registered and the driver answers.
//!
//! Anybody in the cluster can connect. So this has a thread of its own, a connection has few bytes and little time, and
//! there are few, the oldest of which makes room for a new one.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use prost::Message as _;
use tokio::io::{AsyncReadExt as _, join};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::http2::{Call, INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED};
use super::registration::converse;
use crate::machine::Watch;
use crate::proto::health::health_check_response::ServingStatus;
use crate::proto::health::{HealthCheckRequest, HealthCheckResponse};

const CHECK: &str = "/grpc.health.v1.Health/Check";
/// A probe takes some milliseconds, so that it is long over when as many others have connected.
const MAX_CONNECTIONS: usize = 64;
/// The size of all that a connection may send: it is for one call.
const MAX_BYTES: u64 = 16 << 10;
/// How long a connection may last: longer than the kubelet waits.
const MAX_TIME: Duration = Duration::from_secs(10);

/// What the probes ask for.
#[derive(Debug)]
pub(crate) struct Probes {
    pub(crate) registered: watch::Receiver<bool>,
    pub(crate) world: Watch,
}

/// Serves the probes at a port as long as the program runs.
///
/// # Errors
/// The system's: another program has the port.
pub(crate) fn start(port: u16, probes: Probes) -> io::Result<()> {
    let listener = std::net::TcpListener::bind(("::", port))?;
    listener.set_nonblocking(true)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    thread::spawn(move || {
        runtime.block_on(async {
            match TcpListener::from_std(listener) {
                Ok(listener) => serve(listener, probes).await,
                Err(error) => log::error!("the port of the probes: {error}"),
            }
        });
    });
    Ok(())
}

async fn serve(listener: TcpListener, probes: Probes) {
    let probes = Arc::new(probes);
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let mut stream = match listener.accept().await {
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
            let (from, to) = stream.split();
            let stream = join(from.take(MAX_BYTES), to);
            let answered = converse(stream, |call| probes.answer(call));
            if let Ok(Err(error)) = timeout(MAX_TIME, answered).await {
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
