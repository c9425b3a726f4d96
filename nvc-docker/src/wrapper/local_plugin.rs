//! Asks this machine's plugin for a sign of life: docker waits long for a plugin, and its error does not name ours.

use std::io::{Error as IoError, ErrorKind as IoErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use libnvc::{Error, ErrorKind, Result};
use nvc_hostfile::cause;

/// The usual engine's directory. The sockets of others are elsewhere.
const ENGINE: &str = "/run/docker";

const SOCKET: &str = "/run/docker/plugins/nvidia-docker.sock";

/// Files by which an administrator tells docker another address.
const SPECIFICATIONS: [&str; 4] = [
    "/etc/docker/plugins/nvidia-docker.spec",
    "/etc/docker/plugins/nvidia-docker.json",
    "/usr/lib/docker/plugins/nvidia-docker.spec",
    "/usr/lib/docker/plugins/nvidia-docker.json",
];

/// Limit of an answer. systemd may have to start the plugin first.
const TIMEOUT: Duration = Duration::from_secs(10);

const REQUEST: &[u8] = b"POST /VolumeDriver.Capabilities HTTP/1.1\r\nHost: plugin\r\n\
    Accept: application/vnd.docker.plugins.v1.2+json\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// Checks that the plugin answers, if it can be asked: only root may, and only the usual engine's.
///
/// # Errors
/// `nvidia-docker-plugin does not answer at SOCKET: …`.
pub(super) fn check() -> Result<()> {
    let is_elsewhere = SPECIFICATIONS.iter().any(|path| Path::new(path).exists());
    if is_elsewhere || !Path::new(ENGINE).is_dir() {
        return Ok(());
    }
    match answers(Path::new(SOCKET)) {
        Err(error) if error.kind() != IoErrorKind::PermissionDenied => {
            let why = cause::text(&error);
            let text = format!("nvidia-docker-plugin does not answer at {SOCKET}: {why}");
            let error = Error::new(ErrorKind::System, text);
            Err(error.hint("systemctl start nvidia-docker-plugin.socket, or nvidia-docker-plugin"))
        }
        _ => Ok(()),
    }
}

fn answers(socket: &Path) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(REQUEST)?;
    let mut start = [0; 12];
    stream.read_exact(&mut start)?;
    match &start {
        b"HTTP/1.1 200" => Ok(()),
        _ => Err(IoError::other("not the plugin's answer")),
    }
}
