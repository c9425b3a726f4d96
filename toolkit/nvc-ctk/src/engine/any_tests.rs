//! Tests edits of any valid file of an engine: it can be read afterwards, has the runtime and every other value, and has
//! those also after the runtime's removal.

use std::path::Path;

use proptest::prelude::*;

use super::edits::Engine;
use super::{Files, Removed, Runtime, containerd, crio, docker, tables};
use crate::any_text::{Known, Values, Writer, json_values, numbers, toml_values, without};

const PATH: &str = "/e/file";
const KINDS: &[&str] = &["\"\"", "'io.containerd.runc.v2'"];
const NAMES: &[&str] = &["\"runc\"", "'nvidia'", "\"crun\"", "\"\"\"kata\"\"\""];
const PROGRAMS: &[&str] = &["\"/usr/bin/runc\"", "'x'"];
const BOOLEANS: &[&str] = &["true", "false"];
const CRI: &str = "io.containerd.grpc.v1.cri";

const CONTAINERD: [Known<'_>; 8] = [
    (&["version"], &["2"]),
    (&["imports"], &["[]", "['/x/*.toml', # why\n]"]),
    (&["plugins", CRI, "enable_cdi"], BOOLEANS),
    (
        &["plugins", CRI, "containerd", "default_runtime_name"],
        NAMES,
    ),
    (
        &[
            "plugins",
            CRI,
            "containerd",
            "runtimes",
            "runc",
            "runtime_type",
        ],
        KINDS,
    ),
    (
        &[
            "plugins",
            CRI,
            "containerd",
            "runtimes",
            "runc",
            "options",
            "BinaryName",
        ],
        PROGRAMS,
    ),
    (
        &[
            "plugins",
            CRI,
            "containerd",
            "runtimes",
            "nvidia",
            "runtime_type",
        ],
        KINDS,
    ),
    (
        &[
            "plugins",
            CRI,
            "containerd",
            "runtimes",
            "nvidia",
            "options",
            "BinaryName",
        ],
        PROGRAMS,
    ),
];

const CRIO: [Known<'_>; 4] = [
    (&["crio", "runtime", "default_runtime"], NAMES),
    (
        &["crio", "runtime", "runtimes", "crun", "runtime_path"],
        PROGRAMS,
    ),
    (
        &["crio", "runtime", "runtimes", "nvidia", "runtime_path"],
        PROGRAMS,
    ),
    (
        &["crio", "runtime", "runtimes", "nvidia", "runtime_type"],
        &["'oci'"],
    ),
];

const DOCKER: [Known<'_>; 5] = [
    (&["default-runtime"], &["\"runc\"", "\"nvidia\""]),
    (&["features", "cdi"], BOOLEANS),
    (&["features", "buildkit"], BOOLEANS),
    (&["runtimes", "nvidia", "path"], &["\"/old\""]),
    (&["runtimes", "kata", "path"], &["\"/x\""]),
];

fn runtime(is_all: bool) -> Runtime {
    Runtime {
        name: "nvidia".into(),
        path: "/usr/bin/nvidia-container-runtime".into(),
        set_as_default: is_all,
        enable_cdi: is_all,
    }
}

/// Checks an edit of a text, and the removal of the runtime from it.
fn check(
    text: &str,
    after: &str,
    remove: &dyn Fn(&str) -> Removed,
    others: &dyn Fn(&str) -> Values,
    add: &dyn Fn(&str) -> String,
) {
    assert_eq!(others(text), others(after), "{text}\n=====\n{after}");
    assert_eq!(add(after), after, "twice is once");
    if let Some(rest) = remove(after).text {
        let (before, mut left) = (others(text), others(&rest));
        // containerd's own default runtime comes back.
        let is_default = |path: &[String]| path.ends_with(&["runc".into(), "runtime_type".into()]);
        left.retain(|path, _| before.contains_key(path) || !is_default(path));
        assert_eq!(before, left, "{text}\n=====\n{rest}");
        assert_eq!(remove(&rest).names, [] as [&str; 0], "{rest}");
    }
}

