//! Tests mounts that name devices, beside annotations and `void`.

use super::*;

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
            let channels = devices::imex_channels(&asking(void), &policy).unwrap();
            assert_eq!(channels.0, [0; 0]);
        }
        for other in ["none", "", "1", "/var/run/nvidia-container-devices"] {
            assert_eq!(
                granted(&asking(other), &policy).0,
                "0,acme.com/nic=1",
                "{other}"
            );
            let channels = devices::imex_channels(&asking(other), &policy).unwrap();
            assert_eq!(channels.0, [3]);
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
