//! Reads an image's GPU requirements from its labels and its environment. Pure.

use std::collections::BTreeMap;

use nvc_program::requirements;

use super::docker::Configuration;

const VOLUMES: &str = "com.nvidia.volumes.needed";
const CUDA: &str = "com.nvidia.cuda.version";

/// An image's requirements, with the command line's additions to its environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Image {
    /// Names of the volumes it needs; none if it was not made for nvidia-docker 1.
    pub(super) volumes: Vec<String>,
    /// The CUDA version that it was built for, or empty.
    pub(super) cuda: String,
    /// The environment of its containers.
    pub(super) environment: BTreeMap<String, String>,
    /// NVIDIA_VISIBLE_DEVICES, if the command line sets it.
    pub(super) visible_on_line: Option<String>,
}

impl Image {
    /// Reads an image's configuration; `options` are the values of `--env`, `ours` looks up a variable of this process.
    pub(super) fn new<'a>(
        configuration: &Configuration,
        options: impl Iterator<Item = &'a str>,
        ours: impl Fn(&str) -> Option<String>,
    ) -> Self {
        let label = |name: &str| {
            let labels = configuration.labels.as_ref()?;
            Some(labels.get(name)?.trim().to_owned())
        };
        let in_image = configuration.env.iter().flatten();
        let mut environment: BTreeMap<String, String> = in_image
            .filter_map(|variable| variable.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let mut visible_on_line = None;
        for option in options {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (option, ours(option)),
            };
            // Docker drops a variable that is set nowhere.
            match value {
                Some(value) => environment.insert(name.to_owned(), value),
                None => environment.remove(name),
            };
            if name == VISIBLE {
                visible_on_line = environment.get(name).cloned();
            }
        }
        let label_of_volumes = label(VOLUMES).unwrap_or_default();
        let mut volumes: Vec<String> = Vec::new();
        for name in label_of_volumes.split(' ').filter(|v| !v.is_empty()) {
            // Docker refuses a second volume at the same place; derived images join labels.
            if !volumes.iter().any(|known| known == name) {
                volumes.push(name.to_owned());
            }
        }
        Self {
            volumes,
            cuda: label(CUDA).unwrap_or_default(),
            environment,
            visible_on_line,
        }
    }

    /// Returns true if its environment requests GPUs.
    pub(super) fn uses_gpus(&self) -> bool {
        self.environment.contains_key(VISIBLE) || self.environment.contains_key("CUDA_VERSION")
    }

    /// Returns the GPUs that its environment, or the command line's, requests.
    pub(super) fn visible(&self) -> Option<&str> {
        self.environment.get(VISIBLE).map(String::as_str)
    }

    /// Returns its requirements in libnvc's language; empty if they are disabled.
    pub(super) fn requirements(&self) -> Vec<&str> {
        requirements::of(self.variables(), false)
    }

    /// Returns true if it disables requirements.
    pub(super) fn ignores_requirements(&self) -> bool {
        requirements::are_disabled(self.variables())
    }

    fn variables(&self) -> impl Iterator<Item = (&str, &str)> + Clone {
        let variables = self.environment.iter();
        variables.map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";

#[cfg(test)]
mod tests {
    use super::*;

    fn image(env: &[&str], options: &[&str]) -> Image {
        let configuration = Configuration {
            labels: None,
            env: Some(env.iter().map(|v| (*v).to_owned()).collect()),
        };
        let ours = |name: &str| (name == "OURS").then(|| "x".to_owned());
        Image::new(&configuration, options.iter().copied(), ours)
    }

    #[test]
    fn labels() {
        let labels = [(VOLUMES, " foo  bar foo\n"), (CUDA, "8.0.61 ")];
        let labels = labels.map(|(k, v)| (k.to_owned(), v.to_owned()));
        let configuration = Configuration {
            labels: Some(labels.into()),
            env: None,
        };
        let image = Image::new(&configuration, std::iter::empty(), |_| None);
        assert_eq!(image.volumes, ["foo", "bar"]);
        assert_eq!(image.cuda, "8.0.61");
        assert!(!image.uses_gpus());
    }

    #[test]
    fn environments() {
        assert!(image(&["CUDA_VERSION=12.2.0"], &[]).uses_gpus());
        assert!(image(&["NVIDIA_VISIBLE_DEVICES="], &[]).uses_gpus());
        assert!(!image(&["CUDA_VERSION"], &["CUDA=1"]).uses_gpus());
        let both = image(
            &["NVIDIA_VISIBLE_DEVICES=all", "A=b"],
            &["NVIDIA_VISIBLE_DEVICES=1"],
        );
        assert_eq!(both.visible(), Some("1"));
        assert_eq!(both.visible_on_line.as_deref(), Some("1"));
        let removed = image(&["NVIDIA_VISIBLE_DEVICES=all"], &["NVIDIA_VISIBLE_DEVICES"]);
        assert_eq!(removed.visible(), None);
        let ours = image(&[], &["OURS"]);
        assert_eq!(ours.environment.get("OURS").map(String::as_str), Some("x"));
    }

    #[test]
    fn requirements() {
        let needs = &[
            "NVIDIA_REQUIRE_CUDA=cuda>=9.0",
            "NVIDIA_REQUIRE_X=",
            "NVIDIA_REQUIRE_D=driver>400",
        ];
        assert_eq!(
            image(needs, &[]).requirements(),
            ["cuda>=9.0", "driver>400"]
        );
        assert!(
            image(needs, &["NVIDIA_DISABLE_REQUIRE=true"])
                .requirements()
                .is_empty()
        );
        assert!(
            !image(needs, &["NVIDIA_DISABLE_REQUIRE=0"])
                .requirements()
                .is_empty()
        );
    }
}
