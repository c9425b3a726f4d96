//! Tests how the sources of a request narrow each other: annotations, mounts, Swarm's variables and
//! `NVIDIA_VISIBLE_DEVICES`.

mod annotation;
mod kind;
mod mount;
mod swarm;

use super::*;

fn runtime() -> Policy {
    policy().with_annotations(&Config::default())
}

fn strict() -> Policy {
    only_privileged().with_annotations(&Config::default())
}

fn annotated(env: &[&str], annotations: &[(&str, &str)]) -> Container {
    let annotations = annotations.iter();
    let pairs = annotations.map(|&(key, value)| (key.to_owned(), value.to_owned()));
    Container {
        annotations: pairs.collect(),
        ..container(env)
    }
}

/// Returns the granted devices and the warnings, or the error.
fn granted(container: &Container, policy: &Policy) -> (String, String) {
    match devices::choice(container, policy, &Three) {
        Ok((choice, warnings)) => {
            let devices = choice.map_or("-".into(), |choice| choice.devices.to_string());
            (devices, warnings.join("\n"))
        }
        Err(error) => (format!("error: {error}"), String::new()),
    }
}

/// Returns the devices of a container with this variable and this annotation.
fn both(visible: &str, annotation: &str) -> String {
    let variable = format!("NVIDIA_VISIBLE_DEVICES={visible}");
    let one = annotated(&[&variable], &[("cdi.k8s.io/x", annotation)]);
    granted(&one, &runtime()).0
}
