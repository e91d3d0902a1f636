//! The address of this side: which one a datagram came to, and its answers go out from.
//!
//! Only a socket that is bound to all addresses is asked, by control messages (IP_PKTINFO, IPV6_PKTINFO): left to itself
//! the system answers from the address that it would give to a socket of its own, and a player may hear only the one
//! that it spoke to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, RawFd};

use serde::{Deserialize, Serialize};

/// An address of this machine that a player speaks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LocalAddress {
    /// The address: one of IPv4 as such, in whichever clothes it came.
    pub address: IpAddr,
    /// The number of its interface, which a link-local address of IPv6 is nothing without; 0 with any other.
    pub interface: u32,
}

/// Room for the control messages of one datagram: one of each family.
pub const CONTROL_BYTES: usize = 72;

/// Aligned as control messages have to be.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct ControlBuffer([u8; CONTROL_BYTES]);

impl ControlBuffer {
    /// Nothing.
    pub const fn new() -> Self {
        Self([0; CONTROL_BYTES])
    }

    /// Where it begins.
    pub fn start(&mut self) -> *mut libc::c_void {
        self.0.as_mut_ptr().cast()
    }
}

/// Whether a socket that is bound to this address has all of them.
pub fn is_wildcard(address: IpAddr) -> bool {
    address.to_canonical().is_unspecified()
}

/// Has the system tell of each datagram which address it came to. Where it does not, answers go out as it likes.
pub fn request_destination_address(socket: &impl AsRawFd) {
    let fd = socket.as_raw_fd();
    // What comes by IPv4 to a socket of IPv6 is told in the form of IPv4, too, which alone knows what to answer a
    // broadcast from.
    enable_option(fd, libc::IPPROTO_IP, libc::IP_PKTINFO);
    // A socket of IPv4 refuses this.
    enable_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO);
}

fn enable_option(fd: RawFd, level: libc::c_int, option: libc::c_int) {
    let on: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option is an int, which lives through the call; the descriptor is open.
    unsafe { libc::setsockopt(fd, level, option, (&raw const on).cast(), length) };
}

/// Which address a datagram came to. None: it was not told, or the address is none to answer from (multicast).
///
/// # Safety
/// The system has filled the message, and its control messages are still where it wrote them.
pub unsafe fn read(message: &libc::msghdr) -> Option<LocalAddress> {
    // SAFETY: the caller's promise: each header lies within what the system says that it wrote.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if let Some(local) = read_one(header) {
                return Some(local);
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
}

/// # Safety
/// There is a header, and data of its type follow it.
unsafe fn read_one(header: *const libc::cmsghdr) -> Option<LocalAddress> {
    // SAFETY: the caller's promise.
    let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
    match (level, kind) {
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            // SAFETY: the caller's promise.
            let info: libc::in_pktinfo = unsafe { libc::CMSG_DATA(header).cast::<libc::in_pktinfo>().read_unaligned() };
            let address = Ipv4Addr::from(u32::from_be(info.ipi_spec_dst.s_addr));
            // Not known of a datagram that came before it was asked for.
            (!address.is_unspecified()).then_some(LocalAddress { address: address.into(), interface: 0 })
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
            // SAFETY: the caller's promise.
            let info = unsafe { libc::CMSG_DATA(header).cast::<libc::in6_pktinfo>().read_unaligned() };
            let address = Ipv6Addr::from(info.ipi6_addr.s6_addr);
            let interface = if address.is_unicast_link_local() { info.ipi6_ifindex } else { 0 };
            let is_ours = !address.is_multicast() && address.to_ipv4_mapped().is_none();
            is_ours.then_some(LocalAddress { address: address.into(), interface })
        }
        _ => None,
    }
}

impl LocalAddress {
    /// Writes the control message that has a datagram go out from here; says how long it is.
    pub fn write(self, control: &mut ControlBuffer) -> usize {
        match self.address {
            IpAddr::V4(address) => {
                let ipi_spec_dst = libc::in_addr { s_addr: address.to_bits().to_be() };
                let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst, ipi_addr: libc::in_addr { s_addr: 0 } };
                put(control, libc::IPPROTO_IP, libc::IP_PKTINFO, info)
            }
            IpAddr::V6(address) => {
                let ipi6_addr = libc::in6_addr { s6_addr: address.octets() };
                let info = libc::in6_pktinfo { ipi6_addr, ipi6_ifindex: self.interface };
                put(control, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info)
            }
        }
    }
}

fn put<T: Copy>(control: &mut ControlBuffer, level: libc::c_int, kind: libc::c_int, info: T) -> usize {
    const { assert!(size_of::<libc::cmsghdr>() + size_of::<T>() <= CONTROL_BYTES) };
    let size = size_of::<T>() as u32;
    let header = control.start().cast::<libc::cmsghdr>();
    // SAFETY: the room is aligned for a header, which fits in with the data, as is seen above.
    unsafe {
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(size) as _;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(info);
        libc::CMSG_SPACE(size) as usize
    }
}
