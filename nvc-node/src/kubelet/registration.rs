//! Answers the kubelet's two calls of a registration: who we are, and whether we are registered.

use std::io;
use std::sync::Arc;

use prost::Message as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio::sync::watch;

use super::http2::{Call, Connection, INVALID_ARGUMENT, UNIMPLEMENTED};
use super::sockets;
use crate::proto::registration::{PluginInfo, RegistrationStatus, RegistrationStatusResponse};

const GET_INFO: &str = "/pluginregistration.Registration/GetInfo";
const NOTIFY: &str = "/pluginregistration.Registration/NotifyRegistrationStatus";

/// What the kubelet is told, and what it says.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) info: PluginInfo,
    /// True after the kubelet has said so.
    pub(crate) registered: watch::Sender<bool>,
}

/// Serves registrations for ever.
pub(crate) async fn serve(listener: UnixListener, registration: Arc<Registration>) {
    loop {
        let stream = sockets::accept(&listener).await;
        let registration = Arc::clone(&registration);
        tokio::spawn(async move {
            // The kubelet repeats a call that failed.
            let answer = |call: &Call| registration.answer(call);
            if let Err(error) = converse(stream, answer).await {
                log::debug!("registration: {error}");
            }
        });
    }
}

/// Answers the calls of a connection until the peer closes it.
///
/// # Errors
/// The peer breaks the protocol or is gone.
pub(super) async fn converse(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: impl Fn(&Call) -> Result<Vec<u8>, u8>,
) -> io::Result<()> {
    let mut connection = Connection::default();
    stream.write_all(&Connection::greeting()).await?;
    let mut buffer = [0; 4096];
    loop {
        let len = stream.read(&mut buffer).await?;
        if len == 0 {
            return Ok(());
        }
        let mut output = Vec::new();
        let bytes = buffer.get(..len).unwrap_or_default();
        let mut received = connection.receive(bytes, &mut output);
        for call in received.as_deref().unwrap_or_default() {
            let answered = connection.answer(call, answer(call), &mut output);
            if let Err(broken) = answered {
                received = Err(broken);
                break;
            }
        }
        stream.write_all(&output).await?;
        if let Err(broken) = received {
            return Err(io::Error::other(format!("{broken:?}")));
        }
    }
}

impl Registration {
    fn answer(&self, call: &Call) -> Result<Vec<u8>, u8> {
        match call.path.as_str() {
            GET_INFO => Ok(self.info.encode_to_vec()),
            NOTIFY => {
                let status = RegistrationStatus::decode(call.message.as_slice());
                let status = status.map_err(|_| INVALID_ARGUMENT)?;
                self.take(&status);
                Ok(RegistrationStatusResponse {}.encode_to_vec())
            }
            _ => Err(UNIMPLEMENTED),
        }
    }

    fn take(&self, status: &RegistrationStatus) {
        if status.plugin_registered {
            log::info!("The kubelet has registered {}", self.info.name);
        } else {
            let (name, why) = (&self.info.name, &status.error);
            log::warn!("the kubelet has not registered {name}: {why}");
        }
        self.registered.send_replace(status.plugin_registered);
    }
}
