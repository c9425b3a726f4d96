use super::*;
use crate::path::HostPath;
use crate::request::names;

fn split(list: &str) -> Vec<&str> {
    names(list).collect()
}

fn gpu(index: u32, busid: &str, uuid: &str, migs: &[&str]) -> Gpu {
    let mig_devices = migs.iter().zip(0..).map(|(uuid, index)| MigDevice {
        index,
        uuid: (*uuid).to_owned(),
        gi: index + 1,
        ci: 0,
        gi_caps_path: HostPath::new(format!("gi{index}")),
        ci_caps_path: HostPath::new(format!("gi{index}/ci0")),
        graphics: None,
    });
    Gpu {
        index,
        model: "NVIDIA A10".to_owned(),
        uuid: uuid.to_owned(),
        busid: busid.to_owned(),
        arch: "8.6".to_owned(),
        brand: "Nvidia".to_owned(),
        minor: index,
        mig_capable: !migs.is_empty(),
        mig_devices: mig_devices.collect(),
        ..Gpu::default()
    }
}

/// Returns the positions of chosen devices in the machine.
fn positions(machine: &[Gpu], selection: &Selection<'_>) -> (Vec<usize>, Vec<(usize, usize)>) {
    let gpu = |gpu: &Gpu| machine.iter().position(|known| known == gpu).unwrap();
    let mig = |(parent, mig): &(&Gpu, &MigDevice)| {
        let mut known = parent.mig_devices.iter();
        (gpu(parent), known.position(|known| known == *mig).unwrap())
    };
    (
        selection.gpus.iter().map(|chosen| gpu(chosen)).collect(),
        selection.migs.iter().map(mig).collect(),
    )
}

fn machine() -> Vec<Gpu> {
    vec![
        gpu(0, "00000000:3b:00.0", "GPU-8a4d1f3c-01", &[]),
        gpu(
            1,
            "00000000:af:00.0",
            "GPU-c2f9e6d7-02",
            &["MIG-5f-11", "MIG-5f-12"],
        ),
    ]
}

fn lost() -> Vec<FailedGpu> {
    vec![FailedGpu {
        index: 2,
        uuid: Some("GPU-dead".to_owned()),
        busid: Some("00000000:d8:00.0".to_owned()),
        error: Error::new(ErrorKind::DriverFailed, "nvml error: gpu is lost"),
    }]
}

#[test]
fn devices() {
    type Row<'a> = (&'a str, &'a [usize], &'a [(usize, usize)]);
    let table: &[Row<'_>] = &[
        ("", &[], &[]),
        (",,", &[], &[]),
        ("0", &[0], &[]),
        ("1,0", &[1, 0], &[]),
        (" +1", &[1], &[]),
        ("0,0,GPU-8A4D1F3C-01,gpu-8a4d1f3c-01", &[0], &[]),
        ("00000000:3B:00.0", &[0], &[]),
        ("0:3b:0.7xyz", &[0], &[]),
        ("0:3b:0", &[0], &[]),
        ("0x0:af:00", &[1], &[]),
        ("1:0", &[1], &[(1, 0)]),
        ("1:00.0", &[1], &[(1, 0)]),
        ("1:1abc", &[1], &[(1, 1)]),
        ("1,1:1", &[1], &[(1, 1)]),
        ("mig-5F-12,1:1", &[1], &[(1, 1)]),
        ("ALL", &[0, 1], &[(1, 0), (1, 1)]),
        ("1,all,nonsense", &[1, 0], &[(1, 0), (1, 1)]),
    ];
    for (list, gpus, migs) in table {
        let machine = machine();
        let selection = select_devices(&machine, &[], &split(list)).unwrap();
        let (chosen, instances) = positions(&machine, &selection);
        assert_eq!((&chosen[..], &instances[..]), (*gpus, *migs), "{list}");
        assert_eq!(selection.all, list.to_lowercase().contains("all"), "{list}");
    }
}

#[test]
fn a_mig_device_does_not_give_its_gpu() {
    let machine = machine();
    for (list, whole) in [
        ("0,1:0", &[0][..]),
        ("MIG-5f-11", &[]),
        ("1:0,1", &[1]),
        ("all", &[0, 1]),
    ] {
        let selection = select_devices(&machine, &[], &split(list)).unwrap();
        let indices: Vec<_> = selection.whole.iter().map(|gpu| gpu.index).collect();
        assert_eq!(indices, whole, "{list}");
    }
}

#[test]
fn unknown_devices() {
    for item in [
        "none",
        "void",
        "2",
        "-1",
        "++1",
        "0x1",
        "1 ",
        "0:0",
        "1:5",
        "1:",
        ":1",
        "3b:00.0",
        "0:3b:",
        "0:03b:00",
        "GPU-8a4",
        "GPU-8a4d1f3c-012",
        "GPU-8a4d1f3c*",
        "8a4d1f3c",
        "MIG-5f-",
        "MIG-GPU-",
        "MIG-GPU-8a4",
        "4294967296",
        "ééé",
        "",
        "0,1",
        "1:0,0",
        "0:3b:00,0",
    ] {
        let error = select_devices(&machine(), &[], &[item]).unwrap_err();
        assert_eq!(error.message(), format!("{item}: unknown device"));
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(
            error.advice().as_deref(),
            Some("devices here: 0, 1, 1:0, 1:1, or their UUIDs")
        );
    }
    assert!(select_devices(&machine(), &[], &["99", "all"]).is_err());
}

