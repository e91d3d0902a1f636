//! Rules of the network of one run.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

/// Maximum number of rules. The jumps of a program reach over them.
const RULES_MAX: usize = 512;
/// Sockets of each own port that always have room: one for TCP and one for UDP.
const SOCKETS_OF_PORT: u32 = 2;

/// A network, and the ports in it if the rule names any.
#[derive(Debug)]
pub struct Destination {
    pub address: IpAddr,
    pub prefix_bits: u8,
    pub ports: Option<RangeInclusive<u16>>,
}

impl FromStr for Destination {
    type Err = String;

    /// Parses `<address>/<prefix>`, with ` <port>` or ` <first>-<last>` if the rule names ports.
    fn from_str(text: &str) -> Result<Self, String> {
        let (network, ports) = text.split_once(' ').map_or((text, None), |(network, ports)| (network, Some(ports)));
        let parse = || {
            let (address, prefix) = network.split_once('/')?;
            let (address, prefix_bits): (IpAddr, u8) = (address.parse().ok()?, prefix.parse().ok()?);
            let ports = ports.map_or(Some(None), |ports| parse_ports(ports).ok().map(Some))?;
            let bits_max = if address.is_ipv4() { 32 } else { 128 };
            (prefix_bits <= bits_max).then_some(Self { address, prefix_bits, ports })
        };
        parse().ok_or_else(|| format!("{text:?} is no network"))
    }
}

pub fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse::<u16>(), last.parse::<u16>()) {
        (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(first..=last),
        _ => Err(format!("{text:?} is no port")),
    }
}

/// Rules of one run. An allowed destination is allowed even if it is in a refused network.
#[derive(Debug, Default)]
pub struct NetworkRules {
    /// Folder of the run's control group. `None`: the network is not isolated.
    pub group: Option<PathBuf>,
    /// Maximum number of IP sockets that are not bound to one of `own_ports`.
    pub sockets_max: u32,
    /// Maximum number of IP sockets that are bound to one of `own_ports`. More if the run has many ports.
    pub own_port_sockets_max: u32,
    /// Maximum number of TCP connections that the run has accepted, with those that wait to be accepted.
    pub connections_max: u32,
    /// Ports that the run may bind.
    pub own_ports: Vec<RangeInclusive<u16>>,
    pub allowed: Vec<Destination>,
    pub refused: Vec<Destination>,
    /// True if the run reaches all networks that are not refused.
    pub allows_others: bool,
}

impl NetworkRules {
    pub fn check(&self) -> Result<(), String> {
        let count = self.own_ports.len() + self.allowed.len() + self.refused.len();
        if self.group.is_some() && self.sockets_max == 0 {
            return Err("spec: network_group needs network_sockets_max above 0".to_owned());
        }
        if self.group.is_some() && self.own_port_sockets_max == 0 {
            return Err("spec: network_group needs network_own_port_sockets_max above 0".to_owned());
        }
        if self.group.is_some() && self.connections_max == 0 {
            return Err("spec: network_group needs network_connections_max above 0".to_owned());
        }
        if count > RULES_MAX { Err(format!("spec: more than {RULES_MAX} rules of the network")) } else { Ok(()) }
    }

    /// Returns the limit, or the number of sockets that always have room on the own ports if that is larger.
    pub fn owned_max(&self) -> u32 {
        let count: u32 = self.own_ports.iter().map(|ports| u32::from(ports.end() - ports.start()) + 1).sum();
        self.own_port_sockets_max.max(SOCKETS_OF_PORT * count)
    }
}
