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

/// Returns a file for the client, the files that it names, and the directories of those that are read again, since they
/// are replaced by others: tokens and authorities.
///
/// # Errors
/// It is missing or not whole, or one of those is beside the root's directories.
pub(crate) fn files(kubeconfig: &Path) -> Result<Vec<PathBuf>> {
    let config = read(kubeconfig)?;
    let mut files = vec![kubeconfig.to_owned()];
    let clusters = config.clusters.into_iter().filter_map(|it| it.cluster);
    let mut replaced: Vec<_> = clusters.filter_map(|it| it.certificate_authority).collect();
    for user in config.auth_infos.into_iter().filter_map(|it| it.auth_info) {
        let once = user.client_certificate.into_iter().chain(user.client_key);
        files.extend(once.map(PathBuf::from));
        replaced.extend(user.token_file);
    }
    for file in replaced {
        match Path::new(&file).parent() {
            Some(directory) if directory != Path::new("/") => files.push(directory.to_owned()),
            _ => return Err(failed(&format!("{file} is in no directory of its own"))),
        }
    }
    Ok(files)
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn directories_are_those_of_what_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubelet.conf");
        let said = |authority: &str| {
            let text = json!({
                "clusters": [{"name": "x", "cluster": {"server": "https://x", "certificate-authority": authority}}],
                "users": [{"name": "x", "user": {"client-certificate": "/c/cert", "client-key": "/k/key", "tokenFile": "/t/token"}}],
            });
            std::fs::write(&path, text.to_string()).unwrap();
            files(&path)
        };
        let expected = [
            &path,
            Path::new("/c/cert"),
            Path::new("/k/key"),
            Path::new("/a"),
            Path::new("/t"),
        ];
        assert_eq!(said("/a/ca.crt").unwrap(), expected);
        let error = said("/ca.crt").unwrap_err();
        assert!(format!("{error:?}").contains("/ca.crt is in no directory of its own"));
    }
}
