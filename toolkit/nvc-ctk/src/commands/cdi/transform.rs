//! Changes the root of a specification's paths.

use std::fs::File;
use std::io;
use std::path::Path;

use libnvc::{Error, ErrorKind, Result};
use nvc_cdi::emit::{Format, text};
use nvc_cdi::transform::{Side, Transform};
use nvc_cdi::{MAX_SIZE, Spec, file, parse, validate, version};
use nvc_hostfile::{bounded, system};

use crate::commands::invalid;
use crate::line::CommandLine;
use crate::logging::print;

pub(in crate::commands) fn run(line: &CommandLine) -> Result<()> {
    let side = match line.text("relative-to") {
        "host" => Side::Host,
        "container" => Side::Container,
        other => return Err(invalid(format!("invalid --relative-to value: {other}"))),
    };
    let (from, to) = (line.text("from"), line.text("to"));
    if from != to && (from.is_empty() || to.is_empty()) {
        return Err(invalid("--from and --to must name a root").hint("the host's own root is /"));
    }
    let (input, output) = (line.text("input"), line.text("output"));
    let mut spec = parse(&read(input)?).map_err(|error| error.context(input))?;
    transform(&mut spec, &Transform::new(from, to, side))?;
    if output.is_empty() {
        return print(&text(&spec, Format::Yaml, None));
    }
    let (path, format) = file::output(Path::new(output), None);
    file::write(&path, &spec, format, None)
}

/// Transforms a specification, and gives it the version that it needs if it has none.
fn transform(spec: &mut Spec, transform: &Transform) -> Result<()> {
    transform.apply(spec)?;
    if spec.cdi_version.is_empty() {
        spec.cdi_version = version::minimum(spec).0.into();
    }
    validate::spec(spec).map_err(|error| error.context("invalid specification"))
}

fn read(input: &str) -> Result<Vec<u8>> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::FileTooLarge => Error::fault(ErrorKind::Malformed, input, error.to_string()),
        _ => system("open failed", input, &error),
    };
    let bytes = match input {
        "" | "-" => bounded(std::io::stdin(), MAX_SIZE),
        path => File::open(path).and_then(|file| bounded(file, MAX_SIZE)),
    };
    bytes.map_err(failed)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Another user's file may have any size.
    #[test]
    fn no_more_is_read_than_is_parsed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 40).unwrap();
        let error = read(file.path().to_str().unwrap()).unwrap_err().message();
        assert!(error.contains("larger than 32 MiB"), "{error}");
    }

    #[test]
    fn a_specification_may_have_no_version() {
        let to_y = Transform::new("/x", "/y", Side::Host);
        let with = |start: &str| {
            let text = "kind: v.com/cc\ndevices:\n- name: d\n  containerEdits:\n    deviceNodes:\n    \
                        - path: /dev/d\n      hostPath: /x/dev/d\n";
            let mut spec = parse(format!("{start}{text}").as_bytes()).unwrap();
            transform(&mut spec, &to_y).map(|()| spec)
        };
        for start in ["", "cdiVersion: \"\"\n"] {
            let spec = with(start).unwrap();
            assert_eq!(spec.cdi_version, "0.5.0");
            assert_eq!(
                spec.devices[0].container_edits.device_nodes[0].host_path,
                "/y/dev/d"
            );
        }
        assert!(with("cdiVersion: 0.3.0\n").is_err());
    }
}
