//! Changes the root of a specification's paths.
//!
//! For a specification that is generated in a container, whose driver root differs from the host's. One whose hook has a
//! plan is refused: the same command without it makes one with the same content.

use libnvc::{Error, ErrorKind, Result};
use nvc_program::hook_names::{APPLY, MOUNT_SOCKETS};

use super::model::{DeviceNode, Edits, Hook, Mount, Spec};

/// Options of hooks whose values are paths of the host.
const DRIVER_ROOT: &str = "--driver-root";
const LDCONFIG: &str = "--ldconfig-path";

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
    ///
    /// # Errors
    /// A hook has a plan.
    pub fn apply(&self, spec: &mut Spec) -> Result<()> {
        if self.from == self.to {
            return Ok(());
        }
        let devices = spec.devices.iter_mut();
        let devices = devices.map(|device| &mut device.container_edits);
        std::iter::once(&mut spec.container_edits)
            .chain(devices)
            .try_for_each(|edits| self.edits(edits))
    }

    fn edits(&self, edits: &mut Edits) -> Result<()> {
        edits
            .device_nodes
            .iter_mut()
            .for_each(|node| self.node(node));
        edits.mounts.iter_mut().for_each(|mount| self.mount(mount));
        edits.hooks.iter_mut().try_for_each(|hook| self.hook(hook))
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

    fn hook(&self, hook: &mut Hook) -> Result<()> {
        let stage = hook.hook_name.as_str();
        let is_inside = stage == "startContainer";
        let inside = self.side == Side::Container;
        if is_inside == inside {
            hook.path = self.path(&hook.path);
        }
        if stage == "createContainer" {
            return self.arguments(&mut hook.args);
        }
        if is_inside == inside {
            for arg in &mut hook.args {
                *arg = self.argument(arg);
            }
        }
        Ok(())
    }

    fn argument(&self, arg: &str) -> String {
        match arg.split_once("::") {
            Some((a, b)) if !b.contains("::") => format!("{}::{}", self.path(a), self.path(b)),
            _ => self.path(arg),
        }
    }

    /// Changes the arguments of a createContainer hook: a host program with arguments that are container paths, but for
    /// some options of ours.
    fn arguments(&self, args: &mut Vec<String>) -> Result<()> {
        // Behind the program's name, or behind nvidia-ctk's command.
        let place_of = |args: &[String], name| args.iter().take(3).position(|word| word == name);
        if place_of(args, APPLY).is_some() {
            let text = format!("the specification has the hook {APPLY}, which cannot be changed");
            let error = Error::new(ErrorKind::InvalidArgument, text);
            return Err(error
                .hint("transform one of nvidia-ctk cdi generate --hooks=separate --style=files"));
        }
        let is_host = self.side == Side::Host;
        let mut option = String::new();
        for arg in args.iter_mut() {
            let (before, value) = match arg.split_once('=') {
                Some((name, value)) if name.starts_with("--") => {
                    option = name.to_owned();
                    (format!("{name}="), value)
                }
                _ => (String::new(), arg.as_str()),
            };
            let is_of_host = [DRIVER_ROOT, LDCONFIG].contains(&option.as_str());
            let value = match (is_of_host, is_host) {
                (true, true) => self.path(value),
                (false, false) if before.is_empty() => self.argument(value),
                _ => value.to_owned(),
            };
            option = if before.is_empty() {
                arg.clone()
            } else {
                String::new()
            };
            *arg = before + &value;
        }
        // Without the option, it is the host's own root.
        let root = self.path("/");
        if let Some(place) = place_of(args, MOUNT_SOCKETS)
            && is_host
            && root != "/"
            && !args.iter().any(|word| word.starts_with(DRIVER_ROOT))
        {
            let root = root.trim_end_matches('/');
            args.insert(place + 1, format!("{DRIVER_ROOT}={root}"));
        }
        Ok(())
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

    /// Returns the arguments of a createContainer hook after a change.
    fn hook(transform: &Transform, words: &[&str]) -> Result<Vec<String>> {
        let mut spec = Spec::default();
        spec.container_edits.hooks.push(Hook {
            hook_name: "createContainer".into(),
            args: words.iter().map(ToString::to_string).collect(),
            ..Hook::default()
        });
        transform.apply(&mut spec)?;
        Ok(spec.container_edits.hooks.remove(0).args)
    }

    fn changed(transform: &Transform, line: &str) -> String {
        let words: Vec<_> = line.split(' ').collect();
        hook(transform, &words).map_or_else(|error| error.message(), |words| words.join(" "))
    }

    #[test]
    fn words_of_the_host_move_with_the_driver_root() {
        let host = Transform::new("/driver-root", "/", Side::Host);
        for (line, expected) in [
            (
                "h mount-sockets --driver-root /driver-root --daemon persistenced",
                "h mount-sockets --driver-root / --daemon persistenced",
            ),
            (
                "ctk hook mount-sockets --driver-root=/driver-root/x",
                "ctk hook mount-sockets --driver-root=/x",
            ),
            ("h mount-sockets --daemon x", "h mount-sockets --daemon x"),
            // Paths of the container.
            (
                "h chmod --path /driver-root/x",
                "h chmod --path /driver-root/x",
            ),
        ] {
            assert_eq!(changed(&host, line), expected);
        }
        let back = Transform::new("/", "/run/driver", Side::Host);
        for (line, expected) in [
            (
                "h mount-sockets --daemon x",
                "h mount-sockets --driver-root=/run/driver --daemon x",
            ),
            (
                "h update-ldcache --ldconfig-path /sbin/ldconfig --folder /x",
                "h update-ldcache --ldconfig-path /run/driver/sbin/ldconfig --folder /x",
            ),
        ] {
            assert_eq!(changed(&back, line), expected);
        }
        let inside = Transform::new("/a", "/b", Side::Container);
        assert_eq!(
            changed(
                &inside,
                "h update-ldcache --ldconfig-path /a/x --folder /a/lib --plan /a"
            ),
            "h update-ldcache --ldconfig-path /a/x --folder /b/lib --plan /b"
        );
    }

    #[test]
    fn a_plan_is_refused() {
        for side in [Side::Host, Side::Container] {
            let transform = Transform::new("/a", "/b", side);
            for line in ["h apply --plan={}", "ctk hook apply --discover"] {
                let text = changed(&transform, line);
                assert!(text.contains("the hook apply, which cannot"), "{text}");
            }
        }
    }

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
