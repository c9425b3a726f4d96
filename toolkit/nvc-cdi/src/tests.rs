//! Tests parsing, validation and the registry together.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use super::emit::Format;
use super::*;

const SMALL: &str = r#"{"cdiVersion": "0.5.0", "kind": "v.com/gpu",
  "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/null"}]}}],
  "containerEdits": {"env": ["A=b"]}}"#;

fn refused(text: &str) -> String {
    match parse(text.as_bytes()) {
        Err(error) => error.message(),
        Ok(spec) => validate::spec(&spec).unwrap_err().message(),
    }
}

#[test]
fn json_and_yaml_say_the_same() {
    let yaml = "cdiVersion: 0.5.0\nkind: v.com/gpu\ndevices:\n- name: 0\n  ContainerEdits:\n    \
                deviceNodes: [{path: /dev/null}]\ncontainerEdits: {env: [A=b]}\n";
    let spec = parse(SMALL.as_bytes()).unwrap();
    assert_eq!(parse(yaml.as_bytes()).unwrap(), spec);
    validate::spec(&spec).unwrap();
    for format in [emit::Format::Json, emit::Format::Yaml] {
        let text = emit::text(&spec, format, Some("x\ny"));
        assert_eq!(parse(text.as_bytes()).unwrap(), spec, "{text}");
    }
}

#[test]
fn go_readings_reach_the_fields() {
    let yaml = "cdiVersion: 0.5.0\nkind: v.com/gpu\ndevices:\n- name: yes\n  containerEdits:\n    \
                deviceNodes: [{path: /dev/x, fileMode: 0660, gid: 44}]\n";
    let spec = parse(yaml.as_bytes()).unwrap();
    assert_eq!(spec.devices[0].name, "true");
    let node = &spec.devices[0].container_edits.device_nodes[0];
    assert_eq!((node.file_mode, node.gid), (Some(0o660), Some(44)));
}

#[test]
fn rejects_the_same_as_the_reference_library() {
    let replaced = |from: &str, to: &str| refused(&SMALL.replace(from, to));
    for (from, to, reason) in [
        ("\"path\"", "\"wrong\"", "unknown key"),
        ("0.5.0", "9.9.9", "unknown cdiVersion"),
        ("0.5.0", "0.3.0", "too low"),
        ("v.com/gpu", "novendor", "empty vendor"),
        ("v.com/gpu", "v.com/9gpu", "begin with a letter"),
        ("\"0\"", "\"-x\"", "begin and end"),
        ("\"A=b\"", "\"=b\"", "environment"),
        ("{\"path\": \"/dev/null\"}", "", "no edits"),
        ("{\"path\": \"/dev/null\"}", "null", "null"),
        ("/dev/null", "", "without path"),
        ("\"kind\"", "\"cdiVersion\"", "duplicate key"),
        ("[\"A=b\"]", "{}", "not a list"),
    ] {
        let message = replaced(from, to);
        assert!(message.contains(reason), "{to}: {message}");
    }
    assert!(refused("").contains("no content"));
    assert!(refused("kind: x").contains("cdiVersion"));
}

#[test]
fn the_lowest_version_covers_what_is_used() {
    let mut spec = parse(SMALL.as_bytes()).unwrap();
    assert_eq!(version::minimum(&spec).0, "0.5.0");
    spec.devices[0].name = "GPU-1".into();
    assert_eq!(version::minimum(&spec).0, "0.3.0");
    spec.kind = "v.com/a.b".into();
    assert_eq!(version::minimum(&spec).0, "0.6.0");
    spec.container_edits.additional_gids = vec![44];
    assert_eq!(version::minimum(&spec).0, "0.7.0");
}

#[test]
fn a_file_may_be_named_as_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (spec, other) = (dir.path().join("a.json"), dir.path().join("a.txt"));
    std::fs::write(&spec, SMALL).unwrap();
    std::fs::write(&other, SMALL).unwrap();
    let names = |path: &Path| {
        let registry = Registry::load(&[path]);
        assert!(registry.problems().is_empty(), "{path:?}");
        registry
            .device_names()
            .map(String::from)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&spec), ["v.com/gpu=0"]);
    assert!(names(&other).is_empty());
}

#[test]
fn the_name_of_an_output_says_its_format() {
    let of = |name: &str, format| {
        let (path, format) = file::output(Path::new(name), format);
        (path.display().to_string(), format)
    };
    assert_eq!(of("N.JSON", None), ("N.JSON.json".into(), Format::Json));
    assert_eq!(of("n.yml", None), ("n.yml.yaml".into(), Format::Yaml));
    assert_eq!(of("n", Some(Format::Json)), ("n.json".into(), Format::Json));
}

