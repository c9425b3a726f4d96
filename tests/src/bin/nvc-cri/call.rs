//! Calls an engine's RuntimeService: gRPC over HTTP/2 over a Unix socket.

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{RecvStream, client};
use http::{HeaderMap, Method, Request};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};

use crate::wire::{Fields, Message};

/// A connection to an engine.
pub(crate) struct Engine {
    runtime: Runtime,
    requests: SendRequest<Bytes>,
}

impl Engine {
    pub(crate) fn connect(socket: &str) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{socket}: {error}");
        let runtime = Builder::new_current_thread().enable_io().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        let requests = runtime.block_on(async {
            let stream = UnixStream::connect(socket)
                .await
                .map_err(|error| failed(&error))?;
            let (requests, connection) = client::handshake(stream)
                .await
                .map_err(|error| failed(&error))?;
            // Its errors are reported by the calls.
            tokio::spawn(async { drop(connection.await) });
            Ok::<_, String>(requests)
        })?;
        Ok(Self { runtime, requests })
    }

    /// Calls a method and waits for its answer.
    pub(crate) fn call(&mut self, method: &str, message: &Message) -> Result<Fields, String> {
        let requests = self.requests.clone();
        let answer = self.runtime.block_on(exchange(requests, method, message));
        let bytes = answer.map_err(|text| format!("{method}: {text}"))?;
        Fields::read(&bytes).ok_or_else(|| format!("{method}: the answer is no message"))
    }
}

async fn exchange(
    requests: SendRequest<Bytes>,
    method: &str,
    message: &Message,
) -> Result<Vec<u8>, String> {
    let failed = |error: h2::Error| error.to_string();
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!(
            "http://localhost/runtime.v1.RuntimeService/{method}"
        ))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .map_err(|error| error.to_string())?;
    let mut requests = requests.ready().await.map_err(failed)?;
    let (response, mut sender) = requests.send_request(request, false).map_err(failed)?;
    let length = u32::try_from(message.bytes().len()).map_err(|error| error.to_string())?;
    // Uncompressed, followed by the length.
    let mut frame = vec![0];
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(message.bytes());
    sender.send_data(frame.into(), true).map_err(failed)?;
    let response = response.await.map_err(failed)?;
    status(response.headers())?;
    let mut body = response.into_body();
    let bytes = read(&mut body).await.map_err(failed)?;
    if let Some(trailers) = body.trailers().await.map_err(failed)? {
        status(&trailers)?;
    }
    bytes
        .get(5..)
        .map(<[u8]>::to_vec)
        .ok_or_else(|| "the answer is too short".into())
}

async fn read(body: &mut RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut bytes = Vec::new();
    while let Some(part) = body.data().await {
        let part = part?;
        body.flow_control().release_capacity(part.len())?;
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

/// Returns the engine's error.
fn status(headers: &HeaderMap) -> Result<(), String> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    match text("grpc-status") {
        None | Some("0") => Ok(()),
        Some(code) => Err(format!(
            "{} (status {code})",
            text("grpc-message").unwrap_or_default()
        )),
    }
}
