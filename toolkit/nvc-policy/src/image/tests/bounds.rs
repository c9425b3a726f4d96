//! Tests that a list which an image can fill is bounded: in number, and in the size of what is made of it.

use libnvc::request::MAX_NAMES;
use proptest::prelude::*;

use super::*;

/// The places where a container can list devices, as a message names them.
const SOURCES: [&str; 7] = [
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "DOCKER_RESOURCE_A, DOCKER_RESOURCE_B",
    "annotations",
    "mounts below /var/run/nvidia-container-devices",
];

/// Returns a privileged container that requests a GPU and lists these names in one place.
fn listing(source: &str, names: &[String]) -> Container {
    let mut one = privileged(&["NVIDIA_VISIBLE_DEVICES=all"]);
    // Split, where one source consists of several.
    let (some, others) = names.split_at(names.len() / 2);
    let pair = |first: &str, second: &str| {
        [(first, some), (second, others)].map(|(name, names)| (name.to_owned(), names.join(",")))
    };
    match source {
        "annotations" => one.annotations = pair("cdi.k8s.io/a", "cdi.k8s.io/b").to_vec(),
        _ if source.starts_with("mounts") => {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            one.mounts = mounts(&names);
        }
        _ => {
            let variables = match source.split_once(", ") {
                Some((first, second)) => pair(first, second).to_vec(),
                None => vec![(source.to_owned(), names.join(","))],
            };
            let variables = variables.iter();
            let env = variables.map(|(name, value)| format!("{name}={value}"));
            let all = ["NVIDIA_VISIBLE_DEVICES=all".to_owned()].into_iter();
            one.environment = Environment::new(all.chain(env)).unwrap();
        }
    }
    one
}

/// Returns the policy that accepts every source.
fn everything() -> Policy {
    let swarm_resources = ["DOCKER_RESOURCE_A", "DOCKER_RESOURCE_B"];
    Policy {
        swarm_resources: swarm_resources.map(String::from).to_vec(),
        ..with_mounts().with_annotations(&Config::default())
    }
}

fn numbers(number: usize) -> Vec<String> {
    (0..number).map(|name| name.to_string()).collect()
}

#[test]
fn a_request_has_a_limit_of_names() {
    for source in SOURCES {
        let most = listing(source, &numbers(MAX_NAMES));
        assert!(request(&most, &everything(), &Three).is_ok(), "{source}");
        let error = request(
            &listing(source, &numbers(MAX_NAMES + 1)),
            &everything(),
            &Three,
        );
        let expected =
            format!("{source}: too many device names: 1025 (a request has at most 1024)");
        assert_eq!(error.unwrap_err().to_string(), expected);
    }
}

#[test]
fn the_limit_holds_for_refused_requests_too() {
    let names = format!("NVIDIA_VISIBLE_DEVICES={}", numbers(2000).join(","));
    let error = request(&container(&[&names]), &only_privileged(), &Three);
    assert!(matches!(
        error,
        Err(Error::TooManyNames { number: 2000, .. })
    ));
}

fn any_names() -> impl Strategy<Value = Vec<String>> {
    // Few different ones, so that duplicates are frequent, and empty ones, which do not count.
    let name = prop_oneof![4 => "[a-z0-9:=-]{1,4}", 1 => "0{1,3}", 1 => Just(String::new())];
    let around = MAX_NAMES - 40..MAX_NAMES + 200;
    prop_oneof![
        proptest::collection::vec(name.clone(), around),
        proptest::collection::vec(name, 0..40),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_list_is_refused_or_short(names in any_names(), source in proptest::sample::select(SOURCES.to_vec())) {
        let one = listing(source, &names);
        let number = names.iter().filter(|name| !name.is_empty()).count();
        match request(&one, &everything(), &Three) {
            Err(error) if number > MAX_NAMES => prop_assert!(error.to_string().len() < 200),
            Err(Error::ImexChannel(_)) => prop_assert_eq!(source, SOURCES[1]),
            Err(error) => prop_assert!(false, "{}", error),
            Ok(answer) => {
                prop_assert!(number <= MAX_NAMES);
                let Some(request) = answer.request else {
                    return Ok(()); // an empty list requests nothing
                };
                prop_assert!(request.devices.names().len() <= MAX_NAMES);
                prop_assert!(request.imex_channels.len() <= MAX_NAMES);
                let (own, others) = qualified::split(&request.devices, "nvidia.com/gpu");
                prop_assert!(own.len() + others.len() <= MAX_NAMES.max(1));
            }
        }
    }

    /// Nothing grows faster than the text that it comes from: neither requirements nor a message about capabilities.
    #[test]
    fn sizes_are_those_of_the_environment(
        requirements in proptest::collection::vec("[a-z0-9<>=,. ]{0,40}", 0..200),
        capabilities in proptest::collection::vec("[a-z]{0,8}", 0..200),
    ) {
        let mut env = vec!["NVIDIA_VISIBLE_DEVICES=0".to_owned()];
        env.extend((0..).zip(&requirements).map(|(n, text)| format!("NVIDIA_REQUIRE_{n}={text}")));
        env.push(format!("NVIDIA_DRIVER_CAPABILITIES={}", capabilities.join(",")));
        let size: usize = env.iter().map(String::len).sum();
        let one = Container { environment: Environment::new(&env).unwrap(), ..Container::default() };
        match request(&one, &policy(), &Three) {
            Ok(answer) => {
                let texts = answer.request.unwrap().requirements;
                prop_assert!(texts.iter().map(String::len).sum::<usize>() <= size);
            }
            Err(error) => prop_assert!(error.to_string().len() <= size + 200),
        }
    }
}
