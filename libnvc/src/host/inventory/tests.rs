use proptest::prelude::*;

use super::*;
use crate::host::DeviceNode;
use crate::path::HostPath;

const TEXT: &str = r#"{"version":2,"time":1795413600,"driver":"535.261.03","cuda":12020,"gpus":[{"index":0,"name":"","uuid":"GPU-1","pci":{"domain":0,"bus":59,"device":0},"compute_capability":[8,9],"brand":14,"minor":0,"mig_capable":false,"mig_enabled":false,"persistent":false,"coherent":null,"mig_devices":[]},{"index":3,"name":"","uuid":"GPU-2","pci":{"domain":1,"bus":175,"device":31},"compute_capability":[9,0],"brand":2,"minor":1,"mig_capable":true,"mig_enabled":true,"persistent":false,"coherent":null,"mig_devices":[{"slot":0,"uuid":"MIG-1","gi":1,"ci":0,"name":null},{"slot":2,"uuid":"MIG-2","gi":13,"ci":1,"name":null}]}]}"#;

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn reason(text: &str) -> String {
    text.parse::<Inventory>().unwrap_err().message()
}

/// Returns the versions and GPUs that a text describes.
fn parts(text: &str) -> (DriverVersions, Vec<Gpu>) {
    let mut answers = Query::from(text.parse::<Inventory>().unwrap());
    (answers.versions().unwrap(), answers.devices().unwrap().gpus)
}

#[test]
fn gpus_are_those_that_nvml_would_have_reported() {
    let inventory: Inventory = TEXT.parse().unwrap();
    assert_eq!(inventory.to_string(), TEXT);
    let (versions, gpus) = parts(TEXT);
    assert_eq!((&*versions.driver, &*versions.cuda), ("535.261.03", "12.2"));
    let [_, gpu] = &gpus[..] else {
        panic!("{gpus:?}");
    };
    assert_eq!((gpu.index, gpu.minor, &*gpu.arch), (3, 1, "9.0"));
    let node = DeviceNode::new("/dev/nvidia1", 195, 1);
    assert_eq!(gpu.node.as_ref(), Some(&node));
    let mig = &gpu.mig_devices[1];
    let file = "/proc/driver/nvidia/capabilities/gpu1/mig/gi13/ci1";
    assert_eq!(mig.ci_caps_path.to_string(), file);

    let again = Inventory::new(&versions, &gpus, at(1_795_413_600));
    assert_eq!(again, Some(inventory));
}

#[test]
fn files_and_names_are_left_out() {
    let (versions, gpus) = parts(TEXT);
    let [mut gpu, _] = <[Gpu; 2]>::try_from(gpus).unwrap();
    gpu.model = "NVIDIA L4".into();
    gpu.proc_dir = Some(HostPath::new("/proc/driver/nvidia/gpus/0000:3b:00.0"));
    gpu.drm_nodes = vec![DeviceNode::new("/dev/dri/card0", 226, 0)];
    let new = |gpu: &Gpu| Inventory::new(&versions, std::slice::from_ref(gpu), at(0));
    let made = new(&gpu).unwrap();
    assert_eq!(made.to_string().parse::<Inventory>().unwrap(), made);
    // Under WSL2.
    gpu.node = None;
    assert_eq!(new(&gpu), None);
}

#[test]
fn sixty_four_gpus_fit_into_an_argument() {
    let (versions, known) = parts(TEXT);
    let uuid = |kind: &str, index: u32| format!("{kind}-00000000-0000-4000-8000-{index:012}");
    let gpus = |count: u32| -> Vec<Gpu> {
        let mig = |gpu: u32, slot: u32| MigDevice {
            index: slot,
            uuid: uuid("MIG", 7 * gpu + slot),
            gi: slot + 7,
            ..known[1].mig_devices[0].clone()
        };
        let gpu = |index: u32| Gpu {
            index,
            uuid: uuid("GPU", index),
            mig_devices: (0..7).map(|slot| mig(index, slot)).collect(),
            ..known[1].clone()
        };
        (0..count).map(gpu).collect()
    };
    assert!(Inventory::new(&versions, &gpus(64), at(0)).is_some());
    assert_eq!(Inventory::new(&versions, &gpus(640), at(0)), None);
    let long = format!("{TEXT}{}", " ".repeat(Inventory::MAX_LEN));
    assert!(reason(&long).ends_with(" bytes"), "{}", reason(&long));
}

