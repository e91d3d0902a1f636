//! Settings: a JSON file whose problems are all reported at once. SIGHUP reloads certificates, limits and timeouts.

mod json_fields;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use json_fields::Fields;
use serde_json::Value;

use crate::address::{BackendAddress, IpNetwork};

#[derive(Debug, Clone)]
pub struct Config {
    pub folder: PathBuf,
    pub source: PathBuf,
    pub edge_id: String,
    /// Address for the ports of routes.
    pub bind: IpAddr,
    /// Address given to players. Also selects the certificate for clients without server name.
    pub advertised: String,
    pub http: Option<Listen>,
    pub https: Option<Listen>,
    pub certificates: Vec<Certificate>,
    pub backends: Vec<Backend>,
    /// Trusted proxies in front of edge-guard.
    pub proxies: Vec<IpNetwork>,
    /// Threads for TCP, and as many for UDP.
    pub workers: usize,
    pub nice: i8,
    pub limits: LimitSettings,
    pub timeouts: Timeouts,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    Address(SocketAddr),
    /// `fd:3`
    Inherited(i32),
}

#[derive(Debug, Clone)]
pub struct Certificate {
    pub server_names: Vec<String>,
    pub cert: PathBuf,
    pub key: PathBuf,
}

#[derive(Debug, Clone)]
pub struct Backend {
    /// `*.` stands for one label.
    pub hosts: Vec<String>,
    pub address: BackendAddress,
    pub proxy_protocol: bool,
}

#[derive(Debug, Clone)]
pub struct LimitSettings {
    pub connections: usize,
    pub connections_per_route: usize,
    /// IPv6: per /64.
    pub connections_per_address: usize,
    pub datagram_sessions: usize,
    pub datagram_sessions_per_route: usize,
    /// IPv6: per /64.
    pub datagram_sessions_per_address: usize,
    pub datagram_sessions_per_second: usize,
    pub head_bytes: usize,
}

#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    pub connect: Duration,
    pub handshake: Duration,
    /// From the first byte of a request's head.
    pub head: Duration,
    pub keep_alive: Duration,
    pub response: Duration,
    pub stream_idle: Duration,
    pub datagram_idle: Duration,
    /// After SIGTERM.
    pub drain: Duration,
    /// In a process that was replaced.
    pub replaced: Duration,
}

/// Forwarding takes microseconds, so it goes before the computation of game servers.
const NICE: i8 = -4;

impl Config {
    pub fn read(path: &Path) -> Result<Self, Vec<String>> {
        let text = std::fs::read_to_string(path).map_err(|error| vec![format!("{}: {error}", path.display())])?;
        Self::parse(&text)
    }

    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        let value: Value = serde_json::from_str(text).map_err(|error| vec![format!("not JSON: {error}")])?;
        let mut problems = Vec::new();
        let config = Self::from_value(value, &mut problems);
        if problems.is_empty() { Ok(config) } else { Err(problems) }
    }

    fn from_value(value: Value, problems: &mut Vec<String>) -> Self {
        let mut fields = Fields::new("", value, problems);
        let config = Self {
            folder: fields.path("folder"),
            source: fields.path("source"),
            edge_id: fields.text_or("edge_id", "local", 1..=64),
            bind: fields.parsed_or("bind", "an IP address", IpAddr::V4(Ipv4Addr::LOCALHOST)),
            advertised: fields.text_or("advertised", "127.0.0.1", 1..=253),
            http: fields.parsed("http", "an address and port, or fd:<number>"),
            https: fields.parsed("https", "an address and port, or fd:<number>"),
            certificates: fields.each("certificates", Certificate::from_fields),
            backends: fields.each("backends", Backend::from_fields),
            proxies: fields.all_parsed("proxies", "a network such as 10.0.0.0/8"),
            workers: fields.number_or("workers", cores(), 1..=256),
            nice: fields.nice_or("nice", NICE),
            limits: fields.inner("limits", LimitSettings::from_fields),
            timeouts: fields.inner("timeouts", Timeouts::from_fields),
        };
        if config.edge_id.is_empty() {
            fields.problem("edge_id", "must not be empty");
        }
        if config.https.is_some() && config.certificates.is_empty() {
            fields.problem("https", "needs at least one of certificates");
        }
        fields.end();
        config
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Inherited(number) => write!(f, "fd:{number}"),
        }
    }
}

impl std::str::FromStr for Listen {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.strip_prefix("fd:") {
            Some(number) => number.parse().ok().filter(|fd| *fd > 2).map(Self::Inherited).ok_or(()),
            None => text.parse().map(Self::Address).map_err(|_| ()),
        }
    }
}

