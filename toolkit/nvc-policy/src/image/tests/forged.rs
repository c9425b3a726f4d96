//! Tests that no source of a request, forged or not, gives what another source that counts does not allow.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Generates the words of users, schedulers and forgers.
fn word() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec![
        "all",
        "none",
        "void",
        "",
        "0",
        "1",
        "2",
        "7",
        "2:0",
        "GPU-a",
        "gpu-B",
        "MIG-d",
        "ALL",
        "nvidia.com/gpu=0",
        "nvidia.com/gpu=gpu1",
        "nvidia.com/gpu=mig2:0",
        "nvidia.com/gpu=GPU-c",
        "nvidia.com/gpu=all",
        "nvidia.com/gpu=All",
        "runtime.nvidia.com/gpu=all",
        "runtime.nvidia.com/gpu=1",
        "runtime.nvidia.com/gpu=none",
        "management.nvidia.com/gpu=all",
        "k8s.gpu.nvidia.com/device=pair",
        "k8s.gpu.nvidia.com/device=all",
        "nvidia.com/gds=all",
        "acme.com/nic=all",
        "/var/run/nvidia-container-devices",
    ])
}

fn words() -> impl Strategy<Value = Vec<&'static str>> {
    proptest::collection::vec(word(), 0..4)
}

/// The sources of a request, by all of which one container is described.
#[derive(Clone, Debug)]
struct Sources {
    visible: Option<Vec<&'static str>>,
    swarm: Option<Vec<&'static str>>,
    annotated: Vec<&'static str>,
    forged: bool,
    mounted: Vec<&'static str>,
    privileged: bool,
    policy: Policy,
}

prop_compose! {
    fn any_sources()(
        visible in proptest::option::of(words()),
        swarm in proptest::option::of(words()),
        annotated in words(),
        mounted in words(),
        (forged, privileged) in any::<(bool, bool)>(),
        (accept_environment, accept_mounts, accept_annotations) in any::<(bool, bool, bool)>(),
    ) -> Sources {
        let policy = Policy {
            accept_environment,
            accept_mounts,
            accept_annotations,
            swarm_resources: vec!["SWARM".into()],
            ..policy().with_annotations(&Config::default())
        };
        Sources { visible, swarm, annotated, forged, mounted, privileged, policy }
    }
}

impl Sources {
    fn container(&self) -> Container {
        let mut env = Vec::new();
        let list = |name: &str, words: &[&str]| format!("{name}={}", words.join(","));
        env.extend(
            self.visible
                .as_ref()
                .map(|words| list("NVIDIA_VISIBLE_DEVICES", words)),
        );
        env.extend(self.swarm.as_ref().map(|words| list("SWARM", words)));
        let mut annotations = vec![("cdi.k8s.io/x".to_owned(), self.annotated.join(","))];
        if self.forged {
            annotations.push(("io.container.manager".into(), "cri-o".into()));
        }
        let mounted = self.mounted.iter().filter(|name| !name.starts_with('/'));
        let mounted: Vec<String> = mounted
            .map(|name| {
                if name.contains('=') {
                    format!("cdi/{name}")
                } else {
                    name.to_string()
                }
            })
            .collect();
        let mounted: Vec<&str> = mounted.iter().map(String::as_str).collect();
        Container {
            environment: Environment::new(&env).unwrap(),
            mounts: mounts(&mounted),
            annotations,
            privileged: self.privileged,
        }
    }

    /// Returns the GPUs that each source which counts allows.
    fn limits(&self) -> Vec<BTreeSet<String>> {
        let is_named = |words: &[&str]| words.iter().any(|word| !word.is_empty());
        let is_void =
            |words: &Option<Vec<&str>>| words.as_ref().is_some_and(|words| words.contains(&"void"));
        let counts = self.privileged || self.policy.accept_environment;
        let annotated = is_named(&self.annotated);
        if annotated && self.policy.accept_annotations {
            return vec![gpus(&self.annotated, true)];
        }
        let mut limits = Vec::new();
        if annotated && counts {
            limits.push(gpus(&self.annotated, true));
        }
        let mounts = self.container().mounts;
        let mounted = self.policy.accept_mounts && mounts::devices(&mounts) != Ok(Vec::new());
        if mounted && !is_void(&self.visible) && !is_void(&self.swarm) {
            limits.push(gpus(&self.mounted, true));
            return limits;
        }
        if counts {
            let lists = [&self.visible, &self.swarm].into_iter().flatten();
            let says =
                lists.filter(|words| distinct(words) != ["/var/run/nvidia-container-devices"]);
            limits.extend(says.map(|words| gpus(words, false)));
        }
        if limits.is_empty() {
            limits.push(BTreeSet::new());
        }
        limits
    }
}

fn distinct(words: &[&'static str]) -> Vec<&'static str> {
    let words: BTreeSet<_> = words.iter().filter(|word| !word.is_empty()).collect();
    words.into_iter().copied().collect()
}

fn uuids(denoted: Denoted) -> Vec<String> {
    match denoted {
        Denoted::Gpus(uuids) => uuids,
        Denoted::Nodes(_) | Denoted::Unknown => Vec::new(),
    }
}

/// Returns the words as a container's sources are read.
fn in_lower_case(word: &str) -> &str {
    match word {
        "ALL" => "all",
        "nvidia.com/gpu=All" => "nvidia.com/gpu=all",
        other => other,
    }
}

/// Returns the GPUs and MIG devices that a list names. In mounts and annotations `none` and `void` are only names.
fn gpus(words: &[&str], are_names: bool) -> BTreeSet<String> {
    let words: Vec<&str> = words.iter().map(|word| in_lower_case(word)).collect();
    let first = words.iter().find(|word| matches!(**word, "all" | "none"));
    let everything = || gpus(&["nvidia.com/gpu=all"], true);
    match first {
        _ if words.contains(&"void") && !are_names => BTreeSet::new(),
        Some(&"none") if !are_names => BTreeSet::new(),
        Some(_) if !are_names => everything(),
        _ if words.contains(&"runtime.nvidia.com/gpu=none") => BTreeSet::new(),
        _ => {
            let named = words
                .iter()
                .filter(|word| !word.starts_with("acme") && !word.contains("/gds="));
            let denoted = named.map(|word| Three.denoted(word).unwrap());
            denoted.flat_map(uuids).collect()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn no_source_gives_what_another_one_does_not_allow(sources in any_sources()) {
        let Ok((Some(choice), _)) = devices::choice(&sources.container(), &sources.policy, &Three) else {
            return Ok(());
        };
        let given = match &choice.devices {
            Devices::All => gpus(&["all"], false),
            some => gpus(&some.names(), true),
        };
        for limit in sources.limits() {
            prop_assert!(given.is_subset(&limit), "{:?} is not within {limit:?}", choice);
        }
    }

    #[test]
    fn a_manager_in_an_annotation_is_no_authority(sources in any_sources()) {
        let forged = Sources { forged: !sources.forged, ..sources.clone() };
        let of = |sources: &Sources| devices::choice(&sources.container(), &sources.policy, &Three);
        prop_assert_eq!(of(&sources), of(&forged));
    }
}
