//! Parses the plugin's address from NV_HOST, or else DOCKER_HOST.
//!
//! The grammar is upstream's: scheme, user, host, ssh port, a colon, http port. A single port is the http port.

use libnvc::{Error, ErrorKind, Result};

const HTTP_PORT: u16 = 3476;
const SSH_PORT: u16 = 22;

/// The plugin's location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PluginHost {
    /// This machine: the plugin is not needed.
    Here,
    /// At an address.
    Http { host: String, port: u16 },
    /// Behind an ssh server, at a port of its own machine.
    Ssh {
        user: Option<String>,
        host: String,
        ssh_port: u16,
        port: u16,
    },
}

/// Parses the two variables; an empty one counts as unset.
///
/// # Errors
/// `invalid remote host URI`.
pub(super) fn place(nv_host: Option<&str>, docker_host: Option<&str>) -> Result<PluginHost> {
    let set = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
    match (set(nv_host), set(docker_host)) {
        (Some(text), _) => parse(&text, false).ok_or_else(|| invalid("NV_HOST", &text)),
        (None, Some(text)) => parse(&text, true).ok_or_else(|| {
            invalid("DOCKER_HOST", &text).hint(format!(
                "DOCKER_HOST is \"{text}\"; if docker accepts it, set NV_HOST to \
                 http://HOST:PORT or ssh://USER@HOST:SSH_PORT:PORT of the plugin"
            ))
        }),
        (None, None) => Ok(PluginHost::Here),
    }
}

fn invalid(variable: &str, text: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, "invalid remote host URI").hint(format!(
        "{variable} is \"{text}\"; it should be [http://][HOST]:[PORT] or ssh://[USER@][HOST][:SSH_PORT]:[PORT]"
    ))
}

fn parse(text: &str, is_docker_host: bool) -> Option<PluginHost> {
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest))
            if !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_lowercase()) =>
        {
            (scheme, rest)
        }
        _ => ("tcp", text),
    };
    let is_ssh = match scheme {
        "unix" => return Some(PluginHost::Here),
        "tcp" | "http" => false,
        "ssh" => true,
        _ => return None,
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, _) = rest.split_at(end);
    let (user, address) = match authority.rsplit_once('@') {
        Some((user, address)) => (Some(user), address),
        None => (None, authority),
    };
    if !user.unwrap_or_default().chars().all(may_be_in_user) {
        return None;
    }
    let (host, ssh_port, port) = split_address(address)?;
    let host = match host {
        "" => "localhost".to_owned(),
        host => host.to_owned(),
    };
    let port = match port {
        Some(port) if is_ssh || !is_docker_host => port,
        _ => HTTP_PORT,
    };
    Some(if is_ssh {
        let user = user.map(|user| user.split(':').next().unwrap_or_default().to_owned());
        PluginHost::Ssh {
            user: user.filter(|user| !user.is_empty()),
            host,
            ssh_port: ssh_port.unwrap_or(SSH_PORT),
            port,
        }
    } else {
        PluginHost::Http { host, port }
    })
}

/// Splits host, ssh port and http port. The colon before the http port is required, unless both are missing.
fn split_address(address: &str) -> Option<(&str, Option<u16>, Option<u16>)> {
    if address.is_empty() {
        return Some(("", None, None));
    }
    let end = match address.strip_prefix('[') {
        Some(_) => address.find(']')? + 1,
        None => address.find(':')?,
    };
    let (host, ports) = address.split_at(end);
    let is_name = host
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
    let is_ipv6 = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .is_some_and(|host| {
            !host.is_empty()
                && host
                    .chars()
                    .all(|c| matches!(c, '0'..='9' | 'a'..='f' | ':' | '.'))
        });
    if !is_name && !is_ipv6 {
        return None;
    }
    let ports = ports.strip_prefix(':')?;
    match ports.split_once(':') {
        Some((ssh, http)) => Some((host, Some(number(ssh)??), number(http)?)),
        None => Some((host, None, number(ports)?)),
    }
}

/// Parses an optional port.
fn number(text: &str) -> Option<Option<u16>> {
    if text.is_empty() {
        return Some(None);
    }
    if !text.chars().all(|c| c.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().map(Some)
}

fn may_be_in_user(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(nv_host: Option<&str>, docker_host: Option<&str>) -> String {
        match place(nv_host, docker_host) {
            Ok(PluginHost::Here) => "local".into(),
            Ok(PluginHost::Http { host, port }) => format!("http {host}:{port}"),
            Ok(PluginHost::Ssh {
                user,
                host,
                ssh_port,
                port,
            }) => {
                let user = user.unwrap_or_else(|| "-".into());
                format!("ssh {user}@{host}:{ssh_port} {port}")
            }
            Err(failure) => failure.message(),
        }
    }

    const ERROR: &str = "invalid remote host URI";

    #[test]
    fn docker_host() {
        for (text, expected) in [
            ("unix:///var/run/docker.sock", "local"),
            ("10.0.0.1:", "http 10.0.0.1:3476"),
            ("tcp://10.0.0.1:2376", "http 10.0.0.1:3476"),
            ("http://h:99", "http h:3476"),
            ("10.0.0.1", ERROR),
            ("ssh://u@h", ERROR),
            ("ssh://u@h:22", "ssh u@h:22 22"),
            ("ssh://u@h:22:", "ssh u@h:22 3476"),
            ("https://h:99", ERROR),
            ("fd://", ERROR),
            ("npipe:////./pipe/x", ERROR),
            ("", "local"),
        ] {
            assert_eq!(read(None, Some(text)), expected, "{text}");
            assert_eq!(read(Some(""), Some(text)), expected, "{text}");
        }
        assert_eq!(read(None, None), "local");
    }

    #[test]
    fn nv_host() {
        for (text, expected) in [
            (":", "http localhost:3476"),
            ("http://", "http localhost:3476"),
            (":80", "http localhost:80"),
            ("http://10.0.0.1:22:80", "http 10.0.0.1:80"),
            ("ssh://", "ssh -@localhost:22 3476"),
            ("ssh://10.0.0.1:", "ssh -@10.0.0.1:22 3476"),
            ("ssh://foo@10.0.0.1:22:80", "ssh foo@10.0.0.1:22 80"),
            ("ssh://foo@10.0.0.1:2222", "ssh foo@10.0.0.1:22 2222"),
            ("ssh://foo@10.0.0.1:2222:", "ssh foo@10.0.0.1:2222 3476"),
            ("foo@10.0.0.1:", "http 10.0.0.1:3476"),
            ("tcp://h:1", "http h:1"),
            ("http://[::1]:80", "http [::1]:80"),
            ("http://h:80:", "http h:3476"),
            ("http://foo:bar@h:80/?p=q", "http h:80"),
            ("HTTP://h:80", "http HTTP:3476"),
            ("http://[::1]", ERROR),
            ("http://[FE80::1]:80", ERROR),
            ("h", ERROR),
            ("h:1:2:3", ERROR),
            ("h:http", ERROR),
            ("a b:80", ERROR),
            ("h:99999", ERROR),
            ("h::80", ERROR),
            ("unix:///x", "local"),
            ("-oProxyCommand=x@h:", "http h:3476"),
        ] {
            assert_eq!(read(Some(text), Some("tcp://z:2")), expected, "{text}");
        }
    }
}
