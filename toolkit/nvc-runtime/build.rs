//! The revision for `--version`, and how the program is linked.

fn main() {
    nvc_build::set(&[nvc_build::Fact::Revision]);
    nvc_build::link_compiler_runtime();
}
