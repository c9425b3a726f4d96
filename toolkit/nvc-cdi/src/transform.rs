//! Changes the root of a specification's paths.
//!
//! For a specification that is generated in a container, whose driver root differs from the host's.

use std::path::{Path, PathBuf};

use libnvc::plan::{Intent, Place, What, handover};
use libnvc::{ContainerPath, Error, ErrorKind, HostPath, Result};
use nvc_program::hook_names::{APPLY, MOUNT_SOCKETS};

use super::model::{DeviceNode, Edits, Hook, Mount, Spec};

/// Options of hooks whose values are paths of the host.
const DRIVER_ROOT: &str = "--driver-root";
const LDCONFIG: &str = "--ldconfig-path";

/// Options whose values are directories of the host, below the driver root.
const SEARCH: [&str; 2] = ["--library-search-path", "--config-search-path"];

/// The option with a plan, whose paths are of both sides.
const PLAN: &str = "--plan";

/// The option of a hook that finds the driver's files when a container starts.
const DISCOVER: &str = "--discover";

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
    /// The plan of a hook is of another version, or a hook chooses paths in the container only when that starts.
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
        let ours = name(args)
            .map(|place| args[place].clone())
            .unwrap_or_default();
        let is_live = ours == APPLY && args.iter().any(|word| word == DISCOVER);
        let is_host = self.side == Side::Host;
        if is_live && !is_host {
            let text = "the specification has a hook that chooses paths when a container starts";
            let error = Error::new(ErrorKind::InvalidArgument, text);
            return Err(error.hint("transform one of nvidia-ctk cdi generate --style=files"));
        }
        let root = value(args, DRIVER_ROOT).unwrap_or("/").to_owned();
        let moved = self.path(&root);
        let mut option = String::new();
        for arg in args.iter_mut() {
            let (before, value) = match arg.split_once('=') {
                Some((name, value)) if name.starts_with("--") => {
                    option = name.to_owned();
                    (format!("{name}="), value)
                }
                _ => (String::new(), arg.as_str()),
            };
            let value = match option.as_str() {
                PLAN if ours == APPLY => self.plan(value)?,
                DRIVER_ROOT | LDCONFIG if is_host => self.path(value),
                of if is_host && SEARCH.contains(&of) => self.below(&root, &moved, value),
                of if is_host || is_of_host(of) => value.to_owned(),
                _ if before.is_empty() => self.argument(value),
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
        if let Some(name) = name(args)
            && is_host
            && (is_live || ours == MOUNT_SOCKETS)
            && moved != root
            && value(args, DRIVER_ROOT).is_none()
        {
            let moved = moved.trim_end_matches('/');
            args.insert(name + 1, format!("{DRIVER_ROOT}={moved}"));
        }
        Ok(())
    }

    /// Returns a directory below the moved driver root.
    fn below(&self, root: &str, moved: &str, directory: &str) -> String {
        let place = HostPath::new(directory).below(Path::new(root));
        let place = PathBuf::from(self.path(&place.to_string_lossy()));
        let below = place.strip_prefix(moved).ok();
        let below = below.map(|below| HostPath::new(below).to_string());
        below.unwrap_or_else(|| directory.to_owned())
    }

    fn plan(&self, text: &str) -> Result<String> {
        let changed = handover::decode(text).and_then(|mut intents| {
            intents.iter_mut().for_each(|intent| self.intent(intent));
            handover::encode(&intents)
        });
        changed.map_err(|error| error.context("the plan of a hook cannot be changed"))
    }

    fn intent(&self, intent: &mut Intent) {
        match &mut intent.what {
            What::Device(device) => {
                self.on_host(&mut device.source);
                self.inside(&mut device.at);
            }
            What::Mount(mount) => {
                self.on_host(&mut mount.source);
                self.place(&mut mount.place);
            }
            What::Link(link) => {
                self.place(&mut link.at);
                if self.side == Side::Container {
                    link.target = self.path(&link.target.to_string_lossy()).into();
                }
            }
            What::Alias(alias) => {
                self.inside(&mut alias.at);
                self.place(&mut alias.of);
            }
            What::LibraryPath(libraries) => {
                let places = libraries.directories.iter_mut();
                places.for_each(|place| self.place(place));
            }
            What::CudaCompat(compat) => compat.root.iter_mut().for_each(|root| self.inside(root)),
            What::Mode(file) => self.inside(&mut file.at),
            What::Sockets(sockets) => self.on_host(&mut sockets.root),
            // Their paths are the kernel's.
            What::DriverProc(_) | What::EglProfile(_) | What::Env(_) => {}
        }
    }

    fn place(&self, place: &mut Place) {
        if let Place::At(path) = place {
            self.inside(path);
        }
    }

    fn on_host(&self, path: &mut HostPath) {
        if self.side == Side::Host {
            *path = HostPath::new(self.path(&path.to_string()));
        }
    }

    fn inside(&self, path: &mut ContainerPath) {
        if self.side == Side::Container {
            *path = ContainerPath::new(self.path(&path.to_string()));
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

/// Returns the place of our hook's name, behind the program's, or behind nvidia-ctk's command.
fn name(args: &[String]) -> Option<usize> {
    let mut first = args.iter().take(3);
    first.position(|word| [APPLY, MOUNT_SOCKETS].contains(&word.as_str()))
}

fn is_of_host(option: &str) -> bool {
    [DRIVER_ROOT, LDCONFIG].contains(&option) || SEARCH.contains(&option)
}

/// Returns the value of an option, in a word of its own or not.
fn value<'a>(args: &'a [String], option: &str) -> Option<&'a str> {
    let place = args.iter().position(|word| {
        let value = word.strip_prefix(option);
        value.is_some_and(|value| value.is_empty() || value.starts_with('='))
    })?;
    let joined = args[place].split_once('=').map(|(_, value)| value);
    joined.or_else(|| args.get(place + 1).map(String::as_str))
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
            (
                "h apply --discover --driver-root /driver-root --library-search-path /opt/lib",
                "h apply --discover --driver-root / --library-search-path /opt/lib",
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
                "h apply --discover --config-search-path=/etc/x",
                "h apply --driver-root=/run/driver --discover --config-search-path=/etc/x",
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
        let below = Transform::new("/opt/a", "/opt/b", Side::Host);
        assert_eq!(
            changed(
                &below,
                "h apply --discover --library-search-path /opt/a/lib"
            ),
            "h apply --discover --library-search-path /opt/b/lib"
        );
    }

    #[test]
    fn a_plan_moves_with_its_side() {
        let plan = |source: &str, at: &str, root: &str| {
            let mount = r#"{"need":"required","intent":"mount","source":"SOURCE","place":{"at":"AT"},"class":"library"}"#;
            let path = r#"{"need":"required","intent":"library-path","directories":[{"at":"AT"}]}"#;
            let alias =
                r#"{"need":"best-effort","intent":"alias","at":"AT","of":{"library":"AT"}}"#;
            let link = r#"{"need":"best-effort","intent":"link","at":{"at":"AT"},"target":"../x"}"#;
            let sockets = r#"{"need":"best-effort","intent":"sockets","root":"ROOT","daemons":["persistenced"]}"#;
            let all = [mount, path, alias, link, sockets].join(",");
            // A name in the image's directory is no path.
            let all = all.replace(r#""library":"AT""#, r#""library":"x""#);
            let all = all
                .replace("SOURCE", source)
                .replace("AT", at)
                .replace("ROOT", root);
            format!("--plan={{\"version\":1,\"intents\":[{all}]}}")
        };
        let before = plan("/a/lib/x", "/a/lib", "/a");
        for (side, after) in [
            (Side::Host, plan("/b/lib/x", "/a/lib", "/b")),
            (Side::Container, plan("/a/lib/x", "/b/lib", "/a")),
        ] {
            let transform = Transform::new("/a", "/b", side);
            assert_eq!(
                changed(&transform, &format!("h apply {before}")),
                format!("h apply {after}")
            );
            let words = ["h", "apply", "--plan", &before["--plan=".len()..]];
            let text = hook(&transform, &words)
                .map_or_else(|error| error.message(), |words| words.join("="));
            assert_eq!(text, format!("h=apply={after}"));
        }
    }

    #[test]
    fn what_is_unknown_until_the_start_is_refused() {
        let inside = Transform::new("/a", "/b", Side::Container);
        let text = changed(&inside, "h apply --discover");
        assert!(text.contains("when a container starts"), "{text}");
        let text = changed(&inside, r#"h apply --plan={"version":2}"#);
        assert!(
            text.contains("the plan of a hook cannot be changed"),
            "{text}"
        );
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