fn is_nvidia(name: &str, _: &str) -> bool {
    name == "nvidia"
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn containerd_keeps_all_other_values(numbers in numbers(), is_all: bool, has_drop_in: bool) {
        let text = Writer::new(&numbers, &CONTAINERD).toml();
        let (path, drop_in) = (Path::new(PATH), has_drop_in.then_some(Path::new("/e/conf.d/99.toml")));
        let runtime = runtime(is_all);
        let add = |text: &str| {
            let files = Files { path, text: Some(text), drop_in, drop_in_text: None, others: &[], dumped: None, drops_default: false };
            containerd::add(files, &runtime)
        };
        // Without a version, the file is one of version 1.
        let document = tables::parse(path, &text).unwrap();
        let is_2 = document.contains_key("version") || document.is_empty();
        let plugin = if is_2 { CRI } else { "cri" };
        let changed = [
            vec!["version"], vec!["imports"], vec!["plugins", plugin, "enable_cdi"],
            vec!["plugins", plugin, "containerd", "enable_cdi"],
            vec!["plugins", plugin, "containerd", "default_runtime_name"],
            vec!["plugins", plugin, "containerd", "runtimes", "nvidia"],
        ];
        let others = |text: &str| changed.iter().fold(toml_values(text), |values, path| without(values, path));
        let Ok(changes) = add(&text) else {
            // A name that must be a table is none.
            return Ok(());
        };
        for change in &changes {
            let after = &change.text;
            let document = tables::parse(path, after);
            prop_assert!(document.is_ok(), "{}\n=====\n{}", text, after);
        }
        let remove = |text: &str| containerd::remove(path, text, &is_nvidia).unwrap();
        let main = changes.last().unwrap();
        check(&text, &main.text, &remove, &others, &|text| add(text).unwrap().pop().unwrap().text);
        let registered = &changes[0].text;
        prop_assert!(Engine::Containerd.registered(path, registered).unwrap().contains_key("nvidia"));
    }

    #[test]
    fn crio_keeps_all_other_values(numbers in numbers(), is_all: bool) {
        let text = Writer::new(&numbers, &CRIO).toml();
        let path = Path::new(PATH);
        let runtime = runtime(is_all);
        let add = |text: &str| {
            let files = Files { path, text: Some(text), drop_in: None, drop_in_text: None, others: &[], dumped: None, drops_default: false };
            crio::add(files, &runtime)
        };
        let changed = [vec!["crio", "runtime", "default_runtime"], vec!["crio", "runtime", "runtimes", "nvidia"]];
        let others = |text: &str| changed.iter().fold(toml_values(text), |values, path| without(values, path));
        let Ok(change) = add(&text) else {
            return Ok(());
        };
        let remove = |text: &str| Engine::Crio.remove(path, text, &is_nvidia).unwrap();
        check(&text, &change.text, &remove, &others, &|text| add(text).unwrap().text);
        prop_assert!(Engine::Crio.registered(path, &change.text).unwrap().contains_key("nvidia"));
    }

    #[test]
    fn docker_keeps_all_other_values(numbers in numbers(), is_all: bool) {
        let text = Writer::new(&numbers, &DOCKER).json();
        let path = Path::new(PATH);
        let runtime = runtime(is_all);
        let changed = [vec!["default-runtime"], vec!["features", "cdi"], vec!["runtimes", "nvidia"]];
        let others = |text: &str| changed.iter().fold(json_values(text), |values, path| without(values, path));
        let Ok(after) = docker::add(path, Some(&text), &runtime) else {
            return Ok(());
        };
        let remove = |text: &str| docker::remove(path, text, &is_nvidia).unwrap();
        let add = |text: &str| docker::add(path, (!text.is_empty()).then_some(text), &runtime).unwrap();
        check(&text, &after, &remove, &others, &add);
        let path = ["runtimes", "nvidia", "path"].map(String::from).to_vec();
        let values = json_values(&after);
        prop_assert_eq!(values.get(&path).map(String::as_str), Some("\"/usr/bin/nvidia-container-runtime\""));
    }
}
