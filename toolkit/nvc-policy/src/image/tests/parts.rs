//! Tests requests for parts of the driver, for other devices, and for conditions on the driver.

use super::*;
use crate::image::features::Feature;

#[test]
fn capabilities_are_those_that_are_supported() {
    let of = |value: Option<&str>, supported: &str| {
        let config = Config {
            supported_driver_capabilities: supported.into(),
            ..Config::default()
        };
        let policy = Policy::new(&config).unwrap();
        let variable = value.map(|value| format!("NVIDIA_DRIVER_CAPABILITIES={value}"));
        let mut env = vec!["NVIDIA_VISIBLE_DEVICES=0"];
        env.extend(variable.as_deref());
        match request(&container(&env), &policy, &Three) {
            Ok(answer) => answer.request.unwrap().capabilities.to_string(),
            Err(error) => error.to_string(),
        }
    };
    let everything = "compat32,compute,display,graphics,ngx,utility,video";
    let table = [
        (None, "all", "compute,utility"),
        (Some(""), "all", "compute,utility"),
        (Some(""), "utility,video", "utility"),
        (Some("all"), "utility,video", "utility,video"),
        (Some("all"), "", ""),
        (
            Some("video, compute,,graphics"),
            "all",
            "compute,graphics,video",
        ),
        (Some("x, all"), everything, everything),
        (Some(" , "), "all", ""),
        (
            Some("compute,frob"),
            "all",
            "unsupported capabilities found in 'compute,frob' (allowed 'compute')",
        ),
        (
            Some("utility,graphics"),
            "utility,compute",
            "unsupported capabilities found in 'graphics,utility' (allowed 'utility')",
        ),
        (
            Some("none"),
            "all",
            "unsupported capabilities found in 'none' (allowed '')",
        ),
    ];
    for (value, supported, expected) in table {
        let found = of(value, supported);
        let found = found
            .strip_suffix(" (hint: NVIDIA_DRIVER_CAPABILITIES takes all, or a list of compat32,compute,display,graphics,ngx,utility,video)")
            .unwrap_or(&found);
        assert_eq!(found, expected, "{value:?} of {supported}");
    }
    for bad in ["all,compute", "compute,frob", "Compute"] {
        let config = Config {
            supported_driver_capabilities: bad.into(),
            ..Config::default()
        };
        assert!(Policy::new(&config).is_err(), "{bad}");
    }
}

#[test]
fn pictures_are_asked_for_in_words() {
    let all = Capabilities::all();
    let asks = |value: &str, supported: Capabilities| {
        let entry = format!("NVIDIA_DRIVER_CAPABILITIES={value}");
        capabilities::asks_for_graphics(&Environment::new([entry]).unwrap(), supported)
    };
    for value in ["graphics", "display", "all", "compute, graphics"] {
        assert!(asks(value, all), "{value}");
    }
    for value in ["", "compute", "graphicsx"] {
        assert!(!asks(value, all), "{value}");
    }
    let old = Environment::new(["CUDA_VERSION=9.0"]).unwrap();
    assert!(!capabilities::asks_for_graphics(&old, all));
    // Only as far as the administrator allows.
    let [compute, display] =
        ["compute", "display"].map(|name| Capabilities::from_word(name).unwrap());
    for (value, supported, expected) in [
        ("all", compute, false),
        ("graphics", compute, false),
        ("graphics", display, false),
        ("all", display | compute, true),
    ] {
        assert_eq!(asks(value, supported), expected, "{value} of {supported}");
    }
}

#[test]
fn requirements_are_collected() {
    let env = [
        "NVIDIA_VISIBLE_DEVICES=0",
        "NVIDIA_REQUIRE_CUDA=cuda>=11.0 driver>=450",
        "NVIDIA_REQUIRE_JETPACK=csv-mounts=all",
        "NVIDIA_REQUIRE_JETPACK_HOST_MOUNTS=x",
        "NVIDIA_REQUIRE_ARCH=arch>=7.0",
    ];
    let request = asked(&container(&env), &policy()).unwrap();
    assert_eq!(
        request.requirements,
        ["cuda>=11.0 driver>=450", "arch>=7.0"]
    );
    for (value, disabled) in [
        ("true", true),
        ("T", true),
        ("1", true),
        ("yes", false),
        ("0", false),
    ] {
        let switch = format!("NVIDIA_DISABLE_REQUIRE={value}");
        let env = ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_X=x", &switch];
        let request = asked(&container(&env), &policy()).unwrap();
        assert_eq!(request.requirements.is_empty(), disabled, "{value}");
    }
}

#[test]
fn features_are_switched_on_by_one_word() {
    let env = [
        "NVIDIA_NVSWITCH=enabled",
        "NVIDIA_GDS=enabled",
        "NVIDIA_MOFED=true",
        "NVIDIA_GDRCOPY=",
    ];
    let (found, ignored) = features::of(&container(&env), &policy(), &Origin::LegacyImage);
    assert_eq!(found, [Feature::Gds, Feature::Nvswitch]);
    assert_eq!(ignored, None);
}

#[test]
fn features_follow_the_policy_for_the_environment() {
    let env = ["NVIDIA_GDS=enabled", "NVIDIA_MOFED=enabled"];
    let both = [Feature::Gds, Feature::Mofed].to_vec();
    let of = |container: &Container, policy: &Policy| {
        features::of(container, policy, &Origin::LegacyImage)
    };
    assert_eq!(of(&container(&env), &policy()).0, both);
    assert_eq!(of(&privileged(&env), &only_privileged()).0, both);
    let (found, ignored) = of(&container(&env), &only_privileged());
    assert!(found.is_empty());
    assert!(ignored.unwrap().ends_with("[NVIDIA_GDS NVIDIA_MOFED]"));
    // Nothing is ignored if nothing is requested.
    assert_eq!(of(&container(&[]), &only_privileged()), (Vec::new(), None));
}

/// A device plugin that grants GPUs by mounts sets these variables.
#[test]
fn features_beside_mounts_have_a_switch() {
    let asking = container(&["NVIDIA_GDS=enabled"]);
    let keys = || vec!["cdi.k8s.io/x".to_owned()];
    let with_switch = Policy {
        accept_features: true,
        ..only_privileged()
    };
    for (origin, by_mounts) in [
        (Origin::Mounts, true),
        (Origin::Narrowed(keys(), Box::new(Origin::Mounts)), true),
        (Origin::Annotations(keys()), false),
        (
            Origin::Narrowed(keys(), Box::new(Origin::LegacyImage)),
            false,
        ),
        (Origin::Environment(Vec::new()), false),
        (Origin::LegacyImage, false),
    ] {
        let (found, ignored) = features::of(&asking, &only_privileged(), &origin);
        assert!(found.is_empty(), "{origin:?}");
        let names_switch = ignored
            .unwrap()
            .contains("accept-nvidia-features-when-unprivileged = true");
        assert_eq!(names_switch, by_mounts, "{origin:?}");
        let (found, ignored) = features::of(&asking, &with_switch, &origin);
        assert_eq!(found == [Feature::Gds], by_mounts, "{origin:?}");
        assert_eq!(ignored.is_none(), by_mounts, "{origin:?}");
    }
}
