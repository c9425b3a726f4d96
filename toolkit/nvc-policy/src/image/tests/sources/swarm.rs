//! Tests Swarm's variables, which narrow `NVIDIA_VISIBLE_DEVICES` and join each other.

use super::*;

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