#[test]
fn the_start_of_a_uuid_is_a_name() {
    let gpus = [
        gpu(0, "", "GPU-8a4d1f3c-01", &["MIG-5f11-1", "MIG-5f11-12"]),
        gpu(1, "", "GPU-8a4d1f77-02", &["MIG-GPU-c2f9/1/0"]),
        gpu(3, "", "GPU-8a4d1f77", &[]),
        gpu(4, "", "GPU-dead-5", &[]),
    ];
    let select = |name| {
        let chosen = select_devices(&gpus, &lost(), &[name])?;
        Ok::<_, Error>(positions(&gpus, &chosen))
    };
    for (name, whole, migs) in [
        ("GPU-8a4d1f3", 0, &[][..]),
        ("gpu-8A4D1F3C", 0, &[]),
        ("GPU-8a4d1f77-", 1, &[]),
        ("MIG-5f11-12", 0, &[(0, 1)]),
        // An exact name wins.
        ("MIG-5f11-1", 0, &[(0, 0)]),
        ("GPU-8a4d1f77", 2, &[]),
        ("MIG-GPU-c2f9", 1, &[(1, 0)]),
    ] {
        assert_eq!(
            select(name).unwrap(),
            (vec![whole], migs.to_vec()),
            "{name}"
        );
    }
    for (name, candidates) in [
        ("GPU-8a4d", "GPU-8a4d1f3c-01, GPU-8a4d1f77-02, GPU-8a4d1f77"),
        ("mig-5f11", "MIG-5f11-1, MIG-5f11-12"),
    ] {
        let error = select(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(
            error.message(),
            format!("{name}: several devices have such a UUID: {candidates}")
        );
    }
    // One of a lost GPU and of another one; and of a lost one alone.
    let lost = [("GPU-dead-6", 5), ("GPU-fa11-1", 6)].map(|(uuid, index)| FailedGpu {
        index,
        uuid: Some(uuid.to_owned()),
        ..lost().remove(0)
    });
    let error = |name| select_devices(&gpus, &lost, &[name]).unwrap_err();
    assert!(
        error("GPU-dead-")
            .message()
            .ends_with("UUID: GPU-dead-5, GPU-dead-6")
    );
    assert!(error("GPU-fa11").message().contains("is not usable"));
}

/// A lost GPU usually has no UUID any more, and never MIG devices.
#[test]
fn a_start_that_is_unique_because_a_gpu_is_lost_is_an_error() {
    let (gpus, known) = (machine(), lost());
    assert!(known.iter().all(|gpu| gpu.uuid.is_some()));
    let nameless = lost()
        .into_iter()
        .map(|gpu| FailedGpu { uuid: None, ..gpu });
    let nameless: Vec<_> = nameless.collect();
    for (name, lost, is_chosen) in [
        ("GPU-8a4d", &known, true),
        ("GPU-8a4d", &nameless, false),
        ("GPU-8a4d1f3c-01", &nameless, true),
        ("MIG-5f-12", &nameless, true),
        ("0", &nameless, true),
    ] {
        let chosen = select_devices(&gpus, lost, &[name]);
        assert_eq!(chosen.is_ok(), is_chosen, "{name}: {chosen:?}");
    }
    let gpus = [gpu(
        0,
        "00000000:3b:00.0",
        "GPU-8a4d1f3c-01",
        &["MIG-5f11-12"],
    )];
    let error = select_devices(&gpus, &known, &["MIG-5f11"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("MIG-5f11-12 starts so, but GPU"));
}

#[test]
fn without_gpus_only_all_is_nothing() {
    for names in [&["all"][..], &["ALL", "all"], &[]] {
        let selection = select_devices(&[], &[], names).unwrap();
        assert!(selection.gpus.is_empty() && selection.migs.is_empty() && !selection.all);
    }
    for name in ["0", "GPU-1", "0:0"] {
        let error = select_devices(&[], &[], &[name]).unwrap_err();
        assert_eq!(error.message(), format!("{name}: unknown device"));
    }
}

#[test]
fn lost_gpu_stops_only_those_who_name_it() {
    let machine = machine();
    let select = |name| select_devices(&machine, &lost(), &[name]);
    assert_eq!(select("all").unwrap().gpus.len(), 2);
    for item in ["2", "GPU-DEAD", "0:d8:0", "2:0"] {
        let error = select(item).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DriverFailed);
        assert_eq!(
            error.message(),
            format!("{item}: gpu 2 at 00000000:d8:00.0 is not usable: nvml error: gpu is lost")
        );
    }
    let error = select("7").unwrap_err();
    let hint = "devices here: 0, 1, 1:0, 1:1, or their UUIDs; not usable: GPU 2";
    assert_eq!(error.advice().as_deref(), Some(hint));
}

#[test]
fn index_counts_lost_gpus() {
    let gpus = [gpu(1, "00000000:af:00.0", "GPU-2", &[])];
    assert_eq!(select_devices(&gpus, &[], &["1"]).unwrap().gpus.len(), 1);
    assert!(select_devices(&gpus, &[], &["0"]).is_err());
}

#[test]
fn hint_stays_short() {
    let many = |step: u32| -> Vec<Gpu> {
        let migs = ["MIG-1"; 7];
        let all = (0..1000).step_by(step as usize);
        all.map(|index| gpu(index, "", "GPU-1", &migs)).collect()
    };
    let lost = |n| lost().into_iter().cycle().zip((0..n).step_by(2));
    let lost = |n| lost(n).map(|(gpu, index)| FailedGpu { index, ..gpu });
    for step in [1, 2, 3] {
        let lost: Vec<_> = lost(2000).collect();
        let error = select_devices(&many(step), &lost, &["x"]).unwrap_err();
        let hint = error.advice().unwrap();
        assert!(hint.len() <= 200, "{hint}");
        assert!(
            hint.contains(" more, or their UUIDs; not usable: GPU 0, 2,"),
            "{hint}"
        );
    }
    for (names, expected) in [
        (&["0", "2", "1", "all", "4"][..], "0 to 2, 4, all"),
        (
            &["v/c=gpu0", "v/c=gpu01", "v/c=gpu1", "v/c=GPU-1234"],
            "v/c=gpu0, v/c=gpu1, v/c=gpu01, or their UUIDs",
        ),
        (&["GPU-12a", "GPU-12b"], "GPU-12a, GPU-12b"),
    ] {
        assert_eq!(
            devices_here(names).unwrap(),
            format!("devices here: {expected}")
        );
    }
    assert_eq!(devices_here([""; 0]), None);
}

/// The names of LXD and Incus, whatever the driver.
#[test]
fn mig_devices_have_the_names_of_old_drivers() {
    let machine = machine();
    let uuid = "GPU-c2f9e6d7-02";
    for (name, index) in [
        (format!("MIG-{uuid}/1/0"), 0),
        (format!("mig-{}/2/0", uuid.to_lowercase()), 1),
    ] {
        let chosen = select_devices(&machine, &[], &[&name]).unwrap();
        assert_eq!(positions(&machine, &chosen), (vec![1], vec![(1, index)]));
        assert!(chosen.whole.is_empty());
    }
    for end in ["/3/0", "/1/1", "/1", "/1/0/0", "/+1/0", "/1/", "", "x/1/0"] {
        assert!(
            select_devices(&machine, &[], &[format!("MIG-{uuid}{end}")]).is_err(),
            "{end}"
        );
    }
    // Of a lost GPU, and of one that has another one's start on an old driver.
    let error = select_devices(&machine, &lost(), &["MIG-GPU-dead/1/0"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DriverFailed);
    let old = [gpu(0, "", "GPU-8a4d", &["MIG-GPU-8a4d/1/05"])];
    assert!(select_devices(&old, &[], &["MIG-GPU-8a4d/1/05"]).is_err());
    assert!(select_devices(&old, &[], &["MIG-GPU-8a4d/1/00"]).is_ok());
}

#[test]
fn mig_capabilities() {
    let gpus = machine();
    let select = |devices, list| {
        let selection = select_devices(&gpus, &[], &[devices]).unwrap();
        let names = split(list);
        let selected = select_mig_capability(&selection, MigCapability::Config, &names)?;
        let indices: Vec<_> = selected.gpus.iter().map(|gpu| gpu.index).collect();
        Ok::<_, Error>((selected.all, indices))
    };
    assert_eq!(select("all", "").unwrap(), (false, vec![]));
    assert_eq!(select("all", ",All").unwrap(), (true, vec![1]));
    assert_eq!(select("1", "all").unwrap(), (true, vec![1]));
    assert_eq!(select("0", "all").unwrap(), (true, vec![]));
    assert_eq!(
        select("all", "x").unwrap_err().message(),
        "x: only 'all' devices are currently supported"
    );
    assert_eq!(
        select("1:0", "all").unwrap_err().message(),
        "all: cannot enable mig-config with specific MIG devices selected"
    );
}

#[test]
fn imex_channels() {
    assert_eq!(parse_imex_channels::<&str>(&[]).unwrap(), [0_u32; 0]);
    assert_eq!(
        parse_imex_channels(&["0", "1048575", "0"]).unwrap(),
        [0, 1_048_575, 0]
    );
    for item in ["1048576", "abc", "all", "-1", "1x", "", "0,1"] {
        let error = parse_imex_channels(&[item]).unwrap_err();
        assert_eq!(
            error.message(),
            format!("unsupported IMEX channel value: {item}")
        );
    }
}
