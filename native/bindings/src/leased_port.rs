//! Python class of a leased port.

use hosting_core as core;
use hosting_core::{PortExposure, Protocol, SessionCounting};
use pyo3::prelude::*;

pub const PROTOCOLS: [(&str, Protocol); 6] = [
    ("http", Protocol::Http),
    ("https", Protocol::Https),
    ("tcp", Protocol::Tcp),
    ("tcp_tls", Protocol::TcpTls),
    ("udp", Protocol::Udp),
    ("tcp_udp", Protocol::TcpUdp),
];

#[pyclass(frozen, module = "pyservice._native")]
pub struct LeasedPort {
    #[pyo3(get)]
    pub name: String,
    pub protocol: Protocol,
    pub exposure: PortExposure,
    #[pyo3(get)]
    sends_proxy_header: bool,
    pub counting: SessionCounting,
    #[pyo3(get)]
    backend: Option<(String, u16)>,
    #[pyo3(get)]
    node: String,
    #[pyo3(get)]
    pub host: String,
}

#[pymethods]
impl LeasedPort {
    #[getter]
    fn protocol(&self) -> &'static str {
        protocol_word(self.protocol)
    }

    /// Public port number. 0 means that players use a host name or a port range, or that the port is not bound yet.
    #[getter]
    fn number(&self) -> u16 {
        if let PortExposure::Number(number) = self.exposure { number } else { 0 }
    }

    #[getter]
    fn counts_sessions(&self) -> bool {
        self.counting != SessionCounting::Uncounted
    }

    #[getter]
    fn requires_slot(&self) -> bool {
        self.counting == SessionCounting::Required
    }

    #[getter]
    fn range(&self) -> Option<(u16, u16)> {
        if let PortExposure::Range(first, last) = self.exposure { Some((first, last)) } else { None }
    }
}

impl LeasedPort {
    pub fn new(port: &core::LeasedPort, node: &core::LeaseNode) -> LeasedPort {
        LeasedPort {
            name: port.name.to_string(),
            protocol: port.protocol,
            exposure: port.exposure,
            sends_proxy_header: port.sends_proxy_header,
            counting: port.counting,
            backend: port.backend.as_ref().map(|backend| (backend.address.to_string(), backend.port)),
            node: node.name.to_string(),
            host: node.host.to_string(),
        }
    }

    pub fn all(leased: &core::LeasedPorts) -> Vec<LeasedPort> {
        leased.ports.iter().map(|port| LeasedPort::new(port, &leased.node)).collect()
    }
}

fn protocol_word(protocol: Protocol) -> &'static str {
    PROTOCOLS.iter().find(|(_, known)| *known == protocol).map_or("", |(name, _)| name)
}
