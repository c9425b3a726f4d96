//! Tests how the sources of a request narrow each other: annotations, mounts, Swarm's variables and
//! `NVIDIA_VISIBLE_DEVICES`.

use super::*;

/// The policy of the runtime.
fn runtime() -> Policy {
    policy().with_annotations(&Config::default())
}

fn strict() -> Policy {
    only_privileged().with_annotations(&Config::default())
}

fn annotated(env: &[&str], annotations: &[(&str, &str)]) -> Container {
    let annotations = annotations.iter();
    let pairs = annotations.map(|&(key, value)| (key.to_owned(), value.to_owned()));
    Container {
        annotations: pairs.collect(),
        ..container(env)
    }
}

/// Returns the granted devices and the warnings, or the error.
fn granted(container: &Container, policy: &Policy) -> (String, String) {
    match devices::wish(container, policy, &Three) {
        Ok((wish, warnings)) => {
            let devices = wish.map_or("-".into(), |wish| wish.devices.to_string());
            (devices, warnings.join("\n"))
        }
        Err(error) => (format!("error: {error}"), String::new()),
    }
}

/// Returns the devices of a container with this variable and this annotation.
fn both(visible: &str, annotation: &str) -> String {
    let variable = format!("NVIDIA_VISIBLE_DEVICES={visible}");
    let one = annotated(&[&variable], &[("cdi.k8s.io/x", annotation)]);
    granted(&one, &runtime()).0
}

#[test]
fn ignored_imex_channels_have_no_other_name() {
    let channel = "nvidia.com/imex-channel=0";
    let with_gpu = format!("{channel},nvidia.com/gpu=0");
    let ignoring = |policy: Policy| Policy {
        ignore_imex: true,
        ..policy
    };
    for (names, left) in [(channel, "-"), (&with_gpu, "nvidia.com/gpu=0")] {
        let variable = format!("NVIDIA_VISIBLE_DEVICES={names}");
        let trusting = Policy {
            accept_annotations: true,
            ..runtime()
        };
        for (container, policy) in [
            (annotated(&[&variable], &[]), runtime()),
            (annotated(&[], &[("cdi.k8s.io/x", names)]), runtime()),
            (annotated(&[], &[("cdi.k8s.io/x", names)]), trusting),
        ] {
            let (devices, warnings) = granted(&container, &ignoring(policy.clone()));
            assert_eq!(devices, left, "{container:?}");
            assert!(
                warnings.contains("ignore-imex-channel-requests"),
                "{warnings}"
            );
            assert_eq!(granted(&container, &policy).0, names);
        }
    }
}

