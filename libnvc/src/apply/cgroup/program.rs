//! Extends a device filter, a BPF program, to allow additional devices.
//!
//! Pure: instructions in, instructions out. The new program first checks for the added devices and then runs the
//! original unchanged, so whatever the original allowed stays allowed. [`interpret`] evaluates programs, so that one
//! that already allows a device does not grow.

use std::collections::HashSet;

use crate::host::DeviceNumber;
use crate::sys::bpf::Instruction;

pub(crate) mod interpret;

use interpret::{READ, WRITE, decide};

/// Length of the prologue of the rules, and of one rule.
const PROLOGUE: usize = 5;
const RULE: usize = 4;
/// Number of rules that one prologue's jump, with its 15 bits, can skip.
const RULES_PER_PROLOGUE: usize = 4096;

const CHARACTER: i32 = 2;
/// Mask of the first word of the context: the access bits other than read and write.
const NEITHER_READ_NOR_WRITE: i32 = !(((READ | WRITE) as i32) << 16);

/// Returns a program that allows what `original` allows, and reading and writing the character devices `added`.
pub fn extend(original: &[Instruction], added: &[DeviceNumber]) -> Vec<Instruction> {
    let mut program = Vec::with_capacity(original.len() + PROLOGUE + added.len() * RULE);
    for devices in added.chunks(RULES_PER_PROLOGUE) {
        prologue(&mut program, devices.len());
        for device in devices {
            rule(&mut program, *device);
        }
    }
    program.extend_from_slice(original);
    program
}

/// Returns the devices that a program is not known to allow a process to open for reading, writing and both.
///
/// Rules that were added before are recognised, so that a second `configure` with many devices does not interpret the
/// program's thousands of instructions for each device.
pub(in crate::apply) fn missing(
    program: &[Instruction],
    devices: &[DeviceNumber],
) -> Vec<DeviceNumber> {
    let (added, original) = split(program);
    let known = |device: &DeviceNumber| added.contains(device) || allows(original, *device);
    let devices = devices.iter().copied();
    devices.filter(|device| !known(device)).collect()
}

/// Returns the devices of the rules that [`extend`] has prepended to a program, and the original program.
fn split(mut program: &[Instruction]) -> (HashSet<DeviceNumber>, &[Instruction]) {
    let mut added = HashSet::new();
    while let Some(devices) = leading_rules(program) {
        program = &program[PROLOGUE + devices.len() * RULE..];
        added.extend(devices);
    }
    (added, program)
}

/// Returns the devices of one prologue's rules; `None` unless the program begins with exactly such rules.
fn leading_rules(program: &[Instruction]) -> Option<Vec<DeviceNumber>> {
    let jump = usize::try_from(program.get(2)?.offset).ok()?;
    let count = jump.checked_sub(2)? / RULE;
    let start = program.get(..PROLOGUE + count * RULE)?;
    let rules = start.get(PROLOGUE..)?.chunks_exact(RULE);
    let devices: Vec<_> = rules
        .map(|rule| DeviceNumber {
            major: rule[0].immediate.cast_unsigned(),
            minor: rule[1].immediate.cast_unsigned(),
        })
        .collect();
    let expected = (count > 0 && count <= RULES_PER_PROLOGUE).then(|| extend(&[], &devices))?;
    (expected == start).then_some(devices)
}

/// Returns true if a program is known to allow opening a character device for reading, writing and both.
pub(crate) fn allows(program: &[Instruction], device: DeviceNumber) -> bool {
    [READ, WRITE, READ | WRITE]
        .into_iter()
        .all(|access| decide(program, interpret::CHARACTER, access, device) == Some(true))
}

/// Returns true if a program is known to deny opening a character device for reading, for writing, or for both.
pub(in crate::apply) fn denies(program: &[Instruction], device: DeviceNumber) -> bool {
    [READ, WRITE, READ | WRITE]
        .into_iter()
        .any(|access| decide(program, interpret::CHARACTER, access, device) == Some(false))
}

/// The effect of the JIT compiler's hardening: it rewrites constants with a register that programs may not use.
pub(in crate::apply) const BLINDED: &str = "its constants are blinded";

/// Returns the reason why a program, as shown by the kernel, cannot be loaded again; `None` if it can.
///
/// The kernel shows a program's references as numbers that are meaningless when they are loaded.
pub fn obstacle(program: &[Instruction]) -> Option<&'static str> {
    let mut instructions = program.iter();
    while let Some(instruction) = instructions.next() {
        if instruction.dst() > 10 || instruction.src() > 10 {
            return Some(BLINDED);
        }
        match instruction.code {
            code::CALL if instruction.immediate == TAIL_CALL && instruction.src() == 0 => {
                return Some("it calls other programs");
            }
            code::CALL | code::CALL_REGISTER => return Some("it calls functions"),
            code::LOAD_CONSTANT => {
                if instruction.src() != 0 {
                    return Some("it uses maps");
                }
                // The second half is a constant, not an instruction.
                instructions.next();
            }
            _ => {}
        }
    }
    None
}

/// The helper that replaces the running program by another one.
const TAIL_CALL: i32 = 12;

/// Values of `code` in the instructions used here.
mod code {
    pub(in crate::apply) const LOAD_CONSTANT: u8 = 0x18;
    pub(in crate::apply) const LOAD_WORD: u8 = 0x61;
    pub(in crate::apply) const AND: u8 = 0x57;
    pub(in crate::apply) const MOVE: u8 = 0xb7;
    pub(in crate::apply) const JUMP_UNLESS_EQUAL: u8 = 0x55;
    pub(in crate::apply) const CALL: u8 = 0x85;
    pub(in crate::apply) const CALL_REGISTER: u8 = 0x8d;
    pub(in crate::apply) const EXIT: u8 = 0x95;
}

/// Loads the request and skips the rules unless they can match.
///
/// Register 1, the context, is not changed, because the original expects it there. The original cannot depend on the
/// other registers, because the verifier has checked that it sets every register it reads.
fn prologue(program: &mut Vec<Instruction>, rules: usize) {
    let skipped = i16::try_from(rules * RULE + 2).expect("a prologue has few enough rules");
    program.extend([
        Instruction::new(code::LOAD_WORD, 2, 1, 0, 0),
        Instruction::new(code::AND, 2, 0, 0, NEITHER_READ_NOR_WRITE),
        Instruction::new(code::JUMP_UNLESS_EQUAL, 2, 0, skipped, CHARACTER),
        Instruction::new(code::LOAD_WORD, 3, 1, 4, 0),
        Instruction::new(code::LOAD_WORD, 4, 1, 8, 0),
    ]);
}

/// Ends the program, allowing the access, if the request is for this device.
fn rule(program: &mut Vec<Instruction>, device: DeviceNumber) {
    // A number with the highest bit set, which no device has, becomes a constant that matches nothing.
    let (major, minor) = (device.major.cast_signed(), device.minor.cast_signed());
    program.extend([
        Instruction::new(code::JUMP_UNLESS_EQUAL, 3, 0, 3, major),
        Instruction::new(code::JUMP_UNLESS_EQUAL, 4, 0, 2, minor),
        Instruction::new(code::MOVE, 0, 0, 0, 1),
        Instruction::new(code::EXIT, 0, 0, 0, 0),
    ]);
}

#[cfg(test)]
mod tests;
