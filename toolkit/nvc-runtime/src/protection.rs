//! Protects the hooks of a container with a GPU from its image: gives them an environment, and keeps their messages out
//! of files that the image chose.
//!
//! The hooks are this program's, and those of an engine that applies specifications itself.

use std::path::Path;

use nvc_oci::lenient::member;
use nvc_oci::own_environment;
use nvc_oci::spec::Spec;
use serde_json::Value;

use crate::crun;
use crate::error::Result;

/// The programs that run as hooks in containers with a GPU. Operators' installers add `.real` to the names.
const HOOKS: [&str; 4] = [
    "nvidia-cdi-hook",
    "nvidia-ctk",
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
];

/// Gives the hooks an environment of their own, and removes annotations by which an image chooses a file for their
/// messages. A container without a GPU stays as it is.
pub(crate) fn protect(spec: &mut Spec, gives_gpu: bool) -> Result<()> {
    if gives_gpu || has_gpu(spec.value()) {
        own_environment::give_to_all(spec);
        crun::remove_others(spec)?;
    }
    Ok(())
}

/// Returns true if the engine has added one of our hooks, or a node of the driver.
fn has_gpu(spec: &Value) -> bool {
    let member = |value: &Value, name| value.as_object().and_then(|of| member(of, name).cloned());
    let paths = |list: &Value| -> Vec<String> {
        let entries = list.as_array().into_iter().flatten();
        let paths = entries.filter_map(|entry| member(entry, "path"));
        paths
            .filter_map(|path| path.as_str().map(str::to_owned))
            .collect()
    };
    let hooks = member(spec, "hooks").unwrap_or_default();
    let mut stages = hooks
        .as_object()
        .into_iter()
        .flat_map(|stages| stages.values());
    let linux = member(spec, "linux").unwrap_or_default();
    let devices = member(&linux, "devices").unwrap_or_default();
    stages.any(|stage| paths(stage).iter().any(|path| is_hook(path)))
        || paths(&devices)
            .iter()
            .any(|path| path.starts_with("/dev/nvidia"))
}

fn is_hook(path: &str) -> bool {
    let path = Path::new(path.strip_suffix(".real").unwrap_or(path));
    HOOKS.iter().any(|name| path.ends_with(name))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn gpus_of_the_engine_count() {
        let hook = |path: &str| json!({"hooks": {"createContainer": [{"path": path}]}});
        let node = |path: &str| json!({"linux": {"devices": [{"path": path}]}});
        for (container, is_protected) in [
            (hook("/usr/bin/nvidia-cdi-hook"), true),
            (hook("/opt/bin/nvidia-ctk"), true),
            (hook("/opt/bin/nvidia-ctk.real"), true),
            (
                json!({"hooks": {"prestart": [{"path": "/x/nvidia-container-runtime-hook"}]}}),
                true,
            ),
            (node("/dev/nvidia0"), true),
            (hook("/usr/bin/other"), false),
            (node("/dev/fuse"), false),
            (json!({"hooks": 7, "linux": []}), false),
        ] {
            for gives_gpu in [false, true] {
                let mut container = container.clone();
                container["annotations"] = json!({"run.oci.hooks.stderr": "/x"});
                let mut spec = Spec::new(container.clone());
                protect(&mut spec, gives_gpu).unwrap();
                let is_protected = is_protected || gives_gpu;
                assert_eq!(*spec.value() != container, is_protected, "{container}");
                assert_eq!(
                    spec.value()["annotations"] == json!({}),
                    is_protected,
                    "{container}"
                );
            }
        }
    }

    /// Of the engine, of a specification for another device, and of an older toolkit.
    #[test]
    fn hooks_of_others_have_an_environment_too() {
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let mut spec = Spec::new(json!({
            "linux": {"devices": [{"path": "/dev/nvidia0"}]},
            "hooks": {
                "prestart": [{"path": "/opt/first"}],
                "createContainer": [
                    {"path": "/opt/old/nvidia-ctk", "args": ["nvidia-ctk", "hook", "update-ldcache"]},
                    {"path": "/opt/own", "env": ["A=b"]},
                ],
                "startContainer": [{"path": "/opt/x", "env": []}],
            },
        }));
        protect(&mut spec, false).unwrap();
        let hooks = &spec.value()["hooks"];
        assert_eq!(hooks["prestart"], json!([{"path": "/opt/first"}]));
        assert_eq!(hooks["createContainer"][0]["env"], json!([path]));
        assert_eq!(hooks["createContainer"][1]["env"], json!(["A=b"]));
        assert_eq!(
            hooks["startContainer"],
            json!([{"path": "/opt/x", "env": [path]}])
        );
    }
}
