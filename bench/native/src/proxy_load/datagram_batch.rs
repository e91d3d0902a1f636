//! Batches of datagrams for recvmmsg(2) and sendmmsg(2).

use std::os::fd::RawFd;

pub const BATCH: usize = 64;
const DATAGRAM_MAX: usize = 2_048;

/// Buffers and addresses of a batch. `headers` points into the other fields.
pub struct DatagramBatch {
    pub buffers: Box<[[u8; DATAGRAM_MAX]]>,
    pub addresses: Box<[libc::sockaddr_in]>,
    pub iovecs: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
}

impl DatagramBatch {
    pub fn new() -> Self {
        // SAFETY: all-zero addresses, vectors and headers are valid. Their pointers are set below.
        let (name, part, head): (libc::sockaddr_in, libc::iovec, libc::mmsghdr) = unsafe { std::mem::zeroed() };
        let mut batch = Self {
            buffers: vec![[0; DATAGRAM_MAX]; BATCH].into(),
            addresses: vec![name; BATCH].into(),
            iovecs: vec![part; BATCH].into(),
            headers: vec![head; BATCH].into(),
        };
        for index in 0..BATCH {
            batch.iovecs[index].iov_base = batch.buffers[index].as_mut_ptr().cast();
            let head = &mut batch.headers[index].msg_hdr;
            head.msg_name = (&raw mut batch.addresses[index]).cast();
            head.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            head.msg_iov = &raw mut batch.iovecs[index];
            head.msg_iovlen = 1;
        }
        batch
    }

    pub fn bytes(&self, index: usize) -> &[u8] {
        &self.buffers[index][..self.headers[index].msg_len as usize]
    }

    pub fn receive(&mut self, socket: RawFd) -> usize {
        self.iovecs.iter_mut().for_each(|part| part.iov_len = DATAGRAM_MAX);
        // SAFETY: every header points to a buffer and an address of `self`, which outlive the call.
        let received = unsafe {
            libc::recvmmsg(socket, self.headers.as_mut_ptr(), BATCH as u32, libc::MSG_DONTWAIT, std::ptr::null_mut())
        };
        usize::try_from(received).unwrap_or(0)
    }

    pub fn send(&mut self, socket: RawFd, count: usize) {
        if count > 0 {
            // SAFETY: as above. An unsent datagram counts as lost at the receiver.
            unsafe { libc::sendmmsg(socket, self.headers.as_mut_ptr(), count as u32, libc::MSG_DONTWAIT) };
        }
    }

    /// Sends the first `count` datagrams back to their senders.
    pub fn send_back(&mut self, socket: RawFd, count: usize) {
        for (part, head) in self.iovecs.iter_mut().zip(&self.headers[..count]) {
            part.iov_len = head.msg_len as usize;
        }
        self.send(socket, count);
    }
}
