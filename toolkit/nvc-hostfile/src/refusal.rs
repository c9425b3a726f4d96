//! Words the refusal of a path that others can exchange, with the way out.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use libnvc::trust::{Exposed, Who, name};
use libnvc::{Error, ErrorKind};

use super::shell::word;

/// Returns the refusal of a path on which something is exposed.
pub(super) fn refusal(exposed: &Exposed, file: &Path) -> Error {
    let at = &exposed.at;
    let cause = format!("{exposed}, so another file could be put in its place");
    let error = Error::fault(ErrorKind::InvalidArgument, file.display(), cause);
    error.hint(match exposed.who {
        Who::Owner(uid) => {
            let user = name("/etc/passwd", uid).unwrap_or_else(|| format!("#{uid}"));
            format!("run the command as that user, with sudo -u {}", word(&user))
        }
        // With an ACL, this takes the right from all of its users and groups.
        Who::User(_) | Who::Group(_) => format!("chmod g-w {}", word(&at.to_string_lossy())),
        // Such as /tmp, which every user must be able to write to.
        Who::Everybody if std::fs::metadata(at).is_ok_and(|at| at.mode() & 0o1000 != 0) => {
            "put it where only root can write, such as below /var/lib".into()
        }
        Who::Everybody => format!("chmod go-w {}", word(&at.to_string_lossy())),
    })
}
