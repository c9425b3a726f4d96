//! Tests that registering is idempotent, keeps unknown content, and can be undone to the byte.
#![allow(clippy::unwrap_used)]

use super::*;
use record::Record;

fn nvidia() -> Runtime {
    Runtime {
        name: "nvidia".into(),
        path: "nvidia-container-runtime".into(),
        set_as_default: false,
        enable_cdi: false,
    }
}

fn all_set() -> Runtime {
    Runtime {
        set_as_default: true,
        enable_cdi: true,
        ..nvidia()
    }
}

/// Registers and undoes; returns the text in between.
fn there_and_back(
    before: Option<&str>,
    add: &dyn Fn(Option<&str>) -> Change,
    restore: &undo::Restore<'_>,
) -> String {
    let change = add(before);
    let after = change.after.clone().unwrap();
    assert_eq!(
        add(Some(&after)).after.as_deref(),
        Some(&*after),
        "twice is once"
    );
    let is_ours = |text: &str, bare: Option<&str>| add(bare).after.as_deref() == Some(text);
    let record = undo::record_for(&change, None, "nvidia", restore, &is_ours).unwrap();
    let path = Path::new("f");
    let (undone, rest) =
        undo::undo(path, Some(&after), record.as_ref(), "nvidia", restore).unwrap();
    assert_eq!(rest, None);
    assert_eq!(undone.after.as_deref(), before, "from {after}");
    after
}

const DAEMONS: [&str; 9] = [
    "{}",
    "{}\n",
    "{\"a\": 12345678901234567890123}",
    "{\n\t\"a\": 1,\n\t\"runtimes\": {}\n}",
    "{ \"runtimes\": {\"kata\": {\"path\": \"x\"}} }",
    "{\n  \"features\": {\n    \"buildkit\": true\n  }\n}\n",
    "{\"runtimes\": {\"nvidia\": {\"path\": \"/old\", \"args\": [\"a\"]}}, \"default-runtime\": \"nvidia\"}",
    "{\"default-runtime\": \"runc\"}",
    "{\"features\": {\"cdi\": false}}",
];

#[test]
fn daemon_json_comes_back() {
    let path = Path::new("daemon.json");
    for runtime in [nvidia(), all_set()] {
        for before in DAEMONS.into_iter().map(Some).chain([None]) {
            let add = |text: Option<&str>| docker::add(path, text, &runtime).unwrap();
            let restore =
                |text: &str, removal: undo::Removal<'_>| docker::restore(path, text, removal);
            let after = there_and_back(before, &add, &restore);
            assert!(after.contains("\"nvidia\""));
            for kept in ["12345678901234567890123", "buildkit", "kata"] {
                let had = before.is_some_and(|text| text.contains(kept));
                assert_eq!(after.contains(kept), had, "{after}");
            }
        }
    }
}

#[test]
fn files_that_dockerd_rejects_stay() {
    for text in [
        "",
        "null",
        "[]",
        "{",
        "{\"runtimes\": 1}",
        "{\"a\": 1, \"a\": 2}",
        "{} // x",
    ] {
        assert!(
            docker::add(Path::new("d"), Some(text), &nvidia()).is_err(),
            "{text}"
        );
    }
}

#[test]
fn concurrent_changes_survive() {
    let path = Path::new("d");
    let before = "{\"default-runtime\": \"runc\", \"x\": 1}";
    let after = docker::add(path, Some(before), &all_set())
        .unwrap()
        .after
        .unwrap();
    let record = Record {
        before: Some(before.into()),
        after: record::mark(&after),
        names: vec!["nvidia".into()],
    };
    let changed = after.replace("\"x\": 1", "\"x\": 2");
    let restore = |text: &str, removal: undo::Removal<'_>| docker::restore(path, text, removal);
    let (undone, _) = undo::undo(path, Some(&changed), Some(&record), "nvidia", &restore).unwrap();
    let value: serde_json::Value = serde_json::from_str(&undone.after.unwrap()).unwrap();
    assert_eq!(
        value,
        serde_json::json!({"default-runtime": "runc", "x": 2})
    );
}

