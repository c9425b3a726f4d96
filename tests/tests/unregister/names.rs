//! Registers the runtime under several names.

use super::world::*;

const RUNTIME: &str = "/opt/nv/bin/nvidia-container-runtime";

/// The files of an engine: its main file, and the drop-in.
struct Case {
    engine: &'static str,
    file: &'static str,
    text: Option<&'static str>,
    drop_in: Option<&'static str>,
}

const CASES: [Case; 12] = [
    Case {
        engine: "docker",
        file: DAEMON,
        text: None,
        drop_in: None,
    },
    Case {
        engine: "docker",
        file: DAEMON,
        text: Some(
            "{\n  \"features\": {\"cdi\": false},\n  \"default-runtime\": \"kata\", \"runtimes\": {\"kata\": {\"path\": \"/k\"}}}",
        ),
        drop_in: None,
    },
    Case {
        engine: "containerd",
        file: CONTAINERD,
        text: None,
        drop_in: Some(DROP_IN),
    },
    Case {
        engine: "containerd",
        file: CONTAINERD,
        text: Some(""),
        drop_in: Some(DROP_IN),
    },
    Case {
        engine: "containerd",
        file: CONTAINERD,
        text: Some(
            "[plugins.cri.containerd]\ndefault_runtime_name = \"kata\"\n[plugins.cri.containerd.runtimes.kata]\nx = 1\n",
        ),
        drop_in: None,
    },
    Case {
        engine: "containerd",
        file: CONTAINERD,
        text: Some(
            "# mine\nversion = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"p\"\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"kata\"\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.kata]\nx = 1\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.mine.options]\nBinaryName = \"/opt/nv/bin/nvidia-container-runtime\"\n",
        ),
        drop_in: Some(DROP_IN),
    },
    Case {
        engine: "containerd",
        file: CONTAINERD,
        text: Some("version = 3\nimports = [\"/x/*.toml\"] # theirs\n"),
        drop_in: Some(DROP_IN),
    },
    Case {
        engine: "containerd",
        file: CONTAINERD,
        text: Some("version = 4\n"),
        drop_in: Some(DROP_IN),
    },
    Case {
        engine: "containerd --drop-in-config=",
        file: CONTAINERD,
        text: Some("version = 2\n"),
        drop_in: None,
    },
    Case {
        engine: "crio",
        file: CRIO_MAIN,
        text: None,
        drop_in: Some(CRIO),
    },
    Case {
        engine: "crio",
        file: CRIO_MAIN,
        text: Some(
            "[crio.runtime]\ndefault_runtime = \"crun\"\n[crio.runtime.runtimes.crun]\nx = 1\n",
        ),
        drop_in: Some(CRIO),
    },
    Case {
        engine: "crio --drop-in-config=",
        file: CRIO_MAIN,
        text: Some(
            "[crio.runtime]\ndefault_runtime = \"crun\" # why\n[crio.runtime.runtimes.crun]\nx = 1\n",
        ),
        drop_in: None,
    },
];

const CRIO_MAIN: &str = "etc/crio/crio.conf";

impl Case {
    /// Makes a machine with the engine's file.
    fn world(&self) -> World {
        let world = World::new();
        if let Some(text) = self.text {
            world.put(self.file, text, 0o644);
        }
        world
    }

    fn configure(&self, options: &str) -> String {
        format!("{CONFIGURE} --runtime={} {options}", self.engine)
    }

    fn add(&self, name: &str, options: &str) -> String {
        self.configure(&format!("--nvidia-runtime-name={name} {options}"))
    }

    fn remove(&self, name: &str) -> String {
        self.add(name, "--remove")
    }

    /// Returns the texts of the main file and of the drop-in. `at` is the directory of a snapshot, or empty.
    fn texts(&self, world: &World, at: &str) -> (Option<String>, Option<String>) {
        let text = |path: &str| world.text(&format!("{at}/{path}"));
        (text(self.file), self.drop_in.and_then(text))
    }

    /// Checks which names are registered, and, of a drop-in, that it is imported.
    fn has(&self, world: &World, at: &str, names: &[&str]) {
        let (main, drop_in) = self.texts(world, at);
        let text = match self.drop_in {
            Some(_) => drop_in.clone().unwrap_or_default(),
            None => main.clone().unwrap_or_default(),
        };
        let what = format!("{} {at}\n{main:#?}\n{text}", self.engine);
        for name in NAMES {
            let is_there = text.contains(&format!("runtimes.{name}"))
                || text.contains(&format!("\"{name}\": {{"));
            assert_eq!(is_there, names.contains(&name), "{name} {what}");
        }
        if self.engine == "containerd" && self.drop_in.is_some() {
            let main = main.as_deref().unwrap_or_default();
            let is_imported = main.contains("/etc/containerd/conf.d/*.toml");
            assert_eq!(is_imported, !names.is_empty(), "{what}");
        }
        if names.is_empty() {
            assert_eq!(drop_in, None, "{what}");
        }
    }
}

/// Names of the runtime.
const NAMES: [&str; 3] = ["one", "two", "three"];

