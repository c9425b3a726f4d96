//! Gives hooks an environment of their own.
//!
//! Engines start createContainer and startContainer hooks as root, with an image's files as their root or working
//! directory. Some start a hook without `env` with the environment of the container, by which a dynamic program loads
//! the image's libraries. So every hook gets an environment, also one that the engine added.

use libnvc::STANDARD_PATH;
use serde_json::{Map, Value, json};

use super::lenient::member;
use super::spec::Spec;

/// The stages of hooks that run in the container's namespaces.
pub const STAGES_INSIDE: [&str; 2] = ["createContainer", "startContainer"];

/// Gives a fixed search path to each hook in the container's namespaces that has no environment. Members of a wrong type
/// stay: the low-level runtime reports them.
pub fn give_to_all(spec: &mut Spec) {
    if !spec.has(&["hooks"]) {
        return;
    }
    let Ok(stages) = spec.object(&["hooks"]) else {
        return;
    };
    for (stage, list) in stages.iter_mut() {
        let entries = list.as_array_mut().into_iter().flatten();
        for entry in entries.filter_map(Value::as_object_mut) {
            give(stage, entry);
        }
    }
}

fn give(stage: &str, entry: &mut Map<String, Value>) {
    let lacks = match member(entry, "env") {
        None => true,
        Some(env) => env.as_array().is_some_and(Vec::is_empty),
    };
    if let (Some(own), true) = (of(stage), lacks) {
        entry.retain(|name, _| !name.eq_ignore_ascii_case("env"));
        entry.insert("env".into(), own);
    }
}

/// Returns the environment of a hook without one; None if its stage is outside the container's namespaces.
pub fn of(stage: &str) -> Option<Value> {
    let mut inside = STAGES_INSIDE.iter();
    let is_inside = inside.any(|name| name.eq_ignore_ascii_case(stage));
    is_inside.then(|| json!([path_variable()]))
}

/// Returns a search path that no container can choose.
fn path_variable() -> String {
    format!("PATH={}", STANDARD_PATH.join(":"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

    fn given(hooks: &Value) -> Value {
        let mut spec = Spec::new(json!({"hooks": hooks}));
        give_to_all(&mut spec);
        let once = spec.clone();
        give_to_all(&mut spec);
        assert_eq!(spec, once, "a second time");
        spec.value()["hooks"].clone()
    }

    #[test]
    fn each_hook_in_the_container_has_an_environment() {
        for stage in ["createContainer", "startContainer", "StartContainer"] {
            for entry in [
                json!({"path": "/x"}),
                json!({"path": "/x", "env": null}),
                json!({"path": "/x", "env": []}),
                json!({"path": "/x", "Env": [], "ENV": null}),
            ] {
                let expected = json!({stage: [{"path": "/x", "env": [PATH]}]});
                assert_eq!(given(&json!({stage: [entry]})), expected);
            }
            let own = json!({stage: [{"path": "/x", "env": ["A=b"]}, {"path": "/x", "env": [""]}]});
            assert_eq!(given(&own), own);
        }
        let other = json!({
            "prestart": [{"path": "/x"}], "createRuntime": [{"path": "/x"}], "poststart": [{"path": "/x"}],
            "poststop": [{"path": "/x"}],
        });
        assert_eq!(given(&other), other);
    }

    #[test]
    fn what_is_no_hook_stays() {
        for hooks in [
            json!(7),
            json!([{"path": "/x"}]),
            json!({"createContainer": {"path": "/x"}, "startContainer": ["/x", 7, null]}),
            json!({"createContainer": [{"path": "/x", "env": "A=b"}]}),
        ] {
            assert_eq!(given(&hooks), hooks);
        }
        for none in [json!({}), json!({"hooks": null})] {
            let mut spec = Spec::new(none.clone());
            give_to_all(&mut spec);
            assert_eq!(*spec.value(), none);
        }
    }
}
