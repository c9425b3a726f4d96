//! Answers the kubelet's two calls of a registration: who we are, and whether we are registered.

use std::io;
use std::sync::Arc;

use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use super::http2::{Call, Connection, UNIMPLEMENTED};
use super::sockets;
use crate::proto::registration::{PluginInfo, RegistrationStatus, RegistrationStatusResponse};

const GET_INFO: &str = "/pluginregistration.Registration/GetInfo";
const NOTIFY: &str = "/pluginregistration.Registration/NotifyRegistrationStatus";

/// The code of gRPC for a message that cannot be read.
const INVALID_ARGUMENT: u8 = 3;

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
            if let Err(error) = converse(stream, &registration).await {
                log::debug!("registration: {error}");
            }
        });
    }
}

async fn converse(mut stream: UnixStream, registration: &Registration) -> io::Result<()> {
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
            let answered = connection.answer(call, registration.answer(call), &mut output);
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
