//! Lists of devices on any machine: the selected devices exist, each once, and their own names select them again.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use libnvc::host::{DeviceInfo, FailedGpu, Gpu, MigDevice};
use libnvc::request::{self, DeviceRequest};
use libnvc::select::{Choice, Selection, select_devices};
use libnvc::{Error, ErrorKind, HostPath};

// The machine, a blank, a list of devices, perhaps a blank and a list for MIG.
fuzz_target!(|text: &str| {
    let mut words = text.splitn(3, ' ');
    let (gpus, lost) = machine(words.next().unwrap_or_default());
    let mut list = || -> Vec<String> {
        let names = request::names(words.next().unwrap_or_default());
        names.map(str::to_owned).collect()
    };
    let (list, mig_list) = (list(), list());
    let select = |names: &[String]| select_devices(&gpus, &lost, names);
    let Ok(selection) = select(&list) else {
        return;
    };
    check(&selection, &gpus);

    // By index and by UUID.
    let mut by_index = Vec::new();
    let mut by_uuid = Vec::new();
    for gpu in &selection.gpus {
        by_index.push(gpu.index.to_string());
        by_uuid.push(gpu.uuid.clone());
    }
    for (gpu, mig) in &selection.migs {
        by_index.push(format!("{}:{}", gpu.index, mig.index));
        by_uuid.push(mig.uuid.to_lowercase());
    }
    for names in [by_index, by_uuid] {
        let again = select(&names).expect("these devices are there");
        assert_eq!(indices(&again), indices(&selection));
    }

    let (config, monitor) = (mig_list.clone(), Vec::new());
    for (mig_config, mig_monitor) in [(config.clone(), monitor.clone()), (monitor, config)] {
        let request = DeviceRequest {
            ids: list.clone(),
            mig_config,
            mig_monitor,
            ..DeviceRequest::default()
        };
        let devices = DeviceInfo {
            gpus: gpus.clone(),
            failed: lost.clone(),
            ..DeviceInfo::default()
        };
        let Ok(choice) = Choice::make(&devices, &request) else {
            continue;
        };
        for mig in [&choice.mig_config, &choice.mig_monitor] {
            let chosen = |gpu: &Gpu| selection.gpus.iter().any(|one| one.index == gpu.index);
            assert!(mig.gpus.iter().all(|gpu| chosen(gpu) && gpu.mig_capable));
            assert!(mig.all || mig.gpus.is_empty());
        }
    }
});

/// The indices of the selected GPUs and MIG devices, which identify them.
fn indices(selection: &Selection<'_>) -> (Vec<u32>, Vec<(u32, u32)>) {
    let gpus = selection.gpus.iter().map(|gpu| gpu.index);
    let migs = selection
        .migs
        .iter()
        .map(|(gpu, mig)| (gpu.index, mig.index));
    (gpus.collect(), migs.collect())
}

fn check(selection: &Selection<'_>, gpus: &[Gpu]) {
    let (chosen, migs) = indices(selection);
    assert!(
        chosen
            .iter()
            .all(|index| gpus.iter().any(|gpu| gpu.index == *index))
    );
    assert_eq!(chosen.iter().collect::<HashSet<_>>().len(), chosen.len());
    assert!(migs.iter().all(|(gpu, _)| chosen.contains(gpu)));
    assert_eq!(migs.iter().collect::<HashSet<_>>().len(), migs.len());
    if selection.all {
        assert_eq!(chosen.len(), gpus.len());
    }
}

/// A GPU for each character: a digit is its number of MIG devices, anything else is a lost GPU.
fn machine(plan: &str) -> (Vec<Gpu>, Vec<FailedGpu>) {
    let (mut gpus, mut lost) = (Vec::new(), Vec::new());
    for (index, migs) in (0..40).zip(plan.chars()) {
        let busid = format!("{index:08x}:{:02x}:00.0", 0x3b + index);
        match migs.to_digit(10) {
            Some(migs) => gpus.push(gpu(index, busid, migs)),
            None => lost.push(FailedGpu {
                index,
                uuid: (index % 2 == 0).then(|| format!("GPU-dead-{index}")),
                busid: (index % 3 == 0).then_some(busid),
                error: Error::new(ErrorKind::DriverFailed, "gpu is lost"),
            }),
        }
    }
    (gpus, lost)
}

fn gpu(index: u32, busid: String, migs: u32) -> Gpu {
    let mig_device = |slot: u32| MigDevice {
        // With holes.
        index: slot * 2,
        uuid: format!("MIG-{index:08x}-{slot:04x}"),
        gi: slot,
        ci: 0,
        gi_caps_path: HostPath::new("gi"),
        ci_caps_path: HostPath::new("ci"),
        graphics: None,
    };
    Gpu {
        index,
        model: "GPU".to_owned(),
        uuid: format!("GPU-{index:08x}-0000"),
        busid,
        arch: "9.0".to_owned(),
        brand: "Nvidia".to_owned(),
        minor: index,
        node: None,
        drm_nodes: Vec::new(),
        drm_links: Vec::new(),
        proc_dir: None,
        mig_capable: migs > 0,
        mig_caps_path: None,
        mig_devices: (0..migs).map(mig_device).collect(),
    }
}
