use super::*;

const DEVICES: &str = "Character devices:\n  1 mem\n 10 misc\n195 nvidia\n231 infiniband_verbs\n\
    234 nvidia-caps\n235 nvidia-caps-imex-channels\n236 nvidia-nvswitch\n240 nvidia-uvm\n241 nvidia-fs\n\
    242 infiniband_verbs\n231 infiniband_mad\n243 infiniband_verbs\n243 other\n\nBlock devices:\n  8 sd\n511 gdrdrv\n";
const MISC_DEVICES: &str = " 58 rdma_cm\n232 kvm\n";

fn difference(name: &str, major: u32, minor: u32) -> Option<String> {
    let number = DeviceNumber { major, minor };
    CharDrivers::of(DEVICES, MISC_DEVICES).difference(&format!("/root/dev/{name}"), number)
}

#[test]
fn devices_of_their_driver_pass() {
    for (name, major, minor) in [
        ("nvidiactl", 195, 255),
        ("nvidia-modeset", 195, 254),
        ("nvidia0", 195, 0),
        ("nvidia12", 195, 12),
        ("nvidia-uvm", 240, 0),
        ("nvidia-uvm-tools", 240, 1),
        ("nvidia-caps/nvidia-cap148", 234, 148),
        ("nvidia-caps-imex-channels/channel2047", 235, 2047),
        ("nvidia-fs3", 241, 3),
        ("nvidia-nvswitchctl", 236, 255),
        ("nvidia-nvswitch1", 236, 1),
        ("dri/card1", 226, 1),
        ("dri/renderD129", 226, 129),
        ("infiniband/uverbs0", 231, 192),
        ("infiniband/uverbs40", 242, 8),
        ("infiniband/rdma_cm", 10, 58),
        ("dxg", 10, 125),
        // Of no known kind.
        ("nvmap", 1, 1),
        ("nvhost-gpu", 195, 7),
    ] {
        assert_eq!(
            difference(name, major, minor),
            None,
            "{name} {major}:{minor}"
        );
    }
}

#[test]
fn other_devices_are_refused_with_the_reason() {
    for (name, major, minor, reason) in [
        (
            "nvidia0",
            195,
            1,
            "is 195:1, and its minor number should be 0",
        ),
        (
            "nvidia0",
            1,
            0,
            "is 1:0, and its major number should be 195",
        ),
        (
            "nvidiactl",
            195,
            0,
            "is 195:0, and its minor number should be 255",
        ),
        (
            "nvidia99999999999",
            195,
            0,
            "is 195:0, and no driver writes the number as 99999999999",
        ),
        (
            "nvidia-uvm",
            195,
            0,
            "is 195:0, and the driver's major number is 240",
        ),
        (
            "nvidia-uvm",
            240,
            1,
            "is 240:1, and its minor number should be 0",
        ),
        (
            "nvidia-caps/nvidia-cap1",
            234,
            2,
            "is 234:2, and its minor number should be 1",
        ),
        (
            "nvidia-nvlink",
            240,
            0,
            "is 240:0, and /proc/devices has no nvidia-nvlink: is its module loaded?",
        ),
        // A block device's driver has the name.
        (
            "gdrdrv",
            511,
            0,
            "is 511:0, and /proc/devices has no gdrdrv: is its module loaded?",
        ),
        (
            "dri/card1",
            226,
            0,
            "is 226:0, and its minor number should be 1",
        ),
        (
            "dri/renderD128",
            195,
            128,
            "is 195:128, and its major number should be 226",
        ),
        (
            "infiniband/uverbs9",
            195,
            1,
            "is 195:1, and the major number is that of nvidia",
        ),
        (
            "infiniband/rdma_cm",
            10,
            232,
            "is 10:232, and the number is that of kvm",
        ),
        ("dxg", 1, 1, "is 1:1, and the major number is that of mem"),
        // umad0 and issm0, which have the same major number.
        (
            "infiniband/uverbs9",
            231,
            0,
            "is 231:0, and its minor number should be 192 to 223",
        ),
        (
            "infiniband/uverbs9",
            231,
            64,
            "is 231:64, and its minor number should be 192 to 223",
        ),
        // A driver may get the number later.
        (
            "infiniband/uverbs9",
            500,
            0,
            "is 500:0, and no driver has the major number",
        ),
        (
            "infiniband/uverbs9",
            243,
            0,
            "is 243:0, and the major number is that of infiniband_verbs, other",
        ),
    ] {
        assert_eq!(
            difference(name, major, minor),
            Some(reason.to_owned()),
            "{name} {major}:{minor}"
        );
    }
}

