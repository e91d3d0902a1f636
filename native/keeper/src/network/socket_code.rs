//! Values and code that several programs share.

use std::ops::RangeInclusive;

use super::assembler::{Assembler, Label, Register, When};

pub const ALLOW: i32 = 1;
pub const REFUSE: i32 = 0;
pub const TCP: u32 = libc::IPPROTO_TCP as u32;
pub const UDP: u32 = libc::IPPROTO_UDP as u32;

pub fn jump_if_port(code: &mut Assembler, port: Register, ports: &RangeInclusive<u16>, to: Label) {
    let next = code.label();
    code.jump_if(port, When::Less, u32::from(*ports.start()), next);
    code.jump_if(port, When::Greater, u32::from(*ports.end()), next);
    code.jump(to);
    code.bind(next);
}
