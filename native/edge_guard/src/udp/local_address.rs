//! Local address of a datagram: the address at which it arrived, and from which the reply is sent.
//!
//! Needed only for sockets that are bound to a wildcard address. There, the kernel could send the reply from another
//! address, and the player would ignore it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, RawFd};

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LocalAddress {
    pub address: IpAddr,
    /// Interface index of a link-local IPv6 address, else 0.
    pub interface: u32,
}

pub const CONTROL_BYTES: usize = 72;

#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct ControlBuffer([u8; CONTROL_BYTES]);

impl ControlBuffer {
    pub const fn new() -> Self {
        Self([0; CONTROL_BYTES])
    }

    pub fn start(&mut self) -> *mut libc::c_void {
        self.0.as_mut_ptr().cast()
    }
}

pub fn is_wildcard(address: IpAddr) -> bool {
    address.to_canonical().is_unspecified()
}

pub fn request_destination_address(socket: &impl AsRawFd) {
    let fd = socket.as_raw_fd();
    // On an IPv6 socket, only the IPv4 form has the address that can answer a broadcast.
    enable_option(fd, libc::IPPROTO_IP, libc::IP_PKTINFO);
    // Fails on an IPv4 socket.
    enable_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO);
}

fn enable_option(fd: RawFd, level: libc::c_int, option: libc::c_int) {
    let on: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option is an int, and the descriptor is open.
    unsafe { libc::setsockopt(fd, level, option, (&raw const on).cast(), length) };
}

/// Returns the local address at which a message arrived, or `None` if the address is unknown or multicast.
///
/// # Safety
///
/// The kernel must have filled `message`, and its control buffer must be unchanged.
pub unsafe fn read(message: &libc::msghdr) -> Option<LocalAddress> {
    // SAFETY: guaranteed by the caller: each header lies within the written length.
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

/// Returns the local address in a control message, if it contains one.
///
/// # Safety
///
/// `header` must point to a control message that contains data of its type.
unsafe fn read_one(header: *const libc::cmsghdr) -> Option<LocalAddress> {
    // SAFETY: guaranteed by the caller.
    let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
    match (level, kind) {
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            // SAFETY: guaranteed by the caller.
            let info: libc::in_pktinfo = unsafe { libc::CMSG_DATA(header).cast::<libc::in_pktinfo>().read_unaligned() };
            let address = Ipv4Addr::from(u32::from_be(info.ipi_spec_dst.s_addr));
            // Unspecified for a datagram that arrived before the request.
            (!address.is_unspecified()).then_some(LocalAddress { address: address.into(), interface: 0 })
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
            // SAFETY: guaranteed by the caller.
            let info = unsafe { libc::CMSG_DATA(header).cast::<libc::in6_pktinfo>().read_unaligned() };
            let address = Ipv6Addr::from(info.ipi6_addr.s6_addr);
            let interface = if address.is_unicast_link_local() { info.ipi6_ifindex } else { 0 };
            let is_assigned = !address.is_multicast() && address.to_ipv4_mapped().is_none();
            is_assigned.then_some(LocalAddress { address: address.into(), interface })
        }
        _ => None,
    }
}

impl LocalAddress {
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
    // SAFETY: the buffer is aligned for a header and fits the data, see above.
    unsafe {
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(size) as _;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(info);
        libc::CMSG_SPACE(size) as usize
    }
}