#[test]
fn annotations_and_environment_narrow_each_other() {
    let gpu = |device: &str| format!("nvidia.com/gpu={device}");
    let table = [
        ("all", "nvidia.com/gpu=1", gpu("1")),
        ("all", "nvidia.com/gpu=all", gpu("all")),
        ("0", "nvidia.com/gpu=all", gpu("0")),
        ("GPU-b", "nvidia.com/gpu=all", gpu("1")),
        // Only the first two have devices of this kind.
        ("2", "nvidia.com/gpu=all", error("nvidia.com/gpu=all", "2")),
        ("1,2", "nvidia.com/gpu=all", gpu("1")),
        ("1", "nvidia.com/gpu=0,nvidia.com/gpu=1", gpu("1")),
        ("GPU-B", "nvidia.com/gpu=gpu1", gpu("gpu1")),
        ("2:0", "nvidia.com/gpu=MIG-d", gpu("MIG-d")),
        (
            "2",
            "nvidia.com/gpu=MIG-d",
            error("nvidia.com/gpu=MIG-d", "2"),
        ),
        ("2:0", "nvidia.com/gpu=2", error("nvidia.com/gpu=2", "2:0")),
        ("0", "nvidia.com/gpu=1", error("nvidia.com/gpu=1", "0")),
        (
            "7",
            "nvidia.com/gpu=GPU-a",
            error("nvidia.com/gpu=GPU-a", "7"),
        ),
        (
            "nvidia.com/gpu=0",
            "runtime.nvidia.com/gpu=all",
            "runtime.nvidia.com/gpu=GPU-a".into(),
        ),
        // With this name the container gets no GPU, whatever else is named.
        (
            "0,1",
            "runtime.nvidia.com/gpu=0,runtime.nvidia.com/gpu=none",
            "runtime.nvidia.com/gpu=none".into(),
        ),
        (
            "runtime.nvidia.com/gpu=none,runtime.nvidia.com/gpu=0",
            "nvidia.com/gpu=0",
            error(
                "nvidia.com/gpu=0",
                "runtime.nvidia.com/gpu=none,runtime.nvidia.com/gpu=0",
            ),
        ),
        // `all` and an index of one kind are not those of another.
        ("k8s.gpu.nvidia.com/slot=0", "nvidia.com/gpu=2", gpu("2")),
        (
            "k8s.gpu.nvidia.com/slot=0",
            "nvidia.com/gpu=0",
            error("nvidia.com/gpu=0", "k8s.gpu.nvidia.com/slot=0"),
        ),
        (
            "0",
            "k8s.gpu.nvidia.com/slot=0",
            error("k8s.gpu.nvidia.com/slot=0", "0"),
        ),
        (
            "k8s.gpu.nvidia.com/slot=all",
            "nvidia.com/gpu=all",
            gpu("1"),
        ),
        (
            "k8s.gpu.nvidia.com/slot=all",
            "nvidia.com/gpu=0",
            error("nvidia.com/gpu=0", "k8s.gpu.nvidia.com/slot=all"),
        ),
        (
            "0,1",
            "k8s.gpu.nvidia.com/slot=all",
            "k8s.gpu.nvidia.com/slot=1".into(),
        ),
        ("nvidia.com/gpu=all", "nvidia.com/gpu=1", gpu("1")),
        (
            "0,1",
            "k8s.gpu.nvidia.com/device=pair",
            "k8s.gpu.nvidia.com/device=pair".into(),
        ),
        (
            "1",
            "k8s.gpu.nvidia.com/device=all",
            "k8s.gpu.nvidia.com/device=GPU-b".into(),
        ),
        (
            "0",
            "k8s.gpu.nvidia.com/device=pair",
            error("k8s.gpu.nvidia.com/device=pair", "0"),
        ),
        // An index of another class is only a name.
        (
            "0",
            "k8s.gpu.nvidia.com/device=unknown",
            error("k8s.gpu.nvidia.com/device=unknown", "0"),
        ),
        // Only GPUs narrow GPUs.
        ("0", "acme.com/nic=1", "acme.com/nic=1".into()),
        (
            "none",
            "acme.com/nic=1,nvidia.com/gpu=0",
            "acme.com/nic=1".into(),
        ),
        (
            "0",
            "nvidia.com/gds=all,nvidia.com/gpu=0",
            "nvidia.com/gpu=0,nvidia.com/gds=all".into(),
        ),
        (
            "nvidia.com/gds=all",
            "nvidia.com/gpu=0",
            error("nvidia.com/gpu=0", "nvidia.com/gds=all"),
        ),
    ];
    for (visible, annotation, expected) in table {
        assert_eq!(
            both(visible, annotation),
            expected,
            "{visible} {annotation}"
        );
    }
}

/// Returns the error about an annotation and the variable.
fn error(annotation: &str, visible: &str) -> String {
    format!(
        "error: no GPU is left: annotation cdi.k8s.io/x names {annotation}, but NVIDIA_VISIBLE_DEVICES names {visible}"
    )
}

#[test]
fn words_for_nothing_allow_nothing() {
    for (value, expected) in [
        ("none", "no GPU"),
        ("void", "-"),
        ("", "-"),
        ("0,void", "-"),
    ] {
        let variable = format!("NVIDIA_VISIBLE_DEVICES={value}");
        for annotation in ["nvidia.com/gpu=all", "nvidia.com/imex-channel=0", "0"] {
            let one = annotated(&[&variable], &[("cdi.k8s.io/x", annotation)]);
            let (devices, said) = granted(&one, &runtime());
            assert_eq!(devices, expected, "{value} {annotation}");
            for word in [
                "cdi.k8s.io/x",
                "NVIDIA_VISIBLE_DEVICES",
                "accept-annotations",
            ] {
                assert!(said.contains(word), "{word}: {said}");
            }
        }
    }
}

