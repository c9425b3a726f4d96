//! Plans the application profile that limits EGL to the container's GPUs, and writes its text.
//!
//! EGL enumerates every GPU of the machine; the setting `EGLVisibleDGPUDevices`, a bit mask of minor numbers, hides the
//! ones a container has no node for.

use super::{Plan, Step, TmpfsFile};
use crate::host::Gpu;
use crate::options::ContainerOptions;
use crate::path::ContainerPath;

/// The directory that takes precedence over the image's own profiles.
const DIRECTORY: &str = "/etc/nvidia/nvidia-application-profiles-rc.d";
/// Our profile's file in it.
pub(crate) const FILE: &str = "10-container.conf";
/// Permission bits of directory and file.
pub(crate) const MODE: u32 = 0o555;

/// The step that mounts the directory, with the profile in it if GPUs are known already.
pub(super) fn directory(visible: &[u32]) -> Step {
    let file = || TmpfsFile {
        name: FILE.into(),
        mode: MODE,
        content: text(&mask(visible)),
    };
    Step::MountTmpfs {
        at: ContainerPath::new(DIRECTORY),
        mode: MODE,
        create: true,
        files: if visible.is_empty() {
            Vec::new()
        } else {
            vec![file()]
        },
    }
}

/// Adds the step that shows a GPU, where profiles are used at all.
pub(super) fn show(gpu: &Gpu, options: ContainerOptions, plan: &mut Plan) {
    if options.contains(ContainerOptions::GRAPHICS) && gpu.node.is_some() {
        plan.steps.push(Step::ShowInProfile {
            directory: ContainerPath::new(DIRECTORY),
            minor: gpu.minor,
        });
    }
}

/// A profile's text with one more GPU visible; none if the text has no mask.
pub(crate) fn with_visible(old: &str, minor: u32) -> Option<String> {
    let digits: String = old
        .split_once("0x")?
        .1
        .chars()
        .take_while(char::is_ascii_hexdigit)
        .collect();
    if digits.is_empty() {
        return None;
    }
    let mut bits = Vec::new();
    for (position, digit) in digits.chars().rev().enumerate() {
        let value = digit.to_digit(16)?;
        bits.extend(
            (0..4)
                .filter(|bit| value & 1 << bit != 0)
                .map(|bit| position * 4 + bit),
        );
    }
    let mut minors: Vec<u32> = bits
        .into_iter()
        .filter_map(|bit| u32::try_from(bit).ok())
        .collect();
    minors.push(minor);
    Some(text(&mask(&minors)))
}

/// The profile that shows what a hexadecimal mask says.
pub(crate) fn text(mask: &str) -> String {
    format!(
        "{{ \"profiles\": [{{\"name\": \"_container_\", \"settings\": [\"EGLVisibleDGPUDevices\", 0x{mask}]}}], \
         \"rules\": [{{\"pattern\": [], \"profile\": \"_container_\"}}]}}"
    )
}

/// Minor numbers as a hexadecimal bit mask of any length.
pub(crate) fn mask(minors: &[u32]) -> String {
    let highest = minors.iter().max().copied().unwrap_or(0);
    (0..=highest / 4)
        .rev()
        .map(|digit| {
            let bits = minors.iter().filter(|minor| **minor / 4 == digit);
            let value = bits.fold(0, |value, minor| value | 1 << (minor % 4));
            char::from_digit(value, 16).unwrap_or('0')
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_any_length() {
        assert_eq!(mask(&[0]), "1");
        assert_eq!(mask(&[0, 1, 5]), "23");
        assert_eq!(mask(&[64]), "10000000000000000");
    }

    #[test]
    fn profiles_grow() {
        let one = text(&mask(&[0]));
        assert_eq!(
            one,
            r#"{ "profiles": [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", 0x1]}], "rules": [{"pattern": [], "profile": "_container_"}]}"#
        );
        assert_eq!(with_visible(&one, 1), Some(text("3")));
        assert_eq!(with_visible(&one, 0), Some(one));
        assert_eq!(with_visible("{}", 1), None);
        assert_eq!(with_visible("0xg", 1), None);
    }
}
