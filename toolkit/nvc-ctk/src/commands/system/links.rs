//! Creates `/dev/char/MAJOR:MINOR` links, without which some versions of runc and systemd lose devices.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use libnvc::host::DeviceNumber;
use libnvc::host::nvcaps::MigMinors;
use libnvc::kmods::{CharLinks, pci};
use libnvc::{Error, ErrorKind, Result};
use log::{info, warn};
use nvc_generate::nodes::Nodes;

use super::{CONTROL, load_modules, major, nodes};
use crate::line::CommandLine;

/// Nodes that containers do not need.
const LEFT_OUT: [&str; 3] = ["nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink"];

/// A node and its number.
type NumberedNode = (PathBuf, DeviceNumber);

pub(in crate::commands) fn run(line: &CommandLine) -> Result<()> {
    let (all, dry_run) = (line.flag("create-all"), line.flag("dry-run"));
    let with_all = |flag: &str| {
        let is_given = line.flag(flag);
        if is_given && !all {
            warn!("--{flag} is ignored: it needs --create-all");
        }
        is_given && all
    };
    if with_all("load-kernel-modules") {
        load_modules(line.text("driver-root"), dry_run)?;
    }
    if with_all("create-device-nodes") {
        nodes::control_nodes(Path::new("/"), dry_run)?;
    }
    let directory = match line.text("dev-char-path") {
        "" => Path::new("/dev/char"),
        directory => Path::new(directory),
    };
    let nodes = match all.then(possible).transpose()? {
        None => existing(),
        Some(nodes) if nodes.is_empty() => return without_gpus(&existing(), directory),
        Some(nodes) => nodes,
    };
    let links = (!nodes.is_empty() && !dry_run)
        .then(|| CharLinks::create(directory))
        .transpose()
        .map_err(|errno| Error::file("mkdir failed", directory, errno))?;
    for (path, number) in nodes {
        let link = directory.join(number.to_string());
        info!("Creating link {} => {}", link.display(), path.display());
        if let Some(Err(errno)) = links.as_ref().map(|links| links.add(number, &path))
            && !is_linked(directory, number)
        {
            warn!("{}", Error::file("symlink failed", &link, errno).message());
        }
    }
    Ok(())
}

/// Returns the nodes in /dev that are devices of NVIDIA's drivers, and warns about others of their names.
fn existing() -> Vec<NumberedNode> {
    let (nodes, refused) = look();
    for why in refused {
        warn!("skipping {why}");
    }
    nodes
}

/// Returns a node that has no link in /dev/char, if there is one.
pub(in crate::commands) fn missing() -> Option<PathBuf> {
    let directory = Path::new("/dev/char");
    let mut nodes = look().0.into_iter();
    let (path, _) = nodes.find(|(_, number)| !is_linked(directory, *number))?;
    Some(path)
}

/// Returns the nodes in /dev that are devices of NVIDIA's drivers, and why others of their names are none.
fn look() -> (Vec<NumberedNode>, Vec<String>) {
    let nodes = Nodes::new("/".into());
    let is_wanted = |name: &str| {
        name.starts_with("nvidia") && !LEFT_OUT.iter().any(|out| name.starts_with(out))
    };
    let mut refused = Vec::new();
    let mut paths = nodes.matching("/dev", is_wanted, &mut refused);
    let is_capability = |name: &str| name.starts_with("nvidia-");
    paths.extend(nodes.matching("/dev/nvidia-caps", is_capability, &mut refused));
    // Ignore nodes that vanish concurrently.
    let numbered = paths.into_iter().filter_map(|path| {
        let number = nodes.look_up(&path).ok()?.number();
        Some((path.into(), number))
    });
    (numbered.collect(), refused)
}

/// Succeeds if all nodes that there are have their links.
///
/// # Errors
/// There are none, or one lacks its link: which nodes are possible is not known without a GPU on PCI.
fn without_gpus(existing: &[NumberedNode], directory: &Path) -> Result<()> {
    let has_link = |(_, number): &NumberedNode| is_linked(directory, *number);
    if !existing.is_empty() && existing.iter().all(has_link) {
        info!("All NVIDIA device nodes have their links");
        return Ok(());
    }
    let text = "there are no NVIDIA GPUs on PCI, so it is unknown which links are possible";
    let error = Error::new(ErrorKind::NotFound, text);
    Err(error.hint("without --create-all, this command links the nodes that there are"))
}

