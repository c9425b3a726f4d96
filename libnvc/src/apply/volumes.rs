//! Keeps the files of volumes as they are: decides with whose rights a file may be created in a directory.

pub(super) mod authority;
pub(super) mod opened;
pub(super) mod rights;
