//! The BPF programs of a run, with its rules as constants.
//!
//! - `sockets` decides the creation of IP sockets: only TCP and UDP. It counts each socket, and the number is limited,
//!   because a socket can use up a port of the machine.
//! - `bound` counts a socket that is bound to one of the run's ports with the limit for these instead.
//! - `releases` no longer counts a socket when it is closed.
//! - `binds` decides `bind`: the run's own ports, and port 0 for UDP.
//! - `options` decides `setsockopt`: no broadcasts, because the kernel would deliver them to sockets of this machine.
//!   Few sockets get a buffer above the default of the kernel.
//! - `connections` counts each TCP connection that the run has accepted, and sets the size of its receive buffer.
//! - `connects` decides `connect` of a TCP socket, so that it fails at once.
//! - `packets` decides each packet that the run sends. It alone enforces the rules for destinations.
//!
//! `packets` sees what leaves, so no socket option, address form or route avoids it. It looks at the destination of
//! each UDP datagram, but only at the first packet of a TCP connection. The answer to such a packet has to come from one
//! of the run's ports, and the number of accepted connections is limited. All other TCP packets belong to a connection
//! that the run has accepted, or that its rules allow. The program drops IP options, extension headers and other
//! protocols.

use std::net::IpAddr;

use super::assembler::Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
use super::assembler::{Assembler, Instruction, Label, Register, Size, When};
use super::rules::{Destination, NetworkRules};
use super::socket_code::{ALLOW, REFUSE, TCP, UDP, jump_if_port};
use super::socket_limits;
use super::socket_sets::SocketSets;

pub struct Program {
    pub name: &'static str,
    pub kind: u32,
    pub attachment: u32,
    pub code: Vec<Instruction>,
}

const KIND_PACKETS: u32 = 8;
const KIND_SOCKETS: u32 = 9;
const KIND_SOCKET_EVENTS: u32 = 13;
const KIND_ADDRESSES: u32 = 18;
const KIND_OPTIONS: u32 = 25;

const EGRESS: u32 = 1;
const SOCKET_CREATION: u32 = 2;
const SOCKET_EVENTS: u32 = 3;
const BIND: [u32; 2] = [8, 9];
const CONNECT: [u32; 2] = [10, 11];
const BOUND: [u32; 2] = [12, 13];
const SET_OPTION: u32 = 22;
const SOCKET_RELEASE: u32 = 34;

// Fields of `struct bpf_sock`.
const SOCKET_PEER_PORT: usize = 48;

// Fields of `struct bpf_sock_addr`.
const ADDRESS_V4: usize = 4;
const ADDRESS_V6: usize = 8;
const ADDRESS_PORT: usize = 24;
const ADDRESS_TYPE: usize = 32;
const ADDRESS_PROTOCOL: usize = 36;

// Fields of `struct __sk_buff`.
const PACKET_PROTOCOL: usize = 16;
const PACKET_INTERFACE: usize = 40;
const PACKET_START: usize = 76;
const PACKET_END: usize = 80;

const ETHERNET_V4: u16 = 0x0800;
const ETHERNET_V6: u16 = 0x86dd;
const V4_WITHOUT_OPTIONS: u32 = 0x45;
const PORT_BYTES: usize = 2;
const UDP_BYTES: usize = 8;
const TCP_FLAGS: usize = 13;
const SYN: u32 = 0x02;
const SYN_AND_ACK: u32 = 0x12;
/// Index of the loopback interface in each network namespace.
const LOOPBACK: u32 = 1;
const MAPPED_V4: u32 = 0xffff;
/// First words of NAT64 addresses. The last word is the address of IPv4.
const NAT64: [u32; 3] = [0x0064_ff9b, 0, 0];
/// First half word of 6to4 addresses. The next two are the address of IPv4.
const PREFIX_6TO4: u32 = 0x2002;

const LOOK_UP_UDP: i32 = 85;
const RELEASE: i32 = 86;
const OWN_NETWORK_NAMESPACE: i32 = -1;

/// Stack slots of the destination address of IPv6, one 32-bit word each, in the machine's order.
const V6_WORDS: [i16; 4] = [-16, -12, -8, -4];
/// Stack slot of `struct bpf_sock_tuple`, which has at most 36 bytes.
const TUPLE: i16 = -56;

#[derive(Clone, Copy)]
enum Family {
    V4,
    V6,
}

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

impl Family {
    const fn header_bytes(self) -> usize {
        match self {
            Self::V4 => 20,
            Self::V6 => 40,
        }
    }

    const fn protocol_offset(self) -> usize {
        match self {
            Self::V4 => 9,
            Self::V6 => 6,
        }
    }

