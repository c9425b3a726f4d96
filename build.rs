//! What the C library says about its build: the same as the command line.

use nvc_build::Fact;

fn main() {
    nvc_build::set(&[Fact::Date, Fact::Revision, Fact::Compiler, Fact::Flags]);
}