const CONTAINERD: [&str; 5] = [
    "",
    "# mine\nversion = 2\nroot = \"/x\" # why\n\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"p\"\n",
    "version = 3\nimports = [\n  \"/etc/other/*.toml\", # theirs\n]\n",
    "[plugins.cri.containerd]\n  default_runtime_name = \"runc\"\n  [plugins.cri.containerd.runtimes.runc]\n    \
     runtime_type = \"io.containerd.runc.v2\"\n\n# the end\n",
    "version = 4\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'nvidia'\n",
];

#[test]
fn containerd_comes_back() {
    let (path, drop_in) = (Path::new("/e/config.toml"), Path::new("/e/conf.d/99.toml"));
    for runtime in [nvidia(), all_set()] {
        for drop_in in [Some(drop_in), None] {
            for before in CONTAINERD.into_iter().map(Some).chain([None]) {
                let add = |text: Option<&str>| {
                    let files = Files {
                        path,
                        text,
                        drop_in,
                        drop_in_text: None,
                        dumped: None,
                        drops_default: false,
                    };
                    containerd::add(files, &runtime).unwrap().pop().unwrap()
                };
                let restore = |text: &str, removal: undo::Removal<'_>| {
                    containerd::restore(path, text, removal, drop_in)
                };
                there_and_back(before, &add, &restore);
            }
        }
    }
}

#[test]
fn a_drop_in_repeats_the_section() {
    let files = Files {
        path: Path::new("/e/config.toml"),
        text: Some(CONTAINERD[1]),
        drop_in: Some(Path::new("/e/conf.d/99.toml")),
        drop_in_text: None,
        dumped: None,
        drops_default: false,
    };
    let changes = containerd::add(files, &nvidia()).unwrap();
    let drop_in = changes[0].after.as_ref().unwrap();
    assert!(drop_in.contains("sandbox_image"), "{drop_in}");
    assert!(!drop_in.contains("/x"), "{drop_in}");
    assert!(
        containerd::program(Path::new("x"), drop_in, "nvidia")
            .unwrap()
            .is_some()
    );
    let main = changes[1].after.as_ref().unwrap();
    assert!(
        main.contains("# why") && main.contains("imports = [\"/e/conf.d/*.toml\"]"),
        "{main}"
    );
}

#[test]
fn a_drop_in_takes_the_options_of_the_default_runtime_again() {
    let text = "version = 2\n\
        [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nx = 2\n\
        [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]\nx = 1\n";
    let files = Files {
        path: Path::new("c"),
        text: Some(text),
        drop_in: Some(Path::new("/d/99.toml")),
        drop_in_text: None,
        dumped: None,
        drops_default: false,
    };
    let drop_in = containerd::add(files, &nvidia()).unwrap()[0]
        .after
        .clone()
        .unwrap();
    assert_eq!(drop_in.matches("x = 2").count(), 2, "{drop_in}");
    assert!(!drop_in.contains("x = 1"), "{drop_in}");
}

