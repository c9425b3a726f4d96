//! Speaks with the API server.

pub(crate) mod claims;
pub(crate) mod events;
mod parameters;
pub(crate) mod slices;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use libnvc::{Error, ErrorKind, Result};
use tokio::time::{sleep, timeout};

use crate::causes::chain;

/// How long one answer may take. A kubelet waits 45 seconds for everything.
const DEADLINE: Duration = Duration::from_secs(10);
/// The server's address, for messages.
static SERVER: OnceLock<String> = OnceLock::new();

/// How often the server's authorities are read.
const INTERVAL: Duration = Duration::from_secs(10);

/// Reads how to reach the API server: from a file, or from the account of this pod.
///
/// # Errors
/// There is neither, or it is not whole.
pub(crate) async fn config(kubeconfig: Option<&Path>) -> Result<Config> {
    Ok(match kubeconfig {
        Some(path) => {
            let options = KubeConfigOptions::default();
            let config = Config::from_custom_kubeconfig(read(path)?, &options).await;
            config.map_err(|error| failed(&error))?
        }
        None => Config::incluster().map_err(|error| failed(&error))?,
    })
}

/// Returns the client.
///
/// # Errors
/// Something that it needs is not whole.
pub(crate) fn client(config: Config) -> Result<Client> {
    let _ = SERVER.set(config.cluster_url.to_string());
    Client::try_from(config).map_err(|error| failed(&error))
}

/// Waits until the server's authorities are others than those that the client has read, which it does once.
pub(crate) async fn replaced(kubeconfig: Option<&Path>, authorities: Option<Vec<Vec<u8>>>) {
    loop {
        sleep(INTERVAL).await;
        let now = config(kubeconfig).await.ok().and_then(|now| now.root_cert);
        // Of a file that is being written, none may be there yet.
        if now.is_some_and(|now| !now.is_empty() && Some(&now) != authorities.as_ref()) {
            return;
        }
    }
}

/// Returns the directories of a file for the client and of the files that it names.
///
/// # Errors
/// It is missing or not whole, or one of them is beside the root's directories.
pub(crate) fn directories(kubeconfig: &Path) -> Result<Vec<PathBuf>> {
    let config = read(kubeconfig)?;
    let mut files = vec![kubeconfig.display().to_string()];
    for cluster in config.clusters.into_iter().filter_map(|it| it.cluster) {
        files.extend(cluster.certificate_authority);
    }
    for user in config.auth_infos.into_iter().filter_map(|it| it.auth_info) {
        files.extend(user.client_certificate.into_iter().chain(user.client_key));
        files.extend(user.token_file);
    }
    let directory = |file: String| match Path::new(&file).parent() {
        Some(directory) if directory != Path::new("/") => Ok(directory.to_owned()),
        _ => Err(failed(&format!("{file} is in no directory of its own"))),
    };
    files.into_iter().map(directory).collect()
}

fn read(kubeconfig: &Path) -> Result<Kubeconfig> {
    Kubeconfig::read_from(kubeconfig).map_err(|error| failed(&error))
}

fn failed(cause: &dyn std::fmt::Display) -> Error {
    let (kind, cause) = (ErrorKind::InvalidArgument, cause.to_string());
    Error::fault(kind, "the API server", cause)
        .hint("run in a pod with a service account, or name a file with --kubeconfig")
}

/// Waits for an answer, but not for ever; returns the reason of a failure.
async fn answer<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    let (code, text) = match timeout(DEADLINE, call).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(kube::Error::Api(status))) => (status.code, status.message.clone()),
        Ok(Err(error)) => (0, chain(&error)),
        Err(_) => (0, format!("no answer within {} s", DEADLINE.as_secs())),
    };
    Err(Failure { code, text })
}

/// Why a call failed.
#[derive(Debug)]
struct Failure {
    /// The status of HTTP; 0 if the server did not answer.
    code: u16,
    text: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // If it does not answer, the address may be wrong.
        let server = SERVER.get().filter(|_| self.code == 0);
        let server = server.map(|server| format!(" {}", server.trim_end_matches('/')));
        write!(
            f,
            "the API server{}: {}",
            server.unwrap_or_default(),
            self.text
        )
    }
}