impl Certificate {
    fn from_fields(fields: &mut Fields<'_>) -> Self {
        Self { server_names: fields.names("server_names"), cert: fields.path("cert"), key: fields.path("key") }
    }
}

const BACKEND: &str = "an address and port, or unix: and an absolute path of at most 107 bytes";

impl Backend {
    fn from_fields(fields: &mut Fields<'_>) -> Self {
        Self {
            hosts: fields.names("hosts"),
            address: fields.parsed_or("address", BACKEND, SocketAddr::from(([127, 0, 0, 1], 0)).into()),
            proxy_protocol: fields.truth_or("proxy_protocol", true),
        }
    }
}

impl LimitSettings {
    fn from_fields(fields: &mut Fields<'_>) -> Self {
        const MOST: usize = 10_000_000;
        Self {
            connections: fields.number_or("connections", 65_536, 1..=MOST),
            connections_per_route: fields.number_or("connections_per_route", 16_384, 1..=MOST),
            connections_per_address: fields.number_or("connections_per_address", 1_024, 1..=MOST),
            datagram_sessions: fields.number_or("datagram_sessions", 16_384, 1..=MOST),
            datagram_sessions_per_route: fields.number_or("datagram_sessions_per_route", 4_096, 1..=MOST),
            datagram_sessions_per_address: fields.number_or("datagram_sessions_per_address", 1_024, 1..=MOST),
            datagram_sessions_per_second: fields.number_or("datagram_sessions_per_second", 10_000, 1..=MOST),
            head_bytes: fields.number_or("head_bytes", 32_768, 8_192..=1_048_576),
        }
    }
}

impl Timeouts {
    fn from_fields(fields: &mut Fields<'_>) -> Self {
        const HOUR_MS: u64 = 3_600_000;
        Self {
            connect: fields.ms_or("connect_ms", 5_000),
            handshake: fields.ms_or("handshake_ms", 10_000),
            head: fields.ms_or("head_ms", 15_000),
            keep_alive: fields.ms_or("keep_alive_ms", 75_000),
            response: fields.ms_or("response_ms", 120_000),
            stream_idle: fields.ms_or("stream_idle_ms", 2 * HOUR_MS),
            datagram_idle: fields.ms_or("datagram_idle_ms", 60_000),
            drain: fields.ms_or("drain_ms", 10_000),
            replaced: fields.ms_or("replaced_ms", 24 * HOUR_MS),
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_and_source_are_the_only_required_settings() {
        let config = Config::parse(r#"{"folder": "/a", "source": "/b"}"#).unwrap();
        assert_eq!(config.bind, IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert_eq!(config.limits.datagram_sessions, 16_384);
        assert_eq!(config.limits.datagram_sessions_per_route, 4_096);
        assert_eq!(config.timeouts.connect, Duration::from_secs(5));
        assert!(config.workers >= 1);
        assert_eq!(config.nice, -4);
    }

    #[test]
    fn all_problems_are_reported_with_their_paths() {
        let text = r#"{"source": 7, "bind": "here", "nice": -21, "https": "127.0.0.1:443", "limits": {"connections": 0, "speed": 1},
            "certificates": [{"server_names": [], "cert": "/c"}],
            "backends": [{"hosts": ["a"], "address": "unix:a.sock"}],
            "timeouts": {"head_ms": "x"}, "proxies": ["10.0.0.0/99"]}"#;
        let problems = Config::parse(text).unwrap_err().join("\n");
        for place in [
            "folder: is required",
            "source: ",
            "bind: ",
            "nice: must be a number from -20 to 19",
            "limits.connections: ",
            "limits.speed: is not a setting",
            "certificates.0.server_names: ",
            "certificates.0.key: is required",
            "backends.0.address: ",
            "timeouts.head_ms: ",
            "proxies.0: ",
        ] {
            assert!(problems.contains(place), "no `{place}` in\n{problems}");
        }
    }

    #[test]
    fn https_without_a_certificate_is_refused() {
        let problems = Config::parse(r#"{"folder": "/a", "source": "/b", "https": "0.0.0.0:443"}"#).unwrap_err();
        assert_eq!(problems, ["https: needs at least one of certificates"]);
    }

    #[test]
    fn listener_can_be_an_inherited_descriptor() {
        assert_eq!("fd:3".parse(), Ok(Listen::Inherited(3)));
        assert_eq!("fd:1".parse::<Listen>(), Err(()), "the standard streams are nobody's listener");
    }
}