/// In whatever order, and whatever the programs are called; what others wrote stays.
pub(super) fn each_name_is_removed_by_itself() {
    for case in &CASES {
        for options in [
            "",
            "--nvidia-set-as-default --cdi.enabled",
            "--nvidia-runtime-path=/opt/wrapper",
        ] {
            for order in [["one", "two", "three"], ["three", "one", "two"]] {
                let world = case.world();
                let [one, two, three] = NAMES.map(|name| case.add(name, options));
                let [first, second, third] = order.map(|name| case.remove(name));
                let nobody = case.remove("nobody");
                let steps = [
                    format!("{one}; {two}; {three}"),
                    three, // a second time
                    first,
                    second,
                    nobody,
                    third,
                ];
                let steps = steps.iter().enumerate();
                let script = steps.map(|(n, step)| {
                    format!("{step}; cp -r /etc /{n}-etc; mkdir /{n}; mv /{n}-etc /{n}/etc")
                });
                world.succeeds(&script.collect::<Vec<_>>().join("\n"));
                assert_eq!(case.texts(&world, "0"), case.texts(&world, "1"));
                case.has(&world, "0", &order);
                case.has(&world, "2", &order[1..]);
                case.has(&world, "3", &order[2..]);
                case.has(&world, "4", &order[2..]);
                case.has(&world, "5", &[]);
                // The default runtime and docker's CDI are not brought back.
                if !options.contains("--cdi") {
                    let before = case.text.filter(|text| !text.is_empty());
                    let main = case.texts(&world, "5").0;
                    // What containerd does without a runtime, which an entry of it says too.
                    let own = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]runtime_type=\"io.containerd.runc.v2\"";
                    let without = |text: &str| text.replace([' ', '\n'], "").replace(own, "");
                    // containerd's main file imported the drop-in; a version alone is the same as no file.
                    let main = main.filter(|text| before.is_some() || text != "version = 2\n");
                    assert_eq!(
                        main.as_deref().map(without),
                        before.map(without),
                        "{}",
                        case.engine
                    );
                }
            }
        }
        // As the packages' scripts do it, which leave the other one: its program stays.
        let world = case.world();
        world.put("opt/other", "#!/bin/sh\n", 0o755);
        world.succeeds(&format!(
            "{}; {}; {}; {UNREGISTER}",
            case.add("one", ""),
            case.add("two", "--nvidia-runtime-path=/opt/other"),
            case.add("three", "")
        ));
        case.has(&world, "", &["two"]);
        world.succeeds(&case.remove("two"));
        case.has(&world, "", &[]);
    }
}

/// A default runtime that is removed is the default no longer.
pub(super) fn a_default_runtime_gives_way() {
    for case in &CASES {
        let world = case.world();
        let default = |name: &str| {
            let (main, drop_in) = case.texts(&world, "");
            let text = drop_in.or(main).unwrap_or_default();
            let found = [
                "default-runtime\": ",
                "default_runtime_name = ",
                "default_runtime = ",
            ]
            .iter()
            .any(|key| text.contains(&format!("{key}\"{name}\"")));
            (found, text)
        };
        world.succeeds(&format!(
            "{}; {}",
            case.add("one", "--nvidia-set-as-default"),
            case.add("two", "")
        ));
        assert!(default("one").0, "{}", default("one").1);
        world.succeeds(&case.add("three", "--nvidia-set-as-default"));
        assert!(default("three").0 && !default("one").0);
        world.succeeds(&format!("{}; {}", case.remove("one"), case.remove("three")));
        for name in ["one", "three"] {
            assert!(!default(name).0, "{}", default(name).1);
        }
        world.succeeds(&case.remove("two"));
        case.has(&world, "", &[]);
    }
}

/// Two drop-ins of one directory need one import.
pub(super) fn drop_ins_share_an_import() {
    let other = "etc/containerd/conf.d/50-other.toml";
    let world = World::new();
    let add = format!("{CONFIGURE} --runtime=containerd");
    let add_other = format!("{add} --drop-in-config=/{other}");
    let imported = || {
        world
            .text(CONTAINERD)
            .is_some_and(|text| text.contains("conf.d/*.toml"))
    };
    for remove in [format!("{add} --remove"), UNREGISTER.to_owned()] {
        world.succeeds(&format!("{add}; {add_other}"));
        assert!(imported() && world.text(other).is_some() && world.text(DROP_IN).is_some());
        world.succeeds(&remove);
        assert!(!imported() && world.text(other).is_none() && world.text(DROP_IN).is_none());
    }
    // One that somebody else wrote keeps what is not ours.
    let text = format!(
        "version = 2\nroot = \"/x\"\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]\nBinaryName = \"{RUNTIME}\"\n"
    );
    world.put(other, &text, 0o644);
    world.put(
        CONTAINERD,
        "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n",
        0o644,
    );
    world.succeeds(UNREGISTER);
    assert!(imported());
    let rest = world.text(other).unwrap();
    assert!(
        rest.contains("root = \"/x\"") && !rest.contains("nvidia"),
        "{rest}"
    );
}

/// Files that the administrator has put beside our drop-in since need the import that we added.
pub(super) fn an_administrators_drop_in_keeps_the_import() {
    let add = format!("{CONFIGURE} --runtime=containerd");
    let other = "etc/containerd/conf.d/50-mirrors.toml";
    let pattern = "conf.d/*.toml";
    for remove in [format!("{add} --remove"), UNREGISTER.to_owned()] {
        for before in [None, Some("# mine\nversion = 2\nroot = \"/x\"\n")] {
            let world = World::new();
            if let Some(before) = before {
                world.put(CONTAINERD, before, 0o644);
            }
            world.succeeds(&add);
            world.put(other, "version = 2\n", 0o644);
            // Neither is one that containerd would read.
            world.put("etc/containerd/conf.d/51-mirrors.toml.bak", "", 0o644);
            let outcome = world.succeeds(&remove);
            let said =
                format!("still imports /etc/containerd/{pattern}, since /{other} needs that");
            assert!(outcome.stderr.contains(&said), "{outcome:#?}");
            assert_eq!(world.text(DROP_IN), None);
            let text = world.text(CONTAINERD).unwrap();
            assert!(text.contains(pattern), "{remove}: {text}");
        }
    }
}
