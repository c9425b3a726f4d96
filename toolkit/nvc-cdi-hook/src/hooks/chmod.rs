//! Changes permissions; symlinks are followed only inside the container's root.

use libnvc::plan::{FileMode, Intent, Need, What};
use libnvc::{ContainerPath, Error, ErrorKind, Result};
use nvc_options::Given;

pub(super) fn intents(given: &Given) -> Result<Vec<Intent>> {
    let invalid = |text: String| Error::new(ErrorKind::InvalidArgument, text);
    let word = given.text("mode");
    let word = word.ok_or_else(|| invalid("--mode is missing".into()))?;
    let mode =
        u32::from_str_radix(word, 8).map_err(|_| invalid(format!("invalid --mode {word}")))?;
    let intent = |path: &str| {
        if path.is_empty() {
            return Err(invalid("--path is empty".into()));
        }
        let what = What::Mode(FileMode {
            at: ContainerPath::new(path),
            mode: mode & 0o777,
        });
        let need = Need::WherePermitted;
        Ok(Intent { need, what })
    };
    given.list("path").map(intent).collect()
}
