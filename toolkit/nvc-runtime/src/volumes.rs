//! Keeps the files of volumes as they are: the low-level runtime would create mount points and nodes there, with the
//! host's rights, or fail on a read-only one.
//!
//! Files whose places are on a volume are left to our hook, which gives them other places.

mod places;

use std::collections::BTreeSet;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use nvc_cdi::{DeviceNode, Edits, Mount};
use nvc_generate::HookProgram;
use nvc_oci::paths::clean;
use nvc_program::hook_names;
use serde_json::Value;

use self::places::Places;
use crate::error::{Result, refused};

/// What happens to a mount.
enum MountDecision {
    /// The low-level runtime makes it.
    Stay,
    /// The hook makes it.
    Hook,
    /// Nobody does.
    LeaveOut,
}

/// What the low-level runtime must not create.
#[derive(Debug, Default)]
pub(crate) struct Spared {
    /// Nodes on volumes. Their rules stay: the volume can have the nodes, such as the host's /dev.
    pub(crate) nodes: Vec<DeviceNode>,
    pub(crate) warnings: Vec<String>,
}

/// Changes the edits of a container so that nothing is created on its volumes; `bundle` is its directory. `program` is
/// our hook program, whose new hook comes before all others.
///
/// # Errors
/// A mount can be made only by the low-level runtime, which would create its mount point on a volume.
pub(crate) fn spare(
    spec: &Value,
    bundle: &Path,
    all: &mut [Edits],
    program: Option<&HookProgram>,
) -> Result<Spared> {
    let mut places = Places::of(spec, bundle);
    let mut spared = Spared::default();
    let mut words = vec!["--version=1".to_owned()];
    let mut folders = BTreeSet::new();
    for edits in all.iter_mut() {
        let mut kept = Vec::with_capacity(edits.mounts.len());
        for mount in std::mem::take(&mut edits.mounts) {
            match decide(&mount, &mut places, program.is_some())? {
                MountDecision::Stay => kept.push(mount),
                MountDecision::LeaveOut => spared.leave_out(&mount.container_path),
                MountDecision::Hook => {
                    let place = clean(&mount.container_path);
                    folders.extend(folder(Path::new(&place)));
                    words.push("--mount".into());
                    words.push(format!("{}::{place}", mount.host_path));
                }
            }
        }
        edits.mounts = kept;
        let is_on_volume =
            |node: &DeviceNode| places.is_on_volume(&PathBuf::from(clean(&node.path)));
        let (left, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut edits.device_nodes)
            .into_iter()
            .partition(is_on_volume);
        edits.device_nodes = kept;
        for node in &left {
            if !places.exists(Path::new(&clean(&node.path))) {
                spared.leave_out(&node.path);
            }
        }
        spared.nodes.extend(left);
    }
    if words.len() > 1
        && let (Some(program), Some(first)) = (program, all.first_mut())
    {
        for folder in folders {
            words.extend(["--folder".into(), folder]);
        }
        let hook = program.hook(hook_names::MERGED, words);
        first.hooks.insert(0, hook);
    }
    Ok(spared)
}

impl Spared {
    fn leave_out(&mut self, place: &str) {
        let text = format!("leaving out {place}: it is on a volume, which may not be changed");
        self.warnings.push(text);
    }
}

fn decide(mount: &Mount, places: &mut Places, has_program: bool) -> Result<MountDecision> {
    let place = PathBuf::from(clean(&mount.container_path));
    let is_for_hook = || has_program && is_for_hook(mount);
    if !places.is_on_volume(&place) {
        return Ok(if places.is_doubtful && is_for_hook() {
            MountDecision::Hook
        } else {
            MountDecision::Stay
        });
    }
    if is_for_hook() {
        return Ok(MountDecision::Hook);
    }
    if places.exists(&place) {
        return Ok(MountDecision::Stay);
    }
    let is_data = || std::fs::metadata(&mount.host_path).is_ok_and(|found| found.is_dir());
    if is_read_only(mount) && is_data() {
        return Ok(MountDecision::LeaveOut);
    }
    let what = format!(
        "{} cannot be mounted at {}: that is on a volume, which may not be changed",
        mount.host_path, mount.container_path
    );
    Err(refused(what).hint(if has_program {
        "mount the volume elsewhere, or create the mount point on it"
    } else {
        "only our nvidia-cdi-hook can give the file another place: install it beside nvidia-container-runtime"
    }))
}

/// Returns true if the hook can make a mount: of a file, read-only, or of a daemon's socket or directory of sockets.
fn is_for_hook(mount: &Mount) -> bool {
    let has = |option: &str| mount.options.iter().any(|found| found == option);
    let is_plain =
        |path: &str| path.starts_with('/') && !path.contains(',') && !path.contains("::");
    let is_bind = mount.kind.is_empty() || mount.kind == "bind" || has("bind") || has("rbind");
    let Ok(found) = std::fs::metadata(&mount.host_path) else {
        return false;
    };
    let is_of_daemon = found.file_type().is_socket() || found.is_dir();
    is_bind
        && is_plain(&mount.host_path)
        && is_plain(&mount.container_path)
        && if is_read_only(mount) {
            found.is_file()
        } else {
            is_of_daemon && has("nodev") && has("noexec")
        }
}

fn is_read_only(mount: &Mount) -> bool {
    mount.options.iter().any(|option| option == "ro")
}

