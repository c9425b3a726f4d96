//! Lists which of docker's options take a value.
//!
//! The tables cover docker 1.9 to 29: no option has ever changed in that respect. Unknown options are looked up in the
//! installed docker's own help.

use std::sync::LazyLock;

use nvc_options::table::opt;
use nvc_options::{Opt, Takes};

/// The position of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Before the command.
    Global,
    /// After `run` or `create`.
    Run,
}

const GLOBAL_FLAGS: &str = "D,debug h,help tls tlsverify v,version";
const GLOBAL_VALUES: &str = "H,host c,context config l,log-level tlscacert tlscert tlskey";

const RUN_FLAGS: &str = "\
    d,detach disable-content-trust help init i,interactive no-healthcheck oom-kill-disable privileged P,publish-all \
    q,quiet read-only rm sig-proxy t,tty use-api-socket";
const RUN_VALUES: &str = "\
    add-host annotation a,attach blkio-weight blkio-weight-device cap-add cap-drop cgroup-parent cgroupns cidfile \
    cpu-count cpu-percent cpu-period cpu-quota cpu-rt-period cpu-rt-runtime c,cpu-shares cpus cpuset-cpus cpuset-mems \
    detach-keys device device-cgroup-rule device-read-bps device-read-iops device-write-bps device-write-iops dns \
    dns-opt dns-option dns-search domainname entrypoint e,env env-file expose gpus group-add health-cmd \
    health-interval health-retries health-start-interval health-start-period health-timeout h,hostname io-maxbandwidth \
    io-maxiops ip ip6 ipc isolation kernel-memory l,label label-file link link-local-ip log-driver log-opt \
    mac-address m,memory memory-reservation memory-swap memory-swappiness mount name net net-alias network \
    network-alias oom-score-adj pid pids-limit platform p,publish pull restart runtime security-opt shm-size \
    stop-signal stop-timeout storage-opt sysctl tmpfs ulimit u,user userns uts v,volume volume-driver volumes-from \
    w,workdir";

static GLOBAL: LazyLock<Vec<Opt>> = LazyLock::new(|| table(GLOBAL_FLAGS, GLOBAL_VALUES));
static RUN: LazyLock<Vec<Opt>> = LazyLock::new(|| table(RUN_FLAGS, RUN_VALUES));

impl Scope {
    /// Returns the options that have been known when this program was made.
    pub(super) fn known(self) -> &'static [Opt] {
        match self {
            Self::Global => &GLOBAL,
            Self::Run => &RUN,
        }
    }
}

/// Makes options of names; a letter stands before the name that it belongs to.
fn table(flags: &'static str, values: &'static str) -> Vec<Opt> {
    let of = |names: &'static str, takes| {
        let names = names.split_ascii_whitespace();
        names.map(move |name| match name.split_once(',') {
            Some((letter, name)) => Opt {
                short: letter.chars().next(),
                ..opt(name, takes, "")
            },
            None => opt(name, takes, ""),
        })
    };
    of(flags, Takes::Flag)
        .chain(of(values, Takes::Value("")))
        .collect()
}

/// Returns true if an option takes a value, from the output of `docker --help` or `docker run --help`; None if that does
/// not list it.
///
/// Lines are `  -a, --attach list   What it is`: the word before the gap is the kind of value.
pub(super) fn in_help(help: &str, name: &str) -> Option<bool> {
    help.lines().find_map(|line| {
        let line = line.trim_start();
        let (names, _) = line.split_once("  ").unwrap_or((line, ""));
        let mut words = names.split_ascii_whitespace().peekable();
        let mut found = false;
        while let Some(word) = words.next_if(|word| word.starts_with('-')) {
            found |= word.trim_end_matches(',').trim_start_matches('-') == name;
        }
        found.then(|| words.next().is_some())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_once() {
        for scope in [Scope::Global, Scope::Run] {
            let known = scope.known();
            for one in known {
                let alike = |other: &&Opt| {
                    other.long == one.long || other.short.is_some() && other.short == one.short
                };
                assert_eq!(known.iter().filter(alike).count(), 1, "{}", one.long);
            }
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
            ("a", Some(true)),
            ("attach", Some(true)),
            ("blkio-weight", Some(true)),
            ("d", Some(false)),
            ("frobnicate", Some(false)),
            ("frob", None),
            ("", None),
        ] {
            assert_eq!(in_help(help, name), expected, "{name}");
        }
    }
}
