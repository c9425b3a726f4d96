//! The sockets that the kubelet calls: for root alone, with a name of each process of its own, so that the daemon of a new
//! version serves beside the old one.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use libnvc::{Error, ErrorKind, Result};
use tokio::net::{UnixListener, UnixStream};

use crate::options::{DRIVER, Options};

/// Where sockets of one kind are: the directory, and what their names begin and end with.
#[derive(Debug)]
pub(crate) struct Place<'o>(&'o Path, &'static str, &'static str);

/// Returns the places of the services and of the registration, in the order in which they are made.
pub(crate) fn places(options: &Options) -> [Place<'_>; 2] {
    [
        Place(&options.state, "dra", ".sock"),
        Place(&options.registrar, DRIVER, "-reg.sock"),
    ]
}

impl Place<'_> {
    /// Returns the path of the socket of a process with this word.
    pub(crate) fn path(&self, word: &str) -> PathBuf {
        let Self(directory, prefix, suffix) = self;
        directory.join(format!("{prefix}-{word}{suffix}"))
    }

    /// Creates a socket, and removes those of processes that have ended.
    ///
    /// # Errors
    /// The directory cannot be written, or the path is too long for a socket.
    pub(crate) fn listen(&self, word: &str) -> Result<StdListener> {
        let Self(directory, prefix, suffix) = *self;
        let failed = |error: io::Error| {
            let object = directory.display();
            Error::fault(ErrorKind::System, object, error.to_string())
                .hint("it must be the kubelet's directory, mounted from the host")
        };
        fs::create_dir_all(directory).map_err(failed)?;
        remove_dead(directory, prefix, suffix);
        let path = self.path(word);
        let listener = StdListener::bind(&path).map_err(failed)?;
        fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(listener)
    }
}

/// Removes sockets of this driver to which nobody listens. The kubelet would call them for ever.
fn remove_dead(directory: &Path, prefix: &str, suffix: &str) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_ours = name
            .to_str()
            .is_some_and(|name| name.starts_with(prefix) && name.ends_with(suffix));
        if !is_ours || !entry.file_type().is_ok_and(|kind| kind.is_socket()) {
            continue;
        }
        let found = StdStream::connect(entry.path());
        if found.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            // Another daemon that starts may be faster.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Waits for a caller with the uid 0. Others are hung up on.
pub(crate) async fn accept(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) if is_root(&stream) => return stream,
            Ok(_) => log::warn!("a caller that is not root was refused"),
            Err(error) => {
                log::warn!("no connection can be accepted: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn is_root(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == 0)
}
