use super::*;
use crate::host::query::PciReport;

fn report(minor: Option<u32>) -> GpuReport {
    GpuReport {
        index: None,
        name: "NVIDIA A100-SXM4-40GB".into(),
        uuid: "GPU-c2f9e6d7-71a8-4b0d-8e35-52d6a90f7b02".into(),
        pci: PciReport {
            domain: 0x1_0000,
            bus: 0xaf,
            device: 0,
        },
        compute_capability: (8, 0),
        brand: 14,
        minor,
        mig_capable: true,
        mig_enabled: true,
        persistent: false,
        coherent: Some(false),
        mig_devices: vec![MigReport {
            name: None,
            slot: 2,
            uuid: "MIG-1d2e3f40-5a6b-57c8-9d0e-1f2a3b4c5d11".into(),
            gi: 5,
            ci: 0,
        }],
    }
}

fn lost() -> Box<GpuFault> {
    Box::new(GpuFault {
        name: None,
        uuid: None,
        pci: Some(report(None).pci),
        no_pci: false,
        compute_capability: None,
        fault: Fault::Nvml {
            function: "nvmlDeviceGetUUID".into(),
            code: 15,
            text: "GPU is lost".into(),
        },
    })
}

#[test]
fn a_gpu_gets_its_paths_from_its_minor_number() {
    let gpu = gpu(4, &report(Some(3))).unwrap();
    assert_eq!(gpu.index, 4);
    assert_eq!(gpu.busid, "00010000:af:00.0");
    assert_eq!(gpu.arch, "8.0");
    assert_eq!(gpu.brand, "Nvidia");
    let node = gpu.node.unwrap();
    assert_eq!(node.path, HostPath::new("/dev/nvidia3"));
    assert_eq!((node.number.major, node.number.minor), (195, 3));
    let directory = HostPath::new("/proc/driver/nvidia/capabilities/gpu3");
    assert_eq!(gpu.mig_caps_path.as_ref(), Some(&directory));
    let mig = gpu.mig_devices.first().unwrap();
    assert_eq!((mig.index, mig.gi, mig.ci), (2, 5, 0));
    assert_eq!(mig.gi_caps_path, directory.join("mig/gi5"));
    assert_eq!(mig.ci_caps_path, directory.join("mig/gi5/ci0"));
}

#[test]
fn wsl_has_no_nodes() {
    let gpu = gpu(0, &report(None)).unwrap();
    assert_eq!((gpu.minor, gpu.node, gpu.mig_caps_path), (0, None, None));
    assert!(gpu.mig_devices.is_empty());
}

#[test]
fn a_failed_gpu_is_left_out_and_keeps_its_place() {
    let reports = [Ok(report(Some(0))), Err(lost()), Ok(report(Some(2)))];
    let info = DeviceInfo::from_reports(&reports).unwrap();
    let indices: Vec<u32> = info.gpus.iter().map(|gpu| gpu.index).collect();
    assert_eq!(indices, [0, 2]);
    let failed = info.failed.first().unwrap();
    assert_eq!(failed.to_string(), "GPU 1 (00010000:af:00.0)");
    assert_eq!(failed.error.message(), "nvml error: gpu is lost");
}

#[test]
fn only_failed_gpus_are_an_error_but_no_gpus_are_not() {
    let error = DeviceInfo::from_reports(&[Err(lost()), Err(lost())]).unwrap_err();
    assert_eq!(error.message(), "nvml error: gpu is lost");
    assert_eq!(error.kind(), ErrorKind::DriverFailed);
    assert!(DeviceInfo::from_reports(&[]).unwrap().gpus.is_empty());
}

#[test]
fn invalid_values_fail_the_gpu() {
    for uuid in ["", "GPU-\u{fffd}", "GPU-1\n", "GPU 1", &"x".repeat(97)] {
        let broken = GpuReport {
            uuid: uuid.into(),
            ..report(Some(0))
        };
        let error = gpu(0, &broken).unwrap_err();
        assert!(error.message().starts_with("nvml error: malformed uuid: "));
        let known: String = uuid.chars().take(MAX_TEXT_LEN).collect();
        assert!(
            error
                .message()
                .ends_with(&format!("malformed uuid: \"{known}\""))
        );
    }
    let broken = GpuReport {
        compute_capability: (-1, 0),
        ..report(Some(0))
    };
    assert!(gpu(0, &broken).is_err());
    // Bit masks of minor numbers are as long as the highest one.
    let error = gpu(0, &report(Some(1 << 20))).unwrap_err();
    let text = "nvml error: malformed minor number: \"1048576\"";
    assert_eq!(error.message(), text);
    let odd = GpuReport {
        index: None,
        name: "A\u{1b}[2J\u{fffd}é".into(),
        ..report(Some(0))
    };
    assert_eq!(gpu(0, &odd).unwrap().model, "A\\u{1b}[2J\u{fffd}é");
}

