//! Routes a request by its path, and rejects cross-site requests of browsers.

use std::net::IpAddr;
use std::sync::Arc;

use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, HOST, HeaderName,
    HeaderValue, ORIGIN, USER_AGENT,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode};
use libnvc::printable;
use libnvc::{Error, ErrorKind, Result};

use super::answer::{Answer, JSON, NOT_FOUND_TEXT, of_type, text};
use super::query::unescaped;
use super::{cli, info, metrics, status, v2};
use crate::log_line::log_error;
use crate::plugin::gpus::Gpus;

/// The host that upstream's wrapper names.
const WRAPPERS_NAME: &str = "plugin";

/// The headers of upstream's wrapper, a Go program that sets none itself, and those of a connection.
const WRAPPERS_HEADERS: [HeaderName; 5] = [
    HOST,
    USER_AGENT,
    ACCEPT_ENCODING,
    CONNECTION,
    CONTENT_LENGTH,
];

/// The status page, with its style and script.
const PAGE: &str = include_str!("page.html");

/// The page's content policy: only its own style, script and data.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                      frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// The REST interface.
#[derive(Debug)]
pub(crate) struct Rest {
    gpus: Arc<Gpus>,
    hosts: Vec<String>,
}

impl Rest {
    /// Serves these GPUs to browsers that use one of these names for this machine.
    pub(crate) fn new(gpus: Arc<Gpus>, hosts: Vec<String>) -> Self {
        Self { gpus, hosts }
    }

    pub(crate) async fn answer(&self, request: &Parts) -> Answer {
        if !is_allowed(&request.headers, request.uri.host(), &self.hosts) {
            return text(
                StatusCode::FORBIDDEN,
                "this page is not for other sites; -allow-host NAME names this machine\n",
            );
        }
        let Some(path) = unescaped(request.uri.path(), false) else {
            return text(StatusCode::BAD_REQUEST, "malformed path\n");
        };
        if request.method != Method::GET {
            return not_found();
        }
        let query = request.uri.query().unwrap_or_default();
        let plain = path
            .strip_prefix("/v1.0")
            .filter(|rest| rest.starts_with('/'));
        let answer = match plain.unwrap_or(&path) {
            "/gpu/info" => self.info(false).await,
            "/gpu/info/json" => self.info(true).await,
            "/gpu/status" => self.status(false).await,
            "/gpu/status/json" => self.status(true).await,
            "/docker/cli" => return self.docker_cli(query, false).await,
            "/docker/cli/json" => return self.docker_cli(query, true).await,
            "/mesos/cli" => self.mesos_cli().await,
            _ if plain.is_some() => return not_found(),
            "/" => return page(),
            "/v2" => self
                .gpus
                .state()
                .await
                .map(|state| of_type(StatusCode::OK, JSON, v2::document(&state))),
            "/metrics" => self
                .gpus
                .state()
                .await
                .map(|state| of_type(StatusCode::OK, metrics::TYPE, metrics::text(&state))),
            "/healthz" => return self.health().await,
            _ => return not_found(),
        };
        answer.unwrap_or_else(|failure| {
            log_error(&failure);
            text(StatusCode::INTERNAL_SERVER_ERROR, line(&failure))
        })
    }

    async fn info(&self, is_json: bool) -> Result<Answer> {
        let facts = self.gpus.facts().await?;
        Ok(if is_json {
            of_type(StatusCode::OK, JSON, info::json(&facts)?)
        } else {
            text(StatusCode::OK, info::text(&facts)?)
        })
    }

    async fn status(&self, is_json: bool) -> Result<Answer> {
        let state = self.gpus.state().await?;
        for (gpu, status) in state.facts.gpus.iter().zip(state.status.iter()) {
            if let Err(words) = status {
                log_error(&Error::new(
                    ErrorKind::DriverFailed,
                    format!("{}: {words}", gpu.uuid),
                ));
            }
        }
        Ok(if is_json {
            of_type(StatusCode::OK, JSON, status::json(&state))
        } else {
            text(StatusCode::OK, status::text(&state))
        })
    }

