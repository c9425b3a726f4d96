//! Words by which our hook finds the driver's files when a container starts.

use std::path::Path;

use nvc_program::hook_names;

use crate::{Find, Hooks, driver};

/// Returns the words for the search that `find` describes.
pub(crate) fn words(find: &Find, hooks: &Hooks) -> Vec<String> {
    let mut words = vec!["--discover".to_owned()];
    let mut add = |option: &str, value: &str| words.extend([option.to_owned(), value.to_owned()]);
    let root = driver::root(find);
    if root != Path::new("/") {
        add("--driver-root", &root.to_string_lossy());
    }
    for (option, paths) in [
        ("--library-search-path", &find.library_search),
        ("--config-search-path", &find.config_search),
    ] {
        for path in paths {
            add(option, &path.to_string_lossy());
        }
    }
    for hook in [
        hook_names::CREATE_SYMLINKS,
        hook_names::ENABLE_CUDA_COMPAT,
        hook_names::UPDATE_LDCACHE,
    ] {
        if hooks.is_off(hook) {
            add("--without", hook);
        }
    }
    let flags = [
        (
            "--no-ipc",
            find.no_ipc || hooks.is_off(hook_names::MOUNT_SOCKETS),
        ),
        ("--no-compat32", find.no_compat32),
        (
            "--explicit-driver-libraries",
            find.explicit_driver_libraries,
        ),
    ];
    let given = flags.iter().filter(|(_, given)| *given);
    words.extend(given.map(|(option, _)| option.to_string()));
    words
}