#[test]
fn annotations_count_where_the_environment_does() {
    let asks = [
        ("cdi.k8s.io/b", "nvidia.com/gpu=1, nvidia.com/gpu=0"),
        ("cdi.k8s.io/a", "nvidia.com/gpu=0,"),
        ("other/c", "nvidia.com/gpu=all"),
    ];
    let both = "nvidia.com/gpu=0,nvidia.com/gpu=1";
    let all = ["NVIDIA_VISIBLE_DEVICES=all"];
    assert_eq!(granted(&annotated(&[], &asks), &runtime()).0, both);
    assert_eq!(granted(&annotated(&all, &asks), &runtime()).0, both);
    // Without prefixes, as in the hook and in legacy mode.
    assert_eq!(granted(&annotated(&all, &asks), &policy()).0, "all");
    let (devices, said) = granted(&annotated(&all, &asks), &strict());
    assert_eq!(devices, "-");
    for word in ["[cdi.k8s.io/a cdi.k8s.io/b]", "accept-annotations = true"] {
        assert!(said.contains(word), "{said}");
    }
    let powerful = Container {
        privileged: true,
        ..annotated(&[], &asks)
    };
    assert_eq!(granted(&powerful, &strict()), (both.into(), String::new()));
    // An annotation without a name requests nothing, and hides nothing.
    let empty = annotated(&["NVIDIA_VISIBLE_DEVICES=1"], &[("cdi.k8s.io/a", " ,")]);
    assert_eq!(granted(&empty, &runtime()).0, "1");
}

/// An odd annotation is an error: the environment, which the image has set to `all`, does not count instead.
#[test]
fn one_odd_annotation_hides_no_other() {
    let of = |annotations: &[(&str, &str)], policy: &Policy| {
        let one = annotated(&["NVIDIA_VISIBLE_DEVICES=all"], annotations);
        let asks = annotations::name_cdi_devices(&one, policy);
        let ignored = annotations::ignored(&one, policy);
        (asks.map_err(|error| error.to_string()), ignored.is_some())
    };
    let mine = ("cdi.k8s.io/mine", "nvidia.com/gpu=1");
    for odd in ["bogus", "nvidia.com/gpu=GPU-", "nvidia.com/gpu=0, 1"] {
        let both = [mine, ("cdi.k8s.io/img", odd)];
        let error = of(&both, &runtime()).0.unwrap_err();
        for word in ["cdi.k8s.io/img", odd, "VENDOR/CLASS=DEVICE"] {
            assert!(error.contains(word), "{word}: {error}");
        }
        // Where annotations do not count, they are refused as before.
        assert_eq!(of(&both, &strict()).0, Ok(true));
    }
    assert_eq!(of(&[mine], &runtime()).0, Ok(true));
    assert_eq!(of(&[], &runtime()), (Ok(false), false));
    let none = [("cdi.k8s.io/img", "bogus"), ("cdi.k8s.io/other", "1")];
    assert_eq!(of(&none, &runtime()), (Ok(false), true));
}

#[test]
fn a_forged_manager_changes_nothing() {
    let asks = ("cdi.k8s.io/a", "nvidia.com/gpu=all");
    for manager in ["libpod", "cri-o", "docker"] {
        let forged = [asks, ("io.container.manager", manager)];
        for policy in [runtime(), strict()] {
            let with = granted(&annotated(&[], &forged), &policy);
            assert_eq!(
                with,
                granted(&annotated(&[], &[asks]), &policy),
                "{manager}"
            );
        }
    }
}

#[test]
fn the_key_lets_annotations_decide_alone() {
    let accepting = Policy {
        accept_annotations: true,
        ..strict()
    };
    for env in [
        &["NVIDIA_VISIBLE_DEVICES=none"][..],
        &["NVIDIA_VISIBLE_DEVICES=0"],
        &[],
    ] {
        let one = annotated(env, &[("cdi.k8s.io/a", "nvidia.com/gpu=1")]);
        assert_eq!(
            granted(&one, &accepting),
            ("nvidia.com/gpu=1".into(), String::new())
        );
    }
    let silent = container(&["NVIDIA_VISIBLE_DEVICES=0"]);
    assert_eq!(granted(&silent, &accepting).0, "-");
}

