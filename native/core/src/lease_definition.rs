//! Content of a port lease, and its encoding in events and images.

use crate::codec::{ApplyError, Reader, Writer};
use crate::command::{Id, LeasedPort, PortExposure, PortRequest, Protocol, SessionCounting};

/// Bit of a port's protocol byte: edge-guard sends a PROXY header to the process.
const PROXY_HEADER: u8 = 0x80;

/// Bits of a port's protocol byte: edge-guard counts sessions, and refuses those of an address without a slot.
const COUNTED: u8 = 0x40;
const REQUIRED: u8 = 0x20;

pub(crate) const BAD_LEASE: ApplyError = ApplyError::Malformed("a lease that does not fit the state");

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseDefinition {
    pub(crate) namespace: Id,
    pub(crate) region: Box<str>,
    /// True for a dynamic server, false for a lobby.
    pub(crate) is_server: bool,
    /// Numbers are 0 until the lease is bound to a node.
    pub(crate) ports: Vec<LeasedPort>,
}

impl LeaseDefinition {
    pub(crate) fn new(namespace: Id, region: &str, is_server: bool, requests: &[PortRequest<'_>]) -> LeaseDefinition {
        let ports = requests.iter().map(|port| LeasedPort {
            name: port.name.into(),
            protocol: port.protocol,
            exposure: port.exposure,
            sends_proxy_header: port.sends_proxy_header,
            counting: port.counting,
            backend: None,
        });
        LeaseDefinition { namespace, region: region.into(), is_server, ports: ports.collect() }
    }

    /// Returns protocol and number of each port with a number, in the order of the ports.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = (Protocol, u16)> {
        self.ports.iter().filter_map(|port| match port.exposure {
            PortExposure::Number(number) => Some((port.protocol, number)),
            PortExposure::Host | PortExposure::Range(..) => None,
        })
    }

    /// Sets the numbers of the ports that need one, in their order.
    pub(crate) fn set_numbers(&mut self, numbers: &[u16]) -> Result<(), ApplyError> {
        let mut left = numbers.iter();
        for port in &mut self.ports {
            if let PortExposure::Number(number) = &mut port.exposure {
                *number = *left.next().ok_or(BAD_LEASE)?;
            }
        }
        if left.next().is_none() { Ok(()) } else { Err(BAD_LEASE) }
    }
}

pub(crate) fn encode_lease(w: &mut Writer<'_>, lease: &LeaseDefinition) {
    w.id(lease.namespace);
    w.short_bytes(lease.region.as_bytes());
    w.flag(lease.is_server);
    w.u16(lease.ports.len() as u16);
    for port in &lease.ports {
        w.short_bytes(port.name.as_bytes());
        let counting = match port.counting {
            SessionCounting::Uncounted => 0,
            SessionCounting::Compared => REQUIRED,
            SessionCounting::Counted => COUNTED,
            SessionCounting::Required => COUNTED | REQUIRED,
        };
        w.u8(port.protocol as u8 | counting | if port.sends_proxy_header { PROXY_HEADER } else { 0 });
        let (kind, first, last) = match port.exposure {
            PortExposure::Number(number) => (0, number, number),
            PortExposure::Host => (1, 0, 0),
            PortExposure::Range(first, last) => (2, first, last),
        };
        w.u8(kind);
        w.u16(first);
        w.u16(last);
    }
}

pub(crate) fn decode_lease(r: &mut Reader<'_>) -> Result<LeaseDefinition, ApplyError> {
    let (namespace, region, is_server) = (r.id()?, r.text()?.into(), r.flag()?);
    let mut ports = Vec::new();
    for _ in 0..r.u16()? {
        let name = r.text()?.into();
        let byte = r.u8()?;
        let sends_proxy_header = byte & PROXY_HEADER != 0;
        let counting = match (byte & COUNTED != 0, byte & REQUIRED != 0) {
            (false, false) => SessionCounting::Uncounted,
            (true, false) => SessionCounting::Counted,
            (true, true) => SessionCounting::Required,
            (false, true) => SessionCounting::Compared,
        };
        let protocol = Protocol::from_byte(byte & !(PROXY_HEADER | COUNTED | REQUIRED)).ok_or(BAD_LEASE)?;
        let (kind, first, last) = (r.u8()?, r.u16()?, r.u16()?);
        let exposure = match kind {
            0 => PortExposure::Number(first),
            1 => PortExposure::Host,
            2 => PortExposure::Range(first, last),
            _ => return Err(BAD_LEASE),
        };
        ports.push(LeasedPort { name, protocol, exposure, sends_proxy_header, counting, backend: None });
    }
    Ok(LeaseDefinition { namespace, region, is_server, ports })
}

pub(crate) fn encode_backends<'a>(
    w: &mut Writer<'_>,
    backends: impl ExactSizeIterator<Item = (&'a str, &'a str, u16)>,
) {
    w.u16(backends.len() as u16);
    for (name, address, port) in backends {
        w.short_bytes(name.as_bytes());
        w.short_bytes(address.as_bytes());
        w.u16(port);
    }
}

pub(crate) fn decode_backends<'a>(r: &mut Reader<'a>) -> Result<Vec<(&'a str, &'a str, u16)>, ApplyError> {
    (0..r.u16()?).map(|_| Ok((r.text()?, r.text()?, r.u16()?))).collect()
}
