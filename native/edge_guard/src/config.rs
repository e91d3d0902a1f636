//! Settings of edge-guard, read from a JSON file. One check reports all problems of the file. SIGHUP reloads
//! certificates, limits and timeouts.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_path_to_error::Segment;

use crate::address::BackendAddress;

#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "an object")]
pub struct Config {
    #[serde(deserialize_with = "absolute_path")]
    pub folder: PathBuf,
    /// Unix socket of the data plane's `Routes` service.
    #[serde(deserialize_with = "absolute_path")]
    pub source: PathBuf,
    #[serde(deserialize_with = "text::<_, 64>")]
    pub edge_id: String,
    /// Local address on which the ports of routes are bound.
    #[serde(deserialize_with = "ip_address")]
    pub bind: IpAddr,
    /// Host of the player addresses. Also selects the certificate for TLS clients that send no server name.
    #[serde(deserialize_with = "text::<_, 253>")]
    pub advertised: String,
    #[serde(deserialize_with = "listen")]
    pub http: Option<Listen>,
    #[serde(deserialize_with = "listen")]
    pub https: Option<Listen>,
    #[serde(deserialize_with = "list")]
    pub certificates: Vec<Certificate>,
    #[serde(deserialize_with = "list")]
    pub backends: Vec<Backend>,
    /// Networks of trusted proxies in front of edge-guard.
    #[serde(deserialize_with = "list")]
    pub proxies: Vec<IpNet>,
    /// Whether the connections and UDP sessions of trusted proxies must begin with a PROXY header.
    pub proxy_header: ProxyHeader,
    /// Number of TCP threads, and also of UDP threads.
    #[serde(deserialize_with = "number::<_, usize, 1, 256>")]
    pub workers: usize,
    #[serde(deserialize_with = "number::<_, i8, -20, 19>")]
    pub nice: i8,
    /// Longest time without a response of the data plane in which new sessions begin. 0: any.
    #[serde(rename = "silence_ms", deserialize_with = "milliseconds_or_zero")]
    pub silence: Duration,
    pub limits: LimitSettings,
    pub timeouts: Timeouts,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProxyHeader {
    /// A connection may begin with a header. A datagram has none.
    #[default]
    Optional,
    Required,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    Address(SocketAddr),
    /// Inherited file descriptor, for example `fd:3`.
    Inherited(i32),
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "an object")]
pub struct Certificate {
    #[serde(deserialize_with = "host_names")]
    pub server_names: Vec<String>,
    #[serde(deserialize_with = "absolute_path")]
    pub cert: PathBuf,
    #[serde(deserialize_with = "absolute_path")]
    pub key: PathBuf,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "an object")]
pub struct Backend {
    /// Host names. A leading `*.` matches one label.
    #[serde(deserialize_with = "host_names")]
    pub hosts: Vec<String>,
    #[serde(deserialize_with = "backend_address")]
    pub address: BackendAddress,
    pub proxy_protocol: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "an object")]
pub struct LimitSettings {
    #[serde(deserialize_with = "limit")]
    pub connections: usize,
    #[serde(deserialize_with = "limit")]
    pub connections_per_route: usize,
    /// Maximum connections for each IPv4 address or IPv6 /64 network.
    #[serde(deserialize_with = "limit")]
    pub connections_per_address: usize,
    #[serde(deserialize_with = "limit")]
    pub datagram_sessions: usize,
    #[serde(deserialize_with = "limit")]
    pub datagram_sessions_per_route: usize,
    /// Maximum UDP sessions for each IPv4 address or IPv6 /64 network.
    #[serde(deserialize_with = "limit")]
    pub datagram_sessions_per_address: usize,
    #[serde(deserialize_with = "limit")]
    pub datagram_sessions_per_second: usize,
    /// Maximum packets and bytes from one player to one UDP port in a second.
    #[serde(deserialize_with = "limit")]
    pub datagram_session_packets_per_second: usize,
    #[serde(deserialize_with = "rate")]
    pub datagram_session_bytes_per_second: usize,
    /// Maximum packets and bytes from all players to one UDP port in a second.
    #[serde(deserialize_with = "limit")]
    pub datagram_port_packets_per_second: usize,
    #[serde(deserialize_with = "rate")]
    pub datagram_port_bytes_per_second: usize,
    #[serde(deserialize_with = "number::<_, usize, 8_192, 1_048_576>")]
    pub head_bytes: usize,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "an object")]
