//! Makes the words of the hook that applies a plan.

/// Returns the hook's words for these intents, without spaces.
pub fn apply(intents: &[String]) -> String {
    format!("apply {}", plan(intents))
}

/// Returns the option with these intents.
pub fn plan(intents: &[String]) -> String {
    let intents = intents.join(",");
    format!("--plan={{\"version\":1,\"intents\":[{intents}]}}")
}

/// Makes a link.
pub fn link(target: &str, at: &str) -> String {
    format!(
        "{{\"need\":\"best-effort\",\"intent\":\"link\",\"at\":{{\"at\":\"{at}\"}},\"target\":\"{target}\",\"replaces\":true}}"
    )
}

/// Lets the loader find the libraries of a directory.
pub fn folder(directory: &str) -> String {
    format!(
        "{{\"need\":\"where-permitted\",\"intent\":\"library-path\",\"directories\":[{{\"at\":\"{directory}\"}}],\"after_hooks\":true}}"
    )
}

/// Lets the loader find the image's CUDA compatibility libraries, if they are newer than this driver.
pub fn compat(driver: &str) -> String {
    format!(
        "{{\"need\":\"where-permitted\",\"intent\":\"cuda-compat\",\"host_driver\":\"{driver}\",\"how\":\"configure\",\
         \"capabilities\":[\"utility\",\"compute\",\"ngx\",\"video\",\"graphics\",\"display\"]}}"
    )
}

/// Hides other GPUs, and with `no_new_nodes` tells programs not to create nodes.
pub fn own_devices(no_new_nodes: bool) -> String {
    format!(
        "{{\"need\":\"required\",\"intent\":\"driver-proc\",\"no_new_nodes\":{no_new_nodes},\"devices\":\"own\"}}"
    )
}

/// Lets EGL see the container's GPUs only.
pub fn profile() -> String {
    "{\"need\":\"best-effort\",\"intent\":\"egl-profile\",\"devices\":\"own\"}".into()
}
