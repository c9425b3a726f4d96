//! Makes messages of hooks visible under crun, which sends them to /dev/null unless an annotation names a file.
//!
//! Without them, the user of a container that does not start sees only a hook's exit code. The file is crun's own
//! standard error, which is this process's.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nvc_toolkit::oci::spec::Spec;
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use serde_json::{Value, json};

const ANNOTATION: &str = "run.oci.hooks.stderr";

/// crun opens it in the host's /proc, before it starts the container.
const OWN: &str = "/proc/self/fd/2";

/// Adds the annotation to a container that `runtime` starts, or removes it, unless it was set by another program.
pub(crate) fn show_messages(spec: &mut Spec, runtime: &Path) -> Result<(), String> {
    let name = runtime.file_name().unwrap_or_default().to_string_lossy();
    let can_be_opened = name.ends_with("crun") && can_be_opened();
    annotate(spec, can_be_opened)
}

fn annotate(spec: &mut Spec, is_wanted: bool) -> Result<(), String> {
    if !is_wanted && !spec.has(&["annotations", ANNOTATION]) {
        return Ok(());
    }
    let annotations = spec.object(&["annotations"])?;
    match annotations.get(ANNOTATION) {
        None if is_wanted => {
            annotations.insert(ANNOTATION.into(), json!(OWN));
        }
        // Of an earlier run: crun would refuse to start the container.
        Some(Value::String(text)) if !is_wanted && text == OWN => {
            annotations.remove(ANNOTATION);
        }
        _ => {}
    }
    Ok(())
}

/// Returns true if crun can open this process's standard error by name; sockets cannot be opened.
fn can_be_opened() -> bool {
    let mut options = OpenOptions::new();
    let options = options.append(true).create(true).mode(0o700);
    if options.open(OWN).is_err() {
        return false;
    }
    let stderr = std::io::stderr();
    let is_file = fstat(&stderr)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    // The runtime would overwrite the hooks' messages with its own.
    let appends = || {
        let flags = fcntl_getfl(&stderr)?;
        fcntl_setfl(&stderr, flags | OFlags::APPEND)
    };
    !is_file || appends().is_ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn annotated(annotations: &Value, is_wanted: bool) -> Value {
        let mut spec = Spec::new(json!({"annotations": annotations}));
        annotate(&mut spec, is_wanted).unwrap();
        spec.value()["annotations"].clone()
    }

    #[test]
    fn only_our_own_annotation_comes_and_goes() {
        let ours = json!({"a": "b", ANNOTATION: OWN});
        let theirs = json!({ANNOTATION: "/var/log/hooks"});
        assert_eq!(annotated(&json!({"a": "b"}), true), ours);
        assert_eq!(annotated(&ours, true), ours);
        assert_eq!(annotated(&ours, false), json!({"a": "b"}));
        assert_eq!(annotated(&theirs, true), theirs);
        assert_eq!(annotated(&theirs, false), theirs);
        let mut bare = Spec::new(json!({}));
        annotate(&mut bare, false).unwrap();
        assert_eq!(*bare.value(), json!({}));
    }

    #[test]
    fn other_runtimes_get_no_annotation() {
        let mut spec = Spec::new(json!({}));
        show_messages(&mut spec, Path::new("/usr/bin/runc")).unwrap();
        assert_eq!(*spec.value(), json!({}));
    }
}
