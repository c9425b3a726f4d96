//! Runs containers whose users and images name GPUs in annotations, by podman: up to version 4 it copies the annotations
//! of an image into its containers, and no annotation says which ones are the user's.

use std::process::Command;

use nvc_tests::world::{complaint, look, printed, sight};

use super::podman::{Podman, User};

/// Name and body of each test.
pub(crate) const TESTS: &[(&str, fn())] = &[
    ("podman_annotations_narrow", annotations_narrow),
    (
        "podman_annotations_of_images_never_widen",
        images_never_widen,
    ),
    (
        "podman_annotations_are_refused_with_the_environment",
        refused_with_the_environment,
    ),
];

const NOTHING: &str = "ls /dev";

/// podman with our runtime in mode auto, and a specification: GPU 0, and the MIG devices of GPU 1.
struct Machine {
    podman: Podman,
}

impl Machine {
    fn new() -> Self {
        let podman = Podman::with("auto", User::Root);
        podman.world.wrapped_runtime();
        podman.world.specify(&["--device-name-strategy=index"]);
        let machine = Self { podman };
        let widening = [
            "cdi.k8s.io/x=nvidia.com/gpu=all",
            "io.container.manager=cri-o",
        ];
        machine.build("plain", "", &[]);
        machine.build("all", "ENV NVIDIA_VISIBLE_DEVICES=all", &[]);
        machine.build("annotated", "", &widening);
        machine.build("greedy", "ENV NVIDIA_VISIBLE_DEVICES=all", &widening);
        machine
    }

    fn build(&self, tag: &str, more: &str, annotations: &[&str]) {
        let words: Vec<String> = annotations
            .iter()
            .map(|annotation| format!("--annotation={annotation}"))
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.podman.build(tag, more, &words);
    }

    fn run(&self, image: &str, options: &[&str], script: &str) -> Command {
        self.podman
            .run_image(image, "wrapped-runtime", &[], options, script)
    }

    /// Checks that a container has exactly one of the GPUs.
    #[track_caller]
    fn gives(&self, index: usize, image: &str, options: &[&str]) {
        let seen = printed(&mut self.run(image, options, &look()));
        assert_eq!(
            seen,
            sight(self.podman.world.driver, index),
            "{image} {options:?}"
        );
    }

    /// Checks that a container has no GPU.
    #[track_caller]
    fn gives_nothing(&self, image: &str, options: &[&str]) {
        let seen = printed(&mut self.run(image, options, NOTHING));
        assert!(!seen.contains("nvidia"), "{image} {options:?}: {seen}");
    }
}

fn annotations_narrow() {
    let machine = Machine::new();
    let gpu = |device: &str| format!("--annotation=cdi.k8s.io/x=nvidia.com/gpu={device}");
    machine.gives(0, "all", &[&gpu("0")]);
    machine.gives(0, "plain", &[&gpu("0")]);
    let uuid = &machine.podman.world.driver.profile().gpus[0].uuid;
    let visible = format!("-eNVIDIA_VISIBLE_DEVICES={uuid}");
    machine.gives(0, "plain", &[&visible, &gpu("all")]);
    machine.gives(0, "plain", &[&visible, &gpu("0")]);
    let said = complaint(&mut machine.run("plain", &[&visible, &gpu("1:0")], NOTHING));
    for word in [
        "cdi.k8s.io/x",
        "nvidia.com/gpu=1:0",
        "NVIDIA_VISIBLE_DEVICES",
        uuid,
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

/// What the user says with `-e` is the most that an image's annotations can get.
fn images_never_widen() {
    let machine = Machine::new();
    // The control: an image without any limit gets what its annotation names.
    if machine.podman.copies_annotations() {
        let seen = printed(&mut machine.run("annotated", &[], NOTHING));
        assert!(
            seen.contains("nvidia0") && seen.contains("nvidia1"),
            "{seen}"
        );
    } else {
        machine.gives_nothing("annotated", &[]);
    }
    for image in ["annotated", "greedy"] {
        machine.gives(0, image, &["-eNVIDIA_VISIBLE_DEVICES=0"]);
        machine.gives_nothing(image, &["-eNVIDIA_VISIBLE_DEVICES=void"]);
        let seen = printed(&mut machine.run(image, &["-eNVIDIA_VISIBLE_DEVICES=none"], NOTHING));
        assert!(
            !seen.contains("nvidia0") && !seen.contains("nvidia1"),
            "{seen}"
        );
    }
}

/// A forged manager changes nothing: the images have one.
fn refused_with_the_environment() {
    let machine = Machine::new();
    let world = &machine.podman.world;
    world.set_at_top("accept-nvidia-visible-devices-envvar-when-unprivileged = false");
    for image in ["annotated", "greedy"] {
        machine.gives_nothing(image, &[]);
        assert_eq!(
            world.log().contains("accept-annotations"),
            machine.podman.copies_annotations()
        );
    }
    let annotation = "--annotation=cdi.k8s.io/x=nvidia.com/gpu=0";
    machine.gives_nothing("all", &[annotation]);
    let log = world.log();
    assert!(
        log.contains("[cdi.k8s.io/x]") && log.contains("accept-annotations"),
        "{log}"
    );
    // For the whole machine: annotations decide alone.
    world.set_at_top("accept-annotations = true");
    machine.gives(0, "plain", &[annotation]);
    machine.gives(0, "plain", &[annotation, "-eNVIDIA_VISIBLE_DEVICES=none"]);
}
