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
        "cdi/bad",
        "0",
    ];
    let asking = Container {
        mounts: mounts(&names),
        ..container(&["NVIDIA_VISIBLE_DEVICES=7", "NVIDIA_IMEX_CHANNELS=4"])
    };
    let request = asked(&asking, &with_mounts()).unwrap();
    let expected = ["0", "GPU-a", "nvidia.com/gpu=1", "nvidia.com/gpu=2"];
    assert_eq!(request.devices.names(), expected);
    assert_eq!(request.imex_channels, ["3"]);
    assert_eq!(request.origin, Origin::Mounts);
    assert_eq!(asked(&asking, &policy()).unwrap().devices.names(), ["7"]);
    let strict = Policy {
        accept_environment: false,
        ..with_mounts()
    };
    assert_eq!(asked(&asking, &strict).unwrap().devices.names(), expected);
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
