//! Asks the kubelet which devices its device plugins have given to pods: another program may give the same GPUs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use h2::client;
use http::Request;
use libnvc::{Error, ErrorKind, Result};
use prost::Message as _;
use prost::bytes::Bytes;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::proto::pods::ListPodResourcesResponse;

const LIST: &str = "http://localhost/v1.PodResourcesLister/List";
const DEADLINE: Duration = Duration::from_secs(5);
/// The size limit of an answer, which is gRPC's in the kubelet.
const MAX_ANSWER: usize = 16 << 20;

/// The pods that have devices of plugins, by the device's UUID.
pub(crate) type Given = BTreeMap<String, String>;

/// The kubelet's list of the devices of pods.
#[derive(Clone, Debug)]
pub(crate) struct Pods {
    socket: PathBuf,
    /// What the kubelet said last.
    pub(crate) seen: watch::Sender<Given>,
}

impl Pods {
    pub(crate) fn new(socket: PathBuf) -> Self {
        let seen = watch::Sender::new(Given::new());
        Self { socket, seen }
    }

    /// Returns what plugins have given; nothing if this program was not given the socket's directory.
    ///
    /// # Errors
    /// The kubelet does not answer, as while it starts.
    pub(crate) async fn given(&self) -> Result<Given> {
        if !self.socket.parent().is_some_and(Path::exists) {
            return Ok(Given::new());
        }
        let failed = |cause: String| Error::fault(ErrorKind::System, self.socket.display(), cause);
        let stream = UnixStream::connect(&self.socket).await;
        let stream = stream.map_err(|error| failed(error.to_string()))?;
        let answer = timeout(DEADLINE, list(stream)).await;
        let answer = answer
            .unwrap_or_else(|_| Err("no answer".into()))
            .map_err(failed)?;
        let given = given(answer);
        self.seen.send_if_modified(|seen| {
            let is_new = *seen != given;
            seen.clone_from(&given);
            is_new
        });
        Ok(given)
    }
}

fn given(answer: ListPodResourcesResponse) -> Given {
    let mut given = Given::new();
    for pod in answer.pod_resources {
        let devices = pod
            .containers
            .into_iter()
            .flat_map(|container| container.devices);
        for id in devices.flat_map(|devices| devices.device_ids) {
            // A plugin that gives a device several times numbers the shares.
            let uuid = id.split("::").next().unwrap_or_default();
            given.insert(uuid.to_owned(), format!("{}/{}", pod.namespace, pod.name));
        }
    }
    given
}

async fn list(stream: UnixStream) -> Result<ListPodResourcesResponse, String> {
    let failed = |error: h2::Error| error.to_string();
    let (requests, connection) = client::handshake(stream).await.map_err(failed)?;
    let mut connection = tokio::spawn(connection);
    let call = async {
        let mut requests = requests.ready().await.map_err(failed)?;
        let request = Request::post(LIST)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .map_err(|error| error.to_string())?;
        let (response, mut sender) = requests.send_request(request, false).map_err(failed)?;
        // A message without fields.
        sender
            .send_data(Bytes::from_static(&[0; 5]), true)
            .map_err(failed)?;
        let mut body = response.await.map_err(failed)?.into_body();
        let mut bytes = Vec::new();
        while let Some(part) = body.data().await {
            let part = part.map_err(failed)?;
            body.flow_control()
                .release_capacity(part.len())
                .map_err(failed)?;
            bytes.extend_from_slice(&part);
            if bytes.len() > MAX_ANSWER {
                return Err("the answer is too long".to_owned());
            }
        }
        // An error of the kubelet has no message. A part of one would be a shorter list.
        let (head, message) = bytes.split_at_checked(5).ok_or("it refuses the call")?;
        let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
        if head != [&[0][..], &len.to_be_bytes()].concat() {
            return Err("the answer is not whole".to_owned());
        }
        ListPodResourcesResponse::decode(message).map_err(|error| error.to_string())
    };
    let answer = tokio::select! {
        answer = call => answer,
        done = &mut connection => Err(format!("the connection has ended: {done:?}")),
    };
    connection.abort();
    answer
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::proto::pods::{ContainerDevices, ContainerResources, PodResources};

    #[tokio::test]
    async fn a_kubelet_that_is_away_is_no_empty_list() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("kubelet.sock");
        let pods = Pods::new(socket);
        assert!(pods.given().await.is_err());
        drop(directory);
        assert!(pods.given().await.unwrap().is_empty());
    }

    /// A shorter list is one with fewer devices.
    #[tokio::test]
    async fn a_part_of_an_answer_is_none() {
        let pod = PodResources {
            name: "p".into(),
            ..PodResources::default()
        };
        let answer = ListPodResourcesResponse {
            pod_resources: vec![pod; 2],
        };
        let message = answer.encode_to_vec();
        let whole = [&[0, 0, 0, 0, 10][..], &message].concat();
        assert_eq!(said(&whole).await.unwrap(), answer);
        for at in [0, 4, 5, 10, 14] {
            assert!(said(&whole[..at]).await.is_err(), "{at}");
        }
        assert!(said(&[&whole[..], &[0]].concat()).await.is_err());
        assert!(said(&[&[1][..], &whole[1..]].concat()).await.is_err());
    }

    /// Returns what is understood if these are the bytes of the answer.
    async fn said(bytes: &[u8]) -> Result<ListPodResourcesResponse, String> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let bytes = Bytes::copy_from_slice(bytes);
        let server = async {
            let mut connection = h2::server::handshake(theirs).await.unwrap();
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let mut body = respond
                    .send_response(http::Response::new(()), false)
                    .unwrap();
                body.send_data(bytes.clone(), true).unwrap();
            }
        };
        tokio::join!(list(ours), server).0
    }

    #[test]
    fn devices_have_their_pods() {
        let devices = |ids: &[&str]| ContainerDevices {
            resource_name: "nvidia.com/gpu".into(),
            device_ids: ids.iter().map(ToString::to_string).collect(),
        };
        let container = ContainerResources {
            name: "c".into(),
            devices: vec![devices(&["GPU-1", "GPU-2::3"]), devices(&[])],
        };
        let pod = PodResources {
            name: "p".into(),
            namespace: "ns".into(),
            containers: vec![container],
        };
        let found = given(ListPodResourcesResponse {
            pod_resources: vec![pod],
        });
        let pairs = ["GPU-1", "GPU-2"].map(|uuid| (uuid.to_owned(), "ns/p".to_owned()));
        assert_eq!(found, Given::from(pairs));
    }
}
