//! Assembler for BPF programs: instructions, labels, and jumps that are resolved at the end.
//!
//! The keeper builds a program at the start of a run, so no machine needs a compiler. The rules are constants in it.

pub type Instruction = u64;

/// Register of the BPF machine. A call changes R0 to R5 and keeps the others.
#[derive(Clone, Copy)]
#[repr(u8)]
pub enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    /// Upper end of the stack. Read-only.
    R10,
}

#[derive(Clone, Copy)]
pub enum Size {
    Byte,
    Half,
    Word,
    /// 64 bits, as a pointer.
    Double,
}

impl Size {
    const fn bits(self) -> u8 {
        match self {
            Self::Word => 0x00,
            Self::Half => 0x08,
            Self::Byte => 0x10,
            Self::Double => 0x18,
        }
    }
}

/// Condition of a jump. It compares the low 32 bits of a register with a constant, without a sign.
#[derive(Clone, Copy)]
pub enum When {
    Equal,
    NotEqual,
    Greater,
    Less,
}

impl When {
    const fn bits(self) -> u8 {
        match self {
            Self::Equal => 0x10,
            Self::NotEqual => 0x50,
            Self::Greater => 0x20,
            Self::Less => 0xa0,
        }
    }
}

#[derive(Clone, Copy)]
pub struct Label(usize);

const LOAD: u8 = 0x61;
const LOAD_CONSTANT: u8 = 0x18;
const STORE: u8 = 0x63;
/// Source register of `LOAD_CONSTANT` for the descriptor of a map.
const MAP: u8 = 1;
const ADD: u8 = 0x07;
const AND_32: u8 = 0x54;
const OR_32_REGISTER: u8 = 0x4c;
const SHIFT_LEFT_32: u8 = 0x64;
const SHIFT_RIGHT_32: u8 = 0x74;
const MOVE: u8 = 0xb7;
const MOVE_REGISTER: u8 = 0xbf;
const TO_BIG_ENDIAN: u8 = 0xdc;
const JUMP: u8 = 0x05;
const JUMP_32: u8 = 0x06;
const JUMP_GREATER_REGISTER: u8 = 0x2d;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// Program under construction. All jumps go forward.
#[derive(Default)]
pub struct Assembler {
    code: Vec<Instruction>,
    /// True after an end or a jump, until a label that is the target of a jump. The kernel refuses a program with
    /// instructions that are never reached, so the assembler leaves them out.
    is_unreachable: bool,
    /// Position of each label.
    labels: Vec<Option<usize>>,
    /// Jumps with their targets.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Gives the label the position of the next instruction.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
        self.is_unreachable &= !self.jumps.iter().any(|&(_, target)| target.0 == label.0);
    }

    pub fn load(&mut self, size: Size, to: Register, from: Register, offset: usize) {
        self.push(LOAD | size.bits(), to as u8, from as u8, offset as i16, 0);
    }

    pub fn store(&mut self, size: Size, to: Register, offset: i16, from: Register) {
        self.push(STORE | size.bits(), to as u8, from as u8, offset, 0);
    }

    pub fn set_map(&mut self, to: Register, descriptor: i32) {
        self.push(LOAD_CONSTANT, to as u8, MAP, 0, descriptor);
        // The upper half of the constant.
        self.push(0, 0, 0, 0, 0);
    }

    pub fn set(&mut self, to: Register, value: i32) {
        self.push(MOVE, to as u8, 0, 0, value);
    }

    pub fn copy(&mut self, to: Register, from: Register) {
        self.push(MOVE_REGISTER, to as u8, from as u8, 0, 0);
    }

    pub fn add(&mut self, to: Register, value: i32) {
        self.push(ADD, to as u8, 0, 0, value);
    }

    pub fn and(&mut self, to: Register, mask: u32) {
        self.push(AND_32, to as u8, 0, 0, mask as i32);
    }

    pub fn or(&mut self, to: Register, from: Register) {
        self.push(OR_32_REGISTER, to as u8, from as u8, 0, 0);
    }

    pub fn shift_left(&mut self, register: Register, bits: i32) {
        self.push(SHIFT_LEFT_32, register as u8, 0, 0, bits);
    }

    pub fn shift_right(&mut self, register: Register, bits: i32) {
        self.push(SHIFT_RIGHT_32, register as u8, 0, 0, bits);
    }

    /// Converts between network order and the machine's order.
    pub fn swap(&mut self, register: Register, bits: i32) {
        self.push(TO_BIG_ENDIAN, register as u8, 0, 0, bits);
    }

    pub fn jump(&mut self, to: Label) {
        self.push_jump(JUMP, 0, 0, 0, to);
        self.is_unreachable = true;
    }

    pub fn jump_if(&mut self, register: Register, when: When, value: u32, to: Label) {
        self.push_jump(JUMP_32 | when.bits(), register as u8, 0, value as i32, to);
    }

    pub fn jump_if_greater(&mut self, one: Register, other: Register, to: Label) {
        self.push_jump(JUMP_GREATER_REGISTER, one as u8, other as u8, 0, to);
    }

    /// Jumps unless the whole register is zero, as the result of a call that has succeeded.
    pub fn jump_unless_null(&mut self, register: Register, to: Label) {
        self.push_jump(JUMP | When::NotEqual.bits(), register as u8, 0, 0, to);
    }

    /// Jumps if the whole register is zero, as a pointer of a call that has found nothing.
    pub fn jump_if_null(&mut self, register: Register, to: Label) {
        self.push_jump(JUMP | When::Equal.bits(), register as u8, 0, 0, to);
    }

    pub fn call(&mut self, function: i32) {
        self.push(CALL, 0, 0, 0, function);
    }

    pub fn answer(&mut self, value: i32) {
        self.set(Register::R0, value);
        self.push(EXIT, 0, 0, 0, 0);
        self.is_unreachable = true;
    }

    pub fn finish(mut self) -> Vec<Instruction> {
        for &(at, Label(label)) in &self.jumps {
            let Some(target) = self.labels[label] else { unreachable!("the target of a jump is bound") };
            let Ok(distance) = i16::try_from(target as isize - at as isize - 1) else {
                unreachable!("the number of rules is limited")
            };
            self.code[at] |= u64::from(distance as u16) << 16;
        }
        self.code
    }

    fn push_jump(&mut self, operation: u8, one: u8, other: u8, value: i32, to: Label) {
        if !self.is_unreachable {
            self.jumps.push((self.code.len(), to));
            self.push(operation, one, other, 0, value);
        }
    }

    fn push(&mut self, operation: u8, to: u8, from: u8, offset: i16, value: i32) {
        if self.is_unreachable {
            return;
        }
        self.code.push(
            u64::from(operation)
                | u64::from(from << 4 | to) << 8
                | u64::from(offset as u16) << 16
                | u64::from(value as u32) << 32,
        );
    }
}
