//! Asks the kubelet which devices its device plugins have given to pods: another program may give the same GPUs.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use libnvc::{Error, ErrorKind, Result, mount_id};
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::Response;
use tonic::transport::Endpoint;

use crate::causes::chain;
use crate::proto::pods::pod_resources_lister_client::PodResourcesListerClient;
use crate::proto::pods::{ListPodResourcesRequest, ListPodResourcesResponse};

const DEADLINE: Duration = Duration::from_secs(5);
/// The size limit of an answer, which is gRPC's in the kubelet.
const MAX_ANSWER: usize = 16 << 20;

/// The pods that have devices of plugins, by the device's UUID.
pub(crate) type Given = BTreeMap<String, String>;

/// The kubelet's list of the devices of pods.
#[derive(Clone, Debug)]
pub(crate) struct Pods {
    /// None in a container that was not given its directory: then the kubelet is not asked.
    pub(crate) socket: Option<PathBuf>,
    /// What the kubelet said last.
    pub(crate) seen: watch::Sender<Given>,
}

impl Pods {
    /// Decides for good whether the kubelet is asked, whose directory for drivers is `plugins`. It may start later than
    /// this program: then its directory for the list is made as it makes it.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new(socket: &Path, plugins: &Path) -> io::Result<Self> {
        let directory = socket.parent().unwrap_or(socket);
        let kubelets = directory.parent().unwrap_or(directory);
        let mount =
            |directory: &Path| Ok::<_, io::Error>(mount_id(File::open(directory)?.as_fd())?);
        // Of a container, `plugins` alone is the kubelet's.
        let is_asked = directory.is_dir() || mount(kubelets)? == mount(plugins)?;
        if is_asked {
            let mut all = DirBuilder::new();
            all.recursive(true).mode(0o750).create(directory)?;
        } else {
            let path = directory.display();
            log::warn!("GPUs of device plugins are not recognised: {path} is not mounted here");
        }
        Ok(Self {
            socket: is_asked.then(|| socket.into()),
            seen: watch::Sender::new(Given::new()),
        })
    }

    /// Returns what plugins have given; nothing if the kubelet is not asked.
    ///
    /// # Errors
    /// The kubelet does not answer, as while it starts.
    pub(crate) async fn given(&self) -> Result<Given> {
        let Some(socket) = &self.socket else {
            return Ok(Given::new());
        };
        let failed = |cause: String| Error::fault(ErrorKind::System, socket.display(), cause);
        let answer = timeout(DEADLINE, list(socket)).await;
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

/// Asks once, over a connection of its own.
async fn list(socket: &Path) -> Result<ListPodResourcesResponse, String> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()));
    let channel = endpoint.map_err(|error| chain(&error))?.connect().await;
    let channel = channel.map_err(|error| chain(&error))?;
    let mut client = PodResourcesListerClient::new(channel).max_decoding_message_size(MAX_ANSWER);
    let answer = client.list(ListPodResourcesRequest {}).await;
    answer
        .map(Response::into_inner)
        .map_err(|status| status.message().to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use prost::Message as _;
    use prost::bytes::Bytes;
    use tokio::net::UnixListener;

    use super::*;
    use crate::proto::pods::{ContainerDevices, ContainerResources, PodResources};

    #[tokio::test]
    async fn a_kubelet_that_is_away_is_no_empty_list() {
        let kubelets = tempfile::tempdir().unwrap();
        let socket = kubelets.path().join("pod-resources/kubelet.sock");
        let plugins = kubelets.path().join("plugins");
        fs::create_dir(&plugins).unwrap();
        // It has not started yet.
        let pods = Pods::new(&socket, &plugins).unwrap();
        let mode = fs::metadata(socket.parent().unwrap()).unwrap().mode();
        assert_eq!(mode & 0o777, 0o750);
        assert!(pods.given().await.is_err());
        // Nor does a directory that vanishes make it one.
        drop(kubelets);
        assert!(pods.given().await.is_err());
        // Another mount is that of a container.
        let pods = Pods::new(Path::new("/no/such/kubelet.sock"), Path::new("/proc"));
        assert!(pods.is_err());
        let pods = Pods::new(Path::new("/no-such/kubelet.sock"), Path::new("/proc"));
        assert!(pods.unwrap().given().await.unwrap().is_empty());
        assert!(!Path::new("/no-such").exists());
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
        assert!(said(&[&[1][..], &whole[1..]].concat()).await.is_err());
    }

    /// Returns what is understood if these are the bytes of the answer.
    async fn said(bytes: &[u8]) -> Result<ListPodResourcesResponse, String> {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("kubelet.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let bytes = Bytes::copy_from_slice(bytes);
        let server = async {
            let (stream, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let answer = http::Response::builder().header("content-type", "application/grpc");
                let mut body = respond
                    .send_response(answer.body(()).unwrap(), false)
                    .unwrap();
                body.send_data(bytes.clone(), false).unwrap();
                let mut trailers = http::HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().unwrap());
                body.send_trailers(trailers).unwrap();
            }
        };
        tokio::join!(list(&socket), server).0
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
