//! Refuses containers that ask for limits of GPU memory, which this version cannot set.
//!
//! Specifications of other versions name the hook for every GPU. Most containers ask for no limit; for them it does
//! nothing. One that does must not run without its limit.

use libnvc::{Error, ErrorKind, Result};
use nvc_oci::state::State;
use serde_json::Value;

use crate::report::Report;
use crate::state;

/// The variables that ask for limits.
const VARIABLES: [&str; 2] = ["NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"];

/// Returns an error if a container asks for limits; warns if its config.json cannot be read.
pub(crate) fn check(state: &State, report: &mut Report) -> Result<()> {
    let variable = state::config(state).and_then(|text| requested(&text));
    match variable {
        Ok(None) => Ok(()),
        Ok(Some(variable)) => {
            let error = Error::new(
                ErrorKind::InvalidArgument,
                "memory limits are not supported yet",
            );
            Err(error.hint(format!(
                "remove {variable} from the container's environment"
            )))
        }
        Err(error) => {
            report.warning(&format!("memory limits are unknown: {}", error.message()));
            Ok(())
        }
    }
}

/// Returns the first variable in a config.json's environment that asks for a limit.
fn requested(config: &[u8]) -> Result<Option<&'static str>> {
    let config: Value = serde_json::from_slice(config).map_err(|error| {
        Error::new(ErrorKind::Malformed, "config.json is not JSON").with_cause(error.to_string())
    })?;
    let environment = config.pointer("/process/env").and_then(Value::as_array);
    let entries = environment.into_iter().flatten().filter_map(Value::as_str);
    let names: Vec<&str> = entries
        .filter_map(|entry| entry.split('=').next())
        .collect();
    Ok(VARIABLES
        .into_iter()
        .find(|variable| names.contains(variable)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::report::Verbosity;
    use crate::state::parse;

    #[test]
    fn variables_are_found() {
        for (config, expected) in [
            ("{}", None),
            (r#"{"process": {"env": null}}"#, None),
            (
                r#"{"process": {"env": ["A=NVIDIA_GPU_MEMORY_LIMIT=1", 7]}}"#,
                None,
            ),
            (
                r#"{"process": {"env": ["NVIDIA_GPU_MEMORY_LIMITS=1"]}}"#,
                None,
            ),
            (
                r#"{"process": {"env": ["NVIDIA_GPU_MEMORY_LIMIT=512"]}}"#,
                Some(VARIABLES[1]),
            ),
            (
                r#"{"process": {"env": ["NVIDIA_GPU_MEMORY_REQUEST="]}}"#,
                Some(VARIABLES[0]),
            ),
        ] {
            assert_eq!(requested(config.as_bytes()).unwrap(), expected, "{config}");
        }
        assert!(requested(b"{").is_err());
    }

    #[test]
    fn only_a_request_fails() {
        let bundle = tempfile::tempdir().unwrap();
        let state = format!(r#"{{"bundle": "{}"}}"#, bundle.path().display());
        let state = parse(state.as_bytes()).unwrap();
        let mut report = Report::new(Verbosity::Quiet);
        assert!(check(&state, &mut report).is_ok(), "no config.json");
        let config = r#"{"process": {"env": ["NVIDIA_GPU_MEMORY_LIMIT=512"]}}"#;
        std::fs::write(bundle.path().join("config.json"), config).unwrap();
        let error = check(&state, &mut report).unwrap_err().message();
        assert!(
            error.contains("memory limits are not supported yet"),
            "{error}"
        );
    }
}
