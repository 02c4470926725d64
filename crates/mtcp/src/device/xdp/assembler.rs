//! A small assembler for eBPF (RFC 9669): just the instructions that the XDP program uses, with
//! labels in place of counted offsets.

/// One of eBPF's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Register {
    /// Results, and what the program returns.
    R0 = 0,
    /// The first argument.
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    R5 = 5,
    /// The first that calls preserve.
    R6 = 6,
    R7 = 7,
    /// The end of the stack, read only.
    Frame = 10,
}

/// How many bytes a load or store moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Size {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
    Double = 0x18,
}

/// When a jump is taken; comparisons are unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Condition {
    Equal = 0x10,
    Greater = 0x20,
    NotEqual = 0x50,
}

/// What a register is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    Immediate(i32),
    Register(Register),
}

/// A place in the program, used before or after it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(usize);

/// Why a program cannot be assembled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AssemblerError {
    #[error("a jump leads to a label that was never placed")]
    LabelNotPlaced,
    #[error("a jump is longer than 32,767 instructions")]
    JumpTooLong,
}

// Instruction classes, modes and sources (RFC 9669, sections 3 to 5).
const LOAD_IMMEDIATE_DOUBLE: u8 = 0x18;
const LOAD: u8 = 0x61;
const STORE_IMMEDIATE: u8 = 0x62;
const STORE: u8 = 0x63;
const ADD_IMMEDIATE: u8 = 0x07;
const AND_IMMEDIATE: u8 = 0x57;
const MOVE_IMMEDIATE: u8 = 0xb7;
const MOVE: u8 = 0xbf;
const JUMP: u8 = 0x05;
const SOURCE_REGISTER: u8 = 0x08;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// In the source register of a double immediate: the immediate is a map's descriptor.
const PSEUDO_MAP: u8 = 1;

