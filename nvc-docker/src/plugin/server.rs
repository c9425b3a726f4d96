//! Accepts connections within limits, and closes them: slow ones, idle ones, and all of them when the plugin stops.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutWriter;

use super::rest::{Answer, Rest, TEXT, of_type};
use super::volume::Volumes;
use crate::log_line::log_text;

/// Maximum number of connections. Docker's own are counted separately, so that the network cannot lock it out.
const MAX_NETWORK_CONNECTIONS: usize = 600;
const MAX_DOCKER_CONNECTIONS: usize = 64;
/// Time limit for the head of a request, including the wait for it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a client that does not read.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Lifetime of a connection.
const MAX_LIFETIME: Duration = Duration::from_secs(300);
/// Time that connections get when the plugin stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Size limit of a head; hyper needs at least 8 kB.
const MAX_HEAD_SIZE: usize = 16 << 10;
/// Size limit of a body: docker's requests have a hundred bytes.
const MAX_BODY_SIZE: usize = 64 << 10;

/// The answer when there are too many connections.
const TOO_MANY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 21\r\nConnection: close\r\nRetry-After: 1\r\n\r\ntoo many connections\n";

/// One of the two interfaces.
#[derive(Clone, Debug)]
pub(super) enum Service {
    Rest(Arc<Rest>),
    Volumes(Arc<Volumes>),
}

/// A listener of either family.
pub(super) trait Accept: Send + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Accept for tokio::net::TcpListener {
    type Stream = tokio::net::TcpStream;

    async fn accept(&self) -> io::Result<Self::Stream> {
        let (stream, _) = self.accept().await?;
        // Send answers immediately, without Nagle's delay.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

impl Accept for tokio::net::UnixListener {
    type Stream = tokio::net::UnixStream;

    async fn accept(&self) -> io::Result<Self::Stream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

/// Serves until `stop` becomes true, and then until all connections have ended.
pub(super) async fn serve<L: Accept>(
    listener: L,
    service: Service,
    mut stop: watch::Receiver<bool>,
) {
    let most = match service {
        Service::Rest(_) => MAX_NETWORK_CONNECTIONS,
        Service::Volumes(_) => MAX_DOCKER_CONNECTIONS,
    };
    let places = Arc::new(Semaphore::new(most));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                // Out of descriptors, or the client is gone; the others continue.
                log_text(&format!("Warning: accept: {error}"));
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        match Arc::clone(&places).try_acquire_owned() {
            Ok(place) => {
                let (service, stop) = (service.clone(), stop.clone());
                tokio::spawn(async move {
                    serve_connection(stream, service, stop).await;
                    drop(place);
                });
            }
            Err(_) => drop(tokio::spawn(refuse(stream))),
        }
    }
    drop(listener);
    let all = u32::try_from(most).unwrap_or(u32::MAX);
    // Clients that do not finish in time are dropped.
    let _ = timeout(SHUTDOWN_TIMEOUT, places.acquire_many(all)).await;
}

async fn refuse(mut stream: impl AsyncWrite + Unpin) {
    let refused = async {
        stream.write_all(TOO_MANY).await?;
        stream.shutdown().await
    };
    // One second at most for the rejection.
    let _ = timeout(Duration::from_secs(1), refused).await;
}

async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    service: Service,
    mut stop: watch::Receiver<bool>,
) {
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(STALL_TIMEOUT));
    let io = TokioIo::new(Box::pin(stream));
    let answering = service_fn(move |request| {
        let service = service.clone();
        async move { Ok::<_, Infallible>(answer(&service, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_SIZE)
        .half_close(true)
        .serve_connection(io, answering);
    tokio::pin!(connection);
    let is_over = tokio::select! {
        _ = connection.as_mut() => true,
        _ = stop.wait_for(|stop| *stop) => false,
        () = sleep(MAX_LIFETIME) => false,
    };
    if !is_over {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(SHUTDOWN_TIMEOUT, connection).await;
    }
}

async fn answer(service: &Service, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    match service {
        Service::Rest(rest) => rest.answer(&head).await,
        Service::Volumes(volumes) => {
            if let Some(refusal) = Volumes::refusal(&head) {
                return refusal;
            }
            let body =
                match timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY_SIZE).collect()).await {
                    Ok(Ok(body)) => body.to_bytes(),
                    Ok(Err(_)) => {
                        return of_type(
                            StatusCode::PAYLOAD_TOO_LARGE,
                            TEXT,
                            "the request is too long\n",
                        );
                    }
                    Err(_) => {
                        return of_type(
                            StatusCode::REQUEST_TIMEOUT,
                            TEXT,
                            "the request does not end\n",
                        );
                    }
                };
            volumes.answer(head.uri.path(), &body).await
        }
    }
}