#[test]
fn other_texts_are_refused() {
    for (from, to) in [
        // the form
        ("{\"version\":2,", "{\"version\":1,"),
        ("{\"version\":2,", "{"),
        ("{\"version\":2,", "{ \"version\":2,"),
        (
            r#"{"slot":0,"uuid":"MIG-1","gi":1,"ci":0,"name":null}"#,
            r#"[0,"MIG-1",1,0,null]"#,
        ),
        ("{\"version\":2,", "{\"version\":2,\"version\":2,"),
        ("{\"version\":2,", "{\"version\":2,\"all\":true,"),
        (
            "\"version\":2,\"time\":1795413600",
            "\"time\":1795413600,\"version\":2",
        ),
        ("\"minor\":0,", "\"minor\":0,\"node\":\"/dev/sda\","),
        ("\"minor\":0", "\"minor\":00"),
        ("\"minor\":0", "\"minor\":0.0"),
        ("\"minor\":0", "\"minor\":-0"),
        ("\"minor\":0", "\"minor\":\"0\""),
        ("\"minor\":0", "\"minor\":null"),
        ("\"index\":0", "\"index\":null"),
        ("\"index\":0,", ""),
        ("\"persistent\":false,", ""),
        ("GPU-1", "GPU\\u002d1"),
        ("]}]}", "]}]} "),
        ("]}]}", "]}]}{}"),
        ("]}]}", "]}]"),
        // the values
        ("535.261.03", "../535"),
        ("535.261.03", ""),
        ("12020", "12020.0"),
        ("12020", "-1"),
        ("12020", "2147484000"),
        ("GPU-1", ""),
        ("GPU-1", "GPU 1"),
        ("GPU-1", "GPU-\\n"),
        ("\"bus\":59", "\"bus\":-1"),
        ("\"bus\":59", "\"bus\":\"3b\""),
        ("\"minor\":0", "\"minor\":1048576"),
        ("[8,9]", "[8,09]"),
        ("[8,9]", "[-8,9]"),
        ("\"gi\":1,", "\"gi\":4294967296,"),
        // twice
        ("\"index\":3", "\"index\":0"),
        ("GPU-2", "GPU-1"),
        ("MIG-2", "MIG-1"),
        ("MIG-2", "GPU-2"),
        (
            "{\"domain\":1,\"bus\":175,\"device\":31}",
            "{\"domain\":0,\"bus\":59,\"device\":0}",
        ),
        ("\"minor\":1", "\"minor\":0"),
    ] {
        assert!(TEXT.contains(from), "{from}");
        let changed = TEXT.replacen(from, to, 1);
        assert!(changed.parse::<Inventory>().is_err(), "{from} -> {to}");
    }
    for text in ["", "{}", "[]", "null", "\u{0}"] {
        assert!(reason(text).starts_with("inventory: "), "{text}");
    }
}

#[test]
fn each_cut_is_refused() {
    for end in 0..TEXT.len() {
        assert!(TEXT[..end].parse::<Inventory>().is_err(), "{end}");
    }
}

#[test]
fn age_counts() {
    let inventory: Inventory = TEXT.parse().unwrap();
    let check = |seconds| inventory.check_age(at(seconds)).map_err(|e| e.message());
    assert_eq!(check(1_795_413_600), Ok(()));
    assert_eq!(check(1_795_413_629), Ok(()));
    let old = "inventory: it is 30 s old";
    assert_eq!(check(1_795_413_630), Err(old.into()));
    let future = "inventory: it is from the future";
    assert_eq!(check(1_795_413_599), Err(future.into()));
    let endless = TEXT.replacen("1795413600", "18446744073709551615", 1);
    let endless: Inventory = endless.parse().unwrap();
    assert!(endless.check_age(at(1)).is_err());
}

proptest! {
    /// One changed byte makes another inventory, or none.
    #[test]
    fn no_change_goes_unnoticed(at in 0..TEXT.len(), byte in 0x20_u8..0x7f) {
        let mut bytes = TEXT.as_bytes().to_vec();
        bytes[at] = byte;
        let text = String::from_utf8(bytes).unwrap();
        if let Ok(found) = text.parse::<Inventory>() {
            prop_assert_eq!(found.to_string(), text);
        }
    }

    #[test]
    fn inventories_survive_writing_and_reading(
        driver in "[0-9a-z][0-9a-z._+-]{0,20}",
        cuda in (0..100_u32, 0..100_u32),
        minors in proptest::collection::hash_set(0..device::MINORS, 0..8),
        (domain, bus, slot) in (any::<u32>(), 0..256_u32, 0..256_u32),
        (major, minor) in (0..20_i32, 0..20_i32),
        brand in 0..17_u32,
        uuids in proptest::collection::vec("[!-~]{1,50}", 64),
        migs in proptest::collection::vec((any::<u32>(), any::<u32>()), 0..7),
    ) {
        let mut uuids = (0..).zip(uuids).map(|(index, uuid)| format!("{index}{uuid}"));
        let gpus: Vec<Gpu> = (0..).zip(minors).map(|(index, number)| {
            let mig = |(slot, (gi, ci)): (u32, &(u32, u32))| MigReport {
                slot, uuid: uuids.next().unwrap_or_default(), gi: *gi, ci: *ci, name: None,
            };
            let mig_devices = (0..).zip(&migs).map(mig).collect();
            device::gpu(index, &GpuReport {
                index: None,
                name: "NVIDIA \u{1b}".into(),
                uuid: uuids.next().unwrap_or_default(),
                pci: PciReport { domain: domain.wrapping_add(index), bus, device: slot },
                compute_capability: (major, minor),
                brand,
                minor: Some(number),
                mig_capable: true,
                mig_enabled: true,
                persistent: false,
                coherent: None,
                mig_devices,
            }).unwrap()
        }).collect();
        let cuda = format!("{}.{}", cuda.0, cuda.1);
        let versions = DriverVersions { driver, cuda };
        let made = Inventory::new(&versions, &gpus, at(7)).unwrap();
        prop_assert_eq!(made.to_string().parse::<Inventory>().unwrap(), made);
    }
}
