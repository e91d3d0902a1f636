//! Calls of bpf(2), and the maps of the programs.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

const MAP_CREATE: libc::c_int = 0;
const HASH_MAP: u32 = 1;
/// Bytes of a key: the cookie or the address of a socket.
const KEY_BYTES: u32 = 8;

/// Start of `union bpf_attr` for `BPF_MAP_CREATE`.
#[repr(C)]
struct MapRequest {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
}

pub fn create_map(entries_max: u32, flags: u32) -> io::Result<OwnedFd> {
    let request = MapRequest { kind: HASH_MAP, key_bytes: KEY_BYTES, value_bytes: KEY_BYTES, entries_max, flags };
    let descriptor = call(MAP_CREATE, &request)?;
    // SAFETY: the kernel has just created the descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

pub fn call<Request>(command: libc::c_int, request: &Request) -> io::Result<libc::c_int> {
    // SAFETY: the request has the layout of the kernel, and what it points to outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *request, size_of::<Request>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
}
