//! Mounts the sockets of the driver's daemons that exist when the container starts.
//!
//! The arguments name no file: a daemon may start later than its specification is written, and a path could be exchanged
//! until the container starts.

use libnvc::host::Daemon;
use libnvc::plan::{Intent, Sockets, What};
use libnvc::{Error, ErrorKind, HostPath, Result};
use nvc_options::{Given, Opt};

use super::{list, text};

pub(super) const DAEMON: Opt = list("daemon", "NAME", "A daemon: persistenced or fabricmanager");
pub(super) const OPTIONS: &[Opt] = &[text("driver-root", "DIR", "The driver root"), DAEMON];

/// Returns the intent for the daemons in the arguments, if there are any.
pub(super) fn intents(given: &Given) -> Result<Vec<Intent>> {
    let daemons = given
        .list("daemon")
        .map(daemon)
        .collect::<Result<Vec<_>>>()?;
    if daemons.is_empty() {
        return Ok(Vec::new());
    }
    let root = HostPath::new(super::driver_root(given));
    Ok(vec![Intent::best_effort(What::Sockets(Sockets {
        root,
        daemons,
    }))])
}

fn daemon(word: &str) -> Result<Daemon> {
    let known = Daemon::ALL.into_iter().find(|daemon| daemon.word() == word);
    known.ok_or_else(|| {
        let names = Daemon::ALL.map(Daemon::word).join(" and ");
        let text = format!("unknown --daemon \"{word}\"");
        Error::new(ErrorKind::InvalidArgument, text).hint(format!("there are {names}"))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::arguments::options;

    fn of(line: &str) -> Result<Vec<Intent>> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        intents(&options(OPTIONS, &words).unwrap())
    }

    #[test]
    fn the_arguments_name_daemons_and_no_file() {
        let sockets = |root: &str, daemons: &[Daemon]| {
            vec![Intent::best_effort(What::Sockets(Sockets {
                root: HostPath::new(root),
                daemons: daemons.to_vec(),
            }))]
        };
        let line = "--driver-root=/run/driver --daemon=persistenced,fabricmanager";
        assert_eq!(of(line).unwrap(), sockets("/run/driver", &Daemon::ALL));
        let one = sockets("/", &[Daemon::Fabricmanager]);
        assert_eq!(of("--daemon fabricmanager").unwrap(), one);
        assert_eq!(of("--driver-root=/x").unwrap(), []);
        for word in ["mps", "/run/docker.sock", "../docker"] {
            let error = of(&format!("--daemon={word}")).unwrap_err().message();
            assert_eq!(error, format!("unknown --daemon \"{word}\""));
        }
    }
}
