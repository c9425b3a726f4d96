//! Tests names of CDI devices: the permitted kinds, and when the machine is asked what a name denotes.

use super::*;

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
        fn denoted(&self, name: &str) -> libnvc::Result<Denoted> {
            let device = name.split_once('=').map_or(name, |(_, device)| device);
            Ok(Denoted::Gpus(match device {
                "all" => (0..41).map(|n| n.to_string()).collect(),
                one => vec![one.to_owned()],
            }))
        }

        fn names(&self, kind: &str) -> Vec<String> {
            (0..40).map(|n| format!("{kind}={n}")).collect()
        }
    }
    let variable = format!("NVIDIA_VISIBLE_DEVICES={}", indices.join(","));
    let one = annotated(&[&variable], &[("cdi.k8s.io/x", &kinds.join(","))]);
    let error = devices::choice(&one, &runtime(), &Many).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("too many device names"), "{error}");
}

#[test]
fn the_machine_is_asked_only_where_text_does_not_decide() {
    /// A machine without a driver.
    #[derive(Debug)]
    struct Broken;

    impl Machine for Broken {
        fn denoted(&self, _: &str) -> libnvc::Result<Denoted> {
            Err(libnvc::Error::new(
                libnvc::ErrorKind::DriverFailed,
                "the driver is broken",
            ))
        }

        fn names(&self, _: &str) -> Vec<String> {
            Vec::new()
        }
    }
    let of = |visible: &str, annotation: &str| {
        let variable = format!("NVIDIA_VISIBLE_DEVICES={visible}");
        let one = annotated(&[&variable], &[("cdi.k8s.io/x", annotation)]);
        devices::choice(&one, &runtime(), &Broken).map_err(|error| error.to_string())
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
