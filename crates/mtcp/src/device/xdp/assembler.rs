//! Implements a small assembler for eBPF (RFC 9669) with only the instructions that the XDP program
//! uses. It has labels in place of jump offsets.

/// One of eBPF's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Register {
    /// Results of calls, and the return value of the program.
    R0 = 0,
    /// The first argument.
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    R5 = 5,
    /// The first register that calls preserve.
    R6 = 6,
    R7 = 7,
    /// The end of the stack frame, read-only.
    Frame = 10,
}

/// The number of bytes that a load or store moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Size {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
    Double = 0x18,
}

/// The condition of a jump; comparisons are unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Condition {
    Equal = 0x10,
    Greater = 0x20,
    NotEqual = 0x50,
}

/// The operand of a comparison with a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    Immediate(i32),
    Register(Register),
}

/// A position in the program, which jumps may use before it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(usize);

/// The reason why a program cannot be assembled.
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
/// In the source register of a double-word immediate: the immediate is the descriptor of a map.
const PSEUDO_MAP: u8 = 1;

/// A program under construction.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    code: Vec<[u8; 8]>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// Creates a label without a position.
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Sets the label's position to the next instruction.
    pub(super) fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    /// Emits `to = *(from + offset)`; the rest of the register becomes zero.
    pub(super) fn load(&mut self, size: Size, to: Register, from: Register, offset: i16) {
        self.emit(LOAD | size as u8, to, from as u8, offset, 0);
    }

    /// Emits `*(to + offset) = from`.
    pub(super) fn store(&mut self, size: Size, to: Register, offset: i16, from: Register) {
        self.emit(STORE | size as u8, to, from as u8, offset, 0);
    }

    /// Emits `*(to + offset) = value`.
    pub(super) fn store_immediate(&mut self, size: Size, to: Register, offset: i16, value: i32) {
        self.emit(STORE_IMMEDIATE | size as u8, to, 0, offset, value);
    }

    /// Emits `to = from`.
    pub(super) fn copy(&mut self, to: Register, from: Register) {
        self.emit(MOVE, to, from as u8, 0, 0);
    }

    /// Emits `to = value`.
    pub(super) fn set(&mut self, to: Register, value: i32) {
        self.emit(MOVE_IMMEDIATE, to, 0, 0, value);
    }

    /// Emits `to += value`.
    pub(super) fn add(&mut self, to: Register, value: i32) {
        self.emit(ADD_IMMEDIATE, to, 0, 0, value);
    }

    /// Emits `to &= value`.
    pub(super) fn and(&mut self, to: Register, value: i32) {
        self.emit(AND_IMMEDIATE, to, 0, 0, value);
    }

    /// Emits a load of the address of the map with this descriptor.
    pub(super) fn load_map(&mut self, to: Register, descriptor: i32) {
        self.emit(LOAD_IMMEDIATE_DOUBLE, to, PSEUDO_MAP, 0, descriptor);
        self.code.push([0; 8]);
    }

    /// Emits a jump to the label.
    pub(super) fn jump(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.emit(JUMP, Register::R0, 0, 0, 0);
    }

    /// Emits a jump to the label if the condition is true.
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

    /// Emits a call of the helper with this number (bpf-helpers(7)); it overwrites registers 1 to
    /// 5.
    pub(super) fn call(&mut self, helper: i32) {
        self.emit(CALL, Register::R0, 0, 0, helper);
    }

    /// Emits the end of the program, which returns register 0.
    pub(super) fn exit(&mut self) {
        self.emit(EXIT, Register::R0, 0, 0, 0);
    }

    /// Returns the instructions in the kernel's format.
    pub(super) fn finish(mut self) -> Result<Vec<[u8; 8]>, AssemblerError> {
        for (from, label) in self.jumps {
            let to = self.labels[label.0].ok_or(AssemblerError::LabelNotPlaced)?;
            // Offsets count from the instruction after the jump.
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
