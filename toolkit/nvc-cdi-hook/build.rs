//! How the program is linked: engines start it as root, with an environment that can be a container's.

fn main() {
    nvc_build::link_statically();
}
