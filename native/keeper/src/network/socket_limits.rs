//! The BPF programs that bound how many sockets a run has, and how much data waits in their queues.
//!
//! Each set of counted sockets is a map, and its size is the limit. `docs/isolation.md` has the sum of all queues.

use std::os::fd::{AsRawFd, OwnedFd};

use super::assembler::Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
use super::assembler::{Assembler, Instruction, Label, Register, Size, When};
use super::rules::NetworkRules;
use super::socket_code::{ALLOW, REFUSE, TCP, UDP, jump_if_port};
use super::socket_sets::SocketSets;

// Fields of `struct bpf_sock`.
const SOCKET_TYPE: usize = 8;
const SOCKET_PROTOCOL: usize = 12;
const SOCKET_PORT: usize = 44;

// Fields of `struct bpf_sockopt`.
const OPTION_SOCKET: usize = 0;
const OPTION_START: usize = 8;
const OPTION_END: usize = 16;
const OPTION_LEVEL: usize = 24;
const OPTION_NAME: usize = 28;
const OPTION_LENGTH: usize = 32;

// Field and values of `struct bpf_sock_ops`.
const EVENT: usize = 0;
const EVENT_PASSIVE_ESTABLISHED: u32 = 5;
const EVENT_TCP_LISTEN: u32 = 11;

const MAP_UPDATE: i32 = 2;
const MAP_DELETE: i32 = 3;
const SOCKET_COOKIE: i32 = 46;
const SET_SOCKET_OPTION: i32 = 49;

/// Options for the size of a buffer. The kernel allocates twice the value.
const BUFFER_OPTIONS: [i32; 4] = [libc::SO_RCVBUF, libc::SO_SNDBUF, libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE];
/// Option that lets the kernel enlarge a buffer again.
const BUFFER_LOCK: u32 = 72;
/// Bytes of the value of a buffer option.
const OPTION_BYTES: i32 = 4;
/// Largest buffer of a socket.
const BUFFER_BYTES_MAX: u32 = 4 << 20;
/// Largest buffer of each socket after the first few: the default of the kernel.
const BUFFER_BYTES: u32 = 106_496;
/// Receive buffer of an accepted connection. No control group counts its bytes before the program accepts it.
const ACCEPTED_BUFFER_BYTES: i32 = 16 << 10;

/// Stack slot of the key of a map: the cookie or the address of a socket.
const KEY: i16 = -8;
/// Stack slot of the value of a socket option.
const VALUE: i16 = -16;

pub fn sockets(sets: &SocketSets) -> Vec<Instruction> {
    let mut code = Assembler::default();
    let (refuse, is_datagram, count) = (code.label(), code.label(), code.label());
    code.copy(R6, R1);
    code.load(Size::Word, R2, R1, SOCKET_TYPE);
    code.load(Size::Word, R3, R1, SOCKET_PROTOCOL);
    code.jump_if(R2, When::Equal, libc::SOCK_DGRAM as u32, is_datagram);
    code.jump_if(R2, When::NotEqual, libc::SOCK_STREAM as u32, refuse);
    code.jump_if(R3, When::NotEqual, TCP, refuse);
    code.jump(count);
    code.bind(is_datagram);
    code.jump_if(R3, When::NotEqual, UDP, refuse);
    code.bind(count);
    load_cookie(&mut code, R6);
    insert(&mut code, &sets.clients);
    code.jump_unless_null(R0, refuse);
    code.answer(ALLOW);
    code.bind(refuse);
    code.answer(REFUSE);
    code.finish()
}

pub fn releases(sets: &SocketSets) -> Vec<Instruction> {
    let mut code = Assembler::default();
    code.copy(R6, R1);
    load_cookie(&mut code, R6);
    for map in [&sets.clients, &sets.owned, &sets.accepted] {
        remove(&mut code, map);
    }
    code.store(Size::Double, R10, KEY, R6);
    remove(&mut code, &sets.enlarged);
    code.answer(ALLOW);
    code.finish()
}

pub fn bound(rules: &NetworkRules, sets: &SocketSets) -> Vec<Instruction> {
    let mut code = Assembler::default();
    let (is_own, refuse) = (code.label(), code.label());
    code.load(Size::Word, R2, R1, SOCKET_PORT);
    for ports in &rules.own_ports {
        jump_if_port(&mut code, R2, ports, is_own);
    }
    code.answer(ALLOW);
    code.bind(is_own);
    load_cookie(&mut code, R1);
    insert(&mut code, &sets.owned);
    code.jump_unless_null(R0, refuse);
    remove(&mut code, &sets.clients);
    code.answer(ALLOW);
    code.bind(refuse);
    code.answer(REFUSE);
    code.finish()
}

fn load_cookie(code: &mut Assembler, socket: Register) {
    code.copy(R1, socket);
    code.call(SOCKET_COOKIE);
    code.store(Size::Double, R10, KEY, R0);
}

/// Inserts the key into a map. R0 is not zero if the map is full.
fn insert(code: &mut Assembler, map: &OwnedFd) {
    load_map_and_key(code, map);
    // The value of an entry has no meaning.
    code.copy(R3, R2);
    code.set(R4, 0);
    code.call(MAP_UPDATE);
}

fn remove(code: &mut Assembler, map: &OwnedFd) {
    load_map_and_key(code, map);
    code.call(MAP_DELETE);
}

