//! GPU requests: any config.json, under any policy, is refused or gives a request that the policy allows.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use nvc_oci::lenient;
use nvc_policy::config::Config;
use nvc_policy::container;
use nvc_policy::image::{self, Container, Denoted, Devices, Environment, Machine, Origin, Policy};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    swarm: bool,
    accept_environment: bool,
    accept_mounts: bool,
    annotations: bool,
    accept_annotations: bool,
    ignore_imex: bool,
    disable_require: bool,
    text: &'a [u8],
}

/// A machine on which each name without a kind is another GPU.
struct Unnamed;

impl Machine for Unnamed {
    fn denoted(&self, name: &str) -> libnvc::Result<Denoted> {
        let known = !name.contains('=');
        let uuids = known.then(|| name.to_owned());
        Ok(Denoted::gpus(uuids.into_iter().collect()))
    }

    fn names(&self, _kind: &str) -> Vec<String> {
        Vec::new()
    }
}

fuzz_target!(|input: Input<'_>| {
    let Ok(value) = lenient::first_value(input.text) else {
        return;
    };
    let Ok(container) = container::facts(&value).map(|facts| facts.container()) else {
        return;
    };
    let Ok(container) = container else {
        return;
    };
    let config = Config {
        swarm_resource: if input.swarm {
            "DOCKER_RESOURCE_GPU"
        } else {
            ""
        }
        .into(),
        accept_envvar_unprivileged: input.accept_environment,
        accept_volume_mounts: input.accept_mounts,
        accept_annotations: input.accept_annotations,
        disable_require: input.disable_require,
        ..Config::default()
    };
    let mut policy = Policy::new(&config).expect("the default is fine");
    policy.ignore_imex = input.ignore_imex;
    if input.annotations {
        policy = policy.with_annotations(&config);
    }
    let Ok(answer) = image::request(&container, &policy, None, &Unnamed) else {
        return;
    };
    let Some(request) = answer.request else {
        return;
    };
    let counts = input.accept_environment || container.privileged;
    match &request.origin {
        Origin::Annotations(_) => {
            assert!(input.annotations);
            assert!(counts || input.accept_annotations);
        }
        Origin::Mounts => assert!(input.accept_mounts),
        Origin::Environment(_) | Origin::LegacyImage => assert!(counts),
        Origin::Runtime => unreachable!("there is no answer of a runtime"),
        Origin::Narrowed(..) => assert!(input.annotations && counts),
    }
    if let Devices::Names(names) = &request.devices {
        assert!(!names.is_empty());
        assert!(names.iter().all(|name| !name.trim().is_empty()));
        let distinct: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        if matches!(request.origin, Origin::Environment(_)) {
            let words = ["all", "none", "void"];
            assert!(names.iter().all(|name| !words.contains(&name.as_str())));
        }
    }
    assert!(policy.supported.contains(request.capabilities));
    if !container.privileged {
        assert_eq!((&request.mig_config, &request.mig_monitor), (&None, &None));
    }
    assert!(!input.ignore_imex || request.imex_channels.is_empty());
    assert!(!input.disable_require || request.requirements.is_empty());
    let distinct: std::collections::HashSet<_> = request.imex_channels.iter().collect();
    assert_eq!(distinct.len(), request.imex_channels.len());

    // An unrelated variable changes nothing.
    let mut entries: Vec<String> = container
        .environment
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    entries.insert(0, "UNRELATED=NVIDIA_VISIBLE_DEVICES=all".into());
    let environment = Environment::new(&entries).expect("each has an equals sign");
    let other = Container {
        environment,
        ..container
    };
    let again = image::request(&other, &policy, None, &Unnamed).map(|answer| answer.request);
    assert_eq!(again, Ok(Some(request)));
});
