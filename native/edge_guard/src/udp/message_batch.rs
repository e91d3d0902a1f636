//! Batched datagrams: recvmmsg(2) and sendmmsg(2) with preallocated memory. Single datagrams use recv(2) and send(2),
//! which cost less.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;

use super::local_address::{self, ControlBuffer, LocalAddress};
use crate::proxy_protocol::ENCODED_BYTES_MAX;

pub const BATCH: usize = 64;

const DATAGRAM_BYTES_MAX: usize = 65_536;

/// Free bytes in front of each datagram, for a PROXY header.
const HEADER_BYTES_MAX: usize = ENCODED_BYTES_MAX;

/// Bytes of the buffer for each datagram, a multiple of a cache line.
const SLOT_BYTES: usize = (HEADER_BYTES_MAX + DATAGRAM_BYTES_MAX).next_multiple_of(64);

pub struct MessageBatch {
    bytes: Box<[u8]>,
    names: Box<[libc::sockaddr_storage; BATCH]>,
    controls: Box<[ControlBuffer; BATCH]>,
    locals: [Option<LocalAddress>; BATCH],
    lengths: [usize; BATCH],
    iovecs: Box<[libc::iovec; BATCH]>,
    messages: Box<[libc::mmsghdr; BATCH]>,
}

// SAFETY: its pointers lead into its own boxes.
unsafe impl Send for MessageBatch {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressInfo {
    Omitted,
    Sender,
    SenderAndLocal,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SendResult {
    pub datagrams: u64,
    pub bytes: u64,
    pub dropped: u64,
}

impl MessageBatch {
    pub fn new() -> Self {
        // SAFETY: plain data, for which zeroes are valid.
        let (names, iovecs, messages) =
            unsafe { (Box::new(std::mem::zeroed()), Box::new(std::mem::zeroed()), Box::new(std::mem::zeroed())) };
        let bytes = vec![0; BATCH * SLOT_BYTES].into();
        let controls = Box::new([ControlBuffer::new(); BATCH]);
        let (locals, lengths) = ([None; BATCH], [0; BATCH]);
        let mut batch = Self { bytes, names, controls, locals, lengths, iovecs, messages };
        for index in 0..BATCH {
            batch.set_header(index, &[]);
            let message = &mut batch.messages[index].msg_hdr;
            message.msg_iov = &raw mut batch.iovecs[index];
            message.msg_iovlen = 1;
        }
        batch
    }

