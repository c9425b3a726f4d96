//! Device programs: our interpreter and rbpf agree, and an extended program allows what it did and the added devices.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use libnvc::host::DeviceNumber;
use libnvc::testing::{Instruction, decide, extend, obstacle};

const CHARACTER: u32 = 2;
const READ_WRITE: u32 = 6;

#[derive(Debug, Arbitrary)]
struct Input {
    raw: Vec<(u8, u8, u8, i16, i32)>,
    rules: Vec<Rule>,
    allow: bool,
    kind: u8,
    access: u8,
    device: (u8, u8),
    added: Vec<(u8, u8)>,
}

/// A rule as runtimes write them.
#[derive(Debug, Arbitrary)]
struct Rule {
    kind: Option<bool>,
    access: u8,
    major: Option<u8>,
    minor: Option<u8>,
    allow: bool,
}

fuzz_target!(|input: Input| {
    let device = number(input.device);
    let (kind, access) = (u32::from(input.kind % 3), u32::from(input.access % 8));

    let raw: Vec<Instruction> = input
        .raw
        .iter()
        .map(|(code, dst, src, offset, immediate)| {
            Instruction::new(*code, *dst, *src, *offset, *immediate)
        })
        .collect();
    let verdict = decide(&raw, kind, access, device);
    let _ = obstacle(&raw);
    // An extended program never denies what was allowed.
    if verdict == Some(true) {
        let added: Vec<DeviceNumber> = input.added.iter().copied().map(number).collect();
        assert_eq!(
            decide(&extend(&raw, &added), kind, access, device),
            Some(true)
        );
    }

    let program = filter(&input.rules, input.allow);
    assert_eq!(obstacle(&program), None);
    let allowed =
        decide(&program, kind, access, device).expect("runtimes' programs are understood");
    assert_eq!(oracle(&program, kind, access, device) & 1 == 1, allowed);
    let added: Vec<DeviceNumber> = input.added.iter().copied().map(number).collect();
    let longer = extend(&program, &added);
    let is_added = added.contains(&device) && kind == CHARACTER && access & !READ_WRITE == 0;
    assert_eq!(
        decide(&longer, kind, access, device),
        Some(allowed || is_added)
    );
    assert_eq!(
        oracle(&longer, kind, access, device) & 1 == 1,
        allowed || is_added
    );
    for device in &added {
        assert_eq!(decide(&longer, CHARACTER, READ_WRITE, *device), Some(true));
    }
});

fn number((major, minor): (u8, u8)) -> DeviceNumber {
    DeviceNumber {
        major: major.into(),
        minor: minor.into(),
    }
}

fn filter(rules: &[Rule], default: bool) -> Vec<Instruction> {
    let mut program = vec![
        Instruction::new(0x61, 2, 1, 0, 0),
        Instruction::new(0x54, 2, 0, 0, 0xffff),
        Instruction::new(0x61, 3, 1, 0, 0),
        Instruction::new(0x74, 3, 0, 0, 16),
        Instruction::new(0x61, 4, 1, 4, 0),
        Instruction::new(0x61, 5, 1, 8, 0),
    ];
    for rule in rules {
        let mut block = Vec::new();
        if let Some(block_device) = rule.kind {
            block.push((0x55, 2, 0, if block_device { 1 } else { 2 }));
        }
        block.push((0xbc, 1, 3, 0));
        block.push((0x54, 1, 0, i32::from(rule.access % 8)));
        block.push((0x5d, 1, 3, 0));
        for (register, number) in [(4, rule.major), (5, rule.minor)] {
            if let Some(number) = number {
                block.push((0x55, register, 0, i32::from(number)));
            }
        }
        block.push((0xb4, 0, 0, i32::from(rule.allow)));
        block.push((0x95, 0, 0, 0));
        let length = block.len() as i16;
        for (at, (code, dst, src, immediate)) in (0..).zip(block) {
            let jumps = matches!(code, 0x55 | 0x5d);
            let offset = if jumps { length - at - 1 } else { 0 };
            program.push(Instruction::new(code, dst, src, offset, immediate));
        }
    }
    program.push(Instruction::new(0xb4, 0, 0, 0, i32::from(default)));
    program.push(Instruction::new(0x95, 0, 0, 0, 0));
    program
}

/// The program's result according to rbpf.
fn oracle(program: &[Instruction], kind: u32, access: u32, device: DeviceNumber) -> u64 {
    let mut request = Vec::new();
    for word in [access << 16 | kind, device.major, device.minor] {
        request.extend(word.to_le_bytes());
    }
    let mut bytes = Vec::new();
    for i in program {
        bytes.extend([i.code, i.dst() | i.src() << 4]);
        bytes.extend(i.offset.to_le_bytes());
        bytes.extend(i.immediate.to_le_bytes());
    }
    let vm = rbpf::EbpfVmRaw::new(Some(&bytes)).expect("rbpf takes it");
    vm.execute_program(&mut request).expect("rbpf runs it")
}