#[test]
fn mounts_and_annotations_narrow_each_other() {
    let of = |mounted: &[&str], env: &[&str], annotation: &str, policy: Policy| {
        let asking = Container {
            mounts: mounts(mounted),
            ..annotated(env, &[("cdi.k8s.io/x", annotation)])
        };
        let policy = Policy {
            accept_mounts: true,
            ..policy
        };
        granted(&asking, &policy).0
    };
    let asks = "nvidia.com/gpu=1";
    assert_eq!(
        of(&["0", "1"], &["NVIDIA_VISIBLE_DEVICES=0"], asks, runtime()),
        asks
    );
    assert_eq!(
        of(&["GPU-a"], &[], "nvidia.com/gpu=all", runtime()),
        "nvidia.com/gpu=0"
    );
    let error = of(&["0"], &[], asks, runtime());
    assert!(
        error.contains("no GPU is left") && error.contains("mounts below"),
        "{error}"
    );
    // The annotation does not count, but the mounts do.
    assert_eq!(of(&["0"], &[], asks, strict()), "0");
    assert_eq!(
        of(&["acme.com/nic=1"], &[], "acme.com/nic=1", runtime()),
        "acme.com/nic=1"
    );
}

#[test]
fn void_keeps_mounts_from_adding_anything() {
    let asking = |value: &str| Container {
        mounts: mounts(&["0", "imex/3", "cdi/acme.com/nic=1"]),
        ..container(&[
            &format!("NVIDIA_VISIBLE_DEVICES={value}"),
            "NVIDIA_IMEX_CHANNELS=4",
        ])
    };
    for policy in [
        with_mounts(),
        Policy {
            accept_environment: false,
            ..with_mounts()
        },
    ] {
        for void in ["void", "0,void"] {
            let (devices, said) = granted(&asking(void), &policy);
            assert_eq!(devices, "-");
            assert!(said.contains("void"), "{said}");
            assert_eq!(devices::imex_channels(&asking(void), &policy).0, [""; 0]);
        }
        for other in ["none", "", "1", "/var/run/nvidia-container-devices"] {
            assert_eq!(
                granted(&asking(other), &policy).0,
                "0,acme.com/nic=1",
                "{other}"
            );
            assert_eq!(devices::imex_channels(&asking(other), &policy).0, ["3"]);
        }
    }
}

#[test]
fn the_mounts_directory_is_no_gpu() {
    let env = ["NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices"];
    for policy in [policy(), with_mounts()] {
        let (devices, said) = granted(&container(&env), &policy);
        assert_eq!(devices, "-");
        assert!(said.contains("nothing counts as a request"), "{said}");
    }
    let one = annotated(&env, &[("cdi.k8s.io/x", "nvidia.com/gpu=1")]);
    assert_eq!(granted(&one, &runtime()).0, "nvidia.com/gpu=1");
}