pub struct Timeouts {
    #[serde(rename = "connect_ms", deserialize_with = "milliseconds")]
    pub connect: Duration,
    #[serde(rename = "handshake_ms", deserialize_with = "milliseconds")]
    pub handshake: Duration,
    /// Longest time in which neither the client nor its server sends a byte on a new connection.
    #[serde(rename = "first_byte_ms", deserialize_with = "milliseconds")]
    pub first_byte: Duration,
    /// Timeout of a request header, from its first byte.
    #[serde(rename = "head_ms", deserialize_with = "milliseconds")]
    pub head: Duration,
    #[serde(rename = "keep_alive_ms", deserialize_with = "milliseconds")]
    pub keep_alive: Duration,
    /// Time that a player has for the next bytes of a response after it closed its sending side.
    #[serde(rename = "half_close_ms", deserialize_with = "milliseconds")]
    pub half_close: Duration,
    #[serde(rename = "response_ms", deserialize_with = "milliseconds")]
    pub response: Duration,
    #[serde(rename = "stream_idle_ms", deserialize_with = "milliseconds")]
    pub stream_idle: Duration,
    #[serde(rename = "datagram_idle_ms", deserialize_with = "milliseconds")]
    pub datagram_idle: Duration,
    /// Time that open connections have to end after SIGTERM.
    #[serde(rename = "drain_ms", deserialize_with = "milliseconds")]
    pub drain: Duration,
    /// Time that open connections have to end after a newer process has replaced this process.
    #[serde(rename = "replaced_ms", deserialize_with = "milliseconds")]
    pub replaced: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            folder: PathBuf::new(),
            source: PathBuf::new(),
            edge_id: "local".to_owned(),
            bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
            advertised: "127.0.0.1".to_owned(),
            http: None,
            https: None,
            certificates: Vec::new(),
            backends: Vec::new(),
            proxies: Vec::new(),
            proxy_header: ProxyHeader::default(),
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            nice: hosting_scheduling::NICE,
            silence: Duration::ZERO,
            limits: LimitSettings::default(),
            timeouts: Timeouts::default(),
        }
    }
}

impl Default for Backend {
    fn default() -> Self {
        Self { hosts: Vec::new(), address: SocketAddr::from(([127, 0, 0, 1], 0)).into(), proxy_protocol: true }
    }
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self {
            connections: 65_536,
            connections_per_route: 16_384,
            connections_per_address: 1_024,
            datagram_sessions: 16_384,
            datagram_sessions_per_route: 4_096,
            datagram_sessions_per_address: 1_024,
            datagram_sessions_per_second: 10_000,
            datagram_session_packets_per_second: 20_000,
            datagram_session_bytes_per_second: 25_000_000,
            datagram_port_packets_per_second: 200_000,
            datagram_port_bytes_per_second: 250_000_000,
            head_bytes: 32_768,
        }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        const HOUR_S: u64 = 3_600;
        Self {
            connect: Duration::from_secs(5),
            handshake: Duration::from_secs(10),
            first_byte: Duration::from_secs(10),
            head: Duration::from_secs(15),
            keep_alive: Duration::from_secs(75),
            half_close: Duration::from_secs(2),
            response: Duration::from_secs(120),
            stream_idle: Duration::from_secs(2 * HOUR_S),
            datagram_idle: Duration::from_secs(60),
            drain: Duration::from_secs(10),
            replaced: Duration::from_secs(24 * HOUR_S),
        }
    }
}

impl Config {
    /// Returns the networks from which UDP sessions must begin with a PROXY header.
    #[must_use]
    pub fn header_senders(&self) -> &[IpNet] {
        if self.proxy_header == ProxyHeader::Required { &self.proxies } else { &[] }
    }

