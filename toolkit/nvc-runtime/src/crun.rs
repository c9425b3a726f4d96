//! Makes messages of hooks visible under crun, which sends them to /dev/null unless an annotation names a file.
//!
//! Without them, the user of a container that does not start sees only a hook's exit code. The file is crun's own
//! standard error, which is this process's. Any other file is one of the host that the image may have chosen, since old
//! versions of podman copy annotations of images: those annotations are removed.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::{SFlag, fstat};
use nvc_hostfile::kind;
use nvc_oci::spec::Spec;
use nvc_program::messages::{STDERR, STREAM_ANNOTATIONS, is_stderr};
use serde_json::json;

use crate::error::Result;

const ANNOTATION: &str = "run.oci.hooks.stderr";

/// Names crun's standard error in the annotations of a container that `runtime` starts and that gets a GPU from this
/// program.
pub(crate) fn show_messages(spec: &mut Spec, runtime: &Path) -> Result<()> {
    let can_be_opened = is_crun(runtime) && can_be_opened();
    annotate(spec, can_be_opened)
}

/// Returns true if a program is crun by its name, or by that of the file that it links to.
pub(crate) fn is_crun(runtime: &Path) -> bool {
    let is_named = |program: &Path| {
        let name = program.file_name().unwrap_or_default();
        name.to_string_lossy().contains("crun")
    };
    is_named(runtime) || runtime.canonicalize().is_ok_and(|file| is_named(&file))
}

/// Removes annotations that name another file.
pub(crate) fn remove_others(spec: &mut Spec) -> Result<()> {
    if !spec.has(&["annotations"]) {
        return Ok(());
    }
    let annotations = spec.object(&["annotations"])?;
    for name in STREAM_ANNOTATIONS {
        if annotations.get(name).is_some_and(|value| !is_stderr(value)) {
            annotations.remove(name);
        }
    }
    Ok(())
}

fn annotate(spec: &mut Spec, is_wanted: bool) -> Result<()> {
    if !is_wanted && !spec.has(&["annotations", ANNOTATION]) {
        return Ok(());
    }
    let annotations = spec.object(&["annotations"])?;
    if is_wanted {
        let value = annotations.entry(ANNOTATION);
        value.or_insert_with(|| json!(STDERR));
    } else if annotations.get(ANNOTATION).is_some_and(is_stderr) {
        // Of an earlier run: crun would refuse to start the container.
        annotations.remove(ANNOTATION);
    }
    Ok(())
}

/// Returns true if crun can open this process's standard error by name; sockets cannot be opened.
fn can_be_opened() -> bool {
    let mut options = OpenOptions::new();
    let options = options.append(true).create(true).mode(0o700);
    if options.open(STDERR).is_err() {
        return false;
    }
    let stderr = std::io::stderr();
    let is_file = fstat(&stderr).is_ok_and(|stat| kind(&stat) == SFlag::S_IFREG);
    // The runtime would overwrite the hooks' messages with its own.
    let appends = || {
        let flags = OFlag::from_bits_retain(fcntl(&stderr, FcntlArg::F_GETFL)?);
        fcntl(&stderr, FcntlArg::F_SETFL(flags | OFlag::O_APPEND))
    };
    !is_file || appends().is_ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn annotated(annotations: &Value, is_wanted: bool) -> Value {
        let mut spec = Spec::new(json!({"annotations": annotations}));
        annotate(&mut spec, is_wanted).unwrap();
        spec.value()["annotations"].clone()
    }

    #[test]
    fn only_our_own_annotation_comes_and_goes() {
        let ours = json!({"a": "b", ANNOTATION: STDERR});
        assert_eq!(annotated(&json!({"a": "b"}), true), ours);
        assert_eq!(annotated(&ours, true), ours);
        assert_eq!(annotated(&ours, false), json!({"a": "b"}));
        let mut bare = Spec::new(json!({}));
        annotate(&mut bare, false).unwrap();
        assert_eq!(*bare.value(), json!({}));
    }

    #[test]
    fn files_of_the_image_are_removed() {
        let [stdout, stderr] = STREAM_ANNOTATIONS;
        for runtime in ["/usr/bin/runc", "/usr/bin/youki"] {
            for value in ["/etc/cron.d/x", "//dev/stderr", "/proc/self/fd/02", ""] {
                let annotations = json!({"a": "b", stdout: value, stderr: value});
                let mut spec = Spec::new(json!({"annotations": annotations}));
                remove_others(&mut spec).unwrap();
                show_messages(&mut spec, Path::new(runtime)).unwrap();
                assert_eq!(*spec.value(), json!({"annotations": {"a": "b"}}), "{value}");
            }
        }
        let kept = json!({"annotations": {stdout: "/dev/stderr", stderr: STDERR}});
        let mut spec = Spec::new(kept.clone());
        remove_others(&mut spec).unwrap();
        assert_eq!(*spec.value(), kept);
    }

    #[test]
    fn crun_is_known_by_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let (link, other) = ("oci-runtime", "other");
        for (target, name) in [("crun-1.28", link), ("runc", other)] {
            std::fs::write(directory.path().join(target), "").unwrap();
            std::os::unix::fs::symlink(target, directory.path().join(name)).unwrap();
        }
        for name in ["/usr/bin/crun", "/opt/bin/crun.real", "/x/crun-1.28"] {
            assert!(is_crun(Path::new(name)), "{name}");
        }
        assert!(is_crun(&directory.path().join(link)));
        assert!(!is_crun(&directory.path().join(other)));
        assert!(!is_crun(Path::new("/crun/runc")));
    }

    #[test]
    fn other_runtimes_get_no_annotation() {
        let mut spec = Spec::new(json!({}));
        show_messages(&mut spec, Path::new("/usr/bin/runc")).unwrap();
        assert_eq!(*spec.value(), json!({}));
    }
}
