//! Tests that registering is idempotent and keeps unknown content, and that removing leaves what others wrote.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use super::edits::Engine;
use super::*;

fn nvidia() -> Runtime {
    Runtime {
        name: "nvidia".into(),
        path: "/usr/bin/nvidia-container-runtime".into(),
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

fn is_ours(_: &str, program: &str) -> bool {
    program::is_toolkit(program)
}

const CONFIG: &str = "/e/config.toml";
const DROP_IN: &str = "/e/conf.d/99-nvidia.toml";

fn files(text: Option<&str>) -> Files<'_> {
    Files {
        path: Path::new(CONFIG),
        text,
        drop_in: None,
        drop_in_text: None,
        others: &[],
        dumped: None,
        drops_default: false,
    }
}

fn with_drop_in(text: Option<&str>) -> Files<'_> {
    Files {
        drop_in: Some(Path::new(DROP_IN)),
        ..files(text)
    }
}

/// Returns the drop-in and the main file of a registration with containerd.
fn registered(files: Files<'_>, runtime: &Runtime) -> (String, String) {
    let mut texts = containerd::add(files, runtime).unwrap().into_iter();
    let mut next = || texts.next().unwrap().text;
    (next(), next())
}

const DAEMONS: [&str; 8] = [
    "{}",
    "{\"a\": 12345678901234567890123}",
    "{\n\t\"a\": 1,\n\t\"runtimes\": {}\n}",
    "{ \"runtimes\": {\"kata\": {\"path\": \"x\"}} }",
    "{\n  \"features\": {\n    \"buildkit\": true\n  }\n}\n",
    "{\"runtimes\": {\"nvidia\": {\"path\": \"/old\", \"args\": [\"a\"]}}, \"default-runtime\": \"nvidia\"}",
    "{\"runtimes\": null}",
    "\u{feff}{\"features\": {\"cdi\": false}}",
];

#[test]
fn daemon_json_keeps_what_others_wrote() {
    let path = Path::new("daemon.json");
    for runtime in [nvidia(), all_set()] {
        for before in DAEMONS.into_iter().map(Some).chain([None]) {
            let after = docker::add(path, before, &runtime).unwrap();
            let again = docker::add(path, Some(&after), &runtime).unwrap();
            assert_eq!(again, after, "twice is once");
            let settings = docker::Settings::parse(&after).unwrap();
            let mut programs = settings.runtimes();
            assert!(
                programs.any(|one| one == ("nvidia", &runtime.path)),
                "{after}"
            );
            let removed = docker::remove(path, &after, &is_ours).unwrap();
            assert_eq!(removed.names, ["nvidia"]);
            let default_was_there = before.is_some_and(|text| text.contains("default"));
            assert_eq!(
                removed.had_default,
                runtime.set_as_default || default_was_there
            );
            let rest = removed.text.unwrap_or_default();
            assert!(!rest.contains("nvidia"), "{rest}");
            for kept in ["12345678901234567890123", "buildkit", "kata"] {
                let had = before.is_some_and(|text| text.contains(kept));
                assert_eq!(rest.contains(kept), had, "{after}");
            }
        }
    }
    // Nothing of ours: the text stays, whatever it is.
    for text in ["{}", "{ \"default-runtime\": \"nvidia\" }"] {
        let removed = docker::remove(path, text, &is_ours).unwrap();
        assert_eq!(removed.text.as_deref(), Some(text));
    }
}

/// dockerd takes null for what is not there.
#[test]
fn null_hides_no_runtime() {
    let is_ours = |_: &str, program: &str| program.contains("nvidia");
    for beside in [
        r#""features": {"cdi": null, "buildkit": null}, "runtimes": {"#,
        r#""features": null, "runtimes": {"x": null, "#,
        r#""runtimes": {"x": {"path": null}, "#,
        r#""features": 1, "runtimes": {"x": 1, "y": {"path": 1}, "#,
    ] {
        let text = format!(
            "{{\"default-runtime\": \"nvidia\", {beside}\"nvidia\": {{\"path\": \"/usr/bin/nvidia-container-runtime\"}}}}}}"
        );
        let removed = docker::remove(Path::new("d"), &text, &is_ours).unwrap();
        assert_eq!(removed.names, ["nvidia"], "{text}");
        assert!(removed.had_default);
    }
}

