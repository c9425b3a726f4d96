//! Lists of devices on any machine: what is chosen is there, each once, and by its own names it is chosen again.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use libnvc::host::{FailedGpu, Gpu, MigDevice};
use libnvc::select::{MigCapability, Selection, select_devices, select_mig_capability};
use libnvc::{Error, ErrorKind, HostPath};

// The machine, a blank, a list of devices, perhaps a blank and a list for MIG.
fuzz_target!(|text: &str| {
    let mut words = text.splitn(3, ' ');
    let (gpus, lost) = machine(words.next().unwrap_or_default());
    let (list, mig_list) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let select = |list: &str| select_devices(&gpus, &lost, list);
    let Ok(selection) = select(list) else {
        return;
    };
    check(&selection, &gpus);

    // By index and by UUID.
    let mut by_index = Vec::new();
    let mut by_uuid = Vec::new();
    for g in &selection.gpus {
        by_index.push(gpus[*g].index.to_string());
        by_uuid.push(gpus[*g].uuid.clone());
    }
    for (g, m) in &selection.migs {
        by_index.push(format!(
            "{}:{}",
            gpus[*g].index, gpus[*g].mig_devices[*m].index
        ));
        by_uuid.push(gpus[*g].mig_devices[*m].uuid.to_lowercase());
    }
    for names in [by_index, by_uuid] {
        let again = select(&names.join(",")).expect("these devices are there");
        assert_eq!(
            (&again.gpus, &again.migs),
            (&selection.gpus, &selection.migs)
        );
    }

    for capability in [MigCapability::Config, MigCapability::Monitor] {
        if let Ok(mig) = select_mig_capability(&gpus, &selection, capability, mig_list) {
            assert!(
                mig.gpus
                    .iter()
                    .all(|g| selection.gpus.contains(g) && gpus[*g].mig_capable)
            );
            assert!(mig.all || mig.gpus.is_empty());
        }
    }
});

fn check(selection: &Selection, gpus: &[Gpu]) {
    let Selection {
        gpus: chosen,
        migs,
        all,
    } = selection;
    assert!(chosen.iter().all(|g| *g < gpus.len()));
    assert_eq!(chosen.iter().collect::<HashSet<_>>().len(), chosen.len());
    assert!(
        migs.iter()
            .all(|(g, m)| chosen.contains(g) && *m < gpus[*g].mig_devices.len())
    );
    assert_eq!(migs.iter().collect::<HashSet<_>>().len(), migs.len());
    if *all {
        assert_eq!(chosen.len(), gpus.len());
    }
}

/// A GPU for each character: a digit is how many MIG devices it has, anything else is a GPU that is lost.
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
        proc_dir: None,
        mig_capable: migs > 0,
        mig_caps_path: None,
        mig_devices: (0..migs).map(mig_device).collect(),
    }
}
