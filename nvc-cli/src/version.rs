//! Prints the version and the build information.

/// Returns the output of `--version`.
pub(crate) fn text() -> String {
    format!(
        "\
cli-version: {}
lib-version: {}
build date: {}
build revision: {}
build compiler: {}
build platform: {}
build flags: {}
",
        env!("CARGO_PKG_VERSION"),
        libnvc::VERSION,
        env!("NVC_BUILD_DATE"),
        env!("NVC_BUILD_REVISION"),
        env!("NVC_BUILD_COMPILER"),
        std::env::consts::ARCH,
        env!("NVC_BUILD_FLAGS"),
    )
}
