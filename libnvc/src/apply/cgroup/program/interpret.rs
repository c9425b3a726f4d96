//! Evaluates a device filter for a request by interpreting it.
//!
//! Supports only the instructions that filters consist of: constants, arithmetic without division, jumps, and reading
//! the request. For any other instruction, and after too many steps, the result is unknown; no program can cause a
//! worse failure.

use crate::host::DeviceNumber;
use crate::sys::bpf::Instruction;

/// Device type, as passed to a filter by the kernel.
pub(crate) const CHARACTER: u32 = 2;
/// Access bits, as passed to a filter by the kernel.
pub(crate) const READ: u32 = 2;
pub(crate) const WRITE: u32 = 4;

/// Step limit: enough for a filter with a few thousand rules of some ten instructions.
const STEPS: usize = 100_000;

/// Content of a register.
#[derive(Clone, Copy)]
enum Value {
    /// Unknown.
    Unknown,
    Number(u64),
    /// A pointer into the request.
    Request(u64),
}

/// Returns true if the program allows the access; `None` if that is unknown.
pub fn decide(
    program: &[Instruction],
    kind: u32,
    access: u32,
    device: DeviceNumber,
) -> Option<bool> {
    let mut request = [0; 12];
    request[..4].copy_from_slice(&(access << 16 | kind).to_ne_bytes());
    request[4..8].copy_from_slice(&device.major.to_ne_bytes());
    request[8..].copy_from_slice(&device.minor.to_ne_bytes());
    match run(program, &request)? & 1 {
        0 => Some(false),
        _ => Some(true),
    }
}

/// Returns the program's result.
fn run(program: &[Instruction], request: &[u8; 12]) -> Option<u64> {
    let mut registers = [Value::Unknown; 16];
    registers[1] = Value::Request(0);
    let mut at = 0usize;
    for _ in 0..STEPS {
        let instruction = *program.get(at)?;
        let dst = usize::from(instruction.dst());
        at = at.checked_add(1)?;
        match instruction.code & 0x07 {
            // Constant of two instructions' length.
            0x00 => {
                let high = program.get(at)?;
                if instruction.code != 0x18 || instruction.src() != 0 || high.code != 0 {
                    return None;
                }
                let low = u64::from(instruction.immediate.cast_unsigned());
                let high = u64::from(high.immediate.cast_unsigned());
                registers[dst] = Value::Number(high << 32 | low);
                at = at.checked_add(1)?;
            }
            // Load from memory.
            0x01 => {
                let base = registers[usize::from(instruction.src())];
                registers[dst] = load(instruction, base, request)?;
            }
            // Arithmetic on 32 and 64 bits.
            0x04 | 0x07 => {
                let operand = operand(instruction, &registers);
                registers[dst] = arithmetic(instruction, registers[dst], operand)?;
            }
            // Jumps.
            0x05 | 0x06 => {
                let taken = match instruction.code {
                    0x95 => {
                        let Value::Number(result) = registers[0] else {
                            return None;
                        };
                        return Some(result);
                    }
                    0x05 => true,
                    _ => compare(
                        instruction,
                        registers[dst],
                        operand(instruction, &registers),
                    )?,
                };
                if taken {
                    at = at.checked_add_signed(isize::from(instruction.offset))?;
                }
            }
            _ => return None,
        }
    }
    None
}

/// Returns the other operand: a register, or the sign-extended constant.
fn operand(instruction: Instruction, registers: &[Value; 16]) -> Value {
    if instruction.code & 0x08 != 0 {
        registers[usize::from(instruction.src())]
    } else {
        Value::Number(i64::from(instruction.immediate).cast_unsigned())
    }
}

/// Reads a part of the request.
fn load(instruction: Instruction, base: Value, request: &[u8; 12]) -> Option<Value> {
    let size = match instruction.code {
        0x61 => 4,
        0x69 => 2,
        0x71 => 1,
        _ => return None,
    };
    let Value::Request(base) = base else {
        return None;
    };
    let start = base.wrapping_add_signed(i64::from(instruction.offset));
    let start = usize::try_from(start).ok()?;
    let part = request.get(start..start.checked_add(size)?)?;
    let mut word = [0; 8];
    if cfg!(target_endian = "little") {
        word[..size].copy_from_slice(part);
    } else {
        word[8 - size..].copy_from_slice(part);
    }
    Some(Value::Number(u64::from_ne_bytes(word)))
}

/// Returns `None` for unsupported operations.
fn arithmetic(instruction: Instruction, left: Value, right: Value) -> Option<Value> {
    // Newer kernels use the offset for signed division and sign-extending moves.
    if instruction.offset != 0 {
        return None;
    }
    let wide = instruction.code & 0x07 == 0x07;
    let operation = instruction.code & 0xf0;
    let (left, right) = match (operation, left, right) {
        (0xb0, _, Value::Number(right)) => (0, right),
        (0xb0, _, right) if wide => return Some(right),
        (0x80, Value::Number(left), _) if instruction.code & 0x08 == 0 => (left, 0),
        (_, Value::Number(left), Value::Number(right)) => (left, right),
        (0x00, Value::Request(base), Value::Number(right)) if wide => {
            return Some(Value::Request(base.wrapping_add(right)));
        }
        _ => return None,
    };
    let (left, right, bits) = if wide {
        (left, right, 64)
    } else {
        (low(left), low(right), 32)
    };
    // The verifier rejects constants that shift too far; the CPU ignores the higher bits of a register.
    let by = u32::try_from(right % bits).ok()?;
    let result = match operation {
        0x00 => left.wrapping_add(right),
        0x10 => left.wrapping_sub(right),
        0x20 => left.wrapping_mul(right),
        0x40 => left | right,
        0x50 => left & right,
        0x60 => left << by,
        0x70 => left >> by,
        0x80 => left.wrapping_neg(),
        0xa0 => left ^ right,
        0xb0 => right,
        0xc0 if wide => (left.cast_signed() >> by).cast_unsigned(),
        0xc0 => (signed(left, false) >> by).cast_unsigned(),
        _ => return None,
    };
    Some(Value::Number(if wide { result } else { low(result) }))
}

/// Returns true if a conditional jump is taken.
fn compare(instruction: Instruction, left: Value, right: Value) -> Option<bool> {
    let (Value::Number(left), Value::Number(right)) = (left, right) else {
        return None;
    };
    let wide = instruction.code & 0x07 == 0x05;
    let (left, right) = if wide {
        (left, right)
    } else {
        (low(left), low(right))
    };
    let (signed_left, signed_right) = (signed(left, wide), signed(right, wide));
    Some(match instruction.code & 0xf0 {
        0x10 => left == right,
        0x20 => left > right,
        0x30 => left >= right,
        0x40 => left & right != 0,
        0x50 => left != right,
        0x60 => signed_left > signed_right,
        0x70 => signed_left >= signed_right,
        0xa0 => left < right,
        0xb0 => left <= right,
        0xc0 => signed_left < signed_right,
        0xd0 => signed_left <= signed_right,
        _ => return None,
    })
}

/// Returns the lower half.
fn low(number: u64) -> u64 {
    number & 0xffff_ffff
}

/// Converts to a signed number of 64 or 32 bits.
fn signed(number: u64, wide: bool) -> i64 {
    if wide {
        number.cast_signed()
    } else {
        (number << 32).cast_signed() >> 32
    }
}
