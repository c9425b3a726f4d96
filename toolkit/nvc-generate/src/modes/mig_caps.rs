//! Describes the rights to configure and to monitor the machine's MIG devices, each a device with one node.

use libnvc::host::nodes::CAPABILITY_DIRECTORY;
use libnvc::host::nvcaps::MigMinors;
use libnvc::request::Request;
use libnvc::{Error, ErrorKind, Result};

use crate::Find;
use crate::content::{Content, FoundDevice};
use crate::driver;
use crate::nodes::Nodes;

/// The rights, by their names in the kernel's table.
const RIGHTS: [&str; 2] = ["config", "monitor"];

pub(super) fn find(options: &Find, request: &Request) -> Result<Content> {
    let names = names(&request.devices.ids)?;
    Ok(match MigMinors::read() {
        Ok(minors) => content(&driver::nodes(options), &minors, &names),
        // A machine without MIG has nothing to manage.
        Err(error) => Content {
            warnings: vec![error.message()],
            ..Content::default()
        },
    })
}

fn names(ids: &[String]) -> Result<Vec<&'static str>> {
    if ids == ["all"] {
        return Ok(RIGHTS.to_vec());
    }
    let refused = |id: &str| {
        let known = RIGHTS.join(", ");
        let text = format!("invalid MIG capability \"{id}\": must be one of [{known}]");
        Error::new(ErrorKind::InvalidArgument, text)
    };
    if ids.is_empty() {
        return Err(refused("none"));
    }
    let known = |id: &String| {
        let found = RIGHTS.into_iter().find(|right| right == id);
        found.ok_or_else(|| refused(id))
    };
    ids.iter().map(known).collect()
}

fn content(nodes: &Nodes, minors: &MigMinors, names: &[&str]) -> Content {
    let mut content = Content::default();
    for name in names {
        let Some(minor) = minors.number(name) else {
            let text = format!("the driver has no MIG capability \"{name}\"");
            content.warnings.push(text);
            continue;
        };
        match nodes.device(&format!("{CAPABILITY_DIRECTORY}/nvidia-cap{minor}")) {
            Ok(device) => content.devices.push(FoundDevice::new(*name, vec![device])),
            Err(error) => content.warnings.push(error.message()),
        }
    }
    content
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use libnvc::host::CharDrivers;
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};

    use super::*;
    use crate::content::DeviceName;

    #[test]
    fn rights_have_names() {
        let of = |ids: &[&str]| {
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            names(&ids).map_err(|error| error.message())
        };
        assert_eq!(of(&["all"]).unwrap(), RIGHTS);
        assert_eq!(of(&["monitor"]).unwrap(), ["monitor"]);
        let refused = "invalid MIG capability \"0\": must be one of [config, monitor]";
        assert_eq!(of(&["config", "0"]).unwrap_err(), refused);
        assert!(of(&[]).is_err());
    }

    #[test]
    #[ignore = "needs root"]
    fn a_right_is_one_node() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("dev/nvidia-caps");
        std::fs::create_dir_all(&directory).unwrap();
        let (mode, number) = (Mode::from_bits_truncate(0o400), makedev(511, 1));
        mknod(&directory.join("nvidia-cap1"), SFlag::S_IFCHR, mode, number).unwrap();
        let nodes = Nodes {
            root: dir.path().into(),
            drivers: CharDrivers::of("Character devices:\n511 nvidia-caps\n", ""),
        };
        let found = content(&nodes, &MigMinors::from("config 1\nmonitor 2\n"), &RIGHTS);
        let [config] = &found.devices[..] else {
            panic!("{found:?}");
        };
        assert_eq!(config.name, DeviceName::Word("config".into()));
        assert_eq!(config.intents.len(), 1);
        assert_eq!(found.warnings.len(), 1, "the node of monitor is missing");
        let found = content(&nodes, &MigMinors::from(""), &RIGHTS);
        assert!(found.devices.is_empty());
        assert_eq!(found.warnings.len(), 2);
    }
}
