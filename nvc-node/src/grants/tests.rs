//! Names, records, and who has what.
#![allow(clippy::unwrap_used)]

use libnvc::host::query::QueryProgram;

use super::*;

fn grants(state: &Path) -> Grants {
    Grants {
        source: Source {
            driver_root: "/".into(),
            dev_root: "/".into(),
            query: QueryProgram::ThisExecutable,
            ignored_xids: Vec::new(),
            verdicts: "/no/such".into(),
            quiet: std::time::Duration::ZERO,
        },
        host_driver_root: "/".into(),
        cdi_root: state.join("cdi"),
        state: state.into(),
        hook: HookProgram {
            path: "/hook".into(),
        },
        is_hook_ours: true,
    }
}

fn record(uid: &str, since: i64) -> Record {
    let grant = Grant {
        name: "gpu-0".into(),
        uuid: "GPU-0".into(),
        gpu: "GPU-0".into(),
        instances: None,
        is_shared: false,
    };
    Record {
        uid: uid.into(),
        namespace: "ns".into(),
        name: "c".into(),
        grants: vec![grant],
        since,
        driver: "1.0".into(),
    }
}

#[test]
fn a_name_that_has_moved_is_an_error() {
    let state = tempfile::tempdir().unwrap();
    let grants = grants(state.path());
    let locked = grants.lock().unwrap();
    let is = |uuid: &str| [("gpu-0".to_owned(), uuid.to_owned())];
    // Claimed before our first start.
    assert!(locked.name(&is("GPU-0"), 1000).unwrap().is_empty());
    assert!(locked.check_names(&record("a", 50)).is_ok());
    // Another one has the name, and then the first one again.
    assert_eq!(locked.name(&is("GPU-1"), 2000).unwrap(), ["gpu-0"]);
    assert!(locked.check_names(&record("a", 2500)).is_err());
    assert_eq!(locked.name(&is("GPU-0"), 3000).unwrap(), ["gpu-0"]);
    // Claimed before that, by a clock that is 29 seconds fast, and after it was published again by one that is slow.
    assert!(locked.check_names(&record("a", 3029)).is_err());
    assert_eq!(locked.name(&is("GPU-0"), 3059).unwrap(), ["gpu-0"]);
    assert!(locked.name(&is("GPU-0"), 3060).unwrap().is_empty());
    assert!(locked.check_names(&record("a", 3060 - 29)).is_ok());
    // The clock was set back.
    assert_eq!(locked.name(&is("GPU-0"), 500).unwrap(), ["gpu-0"]);
    assert!(locked.check_names(&record("a", 570)).is_ok());
    // A new name is claimed for what has it.
    let new = [("gpu-1".to_owned(), "GPU-1".to_owned())];
    assert!(locked.name(&new, 1000).unwrap().is_empty());
    let of = |name: &str, gpu: &str| Record {
        grants: vec![Grant {
            name: name.into(),
            uuid: gpu.into(),
            gpu: gpu.into(),
            instances: None,
            is_shared: false,
        }],
        ..record("a", 50)
    };
    assert!(locked.check_names(&of("gpu-1", "GPU-1")).is_ok());
    assert!(locked.check_names(&of("gpu-1", "GPU-0")).is_err());
}

#[test]
fn a_damaged_record_costs_its_claim_alone() {
    let state = tempfile::tempdir().unwrap();
    let grants = grants(state.path());
    let locked = grants.lock().unwrap();
    assert!(locked.records().unwrap().is_empty());
    fs::create_dir(grants.records()).unwrap();
    let text = serde_json::to_vec(&record("a", 0)).unwrap();
    fs::write(grants.record("a"), text).unwrap();
    fs::write(grants.record("b"), "{\"uid\":").unwrap();
    // That of another claim names files that are not its own.
    let text = serde_json::to_vec(&record("../a", 0)).unwrap();
    fs::write(grants.record("e"), text).unwrap();
    fs::create_dir(grants.record("f")).unwrap();
    assert_eq!(locked.records().unwrap(), [record("a", 0)]);
    // The files of NVIDIA's driver have the same names.
    fs::create_dir(&grants.cdi_root).unwrap();
    for uid in ["b", "c", "d"] {
        fs::write(grants.specification(uid), "x").unwrap();
        let draft = format!(".k8s.gpu.nvidia.com-claim_{uid}.yaml.5f");
        fs::write(grants.cdi_root.join(draft), "x").unwrap();
        locked.take_back(uid).unwrap();
    }
    locked.take_back("unknown").unwrap();
    assert!(!grants.record("b").exists());
    assert_eq!(fs::read_dir(&grants.cdi_root).unwrap().count(), 0);
}

#[test]
fn uids_are_no_paths() {
    assert!(check_uid("5e9b0f5c-61d1-4a4f-9c5b-7e0d3f4f2a10").is_ok());
    for bad in ["", "..", "a/b", "a.b", &"a".repeat(65)] {
        assert!(check_uid(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_gpu_and_its_parts_are_not_given_to_two() {
    let record = |uid: &str, uuid: &str, gpu: &str, is_shared| Record {
        uid: uid.into(),
        namespace: "ns".into(),
        name: uid.into(),
        grants: vec![Grant {
            name: uuid.to_lowercase(),
            uuid: uuid.into(),
            gpu: gpu.into(),
            instances: None,
            is_shared,
        }],
        since: 0,
        driver: String::new(),
    };
    let known = [
        record("a", "GPU-0", "GPU-0", false),
        record("b", "MIG-1", "GPU-1", false),
        record("c", "GPU-2", "GPU-2", true),
    ];
    let conflict = |uuid, gpu, is_shared| {
        let found = conflict(&known, &record("d", uuid, gpu, is_shared));
        found.map(|other| other.uid.clone())
    };
    let is = |uid: &str| Some(uid.to_owned());
    assert_eq!(conflict("GPU-0", "GPU-0", false), is("a"));
    assert_eq!(conflict("GPU-0", "GPU-0", true), None);
    assert_eq!(conflict("MIG-0", "GPU-0", false), is("a"));
    assert_eq!(conflict("MIG-1", "GPU-1", false), is("b"));
    assert_eq!(conflict("MIG-2", "GPU-1", false), None);
    // Its container sees the whole GPU as soon as MIG mode is off.
    assert_eq!(conflict("GPU-1", "GPU-1", false), is("b"));
    assert_eq!(conflict("GPU-2", "GPU-2", false), None);
}

#[test]
fn claims_are_counted() {
    let state = tempfile::tempdir().unwrap();
    let grants = grants(state.path());
    fs::create_dir(grants.records()).unwrap();
    let known = |n| Record {
        grants: Vec::new(),
        ..record(&format!("u{n}"), 0)
    };
    for n in 0..MAX_CLAIMS {
        let record = known(n);
        let text = serde_json::to_vec(&record).unwrap();
        fs::write(grants.record(&record.uid), text).unwrap();
    }
    let said = |n| grants.give(&known(n)).unwrap_err().message();
    assert_eq!(said(MAX_CLAIMS), "1000 claims have devices");
    assert_ne!(said(0), "1000 claims have devices");
}