#[test]
fn files_that_dockerd_rejects_stay() {
    for text in [
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
    // An empty one it takes for {}.
    let text = docker::add(Path::new("d"), Some(" \n"), &nvidia()).unwrap();
    assert!(text.contains("runtimes"));
    let commented = "{\n  // mine\n  \"a\": 1\n}";
    let error = docker::add(Path::new("d"), Some(commented), &nvidia()).unwrap_err();
    assert!(error.advice().unwrap().contains("//"), "{error:?}");
}

const CONTAINERD: [&str; 5] = [
    "",
    "# mine\nversion = 2\nroot = \"/x\" # why\n\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"p\"\n",
    "version = 3\nimports = [\n  \"/etc/other/*.toml\", # theirs\n]\n",
    "[plugins.cri.containerd]\n  default_runtime_name = \"runc\"\n  [plugins.cri.containerd.runtimes.runc]\n    \
     runtime_type = \"io.containerd.runc.v2\"\n\n# the end\n",
    "version = 4\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'crun'\n",
];

#[test]
fn containerd_keeps_what_others_wrote() {
    let (path, drop_in) = (Path::new(CONFIG), Path::new(DROP_IN));
    for runtime in [nvidia(), all_set()] {
        for before in CONTAINERD.into_iter().map(Some).chain([None]) {
            for of in [files(before), with_drop_in(before)] {
                let changes = containerd::add(of, &runtime).unwrap();
                let main = changes.last().unwrap().text.clone();
                let has_drop_in = changes.len() == 2;
                if has_drop_in {
                    let own = changes[0].text.clone();
                    let all = Engine::Containerd.registered(drop_in, &own).unwrap();
                    assert_eq!(all["nvidia"], runtime.path);
                    let again = Files {
                        drop_in_text: Some(&own),
                        ..with_drop_in(Some(&main))
                    };
                    assert_eq!(registered(again, &runtime), (own.clone(), main.clone()));
                    let rest = containerd::remove(drop_in, &own, &is_ours).unwrap();
                    let rest = rest.text.unwrap();
                    assert!(
                        containerd::is_copy(drop_in, &rest, &[&main]).unwrap(),
                        "{rest}"
                    );
                    let rest = containerd::without_import(path, &main, drop_in).unwrap();
                    assert!(!rest.contains("/e/conf.d"));
                } else {
                    let again = containerd::add(files(Some(&main)), &runtime).unwrap();
                    assert_eq!(again[0].text, main, "twice is once");
                    let rest = containerd::remove(path, &main, &is_ours).unwrap();
                    assert!(!rest.text.unwrap_or_default().contains("nvidia"));
                }
                for kept in ["# why", "# theirs", "# the end", "sandbox_image", "'crun'"] {
                    let had = before.is_some_and(|text| text.contains(kept));
                    let is_replaced = kept == "'crun'" && !has_drop_in && runtime.set_as_default;
                    assert_eq!(main.contains(kept), had && !is_replaced, "{main}");
                }
            }
        }
    }
}

const SECTION: &str = "[plugins.\"io.containerd.grpc.v1.cri\"]\n";

/// containerd 1.x takes a plugin's section from the last file alone.
#[test]
fn a_drop_in_of_version_2_repeats_the_last_section() {
    let main = format!("version = 2\n{SECTION}sandbox_image = \"main\"\n");
    let other = Text {
        path: "/e/conf.d/50-x.toml".into(),
        text: format!(
            "version = 2\n{SECTION}sandbox_image = \"other\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.kata]\nx = 1\n"
        ),
    };
    let no_section = Text {
        path: "/e/conf.d/60-y.toml".into(),
        text: "version = 2\n[debug]\nlevel = \"info\"\n".into(),
    };
    let others = [other.clone(), no_section];
    let files = Files {
        others: &others,
        ..with_drop_in(Some(&main))
    };
    let (own, main_after) = registered(files, &nvidia());
    assert!(own.contains("\"other\"") && own.contains("kata"), "{own}");
    assert!(
        !own.contains("\"main\"") && !own.contains("[debug]"),
        "{own}"
    );
    assert!(
        main_after.contains("imports = [\"/e/conf.d/*.toml\"]"),
        "{main_after}"
    );
    // It goes when it only repeats the others.
    let rest = containerd::remove(Path::new(DROP_IN), &own, &is_ours)
        .unwrap()
        .text
        .unwrap();
    let is_copy = |others: &[&str]| containerd::is_copy(Path::new(DROP_IN), &rest, others).unwrap();
    assert!(is_copy(&[&main, &other.text]));
    assert!(!is_copy(&[&main]), "kata is in no other file");
}

/// From version 3 on files are merged; a copy would hide later edits.
#[test]
fn a_drop_in_of_version_3_has_our_keys_alone() {
    let main = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nx = 1\n\
        [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\nruntime_type = \"t\"\n\
        [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\nSystemdCgroup = true\n";
    let (own, _) = registered(with_drop_in(Some(main)), &nvidia());
    assert!(
        !own.contains("x = 1") && !own.contains("runtimes.runc"),
        "{own}"
    );
    assert!(
        own.contains("SystemdCgroup = true") && own.contains("runtime_type = \"t\""),
        "{own}"
    );
    let rest = containerd::remove(Path::new(DROP_IN), &own, &is_ours).unwrap();
    assert!(containerd::is_copy(Path::new(DROP_IN), &rest.text.unwrap(), &[main]).unwrap());
}

/// The version that containerd says is the one that it has made of its file's.
#[test]
fn a_drop_in_has_the_version_of_the_file_that_imports_it() {
    let dumps = ["version = 4\n", "version = 3\n", "version = 2\n"];
    for main in ["version = 2\n", "version = 3\n"] {
        for dumped in dumps {
            let files = Files {
                dumped: Some(dumped),
                ..with_drop_in(Some(main))
            };
            let (own, _) = registered(files, &nvidia());
            assert!(own.starts_with(main), "{dumped}: {own}");
        }
    }
    let files = Files {
        dumped: Some("version = 3\n"),
        ..with_drop_in(None)
    };
    let (own, main) = registered(files, &nvidia());
    assert!(
        own.starts_with("version = 3\n") && main.starts_with("version = 3\n"),
        "{own}{main}"
    );
}

/// An option that is not given changes nothing that others wrote.
#[test]
fn a_default_of_the_administrator_stays() {
    let of = |plugin: &str, head: &str| {
        format!(
            "{head}[plugins.{plugin}.containerd]\ndefault_runtime_name = \"nvidia\"\n\
             [plugins.{plugin}.containerd.runtimes.nvidia]\nruntime_type = \"io.containerd.runc.v2\"\n"
        )
    };
    let default = |text: &str| {
        Engine::Containerd
            .default_runtime(Path::new(CONFIG), text)
            .unwrap()
    };
    let two = of("'io.containerd.grpc.v1.cri'", "version = 2\n");
    let (own, main) = registered(with_drop_in(Some(&two)), &nvidia());
    assert_eq!(default(&own).as_deref(), Some("nvidia"));
    assert_eq!(default(&main).as_deref(), Some("nvidia"));
    for text in [two, of("cri", "")] {
        let changes = containerd::add(files(Some(&text)), &nvidia()).unwrap();
        assert_eq!(default(&changes[0].text).as_deref(), Some("nvidia"));
    }
    // What an earlier call wrote into our drop-in goes.
    let (own, main) = registered(with_drop_in(Some("version = 2\n")), &all_set());
    assert_eq!(default(&own).as_deref(), Some("nvidia"));
    let again = Files {
        drop_in_text: Some(&own),
        ..with_drop_in(Some(&main))
    };
    assert_eq!(default(&registered(again, &nvidia()).0), None);
}

#[test]
fn several_runtimes_share_a_drop_in() {
    let two = Runtime {
        name: "nvidia-two".into(),
        path: "/opt/bin/mine".into(),
        ..nvidia()
    };
    for main in ["version = 2\n", "version = 3\n"] {
        let (own, _) = registered(with_drop_in(Some(main)), &two);
        let files = Files {
            drop_in_text: Some(&own),
            ..with_drop_in(Some(main))
        };
        let (both, _) = registered(files, &nvidia());
        let names = |text: &str| {
            Engine::Containerd
                .registered(Path::new(DROP_IN), text)
                .unwrap()
        };
        assert_eq!(
            names(&both).into_keys().collect::<Vec<_>>(),
            ["nvidia", "nvidia-two"]
        );
        let rest = containerd::remove(Path::new(DROP_IN), &both, &is_ours).unwrap();
        let rest = rest.text.unwrap();
        assert_eq!(names(&rest).into_keys().collect::<Vec<_>>(), ["nvidia-two"]);
        assert!(!containerd::is_copy(Path::new(DROP_IN), &rest, &[main]).unwrap());
    }
}

/// NVIDIA's older nvidia-ctk writes into the main file.
#[test]
fn a_deleted_default_does_not_stay() {
    let main = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\ndefault_runtime_name = \"nvidia\"\n\
        [plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.kata]\nx = 1\n\
        [plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia.options]\n\
        BinaryName = \"/usr/bin/nvidia-container-runtime\"\n";
    let removed = containerd::remove(Path::new(CONFIG), main, &is_ours).unwrap();
    assert!(removed.had_default);
    let text = removed.text.unwrap();
    assert!(!text.contains("nvidia") && text.contains("kata"), "{text}");
    // containerd 1.x has no built-in one beside others.
    assert!(text.contains("runtimes.runc]"), "{text}");
}

const CRIO: &str = "# c\n[crio.runtime]\ndefault_runtime = \"crun\" # x\n\n[crio.runtime.runtimes.crun]\n\
    runtime_root = \"/r\"\n\n[crio.api]\na = 1\n";

#[test]
fn crio_keeps_what_others_wrote() {
    let path = Path::new("/e/crio.conf");
    for runtime in [nvidia(), all_set()] {
        for before in [Some(CRIO), Some(""), None] {
            let after = crio::add(files(before), &runtime).unwrap().text;
            let again = crio::add(files(Some(&after)), &runtime).unwrap().text;
            assert_eq!(again, after, "twice is once");
            assert!(
                Engine::Crio
                    .registered(path, &after)
                    .unwrap()
                    .contains_key("nvidia")
            );
            let rest = Engine::Crio.remove(path, &after, &is_ours).unwrap();
            assert_eq!(rest.text.is_some(), before == Some(CRIO));
            let rest = rest.text.unwrap_or_default();
            assert!(!rest.contains("nvidia"), "{rest}");
            for kept in ["[crio.api]", "runtime_root = \"/r\"", "# c\n"] {
                assert_eq!(rest.contains(kept), before == Some(CRIO), "{rest}");
            }
        }
    }
}

/// For a runtime without a monitor CRI-O looks for conmon in PATH, and does not start without one.
#[test]
fn crio_s_options_are_the_default_runtime_s_wherever_it_is() {
    let text = |name: &str, keys: &str| Text {
        path: format!("/e/crio.conf.d/{name}").into(),
        text: keys.into(),
    };
    let others = [
        text(
            "10-crio.conf",
            "[crio.runtime]\ndefault_runtime = \"crun\"\n[crio.runtime.runtimes.crun]\nmonitor_path = \"/old\"\n",
        ),
        text(
            "20-more.conf",
            "[crio.runtime.runtimes.crun]\nmonitor_path = \"/usr/libexec/crio/conmon\"\n",
        ),
        text(
            "30-runc.conf",
            "[crio.runtime.runtimes.runc]\nmonitor_path = \"/no\"\n",
        ),
    ];
    let files = Files {
        drop_in: Some(Path::new("/e/crio.conf.d/99-nvidia.toml")),
        others: &others,
        ..files(None)
    };
    let after = crio::add(files, &nvidia()).unwrap().text;
    assert!(
        after.contains("monitor_path = \"/usr/libexec/crio/conmon\""),
        "{after}"
    );
}

/// Ways to write tables, after which headers of the same tables are not valid.
#[test]
fn tables_may_be_dotted_or_in_braces() {
    let path = Path::new(CONFIG);
    for text in [
        "version = 2\nplugins.\"io.containerd.grpc.v1.cri\".sandbox_image = \"p\"\n",
        "version = 2\nplugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.runtime_type = \"\"\n",
        "version = 2\nplugins = { \"io.containerd.grpc.v1.cri\" = { a = 1 } }\n",
        "version = 2\n[plugins]\n\"io.containerd.grpc.v1.cri\".containerd.x = 1\n[[list]]\na = 1\n",
        "version = 2\r\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\r\nruntimes.runc = { x = 1 }\r\n",
    ] {
        for of in [files(Some(text)), with_drop_in(Some(text))] {
            let files = Files {
                drops_default: true,
                ..of
            };
            for change in containerd::add(files, &all_set()).unwrap() {
                let after = change.text;
                let document = tables::parse(path, &after).unwrap();
                if change.path == path && files.drop_in.is_some() {
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
        let after = crio::add(files(Some(text)), &all_set()).unwrap().text;
        assert!(
            Engine::Crio
                .registered(path, &after)
                .unwrap()
                .contains_key("nvidia"),
            "{after}"
        );
    }
}

#[test]
fn containerd_1_keeps_its_default_runtime() {
    let registered = |text: &str, drops_default: bool, has_drop_in: bool| {
        let files = if has_drop_in {
            with_drop_in(Some(text))
        } else {
            files(Some(text))
        };
        let files = Files {
            drops_default,
            ..files
        };
        let changes = containerd::add(files, &nvidia()).unwrap();
        changes[0].text.clone()
    };
    let runc = "containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n";
    // Debian's own configuration: a section without runtimes.
    let debian = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/x\"\n";
    assert!(registered(debian, true, true).contains(runc));
    assert!(registered(debian, true, false).contains(runc));
    assert!(registered("", true, true).contains(runc));
    assert!(!registered(debian, false, true).contains(runc));
    // It is there already, or another one is the default.
    let own =
        "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nx = 1\n";
    assert_eq!(registered(own, true, true), registered(own, false, true));
    let crun = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"crun\"\n";
    assert!(!registered(crun, true, false).contains(runc));
}
