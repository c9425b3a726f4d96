//! Lists which of docker's options take a value.
//!
//! The tables cover docker 1.9 to 29: no option has ever changed in that respect. Unknown options are looked up in the
//! installed docker's own help.

/// An option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    Nothing,
    Value,
}

/// The position of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Before the command.
    Global,
    /// After `run` or `create`.
    Run,
}

const GLOBAL_FLAGS: &str = "D debug h help tls tlsverify v version";
const GLOBAL_VALUES: &str = "H host c context config l log-level tlscacert tlscert tlskey";

const RUN_FLAGS: &str = "\
    d detach disable-content-trust help i init interactive no-healthcheck oom-kill-disable P privileged publish-all \
    q quiet read-only rm sig-proxy t tty use-api-socket";
const RUN_VALUES: &str = "\
    a add-host annotation attach blkio-weight blkio-weight-device c cap-add cap-drop cgroup-parent cgroupns cidfile \
    cpu-count cpu-percent cpu-period cpu-quota cpu-rt-period cpu-rt-runtime cpu-shares cpus cpuset-cpus cpuset-mems \
    detach-keys device device-cgroup-rule device-read-bps device-read-iops device-write-bps device-write-iops dns \
    dns-opt dns-option dns-search domainname e entrypoint env env-file expose gpus group-add h health-cmd \
    health-interval health-retries health-start-interval health-start-period health-timeout hostname io-maxbandwidth \
    io-maxiops ip ip6 ipc isolation kernel-memory l label label-file link link-local-ip log-driver log-opt m \
    mac-address memory memory-reservation memory-swap memory-swappiness mount name net net-alias network \
    network-alias oom-score-adj p pid pids-limit platform publish pull restart runtime security-opt shm-size \
    stop-signal stop-timeout storage-opt sysctl tmpfs u ulimit user userns uts v volume volume-driver volumes-from w \
    workdir";

/// Returns whether an option takes a value, by its name without dashes; None for an option newer than this program.
pub(super) fn known(scope: Scope, name: &str) -> Option<Takes> {
    let (flags, values) = match scope {
        Scope::Global => (GLOBAL_FLAGS, GLOBAL_VALUES),
        Scope::Run => (RUN_FLAGS, RUN_VALUES),
    };
    let has = |list: &str| list.split_ascii_whitespace().any(|word| word == name);
    if has(flags) {
        Some(Takes::Nothing)
    } else if has(values) {
        Some(Takes::Value)
    } else {
        None
    }
}

/// Returns the long name of a relevant option.
pub(super) fn long_name(scope: Scope, name: &str) -> &str {
    match (scope, name) {
        (Scope::Global, "H") => "host",
        (Scope::Global, "c") => "context",
        (Scope::Run, "e") => "env",
        _ => name,
    }
}

/// Returns whether an option takes a value, from the output of `docker --help` or `docker run --help`.
///
/// Lines are `  -a, --attach list   What it is`: the word before the gap is the kind of value.
pub(super) fn in_help(help: &str, name: &str) -> Option<Takes> {
    help.lines().find_map(|line| {
        let line = line.trim_start();
        let (names, _) = line.split_once("  ").unwrap_or((line, ""));
        let mut words = names.split_ascii_whitespace().peekable();
        let mut found = false;
        while let Some(word) = words.next_if(|word| word.starts_with('-')) {
            found |= word.trim_end_matches(',').trim_start_matches('-') == name;
        }
        match (found, words.next()) {
            (false, _) => None,
            (true, Some(_)) => Some(Takes::Value),
            (true, None) => Some(Takes::Nothing),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables() {
        assert_eq!(known(Scope::Run, "rm"), Some(Takes::Nothing));
        assert_eq!(known(Scope::Run, "p"), Some(Takes::Value));
        assert_eq!(known(Scope::Run, "H"), None);
        assert_eq!(known(Scope::Global, "H"), Some(Takes::Value));
        assert_eq!(known(Scope::Global, "rm"), None);
        for (flags, values) in [(GLOBAL_FLAGS, GLOBAL_VALUES), (RUN_FLAGS, RUN_VALUES)] {
            let mut values = values.split_ascii_whitespace();
            let both = values.find(|name| flags.split_ascii_whitespace().any(|flag| flag == *name));
            assert_eq!(both, None);
        }
    }

    #[test]
    fn help_texts() {
        let help = "\
Usage:  docker run [OPTIONS] IMAGE [COMMAND] [ARG...]

Options:
      --add-host list                  Add a custom host-to-IP mapping (host:ip)
  -a, --attach list                    Attach to STDIN, STDOUT or STDERR
      --blkio-weight uint16            Block IO (relative weight), between 10 and 1000
  -d, --detach                         Run container in background
      --frobnicate                     Frobnicates --attach
";
        for (name, expected) in [
            ("a", Some(Takes::Value)),
            ("attach", Some(Takes::Value)),
            ("blkio-weight", Some(Takes::Value)),
            ("d", Some(Takes::Nothing)),
            ("frobnicate", Some(Takes::Nothing)),
            ("frob", None),
            ("", None),
        ] {
            assert_eq!(in_help(help, name), expected, "{name}");
        }
    }
}
