//! Sockets of UDP sessions to their backends.
//!
//! Each session takes one ephemeral port of its local address, and the kernel has about 28,000 of them by default. Backends
//! on the loopback interface accept any address of 127.0.0.0/8 as a peer, so their sessions use several local addresses.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Number of local addresses, from 127.0.0.1 on.
const LOCAL_ADDRESSES: u8 = 8;

#[derive(Debug, Default)]
pub struct BackendSockets {
    /// Local address that last had a free port. The search is expensive in an address without one, about 0.2 ms.
    current: u8,
}

impl BackendSockets {
    pub fn connect(&mut self, backend: SocketAddr) -> io::Result<Arc<OwnedFd>> {
        if !matches!(backend, SocketAddr::V4(address) if address.ip().is_loopback()) {
            return connect(backend, None);
        }
        let first = self.current;
        loop {
            let local = Ipv4Addr::new(127, 0, 0, self.current + 1);
            match connect(backend, Some(local)) {
                Err(error) if is_out_of_ports(&error) => {
                    self.current = (self.current + 1) % LOCAL_ADDRESSES;
                    if self.current == first {
                        return Err(error);
                    }
                }
                result => return result,
            }
        }
    }
}

fn connect(backend: SocketAddr, local: Option<Ipv4Addr>) -> io::Result<Arc<OwnedFd>> {
    let socket = Socket::new(Domain::for_address(backend), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    if let Some(local) = local {
        socket.bind(&SockAddr::from(SocketAddr::from((local, 0))))?;
    }
    socket.connect(&SockAddr::from(backend))?;
    Ok(Arc::new(socket.into()))
}

/// Reports whether the local address has no free port. `bind` and `connect` report this by different errors.
pub fn is_out_of_ports(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EADDRINUSE | libc::EAGAIN))
}