    const fn source_offset(self) -> usize {
        match self {
            Self::V4 => 12,
            Self::V6 => 8,
        }
    }

    const fn address_bytes(self) -> usize {
        match self {
            Self::V4 => 4,
            Self::V6 => 16,
        }
    }

    const fn includes(self, address: IpAddr) -> bool {
        matches!((self, address), (Self::V4, IpAddr::V4(_)) | (Self::V6, IpAddr::V6(_)))
    }
}

/// Returns the programs.
pub fn all(rules: &NetworkRules, sets: &SocketSets) -> Vec<Program> {
    let of_sockets = |name, attachment, code| Program { name, kind: KIND_SOCKETS, attachment, code };
    let of_addresses = |name, attachment, code| Program { name, kind: KIND_ADDRESSES, attachment, code };
    vec![
        of_sockets("sockets", SOCKET_CREATION, socket_limits::sockets(sets)),
        of_sockets("releases", SOCKET_RELEASE, socket_limits::releases(sets)),
        of_sockets("bound_4", BOUND[0], socket_limits::bound(rules, sets)),
        of_sockets("bound_6", BOUND[1], socket_limits::bound(rules, sets)),
        Program { name: "options", kind: KIND_OPTIONS, attachment: SET_OPTION, code: socket_limits::options(sets) },
        Program {
            name: "connections",
            kind: KIND_SOCKET_EVENTS,
            attachment: SOCKET_EVENTS,
            code: socket_limits::connections(sets),
        },
        of_addresses("binds_4", BIND[0], binds(rules)),
        of_addresses("binds_6", BIND[1], binds(rules)),
        of_addresses("connects_4", CONNECT[0], connects_v4(rules)),
        of_addresses("connects_6", CONNECT[1], connects_v6(rules)),
        Program { name: "packets", kind: KIND_PACKETS, attachment: EGRESS, code: packets(rules, sets) },
    ]
}

fn binds(rules: &NetworkRules) -> Vec<Instruction> {
    let mut code = Assembler::default();
    let (allow, is_named) = (code.label(), code.label());
    code.load(Size::Word, R2, R1, ADDRESS_PORT);
    code.load(Size::Word, R3, R1, ADDRESS_TYPE);
    code.swap(R2, 16);
    code.jump_if(R2, When::NotEqual, 0, is_named);
    code.jump_if(R3, When::Equal, libc::SOCK_DGRAM as u32, allow);
    code.bind(is_named);
    for ports in &rules.own_ports {
        jump_if_port(&mut code, R2, ports, allow);
    }
    code.answer(REFUSE);
    code.bind(allow);
    code.answer(ALLOW);
    code.finish()
}

fn connects_v4(rules: &NetworkRules) -> Vec<Instruction> {
    let mut code = Assembler::default();
    let is_tcp = code.label();
    code.load(Size::Word, R2, R1, ADDRESS_PROTOCOL);
    code.jump_if(R2, When::Equal, TCP, is_tcp);
    code.answer(ALLOW);
    code.bind(is_tcp);
    code.load(Size::Word, R9, R1, ADDRESS_V4);
    code.swap(R9, 32);
    load_connect_port(&mut code);
    let allow = code.label();
    allow_listed(&mut code, rules, Family::V4, allow);
    answer_by_networks(&mut code, rules, Family::V4, allow);
    code.finish()
}

fn connects_v6(rules: &NetworkRules) -> Vec<Instruction> {
    let mut code = Assembler::default();
    let is_tcp = code.label();
    code.load(Size::Word, R2, R1, ADDRESS_PROTOCOL);
    code.jump_if(R2, When::Equal, TCP, is_tcp);
    code.answer(ALLOW);
    code.bind(is_tcp);
    for (index, slot) in V6_WORDS.into_iter().enumerate() {
        code.load(Size::Word, R9, R1, ADDRESS_V6 + 4 * index);
        code.swap(R9, 32);
        code.store(Size::Word, R10, slot, R9);
    }
    load_connect_port(&mut code);
    // R9 now has the last word, which is the address of IPv4 if the address is a mapped one.
    let (is_v6, allow) = (code.label(), code.label());
    for (slot, value) in V6_WORDS.into_iter().zip([0, 0, MAPPED_V4]) {
        load_stack(&mut code, R2, slot);
        code.jump_if(R2, When::NotEqual, value, is_v6);
    }
    let allow_v4 = code.label();
    allow_listed(&mut code, rules, Family::V4, allow_v4);
    answer_by_networks(&mut code, rules, Family::V4, allow_v4);
    code.bind(is_v6);
    allow_listed(&mut code, rules, Family::V6, allow);
    answer_by_networks(&mut code, rules, Family::V6, allow);
    code.finish()
}