    pub fn read(path: &Path) -> Result<Self, Vec<String>> {
        let text = std::fs::read_to_string(path).map_err(|error| vec![format!("{}: {error}", path.display())])?;
        Self::parse(&text)
    }

    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        let value = serde_json::from_str(text).map_err(|error| vec![format!("not JSON: {error}")])?;
        let mut problems = Problems::default();
        let Some(config): Option<Self> = problems.deserialize(value) else { return Err(problems.0) };
        config.check(&mut problems);
        if problems.0.is_empty() { Ok(config) } else { Err(problems.0) }
    }

    fn check(&self, problems: &mut Problems) {
        let mut require = |path: String, is_valid: bool, problem: &str| {
            if !is_valid && !problems.has(&path) {
                problems.add(&path, problem);
            }
        };
        let has_path = |path: &Path| !path.as_os_str().is_empty();
        require("folder".to_owned(), has_path(&self.folder), "is required");
        require("source".to_owned(), has_path(&self.source), "is required");
        for (index, Certificate { server_names, cert, key }) in self.certificates.iter().enumerate() {
            let path = format!("certificates.{index}");
            require(format!("{path}.server_names"), !server_names.is_empty(), "must name at least one");
            require(format!("{path}.cert"), has_path(cert), "is required");
            require(format!("{path}.key"), has_path(key), "is required");
        }
        for (index, backend) in self.backends.iter().enumerate() {
            require(format!("backends.{index}.hosts"), !backend.hosts.is_empty(), "must name at least one");
        }
        let has_certificates = self.https.is_none() || !self.certificates.is_empty();
        require("https".to_owned(), has_certificates, "needs at least one of certificates");
    }
}

/// Problems of the settings file, each with the path of its setting.
#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    fn add(&mut self, path: &str, problem: &str) {
        self.0.push(format!("{}: {problem}", if path.is_empty() { "settings" } else { path }));
    }

    /// Reports whether the setting at this path, or a setting inside it, has a problem.
    fn has(&self, path: &str) -> bool {
        let suffix = |problem: &String| problem.strip_prefix(path).map(|suffix| suffix.starts_with([':', '.']));
        self.0.iter().any(|problem| suffix(problem).unwrap_or(false))
    }

    /// Deserializes a value and reports all its errors. serde stops at the first error, so the faulty part is removed
    /// and the rest is deserialized again. Returns `None` if the faulty part cannot be removed.
    fn deserialize<T: DeserializeOwned>(&mut self, mut value: Value) -> Option<T> {
        self.remove_nulls(&mut value, "");
        loop {
            let error = match serde_path_to_error::deserialize(value.clone()) {
                Ok(config) => return Some(config),
                Err(error) => error,
            };
            let path: Vec<String> = error.path().iter().map(key_of).collect();
            let problem = error.inner().to_string();
            let is_unknown = problem.starts_with("unknown field");
            self.add(&path.join("."), if is_unknown { "is not a setting" } else { &problem });
            if !remove(&mut value, &path) {
                return None;
            }
        }
    }

    /// Reports each null as a problem, and removes null fields.
    fn remove_nulls(&mut self, value: &mut Value, path: &str) {
        // A null in a list stays. It marks an element with a reported problem, as in `remove`.
        let inner = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        match value {
            Value::Null => self.add(path, "must not be null"),
            Value::Array(all) => {
                for (index, each) in all.iter_mut().enumerate() {
                    self.remove_nulls(each, &inner(&index.to_string()));
                }
            }
            Value::Object(fields) => {
                for (name, each) in &mut *fields {
                    self.remove_nulls(each, &inner(name));
                }
                fields.retain(|_, each| !each.is_null());
            }
            _ => {}
        }
    }
}

fn key_of(segment: &Segment) -> String {
    match segment {
        Segment::Seq { index } => index.to_string(),
        Segment::Map { key } | Segment::Enum { variant: key } => key.clone(),
        Segment::Unknown => "?".to_owned(),
    }
}

fn remove(value: &mut Value, path: &[String]) -> bool {
    match (value, path) {
        (value, []) if !value.is_object() => {
            *value = Value::Object(serde_json::Map::new());
            true
        }
        (Value::Object(fields), [key]) => fields.remove(key).is_some(),
        (Value::Object(fields), [key, suffix @ ..]) => fields.get_mut(key).is_some_and(|inner| remove(inner, suffix)),
        (Value::Array(all), [key, suffix @ ..]) => {
            let Some(inner) = key.parse::<usize>().ok().and_then(|index| all.get_mut(index)) else { return false };
            if suffix.is_empty() {
                return !std::mem::replace(inner, Value::Null).is_null();
            }
            remove(inner, suffix)
        }
        _ => false,
    }
}

fn checked<'de, D: Deserializer<'de>, T>(
    from: D,
    expected: &str,
    check: impl FnOnce(Value) -> Option<T>,
) -> Result<T, D::Error> {
    let value = Value::deserialize(from)?;
    check(value).ok_or_else(|| D::Error::custom(format!("must be {expected}")))
}

