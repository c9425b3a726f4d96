//! Changes the root of a specification's paths.
//!
//! For a specification that is generated in a container, whose driver root differs from the host's.

use super::model::{DeviceNode, Edits, Hook, Mount, Spec};

/// Selects the paths to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Paths that engines open on the host.
    Host,
    /// Paths that processes see in the container.
    Container,
}

/// Replaces one root by another.
#[derive(Clone, Debug)]
pub struct Transform {
    from: String,
    to: String,
    side: Side,
}

impl Transform {
    /// Moves everything at or below `from`.
    pub fn new(from: &str, to: &str, side: Side) -> Self {
        Self {
            from: from.into(),
            to: to.into(),
            side,
        }
    }

    /// Changes all paths of a specification.
    pub fn apply(&self, spec: &mut Spec) {
        if self.from == self.to {
            return;
        }
        self.edits(&mut spec.container_edits);
        for device in &mut spec.devices {
            self.edits(&mut device.container_edits);
        }
    }

    fn edits(&self, edits: &mut Edits) {
        edits
            .device_nodes
            .iter_mut()
            .for_each(|node| self.node(node));
        edits.mounts.iter_mut().for_each(|mount| self.mount(mount));
        edits.hooks.iter_mut().for_each(|hook| self.hook(hook));
    }

    fn node(&self, node: &mut DeviceNode) {
        if self.side == Side::Container {
            node.path = self.path(&node.path);
            return;
        }
        let moved = self.path(node.on_host());
        if !node.host_path.is_empty() || moved != node.path {
            node.host_path = moved;
        }
    }

    fn mount(&self, mount: &mut Mount) {
        match self.side {
            Side::Host => mount.host_path = self.path(&mount.host_path),
            Side::Container => mount.container_path = self.path(&mount.container_path),
        }
    }

    fn hook(&self, hook: &mut Hook) {
        let stage = hook.hook_name.as_str();
        // A createContainer hook is a host program with arguments that are container paths.
        let path_is_inside = stage == "startContainer";
        let args_are_inside = matches!(stage, "createContainer" | "startContainer");
        let inside = self.side == Side::Container;
        if path_is_inside == inside {
            hook.path = self.path(&hook.path);
        }
        if args_are_inside == inside {
            for arg in &mut hook.args {
                *arg = match arg.split_once("::") {
                    Some((a, b)) if !b.contains("::") => {
                        format!("{}::{}", self.path(a), self.path(b))
                    }
                    _ => self.path(arg),
                };
            }
        }
    }

    /// Returns a path below the new root, if it was at or below the old one.
    fn path(&self, path: &str) -> String {
        let from = self.from.trim_end_matches('/');
        match path.strip_prefix(from) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => {
                let to = self.to.trim_end_matches('/');
                let moved = format!("{to}{rest}");
                if moved.is_empty() { "/".into() } else { moved }
            }
            _ => path.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_components_match() {
        let transform = Transform::new("/run/driver", "/", Side::Host);
        for (path, moved) in [
            ("/run/driver", "/"),
            ("/run/driver/x", "/x"),
            ("/run/drivers/x", "/run/drivers/x"),
            ("relative", "relative"),
        ] {
            assert_eq!(transform.path(path), moved);
        }
        let back = Transform::new("/", "/run/driver", Side::Host);
        assert_eq!(back.path("/x"), "/run/driver/x");
        assert_eq!(back.path("--link"), "--link");
    }
}