fn load_connect_port(code: &mut Assembler) {
    code.load(Size::Word, R8, R1, ADDRESS_PORT);
    code.swap(R8, 16);
}

fn packets(rules: &NetworkRules, sets: &SocketSets) -> Vec<Instruction> {
    let mut code = Assembler::default();
    let is_v6 = code.label();
    let refuse = code.label();
    code.copy(R6, R1);
    code.load(Size::Word, R7, R6, PACKET_START);
    code.load(Size::Word, R8, R6, PACKET_END);
    code.load(Size::Word, R1, R6, PACKET_PROTOCOL);
    code.jump_if(R1, When::Equal, u32::from(ETHERNET_V6.to_be()), is_v6);
    code.jump_if(R1, When::NotEqual, u32::from(ETHERNET_V4.to_be()), refuse);
    for family in FAMILIES {
        if matches!(family, Family::V6) {
            code.bind(is_v6);
        }
        packets_of(&mut code, rules, sets, family, refuse);
    }
    code.bind(refuse);
    code.answer(REFUSE);
    code.finish()
}

/// Appends the part of `packets` for one family. R6 is the packet, R7 its start and R8 its end.
fn packets_of(code: &mut Assembler, rules: &NetworkRules, sets: &SocketSets, family: Family, refuse: Label) {
    let (needs_destination, is_answer, allow) = (code.label(), code.label(), code.label());
    let header = family.header_bytes();
    refuse_shorter(code, header + UDP_BYTES, refuse);
    if matches!(family, Family::V4) {
        code.load(Size::Byte, R1, R7, 0);
        code.jump_if(R1, When::NotEqual, V4_WITHOUT_OPTIONS, refuse);
    }
    code.load(Size::Byte, R1, R7, family.protocol_offset());
    code.jump_if(R1, When::Equal, UDP, needs_destination);
    code.jump_if(R1, When::NotEqual, TCP, refuse);
    refuse_shorter(code, header + TCP_FLAGS + 1, refuse);
    code.load(Size::Byte, R1, R7, header + TCP_FLAGS);
    code.and(R1, SYN_AND_ACK);
    code.jump_if(R1, When::Equal, SYN, needs_destination);
    code.jump_if(R1, When::NotEqual, SYN_AND_ACK, allow);
    code.load(Size::Half, R8, R7, header);
    code.swap(R8, 16);
    for ports in &rules.own_ports {
        jump_if_port(code, R8, ports, is_answer);
    }
    code.jump(refuse);
    code.bind(is_answer);
    socket_limits::refuse_at_limit(code, sets, refuse);
    code.jump(allow);
    code.bind(needs_destination);
    load_destination(code, family);
    allow_listed(code, rules, family, allow);
    refuse_local(code, family, allow, refuse);
    answer_by_networks(code, rules, family, allow);
}

fn refuse_shorter(code: &mut Assembler, bytes: usize, refuse: Label) {
    code.copy(R1, R7);
    code.add(R1, bytes as i32);
    code.jump_if_greater(R1, R8, refuse);
}

/// Loads the destination of the packet: the port into R8, and the address into R9 or the stack.
fn load_destination(code: &mut Assembler, family: Family) {
    let address = family.source_offset() + family.address_bytes();
    match family {
        Family::V4 => {
            code.load(Size::Word, R9, R7, address);
            code.swap(R9, 32);
        }
        Family::V6 => {
            for (index, slot) in V6_WORDS.into_iter().enumerate() {
                code.load(Size::Word, R9, R7, address + 4 * index);
                code.swap(R9, 32);
                code.store(Size::Word, R10, slot, R9);
            }
        }
    }
    code.load(Size::Half, R8, R7, family.header_bytes() + PORT_BYTES);
    code.swap(R8, 16);
}

