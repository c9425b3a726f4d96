//! Keeps the files of volumes as they are: decides with whose rights a file may be created in a directory, and where it
//! goes if it may not.

pub(super) mod authority;
pub(super) mod decision;
pub(super) mod opened;
pub(super) mod redirect;
pub(super) mod rights;
