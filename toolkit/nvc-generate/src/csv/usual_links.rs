//! Finds the links that programs expect beside a Jetson's libraries, and that no list names: `libcuda.so`.

use libnvc::HostPath;
use libnvc::host::catalogue;
use nvc_cdi::Mount;

/// Returns links that programs expect beside mounted libraries.
pub(super) fn usual_links(mounts: &[Mount]) -> Vec<String> {
    let links = |mount: &Mount| {
        let path = HostPath::new(&mount.container_path);
        let library = catalogue::library_of(path.file_name())?;
        let name = path.file_name().to_str()?;
        // Skips development links.
        name.strip_prefix(library.name)?.strip_prefix('.')?;
        let directory = path.parent();
        let links = library.file(path.clone()).links;
        let links = links
            .into_iter()
            .map(move |link| format!("{}::{}", link.target.display(), directory.join(link.name)));
        Some(links.collect::<Vec<_>>())
    };
    mounts.iter().filter_map(links).flatten().collect()
}