#[test]
fn swarm_variables_narrow_the_other() {
    let swarm = |names: &str| {
        let config = Config {
            swarm_resource: names.into(),
            ..Config::default()
        };
        Policy::new(&config).unwrap()
    };
    let of = |env: &[&str], names| granted(&container(env), &swarm(names)).0;
    let with = |visible: &str, resource: &str| {
        let env = [
            format!("NVIDIA_VISIBLE_DEVICES={visible}"),
            format!("A={resource}"),
        ];
        of(&[&env[0], &env[1]], "A")
    };
    for (visible, resource, expected) in [
        ("all", "GPU-a", "GPU-a"),
        ("0", "all", "0"),
        ("0,1", "GPU-b", "1"),
        ("GPU-a,GPU-b", "gpu-B,GPU-c", "GPU-b"),
        ("/var/run/nvidia-container-devices", "1", "1"),
        ("none", "1", "no GPU"),
        ("1", "none", "no GPU"),
        ("void", "1", "-"),
        ("1", "void", "-"),
        ("", "1", "-"),
        ("1", "", "-"),
        ("nvidia.com/gpu=all", "GPU-b", "nvidia.com/gpu=1"),
    ] {
        assert_eq!(with(visible, resource), expected, "{visible} {resource}");
    }
    for (visible, resource) in [("0", "1"), ("0", "GPU-b"), ("2", "2:0")] {
        let expected = format!(
            "error: no GPU is left: NVIDIA_VISIBLE_DEVICES names {visible}, but A names {resource}"
        );
        assert_eq!(with(visible, resource), expected);
    }
    assert_eq!(
        of(&["NVIDIA_VISIBLE_DEVICES=all", "B=5,4", "A=4"], " A , B,,C"),
        "4,5"
    );
    assert_eq!(of(&["B=5,4", "A=4"], "A,B"), "4,5");
    // Words count for their own variable, and `all` only if each says it.
    for (others, expected) in [
        (&["A=GPU-a", "B=all"][..], "GPU-a"),
        (&["A=GPU-a", "B=none"], "GPU-a"),
        (&["A=GPU-a", "B=void"], "GPU-a"),
        (&["A=GPU-a", "B="], "GPU-a"),
        (&["A=GPU-a", "B=GPU-b,all"], "GPU-a"),
        (&["A=all", "B=all"], "all"),
        (&["A=all", "B="], "-"),
        (&["A=none", "B=all"], "no GPU"),
        (&["A=void", "B=all"], "-"),
        (&["A=all", "B=all", "C=GPU-a"], "GPU-a"),
    ] {
        let with_all = [&["NVIDIA_VISIBLE_DEVICES=all"], others].concat();
        for env in [others, &with_all] {
            let (devices, said) = granted(&container(env), &swarm("A,B,C"));
            assert_eq!(devices, expected, "{env:?}");
            let has_odd_all = others.iter().any(|one| one.ends_with("all")) && expected != "all";
            assert_eq!(said.contains("all adds no GPU"), has_odd_all, "{said}");
        }
    }
    assert_eq!(of(&["NVIDIA_VISIBLE_DEVICES=0"], "C"), "0");
    assert_eq!(of(&["CUDA_VERSION=9.0", "A="], "A"), "-");
    let refused = Policy {
        accept_environment: false,
        ..swarm("A")
    };
    let (devices, said) = granted(&container(&["A=0"]), &refused);
    assert_eq!(devices, "-");
    assert!(said.ends_with("[A]"), "{said}");
}

#[test]
fn variables_name_devices_of_known_kinds() {
    let of = |name: &str, policy: &Policy, privileged| {
        let variable = format!("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0,{name}");
        let one = Container {
            privileged,
            ..container(&[&variable])
        };
        granted(&one, policy).0
    };
    let known = |name: &str| {
        let devices = of(name, &policy(), false);
        devices == format!("nvidia.com/gpu=0,{name}")
    };
    for name in [
        "runtime.nvidia.com/gpu=1",
        "k8s.gpu.nvidia.com/x=1",
        "acme.com/nic",
        "1",
    ] {
        assert!(known(name), "{name}");
    }
    let others = [
        "acme.com/nic=1",
        "evil-nvidia.com/gpu=1",
        "nvidia.com.acme/gpu=1",
        "n/gpu=1",
    ];
    for name in others {
        let error = of(name, &policy(), true);
        let kind = name.split('=').next().unwrap();
        for word in [
            "NVIDIA_VISIBLE_DEVICES",
            name,
            &format!("accept-cdi-kinds = [\"{kind}\"]"),
        ] {
            assert!(
                error.starts_with("error: ") && error.contains(word),
                "{error}"
            );
        }
        let config = Config {
            accept_cdi_kinds: vec![kind.into()],
            ..Config::default()
        };
        let accepting = Policy::new(&config).unwrap();
        assert!(!of(name, &accepting, false).starts_with("error"), "{name}");
        let mut config = Config::default();
        config.runtime.cdi_default_kind = kind.into();
        let accepting = Policy::new(&config).unwrap();
        assert!(!of(name, &accepting, false).starts_with("error"), "{name}");
    }
    let management = "management.nvidia.com/gpu=all";
    assert!(of(management, &policy(), false).contains("accept-cdi-kinds"));
    assert!(!of(management, &policy(), true).contains("error"));
    let asking = annotated(
        &["NVIDIA_VISIBLE_DEVICES=all"],
        &[("cdi.k8s.io/x", management)],
    );
    let error = granted(&asking, &runtime()).0;
    assert!(error.contains("need CAP_SYS_ADMIN") && error.contains("accept-cdi-kinds"));
    assert!(error.ends_with(&format!("annotation cdi.k8s.io/x names {management}")));
    let asking = Container {
        privileged: true,
        ..asking
    };
    assert_eq!(granted(&asking, &strict()).0, management);
    // Where variables do not count, they are not checked either; mounts may name any kind.
    assert_eq!(of("acme.com/nic=1", &only_privileged(), false), "-");
    let mounted = Container {
        mounts: mounts(&["cdi/acme.com/nic=1"]),
        ..container(&["NVIDIA_VISIBLE_DEVICES=acme.com/nic=2"])
    };
    assert_eq!(granted(&mounted, &with_mounts()).0, "acme.com/nic=1");
}