/// Returns the directory of a library, which the loader must search.
fn folder(place: &Path) -> Option<String> {
    let name = place.file_name()?.to_str()?;
    let is_library = name.starts_with("lib") && name.contains(".so");
    is_library.then(|| place.parent()?.to_str().map(String::from))?
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The options of the driver's files, and of its daemons' sockets.
    const FILE: [&str; 2] = ["ro", "rbind"];
    const SOCKET: [&str; 3] = ["nodev", "noexec", "rbind"];

    /// A bundle whose /lib is a link, and edits with a mount of each kind.
    struct Case {
        bundle: tempfile::TempDir,
        edits: Edits,
    }

    impl Case {
        fn new() -> Self {
            let bundle = tempfile::tempdir().unwrap();
            let path = |name: &str| bundle.path().join(name);
            std::fs::create_dir_all(path("rootfs/usr/lib")).unwrap();
            std::os::unix::fs::symlink("usr/lib", path("rootfs/lib")).unwrap();
            std::fs::create_dir_all(path("volume/lib/there")).unwrap();
            std::fs::create_dir(path("directory")).unwrap();
            std::fs::write(path("file"), "").unwrap();
            let mount = |source: &str, place: &str, options: &[&str]| Mount {
                host_path: path(source).display().to_string(),
                container_path: place.into(),
                options: options.iter().map(ToString::to_string).collect(),
                kind: String::new(),
            };
            let mounts = vec![
                mount("file", "/usr/lib/libcuda.so.1", &FILE),
                mount("file", "/lib/libnvidia-ml.so.1", &FILE),
                mount("file", "/usr/bin/nvidia-smi", &FILE),
                mount("directory", "/usr/lib/mps", &SOCKET),
                mount("directory", "/usr/lib/data", &FILE),
                mount("directory", "/usr/lib/there", &["rw"]),
            ];
            let nodes = ["/dev/nvidia0", "/usr/lib/node"].map(|path| DeviceNode {
                path: path.into(),
                ..DeviceNode::default()
            });
            let edits = Edits {
                mounts,
                device_nodes: nodes.to_vec(),
                ..Edits::default()
            };
            Self { bundle, edits }
        }

        /// Returns the edits for a container with a volume, and what was spared.
        fn spare(&self, place: &str, has_program: bool) -> Result<(Edits, Spared)> {
            let spec = json!({
                "root": {"path": "rootfs"},
                "mounts": [{"destination": place, "type": "bind", "source": "volume"}],
            });
            let path = "/x/nvidia-cdi-hook".to_owned();
            let program = has_program.then_some(HookProgram { path });
            let mut all = [self.edits.clone()];
            let spared = spare(&spec, self.bundle.path(), &mut all, program.as_ref())?;
            let [edits] = all;
            Ok((edits, spared))
        }

        /// Returns the places of the mounts that stay, and the words of the hook.
        fn words(&self, place: &str) -> (Vec<String>, String) {
            let (edits, _) = self.spare(place, true).unwrap();
            let kept = edits.mounts.into_iter().map(|mount| mount.container_path);
            let words = edits.hooks.iter().map(|hook| hook.args.join(" "));
            let bundle = format!("{}/", self.bundle.path().display());
            (
                kept.collect(),
                words.collect::<String>().replace(&bundle, ""),
            )
        }
    }

    #[test]
    fn files_on_volumes_are_left_to_a_hook() {
        let mut case = Case::new();
        let all: Vec<_> = { case.edits.mounts.iter() }
            .map(|mount| mount.container_path.clone())
            .collect();
        for place in ["/data", "/usr/libx", "/etc", "/dev/shm"] {
            assert_eq!(case.words(place), (all.clone(), String::new()), "{place}");
        }
        let libraries = "--mount file::/usr/lib/libcuda.so.1 --mount file::/lib/libnvidia-ml.so.1";
        let start = format!("nvidia-cdi-hook merged --version=1 {libraries}");
        let end = "--folder /lib --folder /usr/lib";
        // The volume has lib/there, but not there.
        let error = case.spare("/usr/lib", true).unwrap_err().message();
        assert!(error.contains("at /usr/lib/there"), "{error}");
        assert_eq!(
            case.words("/usr"),
            (
                vec!["/usr/lib/there".into()],
                format!(
                    "{start} --mount file::/usr/bin/nvidia-smi --mount directory::/usr/lib/mps {end}"
                )
            )
        );
        case.edits.mounts.pop();
        for place in ["/usr/lib", "/lib", "/lib/"] {
            let (kept, words) = case.words(place);
            assert_eq!(kept, ["/usr/bin/nvidia-smi"], "{place}");
            assert_eq!(
                words,
                format!("{start} --mount directory::/usr/lib/mps {end}")
            );
        }
    }

    #[test]
    fn what_is_left_out_is_named() {
        let case = Case::new();
        let (edits, spared) = case.spare("/usr", true).unwrap();
        let text = |place: &str| {
            format!("leaving out {place}: it is on a volume, which may not be changed")
        };
        assert_eq!(
            spared.warnings,
            ["/usr/lib/data", "/usr/lib/node"].map(text)
        );
        assert_eq!(edits.device_nodes.len(), 1);
        assert_eq!(spared.nodes.len(), 1);
    }

    #[test]
    fn without_our_hook_nothing_is_created_either() {
        let case = Case::new();
        let error = case.spare("/usr", false).unwrap_err().message();
        assert!(
            error.contains("at /usr/lib/libcuda.so.1: that is on a volume"),
            "{error}"
        );
        assert!(case.spare("/data", false).is_ok());
    }
}
