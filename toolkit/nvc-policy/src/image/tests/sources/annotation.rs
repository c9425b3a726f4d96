//! Tests annotations with CDI names: where they count, and how they and the environment narrow each other.

use super::*;

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
