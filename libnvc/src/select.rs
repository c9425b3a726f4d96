//! Chooses devices.
