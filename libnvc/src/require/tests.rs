use super::*;

fn versions() -> DriverVersions {
    DriverVersions {
        driver: "535.261.03".to_owned(),
        cuda: "12.2".to_owned(),
    }
}

fn on(text: &str, gpus: &[Gpu]) -> Result<()> {
    let gpus: Vec<&Gpu> = gpus.iter().collect();
    check(&[Requirement::new(text)], &versions(), &gpus)
}

fn gpu(arch: &str, brand: &str) -> Gpu {
    Gpu {
        arch: arch.into(),
        brand: brand.into(),
        ..Gpu::default()
    }
}

fn on_a10(text: &str) -> Result<()> {
    on(text, &[gpu("8.6", "Nvidia")])
}

#[test]
fn holds() {
    for text in [
        "",
        " , ,, ",
        "cuda>=12.2",
        "CUDA=12.2.0",
        "cuda=12..2.",
        "cuda=012.02",
        "driver>535",
        "driver!535",
        "driver>=470,driver<536",
        "arch>=8.0,brand=NVIDIA",
        "brand!=tesla",
        // the first alternative that holds ends it, whatever follows
        "cuda>=99 cuda>=12 nonsense",
        // and a failed test ends its alternative
        "cuda>=99,nonsense driver>1",
        "cuda<99999999999999999999999999999999999999",
    ] {
        assert!(on_a10(text).is_ok(), "{text}");
    }
}

#[test]
fn does_not_hold() {
    let failing = [
        ("driver=535", "driver=535"),
        ("brand=Tesla", "brand=Tesla"),
        ("arch<8", "arch<8"),
        (
            "driver>=1,driver<500 driver<2",
            "driver>=1,driver<500", // the first alternative, whole
        ),
        ("  driver<500", "driver<500"),
        (
            "cuda>=12.4 brand=tesla,driver>=470,driver<471",
            "cuda>=12.4, please update your driver to a newer version, or use an earlier cuda container",
        ),
    ];
    for (text, shown) in failing {
        let error = on_a10(text).unwrap_err();
        assert_eq!(error.message(), format!("unsatisfied condition: {shown}"));
        assert_eq!(error.kind(), ErrorKind::Unsatisfied);
    }
}

/// An image chooses how many there are, and how many alternatives each has.
#[test]
fn requirements_and_their_hints_are_few() {
    let check = |texts: Vec<String>| {
        let all: Vec<_> = texts.into_iter().map(Requirement::new).collect();
        check(&all, &DriverVersions::default(), &[])
    };
    assert!(check(vec!["arch=9".into(); MAX_REQUIREMENTS]).is_ok());
    let error = check(vec!["arch=9".into(); MAX_REQUIREMENTS + 1]).unwrap_err();
    assert_eq!(error.message(), "too many requirements");
    let error = check(vec!["brand=x,cuda>9 ".repeat(10_000)]).unwrap_err();
    assert!(error.advice().unwrap().len() < 1000);
}

#[test]
fn hint_names_the_failing_test() {
    let error = on_a10("cuda>=12.4 driver>=470,brand=tesla,driver<471").unwrap_err();
    assert_eq!(
        error.advice().unwrap(),
        "cuda>=12.4 does not hold, the driver's CUDA version here is 12.2; \
         brand=tesla does not hold, a selected GPU's brand here is Nvidia"
    );
}

#[test]
fn invalid_expressions() {
    let long = format!("cuda>={}", "9".repeat(122));
    for text in [
        "cuda",
        "cuda>=",
        "cuda>=abc",
        "cuda>=.1",
        "cuda>=12a",
        "cuda==12",
        "cuda=>12",
        "cuda!!12",
        "foo>=1",
        ">=1",
        "brand>tesla",
        "cuda >= 12",
        "cuda>=12,x",
        &long,
    ] {
        let error = on_a10(text).unwrap_err();
        assert_eq!(error.message(), "invalid expression", "{text}");
    }
    let short_enough = format!("cuda>={}", "9".repeat(121));
    assert_eq!(
        on_a10(&short_enough).unwrap_err().kind(),
        ErrorKind::Unsatisfied
    );
}

#[test]
fn long_test_that_holds() {
    assert!(on_a10(&format!("cuda<{}", "9".repeat(200))).is_ok());
}

#[test]
fn without_devices() {
    assert!(on("arch>=99,brand=nonesuch,brand>x,arch=y", &[]).is_ok());
    assert!(on("cuda>=99", &[]).is_err());
    assert!(on("arch>=", &[]).is_err());
}

#[test]
fn every_device_counts() {
    let both = |one, other| [gpu(one, "x"), gpu(other, "x")];
    assert!(on("arch>=8", &both("8.6", "9.0")).is_ok());
    assert!(on("arch>=9", &both("9.0", "8.6")).is_err());
}

#[test]
fn all_requirements_count() {
    let both = [Requirement::new("cuda>1"), Requirement::new("driver<1")];
    let error = check(&both, &versions(), &[]).unwrap_err();
    assert_eq!(error.message(), "unsatisfied condition: driver<1");
}

#[test]
fn versions_are_ordered() {
    for (left, right, order) in [
        ("550.54.14", "550", Ordering::Greater),
        ("12.4", "12.4.0", Ordering::Equal),
        ("12.4.0.1", "12.4", Ordering::Greater),
        ("9.9", "12", Ordering::Less),
        ("1.10", "1.9", Ordering::Greater),
    ] {
        assert_eq!(compare_versions(left, right), Some(order), "{left} {right}");
    }
    assert_eq!(compare_versions("", "1"), None);
    assert_eq!(compare_versions("1", "1-rc"), None);
}