fn parsed<'de, D: Deserializer<'de>, T: FromStr>(from: D, expected: &str) -> Result<T, D::Error> {
    checked(from, expected, |value| value.as_str()?.parse().ok())
}

fn absolute_path<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    checked(from, "an absolute path", |value| value.as_str().filter(|text| text.starts_with('/')).map(PathBuf::from))
}

fn text<'de, D: Deserializer<'de>, const BYTES_MAX: usize>(from: D) -> Result<String, D::Error> {
    let fits = |text: &&str| (1..=BYTES_MAX).contains(&text.len());
    checked(from, &format!("a text of 1 to {BYTES_MAX} bytes"), |value| value.as_str().filter(fits).map(str::to_owned))
}

fn ip_address<'de, D: Deserializer<'de>>(from: D) -> Result<IpAddr, D::Error> {
    parsed(from, "an IP address")
}

fn listen<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Listen>, D::Error> {
    parsed(from, "an address and port, or fd:<number>").map(Some)
}

fn backend_address<'de, D: Deserializer<'de>>(from: D) -> Result<BackendAddress, D::Error> {
    parsed(from, "an address and port, or unix: and an absolute path of at most 107 bytes")
}

fn number<'de, D: Deserializer<'de>, T: TryFrom<i64>, const LEAST: i64, const MOST: i64>(
    from: D,
) -> Result<T, D::Error> {
    let fits = |number: &i64| (LEAST..=MOST).contains(number);
    let expected = format!("a number from {LEAST} to {MOST}");
    checked(from, &expected, |value| value.as_i64().filter(fits)?.try_into().ok())
}

fn limit<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    number::<D, usize, 1, 10_000_000>(from)
}

fn rate<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    number::<D, usize, 65_536, 100_000_000_000>(from)
}

const DAYS_30: i64 = 30 * 24 * 3_600_000;

fn milliseconds<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    number::<D, u64, 1, DAYS_30>(from).map(Duration::from_millis)
}

fn milliseconds_or_zero<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    number::<D, u64, 0, DAYS_30>(from).map(Duration::from_millis)
}

fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    Ok(Vec::<Option<T>>::deserialize(from)?.into_iter().flatten().collect())
}

fn host_names<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(list::<D, HostName>(from)?.into_iter().map(|HostName(name)| name).collect())
}

struct HostName(String);

impl<'de> Deserialize<'de> for HostName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let fits = |text: &&str| (1..=253).contains(&text.len());
        checked(from, "a host name", |value| value.as_str().filter(fits).map(|text| Self(text.to_ascii_lowercase())))
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

impl FromStr for Listen {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.strip_prefix("fd:") {
            Some(number) => number.parse().ok().filter(|fd| *fd > 2).map(Self::Inherited).ok_or(()),
            None => text.parse().map(Self::Address).map_err(|_| ()),
        }
    }
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
        assert_eq!(config.proxy_header, ProxyHeader::Optional);
        assert_eq!(config.silence, Duration::ZERO, "a single machine serves without its data plane");
    }

    #[test]
    fn all_problems_are_reported_with_their_paths() {
        let text = r#"{"source": 7, "bind": "here", "nice": -21, "silence_ms": -1, "https": "127.0.0.1:443", "limits": {"connections": 0, "speed": 1},
            "certificates": [{"server_names": [], "cert": "/c"}],
            "backends": [{"hosts": ["a"], "address": "unix:a.sock"}],
            "timeouts": {"head_ms": "x"}, "proxies": ["10.0.0.0/99", "10.0.0.0/8", 7], "proxy_header": "maybe", "workers": null}"#;
        let problems = Config::parse(text).unwrap_err().join("\n");
        let count = problems.lines().count();
        let paths = [
            "folder: is required",
            "source: ",
            "bind: ",
            "nice: must be a number from -20 to 19",
            "silence_ms: must be a number from 0 to 2592000000",
            "limits.connections: ",
            "limits.speed: is not a setting",
            "workers: must not be null",
            "certificates.0.server_names: ",
            "certificates.0.key: is required",
            "backends.0.address: ",
            "timeouts.head_ms: ",
            "proxies.0: ",
            "proxies.2: ",
            "proxy_header: unknown variant `maybe`, expected `optional` or `required`",
        ];
        assert_eq!(count, paths.len(), "{problems}");
        for path in paths {
            assert!(problems.contains(path), "no `{path}` in\n{problems}");
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
        assert_eq!("fd:1".parse::<Listen>(), Err(()), "standard streams are refused");
    }
}
