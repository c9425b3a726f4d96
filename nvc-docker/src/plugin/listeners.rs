//! Creates the plugin's two sockets, or takes them from systemd.

use std::fs::{self, DirBuilder};
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use libnvc::{Error, ErrorKind, Result};
use listenfd::ListenFd;

use crate::{VOLUME_DRIVER, log_line};

/// The two sockets.
#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) rest: Vec<TcpListener>,
    pub(super) plugin: UnixListener,
    /// The plugin's socket if this program created it; removed at the end.
    made: Option<PathBuf>,
}

impl Listeners {
    /// Creates the sockets, except those passed by systemd.
    ///
    /// # Errors
    /// `listen tcp <address>: …`, `listen unix <path>: …`.
    pub(super) fn open(listen: &str, sockets: &Path) -> Result<Self> {
        let (mut rest, plugin) = from_systemd()?;
        let path = sockets.join(format!("{VOLUME_DRIVER}.sock"));
        if rest.is_empty() {
            rest.push(tcp(listen)?);
        }
        let (plugin, made) = match plugin {
            Some(plugin) => (plugin, None),
            None => (unix(&path)?, Some(path)),
        };
        Ok(Self { rest, plugin, made })
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        if let Some(path) = &self.made {
            // It may already be gone.
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns true if systemd has opened the sockets, and opens them again for the next client.
pub(super) fn are_passed() -> bool {
    // As sd_listen_fds(3) has it; `ListenFd` would take them.
    std::env::var("LISTEN_PID").is_ok_and(|pid| pid == std::process::id().to_string())
}

fn from_systemd() -> Result<(Vec<TcpListener>, Option<UnixListener>)> {
    let mut handed = ListenFd::from_env();
    let (mut rest, mut plugin) = (Vec::new(), None);
    for index in 0..handed.len() {
        // A socket of another kind stays.
        if let Ok(Some(listener)) = handed.take_unix_listener(index) {
            plugin = Some(listener);
        } else if let Ok(Some(listener)) = handed.take_tcp_listener(index) {
            rest.push(listener);
        } else {
            return Err(Error::new(
                ErrorKind::System,
                format!(
                    "socket {index} of systemd is neither a TCP nor a unix socket that listens"
                ),
            ));
        }
    }
    Ok((rest, plugin))
}

/// Listens at `HOST:PORT`; without a host, on all addresses.
fn tcp(listen: &str) -> Result<TcpListener> {
    let failed = |address: &dyn std::fmt::Display, error: io::Error| {
        let failure = Error::new(ErrorKind::System, format!("listen tcp {address}: {error}"));
        match error.kind() {
            io::ErrorKind::AddrInUse => failure.hint("is another nvidia-docker-plugin running?"),
            _ => failure,
        }
    };
    let malformed = || failed(&listen, io::Error::other("an address is HOST:PORT"));
    let (host, port) = listen.rsplit_once(':').ok_or_else(malformed)?;
    let port: u16 = match port {
        "" => 0,
        port => port.parse().map_err(|_| malformed())?,
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let addresses: Vec<SocketAddr> = match host {
        // One socket for both families, if the machine supports both.
        "" => vec![([0u16; 8], port).into(), ([0u8; 4], port).into()],
        host => {
            let found = (host, port).to_socket_addrs();
            let mut found: Vec<SocketAddr> =
                found.map_err(|error| failed(&listen, error))?.collect();
            found.sort_by_key(SocketAddr::is_ipv6);
            found.truncate(1);
            found
        }
    };
    let mut refusal = malformed();
    for address in addresses {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => refusal = failed(&address, error),
        }
    }
    Err(refusal)
}

/// Listens at a path, replacing the leftover socket of an ended plugin.
fn unix(path: &Path) -> Result<UnixListener> {
    let failed = |error: io::Error| {
        Error::new(
            ErrorKind::System,
            format!("listen unix {}: {error}", path.display()),
        )
    };
    if let Some(directory) = path.parent() {
        // If this fails, so will the next call.
        let _ = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory);
    }
    if let Ok(there) = fs::symlink_metadata(path) {
        if there.file_type().is_socket() && UnixStream::connect(path).is_ok() {
            return Err(failed(io::Error::other("another plugin answers there"))
                .hint("stop that one, or choose another directory with -s"));
        }
        fs::remove_file(path).map_err(failed)?;
    }
    UnixListener::bind(path).map_err(failed)
}

/// Reports this program's state to systemd, if requested.
pub(super) fn notify(state: &str) {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let sent = UnixDatagram::unbound().and_then(|socket| {
        let place = place.into_string().unwrap_or_default();
        let address = match place.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&place)?,
        };
        socket.send_to_addr(state.as_bytes(), &address)
    });
    if let Err(error) = sent {
        log_line::log_text(&format!("Warning: NOTIFY_SOCKET: {error}"));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let at = |text: &str| tcp(text).map(|l| l.local_addr().unwrap().ip().to_string());
        assert_eq!(at("127.0.0.1:0").unwrap(), "127.0.0.1");
        assert_eq!(at("localhost:0").unwrap(), "127.0.0.1");
        assert!(at(":0").unwrap() == "::" || at(":0").unwrap() == "0.0.0.0");
        for text in [
            "",
            "localhost",
            "localhost:x",
            "192.0.2.1:0",
            "localhost:99999",
        ] {
            let failure = at(text).unwrap_err();
            assert!(failure.message().starts_with("listen tcp "), "{failure}");
        }
    }

    #[test]
    fn a_taken_port_is_said_to_be() {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let failure = tcp(&first.local_addr().unwrap().to_string()).unwrap_err();
        assert!(failure.advice().unwrap().contains("another"));
    }

    #[test]
    fn stale_sockets_are_replaced_and_living_ones_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x/p.sock");
        fs::create_dir(directory.path().join("x")).unwrap();
        fs::write(&path, "stale").unwrap();
        let first = unix(&path).unwrap();
        let failure = unix(&path).unwrap_err();
        assert!(failure.message().ends_with("another plugin answers there"));
        drop(first);
        unix(&path).unwrap();
    }
}