/// A program in the making.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    code: Vec<[u8; 8]>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// A label without a place yet.
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// The label is here.
    pub(super) fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    /// `to = *(from + offset)`, the rest of the register zero.
    pub(super) fn load(&mut self, size: Size, to: Register, from: Register, offset: i16) {
        self.emit(LOAD | size as u8, to, from as u8, offset, 0);
    }

    /// `*(to + offset) = from`.
    pub(super) fn store(&mut self, size: Size, to: Register, offset: i16, from: Register) {
        self.emit(STORE | size as u8, to, from as u8, offset, 0);
    }

    /// `*(to + offset) = value`.
    pub(super) fn store_immediate(&mut self, size: Size, to: Register, offset: i16, value: i32) {
        self.emit(STORE_IMMEDIATE | size as u8, to, 0, offset, value);
    }

    /// `to = from`.
    pub(super) fn copy(&mut self, to: Register, from: Register) {
        self.emit(MOVE, to, from as u8, 0, 0);
    }

    /// `to = value`.
    pub(super) fn set(&mut self, to: Register, value: i32) {
        self.emit(MOVE_IMMEDIATE, to, 0, 0, value);
    }

    /// `to += value`.
    pub(super) fn add(&mut self, to: Register, value: i32) {
        self.emit(ADD_IMMEDIATE, to, 0, 0, value);
    }

    /// `to &= value`.
    pub(super) fn and(&mut self, to: Register, value: i32) {
        self.emit(AND_IMMEDIATE, to, 0, 0, value);
    }

    /// `to` becomes the address of the map that the descriptor is of.
    pub(super) fn load_map(&mut self, to: Register, descriptor: i32) {
        self.emit(LOAD_IMMEDIATE_DOUBLE, to, PSEUDO_MAP, 0, descriptor);
        self.code.push([0; 8]);
    }

    /// Goes on at the label.
    pub(super) fn jump(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.emit(JUMP, Register::R0, 0, 0, 0);
    }

    /// Goes on at the label if the condition holds.
    pub(super) fn jump_if(
        &mut self,
        left: Register,
        condition: Condition,
        right: Operand,
        label: Label,
    ) {
        self.jumps.push((self.code.len(), label));
        let code = JUMP | condition as u8;
        match right {
            Operand::Immediate(value) => self.emit(code, left, 0, 0, value),
            Operand::Register(right) => {
                self.emit(code | SOURCE_REGISTER, left, right as u8, 0, 0);
            }
        }
    }

    /// Calls a helper by its number (bpf-helpers(7)); registers 1 to 5 are lost.
    pub(super) fn call(&mut self, helper: i32) {
        self.emit(CALL, Register::R0, 0, 0, helper);
    }

    /// Ends the program with register 0.
    pub(super) fn exit(&mut self) {
        self.emit(EXIT, Register::R0, 0, 0, 0);
    }

    /// The instructions, as the kernel takes them.
    pub(super) fn finish(mut self) -> Result<Vec<[u8; 8]>, AssemblerError> {
        for (from, label) in self.jumps {
            let to = self.labels[label.0].ok_or(AssemblerError::LabelNotPlaced)?;
            // Offsets count from the instruction behind the jump.
            let distance = to as i64 - from as i64 - 1;
            let distance = i16::try_from(distance).map_err(|_| AssemblerError::JumpTooLong)?;
            self.code[from][2..4].copy_from_slice(&distance.to_ne_bytes());
        }
        Ok(self.code)
    }

    fn emit(&mut self, code: u8, to: Register, from: u8, offset: i16, value: i32) {
        let registers = if cfg!(target_endian = "little") {
            from << 4 | to as u8
        } else {
            (to as u8) << 4 | from
        };
        let mut instruction = [code, registers, 0, 0, 0, 0, 0, 0];
        instruction[2..4].copy_from_slice(&offset.to_ne_bytes());
        instruction[4..].copy_from_slice(&value.to_ne_bytes());
        self.code.push(instruction);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn instructions_are_encoded_as_the_standard_says() {
        let mut code = Assembler::default();
        code.load(Size::Half, Register::R5, Register::R2, 12);
        code.store(Size::Word, Register::Frame, -12, Register::R4);
        code.store_immediate(Size::Double, Register::Frame, -24, 0);
        code.copy(Register::R6, Register::R1);
        code.set(Register::R0, 2);
        code.load_map(Register::R1, 7);
        code.call(51);
        code.exit();
        let code = code.finish().expect("no jumps");
        let expected = [
            [0x69, 0x25, 12, 0, 0, 0, 0, 0],
            [0x63, 0x4a, 0xf4, 0xff, 0, 0, 0, 0],
            [0x7a, 0x0a, 0xe8, 0xff, 0, 0, 0, 0],
            [0xbf, 0x16, 0, 0, 0, 0, 0, 0],
            [0xb7, 0x00, 0, 0, 2, 0, 0, 0],
            [0x18, 0x11, 0, 0, 7, 0, 0, 0],
            [0; 8],
            [0x85, 0, 0, 0, 51, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(code, expected);
    }

    #[test]
    fn jumps_lead_forward_and_back() {
        let mut code = Assembler::default();
        let (start, end) = (code.label(), code.label());
        code.place(start);
        code.jump_if(Register::R1, Condition::Greater, Operand::Register(Register::R2), end);
        code.jump(start);
        code.place(end);
        code.exit();
        let code = code.finish().expect("both labels are placed");
        assert_eq!(i16::from_ne_bytes([code[0][2], code[0][3]]), 1);
        assert_eq!(i16::from_ne_bytes([code[1][2], code[1][3]]), -2);
        assert_eq!(code[0][0], 0x2d);
    }

    #[test]
    fn jumps_without_or_beyond_reach_are_refused() {
        let mut code = Assembler::default();
        let nowhere = code.label();
        code.jump(nowhere);
        assert_eq!(code.finish(), Err(AssemblerError::LabelNotPlaced));

        let mut code = Assembler::default();
        let far = code.label();
        code.jump(far);
        for _ in 0..40_000 {
            code.exit();
        }
        code.place(far);
        assert_eq!(code.finish(), Err(AssemblerError::JumpTooLong));
    }
}