/// Returns true if a device has its link, however that is written: udev's are relative.
fn is_linked(directory: &Path, number: DeviceNumber) -> bool {
    let found = fs::metadata(directory.join(number.to_string()));
    found.is_ok_and(|facts| {
        facts.file_type().is_char_device() && DeviceNumber::from_rdev(facts.rdev()) == number
    })
}

/// Returns all possible nodes of this machine's GPUs; none if there is no GPU on PCI.
fn possible() -> Result<Vec<NumberedNode>> {
    let minors = fs::read_to_string("/proc/driver/nvidia-caps/mig-minors").ok();
    // The drivers that must be loaded, even if there is nothing to do for them.
    for driver in minors
        .iter()
        .map(|_| "nvidia-caps")
        .chain(["nvidia", "nvidia-uvm"])
    {
        major(driver)?;
    }
    let gpus = pci::gpus().unwrap_or_default().len();
    let gpus = u32::try_from(gpus).unwrap_or_default();
    if gpus == 0 {
        return Ok(Vec::new());
    }
    let dev = Path::new("/dev");
    let mut nodes = Vec::new();
    for (name, driver, minor) in CONTROL {
        let major = major(driver)?;
        nodes.push((dev.join(name), DeviceNumber { major, minor }));
    }
    let nvidia = major("nvidia")?;
    for gpu in 0..gpus {
        let number = DeviceNumber {
            major: nvidia,
            minor: gpu,
        };
        nodes.push((dev.join(format!("nvidia{gpu}")), number));
    }
    let capabilities = capabilities(&minors.unwrap_or_default(), gpus);
    if !capabilities.is_empty() {
        let major = major("nvidia-caps")?;
        let node = |minor| {
            let path = dev.join(format!("nvidia-caps/nvidia-cap{minor}"));
            (path, DeviceNumber { major, minor })
        };
        nodes.extend(capabilities.into_iter().map(node));
    }
    Ok(nodes)
}

/// Returns the minor numbers of the capabilities: the global ones, then those of consecutive GPUs' instances.
fn capabilities(text: &str, gpus: u32) -> Vec<u32> {
    let known = MigMinors::from(text);
    let global = ["config", "monitor"].iter();
    let mut minors: Vec<u32> = global.filter_map(|name| known.number(name)).collect();
    for gpu in 0..gpus {
        for gi in 0.. {
            let name = format!("gpu{gpu}/gi{gi}");
            let Some(minor) = known.number(&format!("{name}/access")) else {
                break;
            };
            minors.push(minor);
            let compute = (0..).map(|ci| format!("{name}/ci{ci}/access"));
            minors.extend(compute.map_while(|name| known.number(&name)));
        }
    }
    minors
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn without_gpus_on_pci_only_complete_links_are_a_success() {
        let directory = std::env::temp_dir().join(format!("nvc-links-{}", std::process::id()));
        fs::create_dir(&directory).expect("a new directory");
        // It stands for a node of NVIDIA's.
        let number = DeviceNumber { major: 1, minor: 3 };
        let nodes = [(PathBuf::from("/dev/null"), number)];
        let error = without_gpus(&[], &directory).expect_err("no nodes");
        assert!(error.message().contains("no NVIDIA GPUs on PCI"));
        assert!(without_gpus(&nodes, &directory).is_err());
        symlink("/dev/zero", directory.join("1:3")).expect("a link");
        assert!(without_gpus(&nodes, &directory).is_err());
        fs::remove_file(directory.join("1:3")).expect("it is there");
        symlink("/dev/null", directory.join("1:3")).expect("a link");
        assert!(without_gpus(&nodes, &directory).is_ok());
        fs::remove_dir_all(&directory).expect("it is there");
    }

    #[test]
    fn capabilities_follow_one_another() {
        let text = "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\ngpu0/gi0/ci2/access 6\ngpu0/gi2/access 9\n";
        assert_eq!(capabilities(text, 1), [1, 2, 3, 4]);
    }
}
