//! Describes the driver's IMEX channels: how many it has, and the nodes that they will have.
//!
//! Channels are minor numbers from 0 up. The kernel module's parameter ImexChannelCount limits them; a node beyond it
//! could never be opened.

use crate::error::{Error, ErrorKind, Result};
use crate::host::procfs::number;
use crate::host::{DeviceNode, DeviceNumber, DriverRoot, NodeOwner, majors, nodes, procfs};
use crate::path::HostPath;

/// The name of the channels' driver in /proc/devices.
const DRIVER: &str = "nvidia-caps-imex-channels";

/// The parameter's default, for drivers that do not list it.
const USUAL_COUNT: u32 = 2048;

/// The channels of a driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImexChannels {
    count: u32,
    major: Option<u32>,
}

impl ImexChannels {
    /// Reads the driver's parameters, and its major number.
    pub(crate) fn read(root: &DriverRoot) -> Self {
        let params = procfs::text_of(root, "params");
        let devices = root.read(&HostPath::new(majors::PATH)).unwrap_or_default();
        Self {
            count: number(&params, "ImexChannelCount").unwrap_or(USUAL_COUNT),
            major: majors::major(&devices, DRIVER),
        }
    }

    /// Checks that there is a channel.
    ///
    /// # Errors
    /// `unsupported IMEX channel value: <channel>`.
    pub(crate) fn check(&self, channel: u32) -> Result<()> {
        if channel < self.count {
            return Ok(());
        }
        let text = "unsupported IMEX channel value";
        let error = Error::new(ErrorKind::InvalidArgument, text).of(channel);
        Err(error.hint(format!(
            "the driver has {} channels, from 0 up (ImexChannelCount in /proc/driver/nvidia/params)",
            self.count
        )))
    }

    /// Returns the node that a channel will have with this owner; None if there is no such channel, or no driver of
    /// channels.
    pub(crate) fn node(&self, channel: u32, owner: NodeOwner) -> Option<DeviceNode> {
        self.check(channel).ok()?;
        let directory = HostPath::new(nodes::IMEX_DIRECTORY);
        Some(DeviceNode {
            path: directory.join(format!("channel{channel}")),
            number: DeviceNumber {
                major: self.major?,
                minor: channel,
            },
            owner: Some(owner),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn channels(params: &str) -> ImexChannels {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("proc/driver/nvidia/params", params),
            (
                "proc/devices",
                "Character devices:\n235 nvidia-caps-imex-channels\n",
            ),
        ] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        ImexChannels::read(&DriverRoot::open(dir.path()).unwrap())
    }

    #[test]
    fn the_driver_limits_channels() {
        let owner = NodeOwner {
            uid: 0,
            gid: 0,
            mode: 0o666,
        };
        for (params, count) in [
            ("", 2048),
            ("ImexChannelCount: 0\n", 0),
            ("A: 1\nImexChannelCount: 16\nCreateImexChannel0: 0\n", 16),
        ] {
            let channels = channels(params);
            for channel in [0, 15, 16, 2047, 2048, u32::MAX] {
                let exists = channel < count;
                assert_eq!(channels.check(channel).is_ok(), exists, "{params}");
                assert_eq!(channels.node(channel, owner).is_some(), exists);
            }
        }
        let node = channels("").node(7, owner).unwrap();
        assert_eq!(
            node.path,
            HostPath::new("/dev/nvidia-caps-imex-channels/channel7")
        );
        assert_eq!(node.number.to_string(), "235:7");
        let error = channels("ImexChannelCount: 16\n").check(16).unwrap_err();
        assert_eq!(error.message(), "unsupported IMEX channel value: 16");
    }
}
