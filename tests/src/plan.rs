//! Extracts the mounts of a plan from the output of `configure --dry-run --format=json`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nvc_testkit::driver::Driver;
use nvc_testkit::machine::scratch_base;
use serde_json::Value;

/// The source of a planned mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A file of the driver: its path on the scratch filesystem.
    Driver(PathBuf),
    /// A file of the image, by name.
    Image(String),
    /// A new tmpfs.
    Tmpfs,
}

/// One mount of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// True if its failure must be fatal.
    pub is_required: bool,
    pub at: PathBuf,
    /// Source.
    pub wanted: Wanted,
    /// Options that the mount must have.
    pub options: &'static [&'static str],
    /// Device and inode number of the driver's file.
    pub identity: Option<(u64, u64)>,
}

/// Returns the mounts of a plan with files of this driver, in order and without duplicates.
pub fn steps(plan: &Value, driver: &Driver) -> Vec<Step> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let parts = list(&plan["devices"]);
    let of_devices = parts.iter().flat_map(|part| list(&part["intents"]));
    let mut steps: Vec<Step> = Vec::new();
    for intent in list(&plan["common"]).into_iter().chain(of_devices) {
        for step in of_intent(&intent, &plan["image"], driver) {
            if !steps.contains(&step) {
                steps.push(step);
            }
        }
    }
    steps
}

const DRIVER_PROC: &str = "/proc/driver/nvidia";

/// Returns the mounts of an intent.
fn of_intent(intent: &Value, image: &Value, driver: &Driver) -> Vec<Step> {
    const PROC: &[&str] = &["ro", "nosuid", "nodev", "noexec"];
    const TMPFS: &[&str] = &["nosuid", "nodev", "noexec"];
    let is_required = intent["need"] == "required";
    let host = |source: &str, at: String, options| {
        let (wanted, identity) = of_driver(source, driver);
        Step {
            is_required,
            at: at.into(),
            wanted,
            options,
            identity,
        }
    };
    let tmpfs = |at: &str| Step {
        is_required,
        at: at.into(),
        wanted: Wanted::Tmpfs,
        options: TMPFS,
        identity: None,
    };
    match text(&intent["intent"]) {
        "device" if intent["bind"] == true => {
            let at = text(&intent["at"]).to_owned();
            vec![host(
                text(&intent["source"]),
                at,
                &["ro", "nosuid", "noexec"],
            )]
        }
        "mount" => {
            let options: &[_] = match text(&intent["class"]) {
                "socket" => TMPFS,
                "device-dir" => &["nosuid", "noexec"],
                _ => &["ro", "nosuid", "nodev"],
            };
            let at = in_image(&intent["place"], &image["layout"]);
            vec![host(text(&intent["source"]), at, options)]
        }
        "cuda-compat" => of_compat(image, is_required),
        "driver-proc" => {
            let shown = shown_in_proc(intent).into_iter();
            let shown = shown.map(|path| host(&path, path.clone(), PROC));
            std::iter::once(tmpfs(DRIVER_PROC)).chain(shown).collect()
        }
        "egl-profile" => vec![tmpfs("/etc/nvidia/nvidia-application-profiles-rc.d")],
        _ => Vec::new(),
    }
}

/// Returns the mounts of the image's CUDA compatibility libraries.
fn of_compat(image: &Value, is_required: bool) -> Vec<Step> {
    let libraries = image["compat_mounted"].as_array().into_iter().flatten();
    let bind = |library: &Value| {
        let name = text(library).rsplit('/').next().unwrap_or_default();
        Step {
            is_required,
            at: Path::new(text(&image["layout"]["libs_dir"])).join(name),
            wanted: Wanted::Image(name.to_owned()),
            options: &["ro", "nosuid", "nodev"],
            identity: None,
        }
    };
    libraries.map(bind).collect()
}

/// Returns the paths of the driver's procfs directory that the container may see.
fn shown_in_proc(intent: &Value) -> Vec<String> {
    let planned = &intent["devices"]["planned"];
    let gpus = planned["gpus"].as_array().into_iter().flatten();
    let gpus = gpus.map(|gpu| format!("{DRIVER_PROC}/gpus/{}", text(gpu)));
    let mut shown: Vec<_> = gpus.collect();
    let capabilities = &planned["capabilities"];
    if capabilities == "all" {
        shown.push(format!("{DRIVER_PROC}/capabilities"));
    }
    let files = capabilities["some"].as_array().into_iter().flatten();
    shown.extend(files.map(|file| text(file).to_owned()));
    shown
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns a place's path in an image.
fn in_image(place: &Value, layout: &Value) -> String {
    let places = [
        ("library", "libs_dir"),
        ("library32", "libs32_dir"),
        ("program", "bins_dir"),
    ];
    let found = places.into_iter().find_map(|(kind, directory)| {
        let name = place[kind].as_str()?;
        Some(format!("{}/{name}", text(&layout[directory])))
    });
    found.unwrap_or_else(|| text(&place["at"]).to_owned())
}

/// Returns a file of the driver with its identity.
fn of_driver(path: &str, driver: &Driver) -> (Wanted, Option<(u64, u64)>) {
    let path = driver.path(path);
    let path = path.canonicalize().unwrap_or(path);
    let identity = fs::metadata(&path)
        .map(|stat| (stat.dev(), stat.ino()))
        .ok();
    let below = path
        .strip_prefix(scratch_base())
        .unwrap_or(&path)
        .to_owned();
    (Wanted::Driver(Path::new("/").join(below)), identity)
}