/// Refuses a packet to this machine, except a datagram to a socket that is connected to the sending socket.
///
/// Such a socket belongs to a peer that has chosen this run, as edge-guard does for each player. The services of the
/// machine have sockets without a peer, or with another one.
fn refuse_local(code: &mut Assembler, family: Family, allow: Label, refuse: Label) {
    let (is_remote, is_unconnected) = (code.label(), code.label());
    code.load(Size::Word, R1, R6, PACKET_INTERFACE);
    code.jump_if(R1, When::NotEqual, LOOPBACK, is_remote);
    code.load(Size::Byte, R1, R7, family.protocol_offset());
    code.jump_if(R1, When::NotEqual, UDP, refuse);
    // The tuple has source address, destination address and both ports, in the order of the packet.
    let (source, header) = (family.source_offset(), family.header_bytes());
    let words = 2 * family.address_bytes() / 4;
    let offsets = (0..words).map(|index| source + 4 * index).chain([header]);
    for (index, offset) in offsets.enumerate() {
        code.load(Size::Word, R1, R7, offset);
        code.store(Size::Word, R10, TUPLE + 4 * index as i16, R1);
    }
    code.copy(R1, R6);
    code.copy(R2, R10);
    code.add(R2, i32::from(TUPLE));
    code.set(R3, 4 * (words as i32 + 1));
    code.set(R4, OWN_NETWORK_NAMESPACE);
    code.set(R5, 0);
    code.call(LOOK_UP_UDP);
    code.jump_if_null(R0, refuse);
    code.load(Size::Word, R8, R0, SOCKET_PEER_PORT);
    code.copy(R1, R0);
    code.call(RELEASE);
    code.jump_if(R8, When::Equal, 0, is_unconnected);
    code.jump(allow);
    code.bind(is_unconnected);
    code.answer(REFUSE);
    code.bind(is_remote);
}

fn allow_listed(code: &mut Assembler, rules: &NetworkRules, family: Family, allow: Label) {
    for destination in rules.allowed.iter().filter(|one| family.includes(one.address)) {
        let next = code.label();
        jump_unless_inside(code, destination, next);
        match &destination.ports {
            Some(ports) => jump_if_port(code, R8, ports, allow),
            None => code.jump(allow),
        }
        code.bind(next);
    }
}

/// Appends the end of a program: the refused networks and the answer for all others.
fn answer_by_networks(code: &mut Assembler, rules: &NetworkRules, family: Family, allow: Label) {
    if rules.allows_others {
        if matches!(family, Family::V6) {
            answer_translated(code, rules);
        }
        refuse_listed(code, rules, family);
    } else {
        code.answer(REFUSE);
    }
    code.bind(allow);
    code.answer(ALLOW);
}

/// Answers for NAT64 and 6to4 addresses, by the address of IPv4 in them.
fn answer_translated(code: &mut Assembler, rules: &NetworkRules) {
    let (is_6to4, is_translated, is_other) = (code.label(), code.label(), code.label());
    let [first, second, _, last] = V6_WORDS;
    for (slot, value) in V6_WORDS.into_iter().zip(NAT64) {
        load_stack(code, R2, slot);
        code.jump_if(R2, When::NotEqual, value, is_6to4);
    }
    load_stack(code, R9, last);
    code.jump(is_translated);
    code.bind(is_6to4);
    load_stack(code, R9, first);
    code.copy(R2, R9);
    code.shift_right(R2, 16);
    code.jump_if(R2, When::NotEqual, PREFIX_6TO4, is_other);
    load_stack(code, R2, second);
    code.shift_left(R9, 16);
    code.shift_right(R2, 16);
    code.or(R9, R2);
    code.bind(is_translated);
    refuse_listed(code, rules, Family::V4);
    code.answer(ALLOW);
    code.bind(is_other);
}

fn refuse_listed(code: &mut Assembler, rules: &NetworkRules, family: Family) {
    for destination in rules.refused.iter().filter(|one| family.includes(one.address)) {
        let next = code.label();
        jump_unless_inside(code, destination, next);
        code.answer(REFUSE);
        code.bind(next);
    }
}

fn jump_unless_inside(code: &mut Assembler, destination: &Destination, otherwise: Label) {
    let mut bits_left = u32::from(destination.prefix_bits);
    let words: Vec<(Option<i16>, u32)> = match destination.address {
        IpAddr::V4(address) => vec![(None, address.to_bits())],
        IpAddr::V6(address) => {
            let word = |index| (address.to_bits() >> (96 - 32 * index)) as u32;
            V6_WORDS.into_iter().enumerate().map(|(index, slot)| (Some(slot), word(index))).collect()
        }
    };
    for (slot, word) in words {
        if bits_left == 0 {
            return;
        }
        let mask = u32::MAX << (32 - bits_left.min(32));
        bits_left = bits_left.saturating_sub(32);
        match slot {
            Some(slot) => load_stack(code, R2, slot),
            None => code.copy(R2, R9),
        }
        if mask != u32::MAX {
            code.and(R2, mask);
        }
        code.jump_if(R2, When::NotEqual, word & mask, otherwise);
    }
}

fn load_stack(code: &mut Assembler, to: Register, slot: i16) {
    code.load(Size::Word, to, R10, slot as usize);
}