#[test]
fn names_of_all_gpus_do_not_multiply() {
    let kinds: Vec<String> = (0..40)
        .map(|n| format!("k{n}.nvidia.com/gpu=all"))
        .collect();
    let indices: Vec<String> = (0..40).map(|n| n.to_string()).collect();
    /// A machine on which each kind has 40 devices, and one GPU more in `all`.
    #[derive(Debug)]
    struct Many;

    impl Machine for Many {
        fn uuids(&self, name: &str) -> Result<Vec<String>, String> {
            let device = name.split_once('=').map_or(name, |(_, device)| device);
            Ok(match device {
                "all" => (0..41).map(|n| n.to_string()).collect(),
                one => vec![one.to_owned()],
            })
        }

        fn names(&self, kind: &str) -> Vec<String> {
            (0..40).map(|n| format!("{kind}={n}")).collect()
        }
    }
    let variable = format!("NVIDIA_VISIBLE_DEVICES={}", indices.join(","));
    let one = annotated(&[&variable], &[("cdi.k8s.io/x", &kinds.join(","))]);
    let error = devices::wish(&one, &runtime(), &Many).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("too many device names"), "{error}");
}

#[test]
fn the_machine_is_asked_only_where_text_does_not_decide() {
    /// A machine without a driver.
    #[derive(Debug)]
    struct Broken;

    impl Machine for Broken {
        fn uuids(&self, _: &str) -> Result<Vec<String>, String> {
            Err("the driver is broken".into())
        }

        fn names(&self, _: &str) -> Vec<String> {
            Vec::new()
        }
    }
    let of = |visible: &str, annotation: &str| {
        let variable = format!("NVIDIA_VISIBLE_DEVICES={visible}");
        let one = annotated(&[&variable], &[("cdi.k8s.io/x", annotation)]);
        devices::wish(&one, &runtime(), &Broken).map_err(|error| error.to_string())
    };
    for (visible, annotation) in [
        ("all", "k8s.gpu.nvidia.com/claim=x"),
        ("none", "k8s.gpu.nvidia.com/claim=x"),
        ("nvidia.com/gpu=1,nvidia.com/gpu=0", "nvidia.com/gpu=1"),
        ("nvidia.com/gpu=all", "nvidia.com/gpu=all"),
    ] {
        assert!(of(visible, annotation).is_ok(), "{visible} {annotation}");
    }
    // What a CDI name denotes is not in its text.
    for (visible, annotation) in [
        ("0,1", "nvidia.com/gpu=1"),
        ("GPU-a", "k8s.device-plugin.nvidia.com/gpu=GPU-a"),
        ("nvidia.com/gpu=all", "nvidia.com/gpu=1"),
        ("nvidia.com/team=all", "nvidia.com/gpu=all"),
    ] {
        assert!(of(visible, annotation).is_err(), "{visible} {annotation}");
    }
    let error = of("GPU-a", "nvidia.com/gpu=1").unwrap_err();
    for word in ["GPU-a", "nvidia.com/gpu=1", "the driver is broken"] {
        assert!(error.contains(word), "{error}");
    }
}
