//! Prints a plan for people: one line a step, what is done first, then to what.

use std::fmt::Write as _;

use libnvc::debuglog::printable;
use libnvc::plan::{BindKind, Ldconfig, Plan, Source, Step};

/// One line for each step.
pub(super) fn text(plan: &Plan) -> String {
    let mut text = String::new();
    let mut one = String::new();
    for step in &plan.steps {
        one.clear();
        line(&mut one, step);
        text += &printable(&one);
        text.push('\n');
    }
    text
}

fn line(text: &mut String, step: &Step) {
    // Writing to a string does not fail.
    let _ = match step {
        Step::MountTmpfs {
            at,
            mode,
            create: _,
            files,
        } => {
            let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
            write!(text, "mount tmpfs   {at} (mode {mode:04o})").and_then(|()| {
                match names.is_empty() {
                    true => Ok(()),
                    false => write!(text, " with {}", names.join(", ")),
                }
            })
        }
        Step::Bind { source, at, kind } => {
            write!(
                text,
                "{} {}",
                bind(*kind),
                source_text(source, &at.to_string())
            )
        }
        Step::BindDevice { source, number, at } => write!(
            text,
            "bind device   {} ({}:{})",
            arrow(&source.to_string(), &at.to_string()),
            number.major,
            number.minor
        ),
        Step::Symlink { at, target } => write!(text, "link          {at} -> {}", target.display()),
        Step::ShowInProfile { directory, minor } => {
            write!(text, "show to EGL   /dev/nvidia{minor} in {directory}")
        }
        Step::AllowDevice { number } => write!(
            text,
            "allow device  character {}:{} read and write",
            number.major, number.minor
        ),
        Step::UpdateLdCache {
            ldconfig,
            directories,
        } => {
            let (verb, program) = match ldconfig {
                Ldconfig::Host(path) => {
                    ("run ldconfig ", format!("{} of the host", path.display()))
                }
                Ldconfig::Image(path) => ("run ldconfig ", format!("{path} of the container")),
                Ldconfig::Builtin => ("update cache ", "builtin ldconfig".to_owned()),
            };
            let directories: Vec<String> = directories.iter().map(ToString::to_string).collect();
            write!(text, "{verb} {program}, with {}", directories.join(", "))
        }
    };
}

fn bind(kind: BindKind) -> &'static str {
    match kind {
        BindKind::File => "bind file    ",
        BindKind::Ipc => "bind socket  ",
        BindKind::Proc => "bind proc    ",
        BindKind::DeviceDirectory => "bind devices ",
    }
}

fn source_text(source: &Source, at: &str) -> String {
    match source {
        Source::Host(path) => arrow(&path.to_string(), at),
        Source::Image(path) => format!("{path} of the container -> {at}"),
    }
}

/// From where to where; once, where that is the same.
fn arrow(from: &str, to: &str) -> String {
    if from == to {
        to.to_owned()
    } else {
        format!("{from} -> {to}")
    }
}

#[cfg(test)]
mod tests {
    use libnvc::host::DeviceNumber;
    use libnvc::plan::TmpfsFile;
    use libnvc::{ContainerPath, HostPath};

    use super::*;

    #[test]
    fn every_step_has_its_line() {
        let number = DeviceNumber {
            major: 195,
            minor: 0,
        };
        let at = ContainerPath::new;
        let plan = Plan {
            steps: vec![
                Step::MountTmpfs {
                    at: at("/proc/driver/nvidia"),
                    mode: 0o555,
                    create: false,
                    files: ["params", "version"]
                        .map(|name| TmpfsFile {
                            name: name.to_owned(),
                            mode: 0o444,
                            content: String::new(),
                        })
                        .to_vec(),
                },
                Step::Bind {
                    source: Source::Host(HostPath::new("/usr/bin/nvidia-smi")),
                    at: at("/usr/bin/nvidia-smi"),
                    kind: BindKind::File,
                },
                Step::Bind {
                    source: Source::Image(at("/usr/local/cuda/compat/libcuda.so.1")),
                    at: at("/usr/lib64/libcuda.so.1"),
                    kind: BindKind::File,
                },
                Step::BindDevice {
                    source: HostPath::new("/dev/nvidia0"),
                    number,
                    at: at("/dev/nvidia0"),
                },
                Step::Symlink {
                    at: at("/usr/lib64/libcuda.so"),
                    target: "libcuda.so.1".into(),
                },
                Step::ShowInProfile {
                    directory: at("/etc/nvidia/nvidia-application-profiles-rc.d"),
                    minor: 0,
                },
                Step::AllowDevice { number },
                Step::UpdateLdCache {
                    ldconfig: Ldconfig::Host("/sbin/ldconfig".into()),
                    directories: vec![at("/usr/lib64"), at("/usr/lib")],
                },
                Step::UpdateLdCache {
                    ldconfig: Ldconfig::Builtin,
                    directories: vec![at("/usr/lib64")],
                },
            ],
        };
        assert_eq!(
            text(&plan),
            "\
mount tmpfs   /proc/driver/nvidia (mode 0555) with params, version
bind file     /usr/bin/nvidia-smi
bind file     /usr/local/cuda/compat/libcuda.so.1 of the container -> /usr/lib64/libcuda.so.1
bind device   /dev/nvidia0 (195:0)
link          /usr/lib64/libcuda.so -> libcuda.so.1
show to EGL   /dev/nvidia0 in /etc/nvidia/nvidia-application-profiles-rc.d
allow device  character 195:0 read and write
run ldconfig  /sbin/ldconfig of the host, with /usr/lib64, /usr/lib
update cache  builtin ldconfig, with /usr/lib64
"
        );
    }
}
