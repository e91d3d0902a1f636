//! Format of handover messages: length, JSON, and file descriptors that are sent with the first byte.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Maximum number of file descriptors in one message. The kernel allows 253.
pub const DESCRIPTORS: usize = 200;

const LARGEST: usize = 256 * 1024 * 1024;

const CONTROL: usize = 2_048;

#[repr(C, align(8))]
struct ControlBuffer([u8; CONTROL]);

fn bytes_of(frame: &impl Serialize) -> io::Result<Vec<u8>> {
    let text = serde_json::to_vec(frame).map_err(io::Error::other)?;
    let length = u32::try_from(text.len()).map_err(io::Error::other)?;
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend(text);
    Ok(bytes)
}

fn length_of(head: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_be_bytes(head) as usize;
    if length > LARGEST { Err(io::ErrorKind::InvalidData.into()) } else { Ok(length) }
}

pub fn send(stream: &UnixStream, frame: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    use std::io::Write;
    let bytes = bytes_of(frame)?;
    let mut sent = 0;
    if !descriptors.is_empty() {
        sent = send_with(stream, &bytes, descriptors)?;
    }
    let mut stream = stream;
    stream.write_all(&bytes[sent..])
}

fn send_with(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let numbers: Vec<i32> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let size = size_of_val(&numbers[..]) as u32;
    let mut control = ControlBuffer([0; CONTROL]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the message points to live memory, and the control buffer is aligned and large enough.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(size) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size) as _;
        std::ptr::copy_nonoverlapping(numbers.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), size as usize);
        libc::sendmsg(stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

pub fn receive<Message: DeserializeOwned>(stream: &UnixStream) -> io::Result<(Message, Vec<OwnedFd>)> {
    let mut head = [0; 4];
    let (mut filled, descriptors) = receive_with(stream, &mut head)?;
    let mut stream = stream;
    while filled < head.len() {
        match stream.read(&mut head[filled..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => filled += read,
        }
    }
    let mut text = vec![0; length_of(head)?];
    stream.read_exact(&mut text)?;
    Ok((serde_json::from_slice(&text).map_err(io::Error::other)?, descriptors))
}

fn receive_with(stream: &UnixStream, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = ControlBuffer([0; CONTROL]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut descriptors = Vec::new();
    // SAFETY: the message points to live memory. Control messages are read within the written length.
    let read = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL as _;
        let read = libc::recvmsg(stream.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC);
        let mut header = if read < 0 { std::ptr::null_mut() } else { libc::CMSG_FIRSTHDR(&raw const message) };
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let size = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<i32>();
                for index in 0..size / size_of::<i32>() {
                    descriptors.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
        read
    };
    match usize::try_from(read) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(read) => Ok((read, descriptors)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

pub async fn read_frame<Message: DeserializeOwned>(stream: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Message> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let mut text = vec![0; length_of(head)?];
    stream.read_exact(&mut text).await?;
    serde_json::from_slice(&text).map_err(io::Error::other)
}

pub async fn write_frame(stream: &mut (impl AsyncWriteExt + Unpin), frame: &impl Serialize) -> io::Result<()> {
    stream.write_all(&bytes_of(frame)?).await
}
