//! System calls that a program under Landlock is refused: ways to what is not its own that Landlock has no rule for.
//!
//! Landlock is about files that are opened. A socket with a path is connected to, which asks for the mode of its file
//! alone, and where the keeper is no root the program has our user: it could command the service, and all else that
//! its user runs. So it gets no socket that could be connected to one. Pairs of streams are left: they are connected
//! already, for good. Pairs of datagram sockets are not, these send wherever they are told to.
//!
//! A list of what is refused, not of what may be: game servers are anybody's programs. It holds for all machines and
//! tables of calls that the kernel knows, or it would be a list for the honest.

use std::io;
use std::mem::offset_of;

use libc::{seccomp_data, sock_filter};

/// How the kernel names the table of calls that this binary uses. Programs for others are of another machine.
#[cfg(target_arch = "x86_64")]
const TABLE: Option<u32> = Some(0xC000_003E);
#[cfg(target_arch = "aarch64")]
const TABLE: Option<u32> = Some(0xC000_00B7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const TABLE: Option<u32> = None;

/// From here on numbers are those of x32, a second table of x86-64 under the same name. Most kernels have none.
const SECOND_TABLE: u32 = 0x4000_0000;

/// A ring of `io_uring` makes sockets and connects them without a call for each. Keys of the user are no files.
const REFUSED: [libc::c_long; 4] =
    [libc::SYS_io_uring_setup, libc::SYS_add_key, libc::SYS_request_key, libc::SYS_keyctl];

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
/// The end, by SIGSYS: a program that is refused every call, its end too, would run for ever.
const END: u32 = libc::SECCOMP_RET_KILL_PROCESS;
const SOCKET_TYPES: u32 = 0xf;

/// For this process and all that come of it, for good. Needs `no_new_privs`.
pub fn refuse() -> io::Result<()> {
    let Some(table) = TABLE else {
        return Err(io::Error::other("system calls cannot be refused on this machine"));
    };
    let mut program = program(table);
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the filter is as long as it says, and the kernel copies it.
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
        jump(libc::BPF_JGE, SECOND_TABLE, 0, 1),
        answer(error(libc::ENOSYS)),
    ];
    for call in REFUSED {
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
    // New limits are for oneself alone: with others a program ends whatever has its user.
    program.extend(on(
        libc::SYS_prlimit64,
        &[low(0), is(0, 5, 0), low(2), is(0, 0, 2), high(2), is(0, 1, 0), answer(error(libc::EPERM)), answer(ALLOW)],
    ));
    program.push(answer(ALLOW));
    program
}

/// What is answered for one call; `body` has an answer for every way through it.
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

/// The half of an argument that the kernel takes an `int` from.
const fn low(argument: usize) -> sock_filter {
    load(offset_of!(seccomp_data, args) + argument * 8 + if cfg!(target_endian = "big") { 4 } else { 0 })
}

const fn high(argument: usize) -> sock_filter {
    load(offset_of!(seccomp_data, args) + argument * 8 + if cfg!(target_endian = "big") { 0 } else { 4 })
}

/// How many instructions are left out then, and else.
const fn is(value: u32, then: u8, otherwise: u8) -> sock_filter {
    jump(libc::BPF_JEQ, value, then, otherwise)
}

const fn jump(how: u32, value: u32, then: u8, otherwise: u8) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | how | libc::BPF_K) as u16, jt: then, jf: otherwise, k: value }
}
