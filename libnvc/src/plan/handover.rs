//! Hands a plan over, as text, from the program that makes it to the hook that applies it.
//!
//! ```json
//! {"version":1,"intents":[{"need":"required","intent":"mount","source":"/usr/lib64/libcuda.so.535.1",
//!  "place":{"library":"libcuda.so.535.1"},"class":"library"}]}
//! ```
//!
//! The intents have the members of [`render::json`](crate::render::json). Sources are paths of the host: the program has
//! put the driver root before them. A text that is not exactly what this version writes is refused, so that no member is
//! ignored whose meaning is unknown here.

use serde::{Deserialize, Serialize};

use super::Intent;
use crate::error::{Error, ErrorKind, Result};

/// Version of the form.
const VERSION: u32 = 1;

/// Limit of a text: the kernel's for one argument (`MAX_ARG_STRLEN`), less some room for an option's name.
pub const MAX_LEN: usize = (128 << 10) - 64;

#[derive(Serialize)]
struct Written<'a> {
    version: u32,
    intents: &'a [Intent],
}

#[derive(Deserialize)]
struct Read {
    intents: Vec<Intent>,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// Returns the text of a plan.
///
/// # Errors
/// It is longer than [`MAX_LEN`], or a path in it is not UTF-8.
pub fn encode(intents: &[Intent]) -> Result<String> {
    let text = text(intents)?;
    if text.len() > MAX_LEN {
        let length = text.len();
        let text = format!("the plan has {length} bytes, and an argument at most {MAX_LEN}");
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    // What serialization puts in the place of bytes that are not UTF-8.
    if text.contains(char::REPLACEMENT_CHARACTER) {
        let text = "a path in the plan is not UTF-8";
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    Ok(text)
}

/// Returns the plan of a text.
///
/// # Errors
/// The text is of another version, or not a plan.
pub fn decode(text: &str) -> Result<Vec<Intent>> {
    let malformed =
        |cause: String| Error::new(ErrorKind::Malformed, "not a plan").with_cause(cause);
    let failed = |error: serde_json::Error| malformed(error.to_string());
    let Version { version } = serde_json::from_str(text).map_err(failed)?;
    if version != VERSION {
        let cause = format!("version {version}, expected {VERSION}");
        return Err(malformed(cause).hint("it was written by another version of these programs"));
    }
    let Read { intents } = serde_json::from_str(text).map_err(failed)?;
    if self::text(&intents)? != text {
        return Err(malformed("it has members that are unknown here".into()));
    }
    Ok(intents)
}

fn text(intents: &[Intent]) -> Result<String> {
    let version = VERSION;
    let text = serde_json::to_string(&Written { version, intents });
    text.map_err(|error| Error::new(ErrorKind::Malformed, error.to_string()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::capability::Capabilities;
    use crate::host::{Daemon, DeviceNumber, FileClass, NodeOwner};
    use crate::path::{ContainerPath, HostPath};
    use crate::plan::{
        Alias, CapabilityFiles, CompatUse, CudaCompat, Device, DriverProc, EglDevices, EglProfile,
        Env, FileMode, LibraryPath, Link, Mount, Need, Place, ProcDevices, Sockets, What,
    };

    fn place() -> impl Strategy<Value = Place> {
        prop_oneof![
            any::<String>().prop_map(|path| Place::At(ContainerPath::new(path))),
            any::<String>().prop_map(|name| Place::Library(name.into())),
            any::<String>().prop_map(|name| Place::Library32(name.into())),
            any::<String>().prop_map(|name| Place::Program(name.into())),
            any::<String>().prop_map(|name| Place::XModule(name.into())),
        ]
    }

    fn class() -> impl Strategy<Value = FileClass> {
        use FileClass::{Config, Data, DeviceDir, Firmware, Library, Program, Socket, XModule};
        proptest::sample::select(vec![
            XModule, Library, Program, Firmware, Config, Data, Socket, DeviceDir,
        ])
    }

    fn capabilities() -> impl Strategy<Value = Capabilities> {
        // Video includes compute's libraries, display those of graphics.
        let whole = Capabilities::all() - Capabilities::COMPAT32;
        proptest::sample::select(vec![
            whole,
            Capabilities::COMPUTE,
            Capabilities::empty(),
            Capabilities::COMPUTE | Capabilities::VIDEO,
        ])
    }

    fn device() -> impl Strategy<Value = Device> {
        let number = any::<(u32, u32)>().prop_map(|(major, minor)| DeviceNumber { major, minor });
        let owner = any::<Option<(u32, u32, u32)>>();
        let owner =
            owner.prop_map(|owner| owner.map(|(mode, uid, gid)| NodeOwner { mode, uid, gid }));
        (any::<(String, String, bool, bool)>(), number, owner).prop_map(
            |((source, at, bind, allow), number, owner)| Device {
                source: HostPath::new(source),
                at: ContainerPath::new(at),
                number,
                owner,
                bind,
                allow,
            },
        )
    }

    fn compat() -> impl Strategy<Value = CudaCompat> {
        let uses = [CompatUse::Search, CompatUse::Mount, CompatUse::Configure];
        let texts = any::<(String, Option<String>, Option<String>)>();
        (
            texts,
            proptest::sample::select(uses.to_vec()),
            capabilities(),
        )
            .prop_map(
                |((host_driver, host_cuda, root), how, capabilities)| CudaCompat {
                    host_driver,
                    host_cuda,
                    root: root.map(ContainerPath::new),
                    how,
                    capabilities,
                },
            )
    }

    fn what() -> impl Strategy<Value = What> {
        let paths = |paths: Vec<String>| paths.into_iter().map(HostPath::new).collect();
        prop_oneof![
            device().prop_map(What::Device),
            (any::<String>(), place(), class()).prop_map(|(source, place, class)| {
                let source = HostPath::new(source);
                What::Mount(Mount {
                    source,
                    place,
                    class,
                })
            }),
            (place(), any::<String>(), any::<bool>()).prop_map(|(at, target, replaces)| {
                let target = target.into();
                What::Link(Link {
                    at,
                    target,
                    replaces,
                })
            }),
            (proptest::collection::vec(place(), 0..3), any::<bool>()).prop_map(
                |(directories, after_hooks)| {
                    What::LibraryPath(LibraryPath {
                        directories,
                        after_hooks,
                    })
                }
            ),
            (any::<String>(), place()).prop_map(|(at, of)| {
                let at = ContainerPath::new(at);
                What::Alias(Alias { at, of })
            }),
            compat().prop_map(What::CudaCompat),
            any::<(bool, Vec<String>, Option<Vec<String>>)>().prop_map(
                move |(no_new_nodes, gpus, files)| {
                    let capabilities = files.map_or(CapabilityFiles::All, |files| {
                        CapabilityFiles::Some(paths(files))
                    });
                    let devices = ProcDevices::Planned { gpus, capabilities };
                    What::DriverProc(DriverProc {
                        no_new_nodes,
                        devices,
                    })
                }
            ),
            proptest::sample::select(vec![ProcDevices::All, ProcDevices::Own]).prop_map(
                |devices| {
                    What::DriverProc(DriverProc {
                        no_new_nodes: true,
                        devices,
                    })
                }
            ),
            any::<Option<Vec<u32>>>().prop_map(|minors| {
                let devices = minors.map_or(EglDevices::Own, EglDevices::Planned);
                What::EglProfile(EglProfile { devices })
            }),
            any::<(String, String)>().prop_map(|(name, value)| What::Env(Env { name, value })),
            any::<(String, u32)>().prop_map(|(at, mode)| {
                let at = ContainerPath::new(at);
                What::Mode(FileMode { at, mode })
            }),
            any::<(String, bool)>().prop_map(|(root, both)| {
                let root = HostPath::new(root);
                let daemons = Daemon::ALL[usize::from(both)..].to_vec();
                What::Sockets(Sockets { root, daemons })
            }),
        ]
    }

    fn intent() -> impl Strategy<Value = Intent> {
        let needs = [Need::Required, Need::WherePermitted, Need::BestEffort];
        let need = proptest::sample::select(needs.to_vec());
        (need, what()).prop_map(|(need, what)| Intent { need, what })
    }

    proptest! {
        #[test]
        fn a_plan_arrives_as_it_was_sent(intents in proptest::collection::vec(intent(), 0..8)) {
            let sent = text(&intents).unwrap();
            prop_assert_eq!(decode(&sent).unwrap(), intents);
        }
    }

    #[test]
    fn only_this_form_is_read() {
        let library = Intent::mount(
            HostPath::new("/usr/lib/libcuda.so.1"),
            Place::Library("libcuda.so.1".into()),
            FileClass::Library,
        );
        let good = encode(std::slice::from_ref(&library)).unwrap();
        assert_eq!(decode(&good).unwrap(), [library]);
        for (from, to) in [
            (r#""version":1"#, r#""version":2"#),
            (r#""version":1"#, r#""version":1,"root":"/""#),
            (r#""version":1,"#, ""),
            (r#""need":"required""#, r#""need":"required","more":1"#),
            (r#""need":"required""#, r#""need":"perhaps""#),
            (r#""intent":"mount""#, r#""intent":"exec""#),
            (r#""class":"library""#, r#""class":"library","flags":[]"#),
            (
                r#""class":"library""#,
                r#""class":"library","class":"library""#,
            ),
            (r#""place":{"#, r#""place":{"at":"/","#),
            ("/usr/lib/libcuda.so.1", "usr/lib/libcuda.so.1"),
            (",", ", "),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good);
            assert!(decode(&bad).is_err(), "{bad}");
        }
        for bad in ["", "{}", "[]", "null", r#"{"version":1}"#] {
            assert!(decode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_argument_has_a_limit() {
        let link = |number: usize| {
            Intent::best_effort(What::Link(Link {
                at: Place::Library(format!("lib{number}.so").into()),
                target: "x".repeat(100).into(),
                replaces: true,
            }))
        };
        let few: Vec<_> = (0..500).map(link).collect();
        let many: Vec<_> = (0..1000).map(link).collect();
        assert!(encode(&few).unwrap().len() <= MAX_LEN);
        let error = encode(&many).unwrap_err().message();
        assert!(error.contains("and an argument at most"), "{error}");
    }

    #[test]
    fn other_bytes_are_no_text() {
        use std::os::unix::ffi::OsStrExt as _;
        let odd = std::ffi::OsStr::from_bytes(b"/usr/lib/\xff");
        let place = Place::At(ContainerPath::new("/x"));
        let mount = Intent::mount(HostPath::new(odd), place, FileClass::Data);
        assert!(encode(&[mount]).unwrap_err().message().contains("UTF-8"));
    }
}
