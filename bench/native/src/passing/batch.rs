//! Batches of datagrams for recvmmsg(2) and sendmmsg(2).

use std::os::fd::RawFd;

pub const BATCH: usize = 64;
const DATAGRAM_MAX: usize = 2_048;

/// Buffers and addresses of a batch. `heads` points into the other fields.
pub struct Batch {
    pub rooms: Box<[[u8; DATAGRAM_MAX]]>,
    pub names: Box<[libc::sockaddr_in]>,
    pub parts: Box<[libc::iovec]>,
    heads: Box<[libc::mmsghdr]>,
}

impl Batch {
    pub fn new() -> Self {
        // SAFETY: all-zero addresses, parts and heads are valid. Their pointers are set below.
        let (name, part, head): (libc::sockaddr_in, libc::iovec, libc::mmsghdr) = unsafe { std::mem::zeroed() };
        let mut batch = Self {
            rooms: vec![[0; DATAGRAM_MAX]; BATCH].into(),
            names: vec![name; BATCH].into(),
            parts: vec![part; BATCH].into(),
            heads: vec![head; BATCH].into(),
        };
        for place in 0..BATCH {
            batch.parts[place].iov_base = batch.rooms[place].as_mut_ptr().cast();
            let head = &mut batch.heads[place].msg_hdr;
            head.msg_name = (&raw mut batch.names[place]).cast();
            head.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            head.msg_iov = &raw mut batch.parts[place];
            head.msg_iovlen = 1;
        }
        batch
    }

    pub fn bytes(&self, place: usize) -> &[u8] {
        &self.rooms[place][..self.heads[place].msg_len as usize]
    }

    pub fn receive(&mut self, socket: RawFd) -> usize {
        self.parts.iter_mut().for_each(|part| part.iov_len = DATAGRAM_MAX);
        // SAFETY: every head points to a buffer and an address of `self`, which outlive the call.
        let came = unsafe {
            libc::recvmmsg(socket, self.heads.as_mut_ptr(), BATCH as u32, libc::MSG_DONTWAIT, std::ptr::null_mut())
        };
        usize::try_from(came).unwrap_or(0)
    }

    pub fn send(&mut self, socket: RawFd, count: usize) {
        if count > 0 {
            // SAFETY: as above. An unsent datagram counts as lost at the receiver.
            unsafe { libc::sendmmsg(socket, self.heads.as_mut_ptr(), count as u32, libc::MSG_DONTWAIT) };
        }
    }

    /// Sends the first `count` datagrams back to their senders.
    pub fn give_back(&mut self, socket: RawFd, count: usize) {
        for (part, head) in self.parts.iter_mut().zip(&self.heads[..count]) {
            part.iov_len = head.msg_len as usize;
        }
        self.send(socket, count);
    }
}
