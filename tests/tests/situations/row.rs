//! Describes a row: what is made of the host, the image and the container, and what is expected in each mode.

use std::path::Path;

use nvc_testkit::driver::Driver;
use nvc_testkit::rootfs::{self, Layout};

use super::expectation::Expected;
use super::modes::Mode;

/// A mount of the container that is not the image's.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Volume {
    /// A copy of what the image has there.
    Copy(&'static str),
    /// The same, mounted read-only.
    ReadOnly(&'static str),
    /// An empty directory.
    Empty(&'static str),
    /// A file of the host, at this path in the container.
    File(&'static str, &'static str),
}

/// Changes a host after its driver was installed.
pub(crate) type Change = Box<dyn Fn(&Driver) + Send>;
/// Changes a container's configuration.
pub(crate) type Configure = Box<dyn Fn(&mut serde_json::Value) + Send>;

/// A cell's own expectation.
struct Cell {
    modes: &'static [Mode],
    change: Box<dyn Fn(Expected) -> Expected + Send>,
}

/// A situation.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// Statements of the machine's profile, or a whole one.
    pub(crate) profile: String,
    /// The driver's files are where a real machine has them.
    pub(crate) is_real: bool,
    /// The devices that the container asks for.
    pub(crate) devices: &'static str,
    pub(crate) host: Vec<Change>,
    /// What a service did before a specification was written, and what it does before the container starts.
    pub(crate) service: Option<(Change, Change)>,
    pub(crate) image: rootfs::Builder,
    pub(crate) capabilities: &'static str,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) container: Vec<Configure>,
    /// Directories of PATH before the usual ones, for our programs.
    pub(crate) path: &'static str,
    /// Lines of nvidia-container-cli's table in config.toml.
    pub(crate) cli: &'static str,
    /// A variable of our programs.
    pub(crate) variable: Option<(&'static str, &'static str)>,
    expected: Expected,
    cells: Vec<Cell>,
}

/// Makes a row of an ordinary host and a Debian image.
pub(crate) fn row(name: &'static str) -> Row {
    Row {
        name,
        profile: String::new(),
        is_real: false,
        devices: "all",
        host: Vec::new(),
        service: None,
        image: rootfs::Builder::new(Layout::Debian),
        capabilities: "all",
        volumes: Vec::new(),
        container: Vec::new(),
        path: "",
        cli: "",
        variable: None,
        expected: Expected::default(),
        cells: Vec::new(),
    }
}

impl Row {
    pub(crate) fn profile(mut self, statements: &str) -> Self {
        self.profile += statements;
        self
    }

    /// The same on a real machine's layout, if the row says nothing about directories: of the host, or of volumes.
    pub(crate) fn on_a_real_layout(mut self) -> Self {
        let names_narrow = self.expected.words().any(|word| word.starts_with("32:"));
        self.is_real = self.profile.is_empty()
            && self.host.is_empty()
            && self.volumes.is_empty()
            && !names_narrow;
        self
    }

    pub(crate) fn devices(mut self, names: &'static str) -> Self {
        self.devices = names;
        self
    }

    pub(crate) fn host(mut self, change: impl Fn(&Driver) + Send + 'static) -> Self {
        self.host.push(Box::new(change));
        self
    }

    /// A service does one thing before a specification is written, and another before the container starts.
    pub(crate) fn service(
        mut self,
        before: impl Fn(&Driver) + Send + 'static,
        later: impl Fn(&Driver) + Send + 'static,
    ) -> Self {
        self.service = Some((Box::new(before), Box::new(later)));
        self
    }

    pub(crate) fn layout(mut self, layout: Layout) -> Self {
        self.image = rootfs::Builder::new(layout);
        self
    }

    /// Changes the image before its loader's cache is made.
    pub(crate) fn image(mut self, change: impl Fn(&Path) + Send + 'static) -> Self {
        self.image = self.image.edit(move |root| {
            change(root);
            Ok(())
        });
        self
    }

    pub(crate) fn capabilities(mut self, words: &'static str) -> Self {
        self.capabilities = words;
        self
    }

    pub(crate) fn volume(mut self, volume: Volume) -> Self {
        self.volumes.push(volume);
        self
    }

    pub(crate) fn container(
        mut self,
        change: impl Fn(&mut serde_json::Value) + Send + 'static,
    ) -> Self {
        self.container.push(Box::new(change));
        self
    }

    pub(crate) fn path(mut self, directories: &'static str) -> Self {
        self.path = directories;
        self
    }

    pub(crate) fn cli(mut self, lines: &'static str) -> Self {
        self.cli = lines;
        self
    }

    pub(crate) fn variable(mut self, name: &'static str, value: &'static str) -> Self {
        self.variable = Some((name, value));
        self
    }

    /// Changes what all cells expect.
    pub(crate) fn expect(mut self, change: impl Fn(Expected) -> Expected) -> Self {
        self.expected = change(self.expected);
        self
    }

    /// Changes what the cells of these modes expect.
    pub(crate) fn but(
        mut self,
        modes: &'static [Mode],
        reason: &'static str,
        change: impl Fn(Expected) -> Expected + Send + 'static,
    ) -> Self {
        assert!(
            !reason.is_empty(),
            "{}: a cell differs without a reason",
            self.name
        );
        let change = Box::new(change);
        self.cells.push(Cell { modes, change });
        self
    }

    /// Returns what a cell expects.
    pub(crate) fn expected(&self, mode: Mode) -> Expected {
        let own = self.cells.iter().filter(|cell| cell.modes.contains(&mode));
        let expected = own.fold(self.expected.clone(), |expected, cell| {
            (cell.change)(expected)
        });
        if self.is_real {
            expected.on_a_real_layout()
        } else {
            expected
        }
    }
}
