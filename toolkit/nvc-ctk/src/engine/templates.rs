//! Recognises the template of an engine's file, and a file that is made from one.
//!
//! A distribution of Kubernetes makes containerd's file anew from a template at each start. An edit of the file would be
//! lost; a copy of the template's placeholders would get into a file that nobody expands.

use std::path::{Path, PathBuf};

use libnvc::{Error, ErrorKind, Result};

use super::{Files, Runtime, containerd};

/// Files that are made from templates: the directory, the file, its template.
const GENERATED: [(&str, &str, &str); 3] = [
    ("/var/lib/rancher", "config.toml", "config.toml.tmpl"),
    ("/var/snap", "containerd.toml", "containerd-template.toml"),
    ("/var/snap", "config.toml", "config.toml.tmpl"),
];

/// Returns the template if a file is one, or is made from one.
pub(crate) fn of(path: &Path, text: &str) -> Option<PathBuf> {
    if text.contains("{{") || text.contains("${") {
        return Some(path.into());
    }
    let name = path.file_name()?;
    let known = GENERATED
        .iter()
        .find(|(directory, file, _)| path.starts_with(directory) && name == *file);
    known.map(|(_, _, template)| path.with_file_name(template))
}

/// Returns the error of a file that is not edited.
pub(crate) fn refused(path: &Path, template: &Path) -> Error {
    let (is_one, path, template) = (path == template, path.display(), template.display());
    let text = if is_one {
        format!("{path} is a template, which nvidia-ctk does not edit")
    } else {
        format!("{path} is made from the template {template}, which nvidia-ctk does not edit")
    };
    let hint = format!("write the runtime into {template}; --dry-run prints what to write");
    Error::new(ErrorKind::InvalidArgument, text).hint(hint)
}

/// Returns the lines for a template of containerd's file.
pub(crate) fn lines(text: &str, runtime: &Runtime) -> Result<String> {
    let is_new = text.contains("io.containerd.cri.v1.runtime") || text.contains("version = 3");
    let head = if is_new {
        "version = 3\n"
    } else {
        "version = 2\n"
    };
    let files = Files {
        path: Path::new("the template"),
        text: Some(head),
        drop_in: None,
        drop_in_text: None,
        others: &[],
        dumped: None,
        drops_default: false,
    };
    let made = containerd::add(files, runtime)?.pop();
    let text = made.map(|made| made.text).unwrap_or_default();
    Ok(text.trim_start_matches(head).trim_start().into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_named() {
        let refused = |path: &str, text: &str| {
            let template = of(Path::new(path), text)?;
            let error = refused(Path::new(path), &template);
            Some(format!("{} ({})", error.message(), error.advice().unwrap()))
        };
        assert_eq!(refused("/etc/containerd/config.toml", "version = 2"), None);
        for (path, text, names) in [
            (
                "/x/containerd-template.toml",
                "a = \"${B}\"",
                "write the runtime into /x/containerd-template.toml",
            ),
            (
                "/x/config.toml.tmpl",
                "{{ template \"base\" . }}",
                "/x/config.toml.tmpl is a template",
            ),
            (
                "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
                "",
                "the template /var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl",
            ),
            (
                "/var/snap/microk8s/current/args/containerd.toml",
                "",
                "args/containerd-template.toml",
            ),
        ] {
            let text = refused(path, text).unwrap();
            assert!(text.contains(names), "{text}");
        }
    }

    #[test]
    fn the_lines_are_those_of_the_templates_version() {
        let runtime = Runtime {
            name: "nvidia".into(),
            path: "/usr/bin/nvidia-container-runtime".into(),
            set_as_default: false,
            enable_cdi: false,
        };
        for (text, plugin) in [
            ("{{ template \"base\" . }}", "io.containerd.grpc.v1.cri"),
            ("version = 3\n{{ . }}", "io.containerd.cri.v1.runtime"),
        ] {
            let lines = lines(text, &runtime).unwrap();
            assert!(
                lines.starts_with("[plugins.") && lines.contains(plugin),
                "{lines}"
            );
            assert!(!lines.contains("version ="), "{lines}");
        }
    }
}
