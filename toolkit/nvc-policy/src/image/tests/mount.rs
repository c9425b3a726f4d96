//! Tests mounts in place of the variable.

use super::*;

#[test]
fn mounts_ask_where_they_may() {
    let names = [
        "0",
        "GPU-a",
        "imex/3",
        "cdi/nvidia.com/gpu/1",
        "cdi/nvidia.com/gpu=2",
        "0",
    ];
    let asking = Container {
        mounts: mounts(&names),
        ..container(&["NVIDIA_VISIBLE_DEVICES=7", "NVIDIA_IMEX_CHANNELS=4"])
    };
    let request = asked(&asking, &with_mounts()).unwrap();
    let expected = ["0", "GPU-a", "nvidia.com/gpu=1", "nvidia.com/gpu=2"];
    assert_eq!(request.devices.names(), expected);
    assert_eq!(request.imex_channels, [3]);
    assert_eq!(request.origin, Origin::Mounts);
    // Only a value has quotes and blanks around it.
    let odd = Container {
        mounts: mounts(&["\"0\"", " 1"]),
        ..container(&[])
    };
    let request = asked(&odd, &with_mounts()).unwrap();
    assert_eq!(request.devices.names(), ["\"0\"", " 1"]);
    assert_eq!(asked(&asking, &policy()).unwrap().devices.names(), ["7"]);
    let strict = Policy {
        accept_environment: false,
        ..with_mounts()
    };
    assert_eq!(asked(&asking, &strict).unwrap().devices.names(), expected);
}

/// Otherwise the image's environment would decide.
#[test]
fn a_bad_name_is_never_left_out() {
    let env = ["NVIDIA_VISIBLE_DEVICES=all"];
    for bad in ["cdi/gpu0", "cdi/nvidia.com/gpu/x/y", "cdi/=", "cdi/a.b/c="] {
        for names in [&[bad][..], &["0", bad], &[bad, "imex/3"]] {
            let asking = Container {
                mounts: mounts(names),
                ..container(&env)
            };
            let error = request(&asking, &with_mounts(), &Three).unwrap_err();
            let expected = format!("invalid mount request for CDI device {bad}: mounts below ");
            assert!(error.to_string().starts_with(&expected), "{error}");
            // Mounts do not count here.
            let devices = asked(&asking, &policy()).unwrap().devices;
            assert_eq!(devices, Devices::All);
            let void = Container {
                environment: container(&["NVIDIA_VISIBLE_DEVICES=void"]).environment,
                ..asking
            };
            let answer = request(&void, &with_mounts(), &Three).unwrap();
            assert_eq!(answer.request, None);
            assert!(answer.warnings.concat().contains("is void"));
        }
    }
}

#[test]
fn only_mounts_of_dev_null_at_that_place_ask() {
    let mount = |source: &str, destination: &str| Mount {
        source: source.into(),
        destination: destination.into(),
    };
    let names = |mount: Mount| {
        let asking = Container {
            mounts: vec![mount],
            ..Container::default()
        };
        asked(&asking, &with_mounts()).map(|request| request.devices.names().join(","))
    };
    let place = "/var/run/nvidia-container-devices";
    assert_eq!(
        names(mount("/dev/null", &format!("{place}/0/"))).unwrap(),
        "0"
    );
    assert_eq!(
        names(mount("//dev/./null", &format!("{place}//x/../0"))).unwrap(),
        "0"
    );
    assert_eq!(
        names(mount("/dev/null", &format!("{place}x/1"))).unwrap(),
        "x/1"
    );
    assert_eq!(
        names(mount("/dev/null", &format!("{place}/imex"))).unwrap(),
        "imex"
    );
    assert_eq!(names(mount("/dev/null", place)), None);
    assert_eq!(names(mount("/dev/zero", &format!("{place}/0"))), None);
    assert_eq!(names(mount("", &format!("{place}/0"))), None);
    assert_eq!(
        names(mount("/dev/null", "/run/nvidia-container-devices/0")),
        None
    );
    assert_eq!(names(mount("/dev/null", &format!("{place}/../0"))), None);
}
