//! Renders a plan as text for users: one line for each intent, first its kind, then the objects.
//!
//! A trailing question mark means best effort.

use crate::container::ImageFacts;
use crate::host::FileClass;
use crate::options::Ldconfig;
use crate::plan::{
    CapabilityFiles, CudaCompat, Device, DriverProc, EglDevices, Intent, LibraryPath, Need, Place,
    Plan, ProcDevices, Sockets, What,
};
use crate::printable;

/// Renders the plan for a container with all its devices.
pub fn text(plan: &Plan, image: &ImageFacts) -> String {
    let mut text = String::new();
    let mut last = Vec::new();
    let view = View { image };
    for intent in plan.flattened() {
        let lines = view.lines(&intent);
        // In the order of execution.
        if matches!(intent.what, What::LibraryPath(_)) {
            last.extend(lines);
            continue;
        }
        text.extend(lines);
    }
    text.extend(last);
    text
}

struct View<'i> {
    image: &'i ImageFacts,
}

impl View<'_> {
    fn lines(&self, intent: &Intent) -> Vec<String> {
        let (kind, objects) = match &intent.what {
            What::Device(device) => ("device", vec![of_device(device)]),
            What::Mount(mount) => {
                let path = arrow(&mount.source.to_string(), &self.place(&mount.place));
                (class(mount.class), vec![path])
            }
            What::Link(link) => {
                let line = format!("{} -> {}", self.place(&link.at), link.target.display());
                ("link", vec![line])
            }
            What::Alias(alias) => {
                let line = format!("{} -> {}", alias.at, self.place(&alias.of));
                ("link", vec![line])
            }
            What::LibraryPath(libraries) => ("library path", vec![self.libraries(libraries)]),
            What::CudaCompat(compat) => ("cuda compat", self.compat(compat)),
            What::DriverProc(shown) => ("driver proc", vec![of_proc(shown)]),
            What::EglProfile(shown) => ("egl profile", vec![of_egl(&shown.devices)]),
            What::Env(variable) => {
                let line = format!("{}={}", variable.name, variable.value);
                ("environment", vec![line])
            }
            What::Sockets(sockets) => ("sockets", vec![of_daemons(sockets)]),
            What::Mode(file) => ("mode", vec![format!("{:o} {}", file.mode, file.at)]),
        };
        let mark = match intent.need {
            Need::Required | Need::WherePermitted => "",
            Need::BestEffort => " ?",
        };
        let line = |object| printable(&format!("{kind:<13} {object}{mark}")).to_string() + "\n";
        objects.into_iter().map(line).collect()
    }

    fn libraries(&self, libraries: &LibraryPath) -> String {
        let directories = libraries.directories.iter();
        let directories: Vec<_> = directories.map(|place| self.place(place)).collect();
        let directories = directories.join(", ");
        match &self.image.ldconfig {
            Ldconfig::Auto => format!("{directories} by the builtin ldconfig"),
            Ldconfig::Host(path) => {
                format!("{directories} by {} of the host", path.display())
            }
            Ldconfig::Image(path) => format!("{directories} by {path} of the container"),
        }
    }

    /// Renders one line for each library or directory of a known image.
    fn compat(&self, compat: &CudaCompat) -> Vec<String> {
        let image = self.image;
        let found = &image.compat_libraries;
        let mounted = compat.mounted(found).into_iter().map(|library| {
            let at = image.layout.libs_dir.join(library.file_name());
            format!("{library} of the container -> {at}")
        });
        let searched = compat.searched(found).into_iter();
        mounted
            .chain(searched.map(|directory| format!("{directory} is searched first")))
            .collect()
    }

    fn place(&self, place: &Place) -> String {
        place.in_image(&self.image.layout).to_string()
    }
}

fn of_device(device: &Device) -> String {
    let grants = match (device.bind, device.allow) {
        (true, true) => "",
        (true, false) => " node only",
        (false, _) => " rule only",
    };
    let path = arrow(&device.source.to_string(), &device.at.to_string());
    format!("{path} ({}){grants}", device.number)
}

fn of_egl(devices: &EglDevices) -> String {
    match devices {
        EglDevices::Own => "shows the container's own devices".into(),
        EglDevices::Planned(minors) => {
            let node = |minor: &u32| format!("/dev/nvidia{minor}");
            let nodes: Vec<_> = minors.iter().map(node).collect();
            format!("shows {}", nodes.join(", "))
        }
    }
}

fn of_proc(shown: &DriverProc) -> String {
    let (gpus, capabilities) = match &shown.devices {
        ProcDevices::All => return "params without device creation".into(),
        ProcDevices::Own => return "shows the container's own devices".into(),
        ProcDevices::Planned { gpus, capabilities } => (gpus, capabilities),
    };
    let mut parts: Vec<_> = gpus.iter().map(|gpu| format!("gpus/{gpu}")).collect();
    match capabilities {
        CapabilityFiles::None => {}
        CapabilityFiles::Some(files) => parts.extend(files.iter().map(ToString::to_string)),
        CapabilityFiles::All => parts.push("all capabilities".into()),
    }
    if parts.is_empty() {
        "/proc/driver/nvidia".into()
    } else {
        format!("/proc/driver/nvidia with {}", parts.join(", "))
    }
}

fn of_daemons(sockets: &Sockets) -> String {
    let daemons = sockets.daemons.iter().map(|daemon| daemon.word());
    daemons.collect::<Vec<_>>().join(", ")
}

fn class(class: FileClass) -> &'static str {
    match class {
        FileClass::Library => "library",
        FileClass::XModule => "X module",
        FileClass::Program => "program",
        FileClass::Firmware => "firmware",
        FileClass::Config => "configuration",
        FileClass::Data => "data",
        FileClass::Socket => "socket",
        FileClass::DeviceDir => "devices",
        FileClass::DataDir => "directory",
    }
}

/// Formats source and destination; only once if they are equal.
fn arrow(from: &str, to: &str) -> String {
    if from == to {
        to.to_owned()
    } else {
        format!("{from} -> {to}")
    }
}