#[test]
fn versions_are_checked() {
    let with = |driver: &str, cuda| {
        versions(&Versions {
            driver: Ok(driver.into()),
            cuda: Ok(cuda),
        })
    };
    for (number, text) in [
        (12020, "12.2"),
        (11081, "11.8"),
        (12100, "12.10"),
        (13000, "13.0"),
        (0, "0.0"),
    ] {
        assert_eq!(with("535.261.03", number).unwrap().cuda, text);
    }
    for driver in ["", "..", "../x", "535/", "5\u{fffd}", "5 5", "5\n"] {
        let message = with(driver, 12020).unwrap_err().message();
        assert!(message.starts_with("nvml error: malformed driver version: \""));
    }
    let message = with("535", -1).unwrap_err().message();
    assert_eq!(message, "nvml error: malformed cuda version: \"-1\"");
}

#[test]
fn profiles_for_graphics_say_so() {
    for (name, expected) in [
        ("NVIDIA RTX PRO 6000 Blackwell MIG 1g.24gb+gfx", Some(true)),
        ("NVIDIA RTX PRO 6000 Blackwell MIG 1g.24gb", Some(false)),
        ("X MIG 1c.2g.48gb+me.all,gfx", Some(true)),
        ("X MIG 4g.96gb+gfx-me", Some(true)),
        ("X MIG 4g.96gb+me-gfx", Some(false)),
        ("X MIG 1g.24gb-gfx", Some(false)),
        ("X+gfx MIG 1g.24gb", Some(false)),
        ("X+gfx", None),
        ("", None),
    ] {
        assert_eq!(has_graphics(name), expected, "{name}");
    }
}

#[test]
fn brands_have_names() {
    let names: Vec<&str> = (0..18).map(brand).collect();
    assert_eq!(
        names.join(" "),
        "Unknown Quadro Tesla NVS GRID GeForce TITAN VApps VPC VCS VWS CloudGaming QuadroRTX NvidiaRTX Nvidia \
         GeForceRTX TitanRTX Unknown"
    );
    assert_eq!(brand(u32::MAX), "Unknown");
    for (number, name) in (0..).zip(names).take(17) {
        assert_eq!(brand_number(name), Some(number));
    }
    assert_eq!(brand_number("nvidia"), None);
}

#[test]
fn faults_read_like_upstreams() {
    let message = |fault: Fault| error(&fault, ErrorKind::DriverUnavailable).message();
    for (text, expected) in [
        (
            "libnvidia-ml.so.1: cannot open shared object file: No such file or directory",
            "load library failed: libnvidia-ml.so.1: cannot open shared object file: no such file or directory",
        ),
        ("Odd", "load library failed: odd"),
        ("/A: Wrong\nmore", "load library failed: /A: wrong"),
        ("", "load library failed: "),
    ] {
        assert_eq!(message(Fault::Load(text.into())), expected);
    }
    let root = |errno: Errno| {
        let operation = "change root failed".into();
        let errno = errno as i32;
        let fault = Fault::System { operation, errno };
        error(&fault, ErrorKind::DriverUnavailable)
    };
    assert!(
        root(Errno::EPERM)
            .advice()
            .unwrap()
            .contains("user namespace")
    );
    assert_eq!(root(Errno::ENOENT).advice(), None);
    let system = Fault::System {
        operation: "privilege change failed".into(),
        errno: 1,
    };
    assert_eq!(
        message(system),
        "privilege change failed: operation not permitted"
    );
    let missing = Fault::Nvml {
        function: "nvmlDeviceGetUUID".into(),
        code: 13,
        text: "Function Not Found".into(),
    };
    let error = error(&missing, ErrorKind::DriverFailed);
    assert_eq!(error.message(), "nvml error: function not found");
    assert!(error.advice().unwrap().contains("nvmlDeviceGetUUID"));
}
