//! Parses the command line and the environment.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use libnvc::{Error, ErrorKind, Result, request};
use nvc_options::node::{OPTIONS, PROGRAM};
use nvc_options::scan::{Scanned, URFAVE, scan};
use nvc_program::hints::nearest_option;

/// The driver's name. Its sockets, files and devices are called after it.
pub const DRIVER: &str = "gpu.nvidia.com";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub node: String,
    pub cdi_root: PathBuf,
    /// On the host.
    pub host_driver_root: String,
    /// As this process sees it.
    pub driver_root: PathBuf,
    pub hook: String,
    pub registrar: PathBuf,
    /// The kubelet's list of the devices of pods.
    pub pods: PathBuf,
    /// The directory of this driver among those of others.
    pub state: PathBuf,
    pub health_port: Option<u16>,
    pub ignored_xids: Vec<u64>,
    pub kubeconfig: Option<PathBuf>,
    pub debug: bool,
}

/// What a command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invocation {
    Serve(Box<Options>),
    /// Print a text and exit successfully.
    Print(String),
}

/// Reads the words after the program's name.
///
/// # Errors
/// An option is unknown or its value is invalid; the node's name is missing.
pub fn read(words: &[OsString], variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Invocation> {
    let Scanned {
        given,
        mistake,
        words: others,
        ..
    } = scan(&URFAVE, &[&OPTIONS], words);
    if let Some(mistake) = mistake {
        let known = OPTIONS.iter().filter(|opt| !opt.hidden);
        let known: Vec<_> = known.map(|opt| opt.long).collect();
        let near = nearest_option(&mistake.name.to_string_lossy(), &known);
        let hint = near.unwrap_or_else(|| format!("{PROGRAM} --help lists the options"));
        return Err(invalid(mistake.by_urfave()).hint(hint));
    }
    if let Some(word) = others.first() {
        return Err(invalid(format!("\"{}\" is no option", word.display())));
    }
    if given.flag("help") {
        return Ok(Invocation::Print(nvc_help::text(nvc_help::node(), &[])));
    }
    if given.flag("version") {
        let version = env!("CARGO_PKG_VERSION");
        return Ok(Invocation::Print(format!("{PROGRAM} {version}\n")));
    }
    let text = |name: &str| -> Result<String> {
        let opt = OPTIONS.iter().find(|opt| opt.long == name);
        let (names, default) = opt.map(|opt| (opt.env, opt.default)).unwrap_or_default();
        let of_environment = || names.iter().find_map(|name| variable(name));
        let value = given
            .last(name)
            .map(OsStr::to_owned)
            .or_else(of_environment);
        match value.filter(|value| !value.is_empty()) {
            None => Ok(default.to_owned()),
            Some(value) => value
                .into_string()
                .map_err(|value| invalid(format!("--{name} \"{}\" is not UTF-8", value.display()))),
        }
    };
    let directory = |name: &str| -> Result<PathBuf> {
        let path = text(name)?;
        if path.starts_with('/') {
            return Ok(path.into());
        }
        Err(invalid(format!(
            "--{name} \"{path}\" is not an absolute path"
        )))
    };
    let node = text("node-name")?;
    if node.is_empty() {
        let error = invalid("the name of the node is missing");
        return Err(error.hint("set NODE_NAME from spec.nodeName of the pod"));
    }
    let plugins = directory("kubelet-plugins-directory-path")?;
    let port = text("healthcheck-port")?;
    let port: i64 = port
        .parse()
        .map_err(|_| invalid(format!("--healthcheck-port \"{port}\" is not a number")))?;
    let xids = text("additional-xids-to-ignore")?;
    let xid = |word: &str| {
        word.parse()
            .map_err(|_| invalid(format!("the XID \"{word}\" is not a number")))
    };
    for gate in text("feature-gates")?.split(',') {
        if let Some(name) = gate.trim().strip_suffix("=true") {
            log::warn!("the feature gate {name} has no effect: this driver has no such feature");
        }
    }
    Ok(Invocation::Serve(Box::new(Options {
        node,
        cdi_root: directory("cdi-root")?,
        host_driver_root: directory("nvidia-driver-root")?
            .to_string_lossy()
            .into_owned(),
        driver_root: directory("container-driver-root")?,
        hook: text("nvidia-cdi-hook-path")?,
        registrar: directory("kubelet-registrar-directory-path")?,
        pods: plugins.with_file_name("pod-resources").join("kubelet.sock"),
        state: plugins.join(DRIVER),
        health_port: match port {
            ..0 => None,
            port => Some(
                u16::try_from(port)
                    .map_err(|_| invalid(format!("--healthcheck-port {port} is not a port")))?,
            ),
        },
        ignored_xids: request::names(&xids).map(xid).collect::<Result<_>>()?,
        kubeconfig: match &*text("kubeconfig")? {
            "" => None,
            _ => Some(directory("kubeconfig")?),
        },
        debug: text("v")?.parse::<u32>().is_ok_and(|level| level >= 5),
    })))
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn options(line: &str, environment: &[(&str, &str)]) -> Result<Invocation> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let variable = |name: &str| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        read(&words, &variable)
    }

    #[test]
    fn what_the_chart_says() {
        let environment = [
            ("NODE_NAME", "n1"),
            ("CDI_ROOT", "/var/run/cdi"),
            ("NVIDIA_DRIVER_ROOT", "/run/nvidia/driver"),
            ("HEALTHCHECK_PORT", "51516"),
            ("IMAGE_NAME", "x"),
            ("FEATURE_GATES", ""),
        ];
        // As the chart's command, and what klog has.
        let Ok(Invocation::Serve(options)) = options(
            "-v 6 --log-json-split-stream --additional-xids-to-ignore=13,14",
            &environment,
        ) else {
            panic!("refused");
        };
        assert_eq!(options.cdi_root, PathBuf::from("/var/run/cdi"));
        assert_eq!(options.driver_root, PathBuf::from("/driver-root"));
        assert_eq!(options.health_port, Some(51516));
        assert_eq!(options.ignored_xids, [13, 14]);
        assert_eq!(
            options.state,
            PathBuf::from("/var/lib/kubelet/plugins/gpu.nvidia.com")
        );
        assert!(options.debug);
    }

    #[test]
    fn mistakes_have_names() {
        for (line, said) in [
            ("", "the name of the node is missing"),
            ("--node-name=a x", "\"x\" is no option"),
            ("--cdi-rot=/x", "flag provided but not defined: -cdi-rot"),
            (
                "--node-name=a --cdi-root=x",
                "--cdi-root \"x\" is not an absolute path",
            ),
            (
                "--node-name=a --kubeconfig=x",
                "--kubeconfig \"x\" is not an absolute path",
            ),
            (
                "--node-name=a --healthcheck-port=70000",
                "--healthcheck-port 70000 is not a port",
            ),
        ] {
            assert_eq!(options(line, &[]).unwrap_err().message(), said);
        }
        let near = options("--cdi-rot=/x", &[]).unwrap_err().advice();
        assert_eq!(near.as_deref(), Some("did you mean --cdi-root?"));
    }
}
