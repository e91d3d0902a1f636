//! Network isolation of a run: BPF programs on its control group of version 2.
//!
//! The programs belong to the group. They apply to each process in it, also after the end of the keeper, and end with
//! the group. A packet of a player takes no further step on its way, and the network of the machine stays unchanged.

mod assembler;
mod programs;
mod socket_limits;

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, TcpListener};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::str::FromStr;

use programs::Program;

/// Maximum number of rules. The jumps of a program reach over them.
const RULES_MAX: usize = 512;
const LICENSE: &CStr = c"Apache-2.0";
const MAP_CREATE: libc::c_int = 0;
const PROGRAM_LOAD: libc::c_int = 5;
const PROGRAM_ATTACH: libc::c_int = 8;
/// Attach flag: programs of a group below do not replace the program.
const ALLOW_MULTI: u32 = 2;
/// Port that no run has, because only root may bind it.
const FOREIGN_PORT: u16 = 1;
const HASH_MAP: u32 = 1;
/// Map flag: entries take memory only while they exist. A program cannot wait for memory, so its insertion can fail
/// below the limit.
const NO_PREALLOCATION: u32 = 1;
/// Bytes of a key: the cookie or the address of a socket.
const KEY_BYTES: u32 = 8;
/// Sockets of each own port that always have room: one for TCP and one for UDP.
const SOCKETS_OF_PORT: u32 = 2;
/// Maximum number of sockets with a buffer above the default of the kernel.
const ENLARGED_SOCKETS_MAX: u32 = 8;

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

    /// Attaches the programs to the control group of the run.
    pub fn apply(&self) -> io::Result<()> {
        let Some(path) = &self.group else { return Ok(()) };
        let group = File::open(path)?;
        let sets = SocketSets::create(self)?;
        for program in programs::all(self, &sets) {
            attach(&load(&program)?, &group, program.attachment)?;
        }
        Ok(())
    }

    /// Returns the limit, or the number of sockets that always have room on the own ports if that is larger.
    fn owned_max(&self) -> u32 {
        let count: u32 = self.own_ports.iter().map(|ports| u32::from(ports.end() - ports.start()) + 1).sum();
        self.own_port_sockets_max.max(SOCKETS_OF_PORT * count)
    }
}

/// Sets of counted sockets. Their sizes are the limits. The programs keep the maps.
struct SocketSets {
    /// Sockets that are not bound to an own port.
    clients: OwnedFd,
    owned: OwnedFd,
    accepted: OwnedFd,
    /// Sockets with a buffer above the default. The keys are addresses, because there is no cookie in `setsockopt`.
    enlarged: OwnedFd,
}

impl SocketSets {
    fn create(rules: &NetworkRules) -> io::Result<Self> {
        Ok(Self {
            clients: create_map(rules.sockets_max, 0)?,
            owned: create_map(rules.owned_max(), 0)?,
            // Without memory for an entry, the connection gets the smallest buffer.
            accepted: create_map(rules.connections_max, NO_PREALLOCATION)?,
            enlarged: create_map(ENLARGED_SOCKETS_MAX, 0)?,
        })
    }
}

/// Tests in a process of the group that the kernel enforces the rules. It does not if the process is in another group.
pub fn check_enforced() -> io::Result<()> {
    match TcpListener::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, FOREIGN_PORT)) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
        _ => Err(io::Error::other("the kernel does not apply the rules")),
    }
}

/// Start of `union bpf_attr` for `BPF_MAP_CREATE`.
#[repr(C)]
struct MapRequest {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
}

/// Start of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
#[derive(Default)]
struct LoadRequest {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attachment: u32,
}

/// Start of `union bpf_attr` for `BPF_PROG_ATTACH`.
#[repr(C)]
struct AttachRequest {
    target: u32,
    program: u32,
    attachment: u32,
    flags: u32,
}

fn create_map(entries_max: u32, flags: u32) -> io::Result<OwnedFd> {
    let request = MapRequest { kind: HASH_MAP, key_bytes: KEY_BYTES, value_bytes: KEY_BYTES, entries_max, flags };
    let descriptor = call(MAP_CREATE, &request)?;
    // SAFETY: the kernel has just created the descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn load(program: &Program) -> io::Result<OwnedFd> {
    let mut request = LoadRequest {
        kind: program.kind,
        instruction_count: program.code.len() as u32,
        instructions: program.code.as_ptr().expose_provenance() as u64,
        license: LICENSE.as_ptr().expose_provenance() as u64,
        expected_attachment: program.attachment,
        ..LoadRequest::default()
    };
    request.name[..program.name.len()].copy_from_slice(program.name.as_bytes());
    let descriptor = call(PROGRAM_LOAD, &request)?;
    // SAFETY: the kernel has just created the descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn attach(program: &OwnedFd, group: &File, attachment: u32) -> io::Result<()> {
    let request = AttachRequest {
        target: group.as_raw_fd() as u32,
        program: program.as_raw_fd() as u32,
        attachment,
        flags: ALLOW_MULTI,
    };
    call(PROGRAM_ATTACH, &request).map(drop)
}

fn call<Request>(command: libc::c_int, request: &Request) -> io::Result<libc::c_int> {
    // SAFETY: the request has the layout of the kernel, and what it points to outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *request, size_of::<Request>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
}
