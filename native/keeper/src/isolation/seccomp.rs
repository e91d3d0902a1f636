//! Seccomp filter for programs under Landlock. It denies system calls that Landlock has no rule for.
//!
//! The mode of a Unix socket's file decides which users can connect. If the keeper is not root, the program has the
//! user of the service. So the filter denies Unix sockets. It also denies pairs of datagram sockets, which can send to
//! any path. Pairs of stream sockets are allowed, because they cannot connect to another socket.
//!
//! The filter is a deny list, because game servers are arbitrary programs. It kills a program that makes system calls
//! of another architecture.

use std::io;
use std::mem::offset_of;

use libc::{seccomp_data, sock_filter};

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: Option<u32> = Some(0xC000_003E);
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: Option<u32> = Some(0xC000_00B7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const AUDIT_ARCH: Option<u32> = None;

/// First system call number of the x32 ABI. The filter denies all calls from this number on.
const X32_START: u32 = 0x4000_0000;

/// Denied system calls: `io_uring`, which can connect sockets, and keyrings, which Landlock does not restrict.
const DENIED_CALLS: [libc::c_long; 4] =
    [libc::SYS_io_uring_setup, libc::SYS_add_key, libc::SYS_request_key, libc::SYS_keyctl];

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
/// Filter action for calls of another architecture: kills the program. If the calls only failed, `exit` would fail too.
const END: u32 = libc::SECCOMP_RET_KILL_PROCESS;
const SOCKET_TYPES: u32 = 0xf;

/// Installs the filter for this process and its descendants. Requires `no_new_privs`.
pub fn install_filter() -> io::Result<()> {
    let Some(table) = AUDIT_ARCH else {
        return Err(io::Error::other("system calls cannot be refused on this machine"));
    };
    let mut program = program(table);
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the length is correct, and the kernel copies the filter.
    let done = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0 as libc::c_uint, &raw const filter)
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn program(table: u32) -> Vec<sock_filter> {
    let mut program = vec![
        load(offset_of!(seccomp_data, arch)),
        is(table, 1, 0),
        answer(END),
        load(offset_of!(seccomp_data, nr)),
        jump(libc::BPF_JGE, X32_START, 0, 1),
        answer(error(libc::ENOSYS)),
    ];
    for call in DENIED_CALLS {
        program.extend(on(call, &[answer(error(libc::EPERM))]));
    }
    program.extend(on(
        libc::SYS_socket,
        &[low(0), is(libc::AF_UNIX as u32, 0, 1), answer(error(libc::EACCES)), answer(ALLOW)],
    ));
    program.extend(on(
        libc::SYS_socketpair,
        &[
            low(1),
            statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, SOCKET_TYPES),
            is(libc::SOCK_STREAM as u32, 2, 0),
            is(libc::SOCK_SEQPACKET as u32, 1, 0),
            answer(error(libc::EACCES)),
            answer(ALLOW),
        ],
    ));
    // Limits of other processes: a CPU limit would end any process of the user.
    program.extend(on(
        libc::SYS_prlimit64,
        &[low(0), is(0, 5, 0), low(2), is(0, 0, 2), high(2), is(0, 1, 0), answer(error(libc::EPERM)), answer(ALLOW)],
    ));
    program.push(answer(ALLOW));
    program
}

fn on(call: libc::c_long, body: &[sock_filter]) -> Vec<sock_filter> {
    [&[is(call as u32, 0, body.len() as u8)], body].concat()
}

const fn error(number: libc::c_int) -> u32 {
    libc::SECCOMP_RET_ERRNO | number as u32
}

const fn statement(code: u32, value: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k: value }
}

const fn answer(action: u32) -> sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, action)
}

const fn load(at: usize) -> sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at as u32)
}

/// Returns the instruction that loads the low 32 bits of a system call argument.
const fn low(argument: usize) -> sock_filter {
    load(offset_of!(seccomp_data, args) + argument * 8 + if cfg!(target_endian = "big") { 4 } else { 0 })
}

const fn high(argument: usize) -> sock_filter {
    load(offset_of!(seccomp_data, args) + argument * 8 + if cfg!(target_endian = "big") { 0 } else { 4 })
}

/// Returns the instruction that compares the loaded value with `value`.
///
/// The instruction skips `then` instructions if they are equal, else `otherwise` instructions.
const fn is(value: u32, then: u8, otherwise: u8) -> sock_filter {
    jump(libc::BPF_JEQ, value, then, otherwise)
}

const fn jump(how: u32, value: u32, then: u8, otherwise: u8) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | how | libc::BPF_K) as u16, jt: then, jf: otherwise, k: value }
}
