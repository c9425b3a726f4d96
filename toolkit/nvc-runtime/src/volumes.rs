//! Leaves files whose places are on a volume of the container to our hook: the low-level runtime would create the mount
//! points on the volume, with the host's rights, or fail on a read-only one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use nvc_cdi::{Edits, Mount};
use nvc_generate::HookProgram;
use nvc_oci::paths::clean;
use nvc_program::hook_names;
use serde_json::Value;

/// Moves the mounts of files to a hook, which comes before all others.
pub(crate) fn leave_to_hook(spec: &Value, all: &mut [Edits], program: &HookProgram) {
    let volumes = volumes(spec);
    if volumes.is_empty() {
        return;
    }
    let is_on_volume = |mount: &Mount| {
        let place = PathBuf::from(clean(&mount.container_path));
        volumes
            .iter()
            .any(|volume| place != *volume && place.starts_with(volume))
    };
    let mut words = vec!["--version=1".to_owned()];
    let mut folders = BTreeSet::new();
    for edits in all.iter_mut() {
        let (moved, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut edits.mounts)
            .into_iter()
            .partition(|mount| is_on_volume(mount) && is_file(mount));
        edits.mounts = kept;
        for mount in moved {
            let place = clean(&mount.container_path);
            folders.extend(folder(Path::new(&place)));
            words.push("--mount".into());
            words.push(format!("{}::{place}", mount.host_path));
        }
    }
    if words.len() == 1 {
        return;
    }
    for folder in folders {
        words.extend(["--folder".into(), folder]);
    }
    if let Some(first) = all.first_mut() {
        first
            .hooks
            .insert(0, program.hook(hook_names::MERGED, words));
    }
}

/// Returns true if the container has bind mounts of directories in which the driver's files can be.
pub(crate) fn has_any(spec: &Value) -> bool {
    let usual = ["/usr", "/lib", "/lib64", "/etc", "/opt", "/bin", "/sbin"];
    let is_usual = |volume: &PathBuf| {
        let mut usual = usual.iter();
        // Engines bind single files of /etc in every container.
        usual.any(|usual| volume.starts_with(usual)) && !is_engines(volume)
    };
    volumes(spec).iter().any(is_usual)
}

fn is_engines(volume: &Path) -> bool {
    ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"]
        .iter()
        .any(|file| volume == Path::new(file))
}

/// Returns the mount points of the container's bind mounts.
fn volumes(spec: &Value) -> Vec<PathBuf> {
    let mounts = spec["mounts"].as_array().into_iter().flatten();
    let is_bind = |mount: &&Value| {
        let mut options = mount["options"].as_array().into_iter().flatten();
        mount["type"] == "bind" || options.any(|option| option == "bind" || option == "rbind")
    };
    let points = mounts.filter(is_bind);
    let points = points.filter_map(|mount| mount["destination"].as_str());
    points.map(|point| PathBuf::from(clean(point))).collect()
}

/// Returns true for a read-only mount of a regular file whose paths fit into an argument.
fn is_file(mount: &Mount) -> bool {
    let is_plain =
        |path: &str| path.starts_with('/') && !path.contains(',') && !path.contains("::");
    mount.options.iter().any(|option| option == "ro")
        && is_plain(&mount.host_path)
        && is_plain(&mount.container_path)
        && std::fs::metadata(&mount.host_path).is_ok_and(|found| found.is_file())
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

    /// Returns the mounts that stay, and the words of the hook.
    fn moved(volume: &Value) -> (Vec<String>, String) {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("source");
        std::fs::write(&source, "").unwrap();
        let mount = |path: &str, option: &str| Mount {
            host_path: source.display().to_string(),
            container_path: path.into(),
            options: vec![option.into(), "rbind".into()],
            kind: String::new(),
        };
        let mut all = [Edits {
            mounts: vec![
                mount("/usr/lib/libcuda.so.1", "ro"),
                mount("/usr/bin/nvidia-smi", "ro"),
                mount("/usr/lib/writable", "rw"),
            ],
            ..Edits::default()
        }];
        let path = "/x/nvidia-cdi-hook".to_owned();
        leave_to_hook(
            &json!({ "mounts": [volume] }),
            &mut all,
            &HookProgram { path },
        );
        let [edits] = all;
        let kept = edits.mounts.into_iter().map(|mount| mount.container_path);
        let words = edits.hooks.iter().map(|hook| hook.args.join(" "));
        let words = words.collect::<String>();
        let source = source.display().to_string();
        (kept.collect(), words.replace(&source, "S"))
    }

    #[test]
    fn files_on_volumes_are_left_to_a_hook() {
        let volume =
            |place: &str| json!({ "destination": place, "type": "bind", "options": ["rw"] });
        let all = [
            "/usr/lib/libcuda.so.1",
            "/usr/bin/nvidia-smi",
            "/usr/lib/writable",
        ];
        for place in ["/data", "/usr/lib/libcuda.so.1", "/usr/libx", "/etc"] {
            assert_eq!(
                moved(&volume(place)),
                (all.map(String::from).to_vec(), String::new())
            );
        }
        let tmpfs = json!({ "destination": "/usr", "type": "tmpfs" });
        assert_eq!(moved(&tmpfs).1, "");
        let start = "nvidia-cdi-hook merged --version=1 --mount S::/usr/lib/libcuda.so.1";
        let (kept, words) = moved(&volume("/usr/lib/"));
        assert_eq!(kept, all[1..]);
        assert_eq!(words, format!("{start} --folder /usr/lib"));
        let by_options = json!({ "destination": "/usr", "type": "none", "options": ["rbind"] });
        let (kept, words) = moved(&by_options);
        assert_eq!(kept, all[2..]);
        let program = "--mount S::/usr/bin/nvidia-smi";
        assert_eq!(words, format!("{start} {program} --folder /usr/lib"));
    }
}
