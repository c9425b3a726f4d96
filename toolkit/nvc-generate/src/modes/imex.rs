//! Describes IMEX channels, one device each.
//!
//! Only a node's path is recorded: the node may be made later.

use libnvc::host::nodes::IMEX_DIRECTORY;
use libnvc::plan::{Device, Intent, What};
use libnvc::{ContainerPath, HostPath, Result};

use crate::Find;
use crate::channels::{Channels, number};
use crate::content::{Content, FoundDevice};
use crate::driver;
use crate::nodes::Nodes;

pub(super) fn find(options: &Find) -> Result<Content> {
    let (nodes, mut warnings) = (driver::nodes(options), Vec::new());
    let numbers = match &options.channels {
        Channels::All => of_this_machine(&nodes, &mut warnings),
        Channels::Numbers(numbers) => numbers.clone(),
    };
    let devices = numbers.into_iter().map(|number| device(&nodes, number));
    Ok(Content {
        devices: devices.collect::<Result<_>>()?,
        warnings,
        ..Content::default()
    })
}

/// Returns the channels that have a node. Adds the reasons why nodes are left out to `refused`.
fn of_this_machine(nodes: &Nodes, refused: &mut Vec<String>) -> Vec<u32> {
    let paths = nodes.matching(IMEX_DIRECTORY, |name| name.starts_with("channel"), refused);
    let names = paths.iter().filter_map(|path| path.rsplit('/').next());
    names.filter_map(|name| number(name).ok()).collect()
}

fn device(nodes: &Nodes, number: u32) -> Result<FoundDevice> {
    let path = format!("{IMEX_DIRECTORY}/channel{number}");
    let node = nodes.look_up(&path)?;
    let what = What::Device(Device {
        source: HostPath::new(nodes.root.join(path.trim_start_matches('/'))),
        number: node.number(),
        owner: None,
        at: ContainerPath::new(path),
        bind: true,
        allow: true,
    });
    let intents = vec![Intent::required(what)];
    Ok(FoundDevice::new(number.to_string(), intents))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use libnvc::host::CharDrivers;
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};

    use super::*;
    use crate::content::DeviceName;

    /// Anybody who can write to the host's /dev chooses the names there.
    #[test]
    #[ignore = "needs root"]
    fn nodes_with_other_names_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join(IMEX_DIRECTORY.trim_start_matches('/'));
        std::fs::create_dir_all(&directory).unwrap();
        for (name, minor) in [
            ("channel7", 7),
            ("channel2048", 2048),
            ("channel1048575", 1_048_575),
            ("channel+7", 7),
            ("channel007", 7),
            ("channelX", 7),
            ("channel", 0),
            ("channel1048576", 0),
            ("channel4294967296", 0),
            ("channel3", 4),
        ] {
            let rw = Mode::from_bits_truncate(0o666);
            mknod(
                &directory.join(name),
                SFlag::S_IFCHR,
                rw,
                makedev(235, minor),
            )
            .unwrap();
        }
        let drivers = "Character devices:\n235 nvidia-caps-imex-channels\n";
        let nodes = Nodes {
            root: dir.path().into(),
            drivers: CharDrivers::of(drivers, ""),
        };
        let mut refused = Vec::new();
        let numbers = of_this_machine(&nodes, &mut refused);
        assert_eq!(numbers, [1_048_575, 2048, 7]);
        assert_eq!(refused.len(), 7, "{refused:?}");
        for number in numbers {
            let name = DeviceName::Word(number.to_string());
            assert_eq!(device(&nodes, number).unwrap().name, name);
        }
        assert!(device(&nodes, 3).is_err());
    }
}