/// A second name for a device escapes all that look for it by its name.
#[test]
fn a_device_has_one_name() {
    for (name, major, minor) in [
        ("nvidia00", 195, 0),
        ("nvidia007", 195, 7),
        ("nvidia-caps/nvidia-cap01", 234, 1),
        ("nvidia-caps-imex-channels/channel007", 235, 7),
        ("nvidia-fs03", 241, 3),
        ("nvidia-nvswitch01", 236, 1),
        ("dri/card01", 226, 1),
        ("dri/renderD0129", 226, 129),
        ("infiniband/uverbs00", 231, 192),
        ("nvidia4294967296", 195, 0),
    ] {
        let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
        let refused = format!("is {major}:{minor}, and no driver writes the number as {digits}");
        assert_eq!(difference(name, major, minor), Some(refused), "{name}");
        // Whoever takes names of known kinds only must not take it for another kind.
        assert!(is_known(&format!("/dev/{name}")), "{name}");
    }
    for name in ["nvidia+0", "nvidia-0", "nvidia 0", "nvidia0 ", "nvidia0x1"] {
        assert!(!is_known(&format!("/dev/{name}")), "{name}");
    }
    let numbers = ["0", "7", "10", "4294967295"];
    assert_eq!(numbers.map(canonical), [0, 7, 10, u32::MAX].map(Some));
    for text in [
        "",
        "+7",
        "-7",
        "007",
        "00",
        " 7",
        "7 ",
        "0x7",
        "4294967296",
        "\u{661}",
    ] {
        assert_eq!(canonical(text), None, "{text}");
    }
}

#[test]
fn sysfs_says_the_numbers_of_its_classes() {
    let sysfs = tempfile::tempdir().unwrap();
    for (name, number) in [
        ("infiniband_verbs/uverbs0", "231:192\n"),
        ("infiniband_verbs/uverbs32", "242:0\n"),
        ("infiniband_verbs/uverbs7", "231\n"),
        ("misc/rdma_cm", "10:58\n"),
    ] {
        let directory = sysfs.path().join("class").join(name);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("dev"), number).unwrap();
    }
    let drivers = CharDrivers::of(DEVICES, MISC_DEVICES).with_sysfs(sysfs.path());
    let difference = |name: &str, major, minor| {
        let number = DeviceNumber { major, minor };
        drivers.difference(&format!("/dev/infiniband/{name}"), number)
    };
    for (name, major, minor) in [
        ("uverbs0", 231, 192),
        ("uverbs32", 242, 0),
        ("rdma_cm", 10, 58),
    ] {
        assert_eq!(difference(name, major, minor), None, "{name}");
    }
    for (name, major, minor, why) in [
        ("uverbs0", 231, 193, "the driver's number is 231:192"),
        ("uverbs0", 231, 0, "the driver's number is 231:192"),
        ("rdma_cm", 10, 59, "the driver's number is 10:58"),
        (
            "uverbs1",
            231,
            193,
            "class infiniband_verbs has no uverbs1: is its module loaded?",
        ),
        (
            "uverbs7",
            231,
            199,
            "class infiniband_verbs has no uverbs7: is its module loaded?",
        ),
    ] {
        let expected = Some(format!("is {major}:{minor}, and {why}"));
        assert_eq!(difference(name, major, minor), expected, "{name}");
    }
    // A kernel without the class.
    let drivers = CharDrivers::of(DEVICES, "").with_sysfs("/no/such");
    let number = |minor| DeviceNumber { major: 231, minor };
    assert_eq!(
        drivers.difference("/dev/infiniband/uverbs0", number(192)),
        None
    );
    assert!(
        drivers
            .difference("/dev/infiniband/uverbs0", number(0))
            .is_some()
    );
}

#[test]
fn nvidias_drivers_are_known_by_the_beginning_of_their_names() {
    let drivers = CharDrivers::of(
        "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n240 nvidia-vgpu-vfio\n241 nvidia\n241 other\n",
        "",
    );
    for (major, expected) in [
        (195, true),
        (240, true),
        (1, false),
        (241, false),
        (500, false),
    ] {
        let number = DeviceNumber { major, minor: 0 };
        assert_eq!(drivers.is_nvidias(number), expected, "{major}");
    }
}
