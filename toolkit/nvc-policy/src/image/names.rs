//! Limits the number of device names in a request, before anything is done with them.
//!
//! An image chooses how long its lists are, and the host pays for each name: time, memory, messages, arguments. So names
//! are counted first, as they are written, duplicates included. Counting takes one pass over the text and no memory.
//! The functions that use the names are linear nevertheless (`cargo run --release -p nvc-policy --example growth`).

use libnvc::request::{MAX_NAMES, names};

use super::annotations::counts;
use super::devices::{IMEX_CHANNELS, VISIBLE_DEVICES};
use super::{Container, Error, Policy, mounts};

/// Variables that list devices.
const VARIABLES: [&str; 4] = [
    VISIBLE_DEVICES,
    IMEX_CHANNELS,
    super::MIG_CONFIG,
    super::MIG_MONITOR,
];

/// Checks every list of a container: variables, annotations and mounts, whether it counts or not.
///
/// # Errors
/// [`Error::TooManyNames`].
pub fn check(container: &Container, policy: &Policy) -> Result<(), Error> {
    let environment = &container.environment;
    for name in VARIABLES {
        at_most(|| name.into(), environment.get(name).map_or(0, count_names))?;
    }
    let swarm = policy.swarm_resources.iter();
    let number = swarm.filter_map(|name| environment.get(name).map(count_names));
    at_most(|| policy.swarm_resources.join(", "), number.sum())?;
    let annotations = container.annotations.iter();
    let number = annotations
        .filter(|(key, _)| counts(key, policy))
        .map(|(_, value)| count_names(value));
    at_most(|| "annotations".into(), number.sum())?;
    let number = mounts::number(&container.mounts);
    at_most(|| format!("mounts below {}", mounts::DIRECTORY), number)
}

/// Returns the number of names in a list.
fn count_names(list: &str) -> usize {
    names(list).count()
}

fn at_most(source: impl FnOnce() -> String, number: usize) -> Result<(), Error> {
    match number {
        0..=MAX_NAMES => Ok(()),
        number => Err(Error::TooManyNames {
            source: source(),
            number,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_names_do_not_count() {
        for (list, number) in [("", 0), (",, ,", 0), ("0,,0 ", 2), ("all", 1)] {
            assert_eq!(count_names(list), number, "{list}");
        }
    }
}
