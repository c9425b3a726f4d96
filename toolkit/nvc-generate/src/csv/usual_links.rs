//! Finds the links that programs expect beside a Jetson's libraries, and that no list names: `libcuda.so`.

use libnvc::HostPath;
use libnvc::host::catalogue;
use libnvc::plan::{Intent, Mount, Place, What};

use super::files::link;

/// Returns links that programs expect beside mounted libraries.
pub(super) fn usual_links(intents: &[Intent]) -> Vec<Intent> {
    let links = |intent: &Intent| {
        let What::Mount(Mount {
            place: Place::At(path),
            ..
        }) = &intent.what
        else {
            return None;
        };
        let library = catalogue::library_of(path.file_name())?;
        let name = path.file_name().to_str()?;
        // Skips development links.
        name.strip_prefix(library.name)?.strip_prefix('.')?;
        let directory = path.parent();
        let links = library.file(HostPath::new(path.as_path())).links;
        let links = links.into_iter();
        Some(links.map(move |file| link(file.target, directory.join(file.name))))
    };
    intents.iter().filter_map(links).flatten().collect()
}