fn load_map_and_key(code: &mut Assembler, map: &OwnedFd) {
    code.set_map(R1, map.as_raw_fd());
    code.copy(R2, R10);
    code.add(R2, i32::from(KEY));
}

pub fn options(sets: &SocketSets) -> Vec<Instruction> {
    let mut code = Assembler::default();
    let (allow, refuse, is_buffer) = (code.label(), code.label(), code.label());
    code.copy(R6, R1);
    code.load(Size::Word, R2, R1, OPTION_LEVEL);
    code.load(Size::Word, R3, R1, OPTION_NAME);
    code.jump_if(R2, When::NotEqual, libc::SOL_SOCKET as u32, allow);
    code.jump_if(R3, When::Equal, libc::SO_BROADCAST as u32, refuse);
    code.jump_if(R3, When::Equal, BUFFER_LOCK, refuse);
    for option in BUFFER_OPTIONS {
        code.jump_if(R3, When::Equal, option as u32, is_buffer);
    }
    code.jump(allow);
    code.bind(is_buffer);
    limit_buffer(&mut code, sets, refuse, allow);
    code.bind(refuse);
    code.answer(REFUSE);
    code.bind(allow);
    // The kernel then uses the value of the caller, also if it is longer than a page.
    code.set(R2, 0);
    code.store(Size::Word, R6, OPTION_LENGTH as i16, R2);
    code.answer(ALLOW);
    code.finish()
}

/// Appends the part of `options` that lowers a size above the limit. R6 is the context of the program.
///
/// The kernel uses the copy of the value that the program has checked. Another thread of the caller can change its own
/// value at any time.
fn limit_buffer(code: &mut Assembler, sets: &SocketSets, refuse: Label, allow: Label) {
    let (is_enlarged, use_copy) = (code.label(), code.label());
    // The kernel refuses such a value, so it does not read it again.
    code.load(Size::Word, R2, R6, OPTION_LENGTH);
    code.jump_if(R2, When::Less, OPTION_BYTES as u32, allow);
    code.load(Size::Double, R7, R6, OPTION_START);
    code.load(Size::Double, R8, R6, OPTION_END);
    code.copy(R1, R7);
    code.add(R1, OPTION_BYTES);
    code.jump_if_greater(R1, R8, refuse);
    // Without a sign, as in the kernel.
    code.load(Size::Word, R9, R7, 0);
    code.jump_if(R9, When::Less, BUFFER_BYTES + 1, use_copy);
    // This kind of program cannot read the cookie of a socket.
    code.load(Size::Double, R1, R6, OPTION_SOCKET);
    code.store(Size::Double, R10, KEY, R1);
    insert(code, &sets.enlarged);
    code.jump_if_null(R0, is_enlarged);
    code.set(R9, BUFFER_BYTES as i32);
    code.jump(use_copy);
    code.bind(is_enlarged);
    code.jump_if(R9, When::Less, BUFFER_BYTES_MAX + 1, use_copy);
    code.set(R9, BUFFER_BYTES_MAX as i32);
    code.bind(use_copy);
    code.store(Size::Word, R7, 0, R9);
    code.set(R2, OPTION_BYTES);
    code.store(Size::Word, R6, OPTION_LENGTH as i16, R2);
    code.answer(ALLOW);
}

/// Sets the buffer of listening sockets too. The kernel derives the first window of a connection from it.
pub fn connections(sets: &SocketSets) -> Vec<Instruction> {
    let mut code = Assembler::default();
    let (set_size, is_accepted) = (code.label(), code.label());
    code.copy(R6, R1);
    code.set(R7, ACCEPTED_BUFFER_BYTES);
    code.load(Size::Word, R2, R1, EVENT);
    code.jump_if(R2, When::Equal, EVENT_TCP_LISTEN, set_size);
    code.jump_if(R2, When::Equal, EVENT_PASSIVE_ESTABLISHED, is_accepted);
    code.answer(ALLOW);
    code.bind(is_accepted);
    load_cookie(&mut code, R6);
    insert(&mut code, &sets.accepted);
    code.jump_if_null(R0, set_size);
    // A connection that was half open at the limit is not counted, and gets the smallest buffer.
    code.set(R7, 0);
    code.bind(set_size);
    code.store(Size::Word, R10, VALUE, R7);
    code.copy(R1, R6);
    code.set(R2, libc::SOL_SOCKET);
    code.set(R3, libc::SO_RCVBUF);
    code.copy(R4, R10);
    code.add(R4, i32::from(VALUE));
    code.set(R5, OPTION_BYTES);
    code.call(SET_SOCKET_OPTION);
    code.answer(ALLOW);
    code.finish()
}

/// Refuses if the run has as many accepted connections as it may.
///
/// For this, the program inserts a key for a moment. If the key takes the last place, a connection that another
/// processor establishes in this moment is not counted. It gets the smallest buffer, like one that was half open.
pub fn refuse_at_limit(code: &mut Assembler, sets: &SocketSets, refuse: Label) {
    // No socket has the cookie 0.
    code.set(R1, 0);
    code.store(Size::Double, R10, KEY, R1);
    insert(code, &sets.accepted);
    code.jump_unless_null(R0, refuse);
    remove(code, &sets.accepted);
}
