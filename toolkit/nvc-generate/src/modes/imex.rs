//! Describes IMEX channels, one device each.
//!
//! Only a node's path is recorded: the node may be made later.

use libnvc::Result;
use nvc_cdi::{CHARACTER, DeviceNode, Edits};

use crate::Options;
use crate::channels::{Channels, number};
use crate::content::Content;
use crate::draft::DraftDevice;
use crate::driver;
use crate::nodes::Nodes;

/// Directory of the channels' nodes.
pub(super) const DIRECTORY: &str = "/dev/nvidia-caps-imex-channels";

pub(super) fn find(options: &Options) -> Result<Content> {
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
    let paths = nodes.matching(DIRECTORY, |name| name.starts_with("channel"), refused);
    let names = paths.iter().filter_map(|path| path.rsplit('/').next());
    names.filter_map(|name| number(name).ok()).collect()
}

fn device(nodes: &Nodes, number: u32) -> Result<DraftDevice> {
    let path = format!("{DIRECTORY}/channel{number}");
    nodes.look_up(&path)?;
    let host_path = nodes.root.join(path.trim_start_matches('/'));
    let node = DeviceNode {
        path,
        host_path: host_path.display().to_string(),
        kind: CHARACTER.into(),
        ..DeviceNode::default()
    };
    let edits = Edits {
        device_nodes: vec![node],
        ..Edits::default()
    };
    Ok(DraftDevice::new(number.to_string(), edits))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use libnvc::host::CharDrivers;
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};

    use super::*;

    /// Anybody who can write to the host's /dev chooses the names there.
    #[test]
    #[ignore = "needs root"]
    fn nodes_with_other_names_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join(DIRECTORY.trim_start_matches('/'));
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
            groups: false,
            drivers: CharDrivers::of(drivers, ""),
        };
        let mut refused = Vec::new();
        let numbers = of_this_machine(&nodes, &mut refused);
        assert_eq!(numbers, [1_048_575, 2048, 7]);
        assert_eq!(refused.len(), 7, "{refused:?}");
        for number in numbers {
            assert_eq!(device(&nodes, number).unwrap().name, number.to_string());
        }
        assert!(device(&nodes, 3).is_err());
    }
}
