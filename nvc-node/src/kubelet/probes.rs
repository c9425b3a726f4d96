//! Answers the kubelet's probes at a port: alive as long as it answers, ready if it is registered and the driver answers.
//!
//! Anybody in the cluster can connect. So this has a thread of its own, a connection has few bytes and little time, and
//! there are few at a time: who has the most makes room for a new one. The kubelet has one, from the node's own address.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
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
/// At a time.
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
    let mut connections: Vec<(IpAddr, AbortHandle)> = Vec::new();
    loop {
        let (mut stream, address) = match listener.accept().await {
            Ok((stream, from)) => (stream, from.ip()),
            Err(error) => {
                log::debug!("no probe can be accepted: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        connections.retain(|(_, served)| !served.is_finished());
        if connections.len() == MAX_CONNECTIONS {
            let addresses: Vec<_> = connections.iter().map(|(from, _)| *from).collect();
            connections.remove(one_too_many(&addresses)).1.abort();
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
        connections.push((address, served.abort_handle()));
    }
}

/// Returns the place of the first of those that are there most often.
fn one_too_many(addresses: &[IpAddr]) -> usize {
    let mut counts = BTreeMap::new();
    for address in addresses {
        *counts.entry(address).or_insert(0) += 1;
    }
    let most = counts.values().max();
    let is_most = |address| counts.get(address) == most;
    addresses.iter().position(is_most).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_the_most_makes_room() {
        let addresses = |last: &[u8]| -> Vec<IpAddr> {
            let address = |last: &u8| IpAddr::from([10, 0, 0, *last]);
            last.iter().map(address).collect()
        };
        for (last, expected) in [
            (&[1][..], 0),
            (&[1, 2, 3], 0),
            (&[1, 2, 3, 2], 1),
            (&[2, 2, 3, 3, 3, 1], 2),
        ] {
            assert_eq!(one_too_many(&addresses(last)), expected, "{last:?}");
        }
    }
}