    pub fn receive(&mut self, fd: RawFd, first: usize, maximum: usize, info: AddressInfo) -> io::Result<usize> {
        let count = maximum.min(BATCH - first);
        if count == 1 && info == AddressInfo::Omitted {
            self.lengths[first] = self.receive_one(fd, first)?;
            return Ok(1);
        }
        for index in first..first + count {
            self.iovecs[index].iov_len = DATAGRAM_BYTES_MAX;
            let message = &mut self.messages[index].msg_hdr;
            if info == AddressInfo::Omitted {
                clear_address(message);
                continue;
            }
            message.msg_name = (&raw mut self.names[index]).cast();
            message.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            if info == AddressInfo::SenderAndLocal {
                message.msg_control = self.controls[index].start();
                message.msg_controllen = local_address::CONTROL_BYTES as _;
            } else {
                clear_control(message);
            }
        }
        let messages = &raw mut self.messages[first];
        // SAFETY: the buffers of `count` messages live as long as self.
        let count = unsafe { libc::recvmmsg(fd, messages, count as u32, libc::MSG_DONTWAIT, std::ptr::null_mut()) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for index in first..first + count {
            self.lengths[index] = self.messages[index].msg_len as usize;
            // SAFETY: the kernel has filled it.
            let local = || unsafe { local_address::read(&self.messages[index].msg_hdr) };
            self.locals[index] = if info == AddressInfo::SenderAndLocal { local() } else { None };
        }
        Ok(count)
    }

    /// Puts a header in front of a datagram, where the datagram's buffer has room for it.
    fn set_header(&mut self, index: usize, header: &[u8]) {
        let datagram = index * SLOT_BYTES + HEADER_BYTES_MAX;
        let begin = datagram - header.len();
        self.bytes[begin..datagram].copy_from_slice(header);
        self.iovecs[index].iov_base = self.bytes[begin..].as_mut_ptr().cast();
        self.iovecs[index].iov_len = header.len() + self.lengths[index];
    }

    fn receive_one(&mut self, fd: RawFd, index: usize) -> io::Result<usize> {
        // SAFETY: the buffer fits the largest datagram and lives as long as self.
        let count = unsafe { libc::recv(fd, self.iovecs[index].iov_base, DATAGRAM_BYTES_MAX, libc::MSG_DONTWAIT) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    pub fn sender(&self, index: usize) -> Option<SocketAddr> {
        read_address(&self.names[index])
    }

    pub fn local(&self, index: usize) -> Option<LocalAddress> {
        self.locals[index]
    }

    pub fn datagram(&self, index: usize) -> &[u8] {
        let begin = index * SLOT_BYTES + HEADER_BYTES_MAX;
        &self.bytes[begin..begin + self.lengths[index]]
    }

    /// Removes bytes from the front of a datagram.
    pub fn remove_front(&mut self, index: usize, count: usize) {
        let begin = index * SLOT_BYTES + HEADER_BYTES_MAX;
        self.bytes.copy_within(begin + count..begin + self.lengths[index], begin);
        self.lengths[index] -= count;
    }

    /// Returns the number of bytes in these datagrams.
    pub fn bytes(&self, indices: std::ops::Range<usize>) -> usize {
        self.lengths[indices].iter().sum()
    }

    pub fn set_recipient(&mut self, index: usize, client: SocketAddr, local: Option<LocalAddress>) {
        let length = write_address(&mut self.names[index], client);
        let message = &mut self.messages[index].msg_hdr;
        message.msg_name = (&raw mut self.names[index]).cast();
        message.msg_namelen = length;
        if let Some(local) = local {
            message.msg_controllen = local.write(&mut self.controls[index]) as _;
            message.msg_control = self.controls[index].start();
        } else {
            clear_control(message);
        }
    }

    /// Sends datagrams to their recipients. If the socket would block, drops the rest.
    pub fn send(&mut self, fd: RawFd, indices: std::ops::Range<usize>) -> SendResult {
        indices.clone().for_each(|index| self.iovecs[index].iov_len = self.lengths[index]);
        self.send_all(fd, indices, false)
    }

    /// Sends datagrams to the peer of a connected socket, each with a header in front. If the socket would block, drops
    /// the rest.
    pub fn send_with_header(&mut self, fd: RawFd, indices: std::ops::Range<usize>, header: &[u8]) -> SendResult {
        for index in indices.clone() {
            self.set_header(index, header);
            clear_address(&mut self.messages[index].msg_hdr);
        }
        let sent = self.send_all(fd, indices.clone(), true);
        if !header.is_empty() {
            indices.for_each(|index| self.set_header(index, &[]));
        }
        sent
    }

    fn send_all(&mut self, fd: RawFd, indices: std::ops::Range<usize>, is_connected: bool) -> SendResult {
        let mut sent = SendResult::default();
        let mut next = indices.start;
        // A connected socket first reports the error of an earlier datagram. One retry is enough.
        let mut can_retry = is_connected;
        while next < indices.end {
            let sent_count = if is_connected && indices.end - next == 1 {
                self.send_one(fd, next)
            } else {
                self.send_many(fd, next..indices.end)
            };
            match sent_count {
                Ok(sent_count) => {
                    sent.datagrams += sent_count as u64;
                    sent.bytes += self.lengths[next..next + sent_count].iter().sum::<usize>() as u64;
                    next += sent_count;
                }
                Err(error) if std::mem::take(&mut can_retry) && is_earlier_error(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    sent.dropped += (indices.end - next) as u64;
                    break;
                }
                Err(_) => {
                    sent.dropped += 1;
                    next += 1;
                }
            }
        }
        sent
    }

    fn send_one(&self, fd: RawFd, index: usize) -> io::Result<usize> {
        let part = &self.iovecs[index];
        // SAFETY: the bytes live as long as self.
        let sent = unsafe { libc::send(fd, part.iov_base, part.iov_len, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(1) }
    }

    fn send_many(&mut self, fd: RawFd, indices: std::ops::Range<usize>) -> io::Result<usize> {
        let messages = &raw mut self.messages[indices.start];
        // SAFETY: these messages point to buffers that live as long as self.
        let sent_count =
            unsafe { libc::sendmmsg(fd, messages, indices.len() as u32, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
        usize::try_from(sent_count).map_err(|_| io::Error::last_os_error())
    }
}

pub fn is_earlier_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable)
}

fn clear_address(message: &mut libc::msghdr) {
    message.msg_name = std::ptr::null_mut();
    message.msg_namelen = 0;
    clear_control(message);
}

fn clear_control(message: &mut libc::msghdr) {
    message.msg_control = std::ptr::null_mut();
    message.msg_controllen = 0;
}

fn read_address(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: checked by the family.
            let name = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in>() };
            let address = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            Some(SocketAddr::from((address, u16::from_be(name.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: checked by the family.
            let name = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in6>() };
            let address = Ipv6Addr::from(name.sin6_addr.s6_addr);
            let port = u16::from_be(name.sin6_port);
            Some(std::net::SocketAddrV6::new(address, port, 0, name.sin6_scope_id).into())
        }
        _ => None,
    }
}

fn write_address(name: &mut libc::sockaddr_storage, address: SocketAddr) -> libc::socklen_t {
    match address {
        SocketAddr::V4(address) => {
            // SAFETY: the storage has room for any address.
            let name = unsafe { &mut *(&raw mut *name).cast::<libc::sockaddr_in>() };
            name.sin_family = libc::AF_INET as libc::sa_family_t;
            name.sin_port = address.port().to_be();
            name.sin_addr.s_addr = address.ip().to_bits().to_be();
            size_of::<libc::sockaddr_in>() as libc::socklen_t
        }
        SocketAddr::V6(address) => {
            // SAFETY: the storage has room for any address.
            let name = unsafe { &mut *(&raw mut *name).cast::<libc::sockaddr_in6>() };
            name.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            name.sin6_port = address.port().to_be();
            name.sin6_flowinfo = 0;
            name.sin6_addr.s6_addr = address.ip().octets();
            name.sin6_scope_id = address.scope_id();
            size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    use super::*;

    fn socket() -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address)
    }

    #[test]
    fn batch_keeps_senders_and_recipients() {
        let ((from, sender), (forwarder, middle), (to, receiver)) = (socket(), socket(), socket());
        for text in ["one", "", "three"] {
            from.send_to(text.as_bytes(), middle).unwrap();
        }
        let mut batch = MessageBatch::new();
        assert_eq!(batch.receive(forwarder.as_raw_fd(), 0, BATCH, AddressInfo::Sender).unwrap(), 3);
        assert_eq!(batch.sender(2), Some(sender));
        (0..3).for_each(|index| batch.set_recipient(index, receiver, None));
        let sent = batch.send(forwarder.as_raw_fd(), 0..3);
        assert_eq!(sent, SendResult { datagrams: 3, bytes: 8, dropped: 0 });
        let mut buffer = [0; 16];
        for text in ["one", "", "three"] {
            let (length, sender) = to.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..length], sender), (text.as_bytes(), middle));
        }
    }

    #[test]
    fn local_address_is_received_and_used_for_sending() {
        for bind in ["0.0.0.0:0", "[::]:0"] {
            let forwarder = UdpSocket::bind(bind).unwrap();
            local_address::request_destination_address(&forwarder);
            let port = forwarder.local_addr().unwrap().port();
            let (player, address) = socket();
            let mut batch = MessageBatch::new();
            for last in [2, 3] {
                let to = SocketAddr::from(([127, 0, 0, last], port));
                player.send_to(b"in", to).unwrap();
                assert_eq!(batch.receive(forwarder.as_raw_fd(), 0, BATCH, AddressInfo::SenderAndLocal).unwrap(), 1);
                assert_eq!(batch.local(0), Some(LocalAddress { address: to.ip(), interface: 0 }));
                let sender = batch.sender(0).unwrap();
                assert_eq!((sender.ip().to_canonical(), sender.port()), (address.ip(), address.port()));
                batch.set_recipient(0, sender, batch.local(0));
                assert_eq!(batch.send(forwarder.as_raw_fd(), 0..1).datagrams, 1);
                assert_eq!(player.recv_from(&mut [0; 8]).unwrap(), (2, to));
            }
        }
    }

    #[test]
    fn error_of_an_earlier_datagram_loses_no_datagram() {
        let (from, _) = socket();
        let (closed_peer, backend) = socket();
        from.connect(backend).unwrap();
        drop(closed_peer);
        from.send(b"no listener").unwrap();
        let back = UdpSocket::bind(backend).unwrap();
        let mut batch = MessageBatch::new();
        batch.lengths[0] = 5;
        assert_eq!(batch.send_with_header(from.as_raw_fd(), 0..1, b"").datagrams, 1);
        assert_eq!(back.recv(&mut [0; 16]).unwrap(), 5);
    }

    #[test]
    fn addresses_of_both_families_round_trip() {
        for text in ["10.1.2.3:4", "[2001:db8::5]:6"] {
            let address: SocketAddr = text.parse().unwrap();
            // SAFETY: plain data.
            let mut name = unsafe { std::mem::zeroed() };
            write_address(&mut name, address);
            assert_eq!(read_address(&name), Some(address));
        }
    }
}