#[test]
fn new_files_obey_the_umask_and_old_ones_keep_their_mode() {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let directory = std::env::temp_dir().join(format!("nvc-modes-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    // The umask belongs to the whole process; a file created here reveals it.
    let plain = directory.join("plain");
    let mut options = std::fs::OpenOptions::new();
    options
        .write(true)
        .create(true)
        .mode(0o644)
        .open(&plain)
        .unwrap();
    let new = directory.join("new");
    nvc_hostfile::write(&new, "a").unwrap();
    assert_eq!(mode(&new), mode(&plain));
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o640)).unwrap();
    nvc_hostfile::write(&new, "b").unwrap();
    assert_eq!(mode(&new), 0o640);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn crio_comes_back() {
    let path = Path::new("/e/crio.conf");
    let there = "# c\n[crio.runtime]\ndefault_runtime = \"crun\" # x\n\n[crio.runtime.runtimes.crun]\nruntime_root = \"/r\"\n\n[crio.api]\na = 1\n";
    for runtime in [nvidia(), all_set()] {
        for before in [Some(there), Some(""), None] {
            let add = |text: Option<&str>| {
                let files = Files {
                    path,
                    text,
                    drop_in: None,
                    drop_in_text: None,
                    dumped: None,
                    drops_default: false,
                };
                crio::add(files, &runtime).unwrap()
            };
            let restore =
                |text: &str, removal: undo::Removal<'_>| crio::restore(path, text, removal);
            let after = there_and_back(before, &add, &restore);
            assert!(crio::program(path, &after, "nvidia").unwrap().is_some());
            if before == Some(there) {
                assert!(after.contains("[crio.api]") && after.contains("runtime_root = \"/r\""));
            }
        }
    }
}

/// Ways to write tables, after which headers of the same tables are not valid.
#[test]
fn tables_may_be_dotted_or_in_braces() {
    let path = Path::new("/e/config.toml");
    for text in [
        "version = 2\nplugins.\"io.containerd.grpc.v1.cri\".sandbox_image = \"p\"\n",
        "version = 2\nplugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.runtime_type = \"\"\n",
        "version = 2\nplugins = { \"io.containerd.grpc.v1.cri\" = { a = 1 } }\n",
        "version = 2\n[plugins]\n\"io.containerd.grpc.v1.cri\".containerd.x = 1\n[[list]]\na = 1\n",
        "version = 2\r\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\r\nruntimes.runc = { x = 1 }\r\n",
    ] {
        for drop_in in [Some(Path::new("/e/conf.d/99.toml")), None] {
            let files = Files {
                path,
                text: Some(text),
                drop_in,
                drop_in_text: None,
                dumped: None,
                drops_default: true,
            };
            for change in containerd::add(files, &all_set()).unwrap() {
                let after = change.after.unwrap();
                let document = tables::parse(path, &after).unwrap();
                if change.path == path && drop_in.is_some() {
                    continue;
                }
                let section = [
                    "plugins",
                    "io.containerd.grpc.v1.cri",
                    "containerd",
                    "runtimes",
                ];
                let keys = [&section[..], &["nvidia", "runtime_type"]].concat();
                let kind = tables::text(document.as_item(), &keys);
                assert_eq!(kind, Some("io.containerd.runc.v2"), "{text}\n{after}");
            }
        }
    }
    for text in [
        "crio.runtime.default_runtime = \"crun\"\n",
        "crio = { runtime.runtimes.crun = { a = 1 } }\n",
        "[crio]\nruntime.runtimes.crun.runtime_path = \"/x\"\n",
    ] {
        let files = Files {
            path,
            text: Some(text),
            drop_in: None,
            drop_in_text: None,
            dumped: None,
            drops_default: false,
        };
        let after = crio::add(files, &all_set()).unwrap().after.unwrap();
        assert!(
            crio::program(path, &after, "nvidia").unwrap().is_some(),
            "{after}"
        );
    }
}

#[test]
fn containerd_1_keeps_its_default_runtime() {
    let path = Path::new("/e/config.toml");
    let drop_in = Path::new("/e/conf.d/99.toml");
    let registered = |text: &str, drops_default: bool, drop_in: Option<&Path>| {
        let files = Files {
            path,
            text: Some(text),
            drop_in,
            drop_in_text: None,
            dumped: None,
            drops_default,
        };
        let changes = containerd::add(files, &nvidia()).unwrap();
        changes[0].after.clone().unwrap()
    };
    let runc = "containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n";
    // Debian's own configuration: a section without runtimes.
    let debian = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/x\"\n";
    assert!(registered(debian, true, Some(drop_in)).contains(runc));
    assert!(registered(debian, true, None).contains(runc));
    assert!(registered("", true, Some(drop_in)).contains(runc));
    assert!(!registered(debian, false, Some(drop_in)).contains(runc));
    // It is there already, or another one is the default.
    let own =
        "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nx = 1\n";
    assert_eq!(
        registered(own, true, Some(drop_in)),
        registered(own, false, Some(drop_in))
    );
    let crun = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"crun\"\n";
    assert!(!registered(crun, true, None).contains(runc));
}
