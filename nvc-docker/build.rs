//! How the programs are linked.

fn main() {
    nvc_build::link_compiler_runtime();
}
