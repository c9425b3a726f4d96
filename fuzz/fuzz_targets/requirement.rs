//! Requirement expressions: the laws of alternatives, lists and version order hold.
#![no_main]

use libfuzzer_sys::fuzz_target;
use libnvc::ErrorKind;
use libnvc::host::{DriverVersions, Gpu};
use libnvc::require::{Requirement, check};

// An expression, a line's end, a version.
fuzz_target!(|text: &str| {
    let (text, version) = text.split_once('\n').unwrap_or((text, ""));
    let versions = DriverVersions {
        driver: "535.261.03".to_owned(),
        cuda: "12.2".to_owned(),
    };
    let gpus = [("9.0", "Tesla"), ("8.6", "GeForceRTX")].map(|(arch, brand)| Gpu {
        arch: arch.to_owned(),
        brand: brand.to_owned(),
        ..Gpu::default()
    });
    let both = gpus.each_ref();
    let on = |texts: &[&str], gpus: &[&Gpu]| {
        let requirements: Vec<Requirement> = texts.iter().copied().map(Requirement::new).collect();
        check(&requirements, &versions, gpus)
    };
    let verdict = on(&[text], &both);
    if let Err(error) = &verdict {
        assert!(matches!(
            error.kind(),
            ErrorKind::InvalidArgument | ErrorKind::Unsatisfied
        ));
        // A long text must not cause a long message, and a message is one line.
        assert!(
            error.message().starts_with("invalid expression")
                || error.message().starts_with("unsatisfied condition: ")
        );
    }
    // All devices are those of the first and those of the second.
    let each = both.map(|gpu| on(&[text], &[gpu]).is_ok());
    assert_eq!(verdict.is_ok(), each == [true, true]);
    // A repeated requirement changes nothing; an alternative that holds changes only a failure.
    assert_eq!(on(&[text, text], &both).is_ok(), verdict.is_ok());
    if on(&[text], &[]).is_ok() {
        let longer = format!("{text} driver<1");
        assert_eq!(
            on(&[&longer], &[]).is_ok(),
            !text.split(' ').all(str::is_empty)
        );
    }

    // Versions are ordered.
    let test = |op: &str| on(&[&format!("driver{op}{version}")], &[]).map_err(|error| error.kind());
    let plain = !version.is_empty()
        && version.len() < 100
        && !version.contains(['<', '>', '=', '!', ' ', ',']);
    if plain {
        let holds = ["<", "=", ">"].map(|op| test(op).is_ok());
        match test("=") {
            Err(ErrorKind::InvalidArgument) => assert_eq!(holds, [false; 3]),
            _ => assert_eq!(holds.iter().filter(|holds| **holds).count(), 1, "{version}"),
        }
        let [less, equal, greater] = holds;
        assert_eq!(test("<=").is_ok(), less || equal);
        assert_eq!(test(">=").is_ok(), greater || equal);
        if less || equal || greater {
            assert_eq!(test("!=").is_ok(), !equal);
        }
    }
});
