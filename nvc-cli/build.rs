//! What `--version` says about the build, and how the program is linked.

use nvc_build::Fact;

fn main() {
    nvc_build::set(&[Fact::Date, Fact::Revision, Fact::Compiler, Fact::Flags]);
    nvc_build::link_compiler_runtime();
}