    /// Here every failure is reported to the client.
    async fn docker_cli(&self, query: &str, is_json: bool) -> Answer {
        let options = match self.gpus.facts().await {
            Ok(facts) => cli::Options::new(&facts, query),
            Err(failure) => Err(failure),
        };
        match options {
            Ok(options) if is_json => of_type(StatusCode::OK, JSON, options.json()),
            Ok(options) => text(StatusCode::OK, options.text()),
            Err(failure) => text(StatusCode::BAD_REQUEST, line(&failure)),
        }
    }

    async fn mesos_cli(&self) -> Result<Answer> {
        let facts = self.gpus.facts().await?;
        Ok(text(StatusCode::OK, cli::mesos(&facts)?))
    }

    async fn health(&self) -> Answer {
        let facts = self.gpus.facts().await;
        match facts.and_then(|facts| Ok(facts.versions.driver?)) {
            Ok(_) => text(StatusCode::OK, "ok\n"),
            Err(failure) => text(StatusCode::SERVICE_UNAVAILABLE, line(&failure)),
        }
    }
}

/// Returns true if a request comes from a program, or from a page of this machine.
///
/// A page of another site can make its name resolve to this machine's address (DNS rebinding) and then request
/// anything, but its requests carry that name. Requests by address cannot be forged this way. The name `plugin` is one
/// that others on the local network can answer for, so it counts only in a request like upstream's wrapper's.
pub(crate) fn is_allowed(headers: &HeaderMap, in_target: Option<&str>, hosts: &[String]) -> bool {
    let of_header = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    let mut named = headers.get_all(HOST).iter();
    // Absent in HTTP/1.0, which no current browser uses.
    let (first, second) = (named.next(), named.next());
    if second.is_some() {
        return false;
    }
    let is_like_the_wrapper = is_like_the_wrapper(headers);
    let is_ours = |host: Option<String>| {
        host.is_some_and(|host| match without_port(&host) {
            WRAPPERS_NAME => is_like_the_wrapper,
            name => is_ours(name, hosts),
        })
    };
    if first.is_some_and(|host| !is_ours(of_header(host))) {
        return false;
    }
    if in_target.is_some_and(|host| !is_ours(Some(host.to_owned()))) {
        return false;
    }
    let is_cross_site = |value: &HeaderValue| value == "cross-site" || value == "same-site";
    if headers.get("sec-fetch-site").is_some_and(is_cross_site) {
        return false;
    }
    match (
        headers.get(ORIGIN).map(of_header),
        first.and_then(of_header),
    ) {
        (None, _) => true,
        (Some(Some(origin)), Some(host)) => {
            origin == format!("http://{host}") || origin == format!("https://{host}")
        }
        _ => false,
    }
}

/// Returns true if a request has no header that upstream's wrapper does not send.
///
/// A browser always sends Accept, and a page cannot remove it. Nothing else identifies a browser here: Sec-Fetch
/// headers are sent only to https and to localhost, and Origin is not sent when a page reads its own site.
fn is_like_the_wrapper(headers: &HeaderMap) -> bool {
    headers.keys().all(|name| WRAPPERS_HEADERS.contains(name))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|b| b.is_ascii_digit())
                && (!name.contains(':') || name.ends_with(']')) =>
        {
            name
        }
        _ => host,
    }
}

fn is_ours(name: &str, hosts: &[String]) -> bool {
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let is_local = |name: &str| {
        let name = name.strip_suffix('.').unwrap_or(name);
        name.eq_ignore_ascii_case("localhost")
            || name.len() > 10 && name.to_ascii_lowercase().ends_with(".localhost")
    };
    is_local(name)
        || bare.parse::<IpAddr>().is_ok()
        || hosts.iter().any(|host| host.eq_ignore_ascii_case(name))
}

/// Returns a failure as a line for a client that prints it.
fn line(failure: &Error) -> String {
    format!("{}\n", printable(&failure.message()))
}

fn not_found() -> Answer {
    text(StatusCode::NOT_FOUND, NOT_FOUND_TEXT)
}