/// The low-level runtime's error names the mount only.
#[test]
fn a_file_that_is_gone_is_named_with_its_specification() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.yaml");
    for (edits, gone) in [
        (
            r#""mounts": [{"hostPath": "/no/lib", "containerPath": "/x"}]"#,
            "/no/lib is missing",
        ),
        (
            r#""hooks": [{"hookName": "createContainer", "path": "/no/hook"}]"#,
            "hook program /no/hook is missing",
        ),
    ] {
        let text = format!(
            r#"{{"cdiVersion": "0.5.0", "kind": "v.com/gpu", "devices": [{{"name": "0", "containerEdits": {{{edits}}}}}]}}"#
        );
        let get = |text: String| {
            std::fs::write(&file, text).unwrap();
            Registry::load(&[directory.path()]).edits(&["v.com/gpu=0"])
        };
        // Of another program.
        assert!(get(text.clone()).is_ok());
        let comment =
            "# generated by nvidia-ctk 1.20.2\n# command: nvidia-ctk cdi generate --vendor=v.com\n";
        let error = get(format!("{comment}{text}")).unwrap_err();
        assert_eq!(error.message(), format!("{}: {gone}", file.display()));
        let hint = error.advice().unwrap();
        assert!(
            hint.ends_with(&format!(
                "generate --vendor=v.com --output={}",
                file.display()
            )),
            "{hint}"
        );
    }
}

#[test]
fn directories_override_and_files_conflict() {
    let dir = tempfile::tempdir().unwrap();
    let (low, high) = (dir.path().join("low"), dir.path().join("high"));
    std::fs::create_dir_all(low.join("sub")).unwrap();
    std::fs::create_dir(&high).unwrap();
    let other = SMALL.replace("\"name\": \"0\"", "\"name\": \"1\"");
    std::fs::write(low.join("a.json"), SMALL).unwrap();
    std::fs::write(high.join("b.yaml"), SMALL.replace("/dev/null", "/dev/zero")).unwrap();
    std::fs::write(low.join("c.json"), &other).unwrap();
    std::fs::write(low.join("d.json"), &other).unwrap();
    std::fs::write(low.join("e.yml"), SMALL).unwrap();
    std::fs::write(low.join("broken.json"), "{").unwrap();
    nix::unistd::mkfifo(&low.join("fifo.json"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    let registry = Registry::load(&[low, high, dir.path().join("missing")]);
    assert_eq!(registry.device_names().collect::<Vec<_>>(), ["v.com/gpu=0"]);
    let (file, device) = registry.device("v.com/gpu=0").unwrap();
    assert!(file.path.ends_with("high/b.yaml"));
    assert_eq!(device.container_edits.device_nodes[0].path, "/dev/zero");
    let mut skipped: Vec<String> = registry
        .problems()
        .iter()
        .map(|p| p.path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    skipped.sort();
    assert_eq!(skipped, ["broken.json", "c.json", "fifo.json"]);
    let error = registry.edits(&["v.com/gpu=0", "v.com/gpu=7"]).unwrap_err();
    assert_eq!(error.message(), "unresolvable CDI devices v.com/gpu=7");
    assert_eq!(error.advice().as_deref(), Some("devices here: v.com/gpu=0"));
    assert_eq!(registry.edits(&["v.com/gpu=0"]).unwrap().0.env, ["A=b"]);
}

/// As those that earlier versions made while MPS's directory was a file of another user.
#[test]
#[ignore = "needs root"]
fn mounts_that_others_could_exchange_are_left_out_and_reported() {
    use std::os::unix::fs::PermissionsExt as _;

    // Not in a directory of all users.
    let dir = tempfile::tempdir_in("/var/lib").unwrap();
    let (tmp, specs) = (dir.path().join("tmp"), dir.path().join("cdi"));
    for directory in [&tmp, &specs] {
        std::fs::create_dir(directory).unwrap();
    }
    std::fs::set_permissions(&tmp, std::fs::Permissions::from_mode(0o1777)).unwrap();
    let file = dir.path().join("libcuda.so.1");
    for path in [&tmp.join("nvidia-mps"), &file] {
        std::fs::write(path, "").unwrap();
    }
    for kind in ["nvidia.com/gpu", "v.com/gpu"] {
        let text = format!(
            r#"{{"cdiVersion": "0.5.0", "kind": "{kind}", "devices": [{{"name": "0", "containerEdits": {{"env": ["A=b"]}}}}],
            "containerEdits": {{"mounts": [{{"hostPath": "{0}/nvidia-mps", "containerPath": "/tmp/nvidia-mps"}},
            {{"hostPath": "{1}", "containerPath": "/lib/libcuda.so.1"}}]}}}}"#,
            tmp.display(),
            file.display()
        );
        let name = kind.replace('/', "-");
        std::fs::write(specs.join(format!("{name}.json")), text).unwrap();
    }
    let registry = Registry::load(&[&specs]);
    let (edits, warnings) = registry.edits(&["nvidia.com/gpu=0"]).unwrap();
    let left: Vec<_> = edits
        .mounts
        .iter()
        .map(|mount| &mount.container_path)
        .collect();
    assert_eq!(left, ["/lib/libcuda.so.1"]);
    let why = format!("every user may write to {}", tmp.display());
    assert!(
        warnings.len() == 1 && warnings[0].contains(&why),
        "{warnings:?}"
    );
    // Other vendors' are their own.
    assert_eq!(registry.edits(&["v.com/gpu=0"]).unwrap().0.mounts.len(), 2);
    let reported = registry
        .files()
        .iter()
        .map(|file| compare::exposed(&file.spec).len());
    assert_eq!(reported.sum::<usize>(), 1);
}
