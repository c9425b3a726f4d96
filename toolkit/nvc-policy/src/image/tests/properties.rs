//! Tests properties of the decision that hold for every container.

use proptest::prelude::*;

use super::*;

/// Generates words, meaningful or not.
fn word() -> impl Strategy<Value = String> {
    let words = [
        "all",
        "none",
        "void",
        "",
        " ",
        "0",
        "1",
        "0:0",
        "GPU-a",
        "nvidia.com/gpu=0",
        "x/y",
        "ALL",
    ];
    prop_oneof![
        proptest::sample::select(words.to_vec()).prop_map(str::to_owned),
        "[ !#-&(-~]{0,6}" // a value may have quotes around it, not a name
    ]
}

fn lists() -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec(word(), 0..6)
}

prop_compose! {
    fn any_container()(
        devices in proptest::option::of(lists()),
        imex in proptest::option::of(lists()),
        cuda in proptest::option::of("[0-9.]{0,4}"),
        mounted in lists(),
        annotated in lists(),
        privileged in any::<bool>(),
    ) -> Container {
        let mut env = Vec::new();
        env.extend(devices.map(|list| format!("NVIDIA_VISIBLE_DEVICES={}", list.join(","))));
        env.extend(imex.map(|list| format!("NVIDIA_IMEX_CHANNELS={}", list.join(","))));
        env.extend(cuda.map(|version| format!("CUDA_VERSION={version}")));
        let mounted: Vec<&str> = mounted.iter().map(String::as_str).collect();
        Container {
            environment: Environment::new(&env).unwrap(),
            mounts: mounts(&mounted),
            annotations: vec![("cdi.k8s.io/x".into(), annotated.join(","))],
            privileged,
        }
    }
}

prop_compose! {
    fn any_policy()(
        accept_environment in any::<bool>(),
        accept_mounts in any::<bool>(),
        annotations in any::<bool>(),
        ignore_imex in any::<bool>(),
    ) -> Policy {
        let policy = Policy { accept_environment, accept_mounts, ignore_imex, ..policy() };
        if annotations { policy.with_annotations(&Config::default()) } else { policy }
    }
}

proptest! {
    #[test]
    fn an_unrelated_variable_changes_nothing(one in any_container(), policy in any_policy(), name in "[A-M]{1,8}", value in "[ -~]{0,20}") {
        prop_assume!(name != "CUDA_VERSION");
        let mut entries: Vec<String> = one.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        entries.push(format!("{name}={value}"));
        let other = Container { environment: Environment::new(&entries).unwrap(), ..one.clone() };
        prop_assert_eq!(request(&one, &policy, &Three), request(&other, &policy, &Three));
    }

    #[test]
    fn repetitions_change_nothing(list in lists(), again in 0..6_usize) {
        let twice = match list.get(again) {
            Some(word) => [list.clone(), vec![word.clone()]].concat(),
            None => [list.clone(), list.clone()].concat(),
        };
        prop_assert_eq!(visible(&list.join(",")), visible(&twice.join(",")));
    }

    #[test]
    fn void_in_the_variable_is_never_a_device(mut list in lists(), at in 0..6_usize) {
        list.insert(at.min(list.len()), "void".into());
        prop_assert_eq!(visible(&list.join(",")), "-");
    }

    #[test]
    fn names_are_distinct_and_not_empty(one in any_container(), policy in any_policy()) {
        if let Ok((Some(DeviceChoice { devices: Devices::Names(names), .. }), _)) = devices::choice(&one, &policy, &Three) {
            prop_assert!(!names.is_empty());
            let distinct: std::collections::HashSet<_> = names.iter().collect();
            prop_assert_eq!(distinct.len(), names.len());
            prop_assert!(names.iter().all(|name| !name.is_empty()));
        }
    }

    #[test]
    fn an_image_alone_gives_nothing_where_policy_says_so(one in any_container(), policy in any_policy()) {
        let policy = Policy { accept_environment: false, ..policy };
        let one = Container { privileged: false, ..one };
        if let Ok(Answer { request: Some(request), .. }) = request(&one, &policy, &Three) {
            let is_mine = matches!(request.origin, Origin::Mounts)
                || (policy.accept_annotations && matches!(request.origin, Origin::Annotations(_)));
            prop_assert!(is_mine, "{:?}", request.origin);
        }
    }

    #[test]
    fn the_environment_gives_only_channels_that_it_names(list in lists(), privileged in any::<bool>()) {
        let variable = format!("NVIDIA_IMEX_CHANNELS={}", list.join(","));
        let env = ["NVIDIA_VISIBLE_DEVICES=0", variable.as_str()];
        let one = Container { privileged, ..container(&env) };
        if let Ok(Answer { request: Some(request), .. }) = request(&one, &policy(), &Three) {
            prop_assert!(request.imex_channels.iter().all(|channel| variable.contains(&channel.to_string())));
        }
    }

    #[test]
    fn no_environment_makes_it_panic(entries in proptest::collection::vec("[ -~]{0,30}", 0..8)) {
        if let Ok(environment) = Environment::new(&entries) {
            let one = Container { environment, ..Container::default() };
            let _ = request(&one, &policy(), &Three);
        }
    }
}