fn page() -> Answer {
    let mut answer = of_type(StatusCode::OK, "text/html; charset=utf-8", PAGE);
    let policy = HeaderValue::from_static(POLICY);
    answer.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    answer
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn allowed(headers: &[(&'static str, &str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        is_allowed(
            &map,
            None,
            &["node7".to_owned(), "node7.example.org".to_owned()],
        )
    }

    #[test]
    fn hosts() {
        for host in [
            "localhost",
            "localhost:3476",
            "LOCALHOST:3476",
            "a.localhost",
            "127.0.0.1:3476",
            "10.1.2.3",
            "[::1]:3476",
            "[::1]",
            "plugin",
            "node7:3476",
            "Node7.example.org",
        ] {
            assert!(allowed(&[("host", host)]), "{host}");
        }
        for host in [
            "evil.example.org",
            "localhost.evil.org",
            "127.0.0.1.evil.org",
            "node7.evil.org:3476",
            "plugin.evil.org",
            "",
            "localhost:3476:1",
            "xlocalhost",
        ] {
            assert!(!allowed(&[("host", host)]), "{host}");
        }
        assert!(allowed(&[]));
        assert!(!allowed(&[("host", "localhost"), ("host", "evil.org")]));
    }

    const GO: (&str, &str) = ("user-agent", "Go-http-client/1.1");

    const FIREFOX: (&str, &str) = (
        "user-agent",
        "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    );

    const GZIP: (&str, &str) = ("accept-encoding", "gzip, deflate");

    const KEEP: (&str, &str) = ("connection", "keep-alive");

    /// Another machine of the network can answer for a name of one label.
    #[test]
    fn the_wrappers_name_is_not_for_browsers() {
        let language = ("accept-language", "en-US,en;q=0.5");
        for host in ["plugin", "plugin:3476"] {
            let host = ("host", host);
            for accept in [
                // A page, its fetch(), an image, an event source.
                "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
                "*/*",
                "image/avif,image/webp,image/png,image/svg+xml,image/*;q=0.8,*/*;q=0.5",
                "text/event-stream",
            ] {
                let accept = ("accept", accept);
                assert!(!allowed(&[host, FIREFOX, accept, language, GZIP, KEEP]));
                assert!(!allowed(&[host, accept]), "{accept:?}");
            }
            for header in [
                language,
                ("origin", "http://plugin:3476"),
                ("referer", "http://plugin:3476/"),
                ("upgrade-insecure-requests", "1"),
                ("cache-control", "no-cache"),
                ("cookie", "a=b"),
                ("sec-fetch-site", "same-origin"),
                ("sec-fetch-mode", "navigate"),
                ("sec-websocket-version", "13"),
            ] {
                assert!(!allowed(&[host, header]), "{header:?}");
            }
        }
        let mut browser = HeaderMap::new();
        browser.insert("accept", HeaderValue::from_static("*/*"));
        assert!(!is_allowed(&browser, Some("plugin"), &[]));
    }

    #[test]
    fn the_wrappers_name_is_for_go_clients() {
        for host in ["plugin", "plugin:3476"] {
            let host = ("host", host);
            let gzip = ("accept-encoding", "gzip");
            assert!(allowed(&[host]));
            assert!(allowed(&[host, GO, gzip]));
            assert!(allowed(&[host, GO, gzip, KEEP]));
            assert!(allowed(&[host, GO, ("content-length", "0")]));
        }
        assert!(is_allowed(&HeaderMap::new(), Some("plugin"), &[]));
    }

    #[test]
    fn origins() {
        let here = ("host", "localhost:3476");
        assert!(allowed(&[here, ("origin", "http://localhost:3476")]));
        for origin in ["http://evil.org", "null", "http://localhost:80"] {
            assert!(!allowed(&[here, ("origin", origin)]), "{origin}");
        }
        for (site, expected) in [
            ("same-origin", true),
            ("none", true),
            ("cross-site", false),
            ("same-site", false),
        ] {
            assert_eq!(allowed(&[here, ("sec-fetch-site", site)]), expected);
        }
    }
}
