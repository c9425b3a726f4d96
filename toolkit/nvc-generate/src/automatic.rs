//! The result of mode auto, which finds out whether the GPUs are those of a Jetson.

use libnvc::Result;

use crate::csv;

/// What this machine gives in mode auto.
#[derive(Debug)]
pub enum Automatic<T> {
    Found(Box<T>),
    /// The GPUs are those of a Jetson's lists; this is its driver, with NVML's answers.
    Jetson(csv::Driver),
}

impl<T> Automatic<T> {
    pub(crate) fn found(found: T) -> Self {
        Self::Found(Box::new(found))
    }

    /// Converts what was found.
    pub(crate) fn and_then<U>(self, next: impl FnOnce(T) -> Result<U>) -> Result<Automatic<U>> {
        match self {
            Self::Found(found) => next(*found).map(Automatic::found),
            Self::Jetson(driver) => Ok(Automatic::Jetson(driver)),
        }
    }
}
