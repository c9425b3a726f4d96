//! Tests extended programs, and the interpreter, against rbpf, an independent implementation.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::interpret::decide;
use super::*;

const BLOCK: u32 = 1;
const MKNOD: u32 = 1;

/// One rule of a runtime's configuration.
#[derive(Clone, Debug)]
struct Rule {
    kind: Option<u32>,
    access: u32,
    major: Option<u32>,
    minor: Option<u32>,
    allow: bool,
}

impl Rule {
    fn matches(&self, kind: u32, access: u32, device: DeviceNumber) -> bool {
        self.kind.is_none_or(|k| k == kind)
            && access & !self.access == 0
            && self.major.is_none_or(|m| m == device.major)
            && self.minor.is_none_or(|m| m == device.minor)
    }
}

/// Builds a filter as runtimes do: a prologue, a block for each rule, a default.
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
        if let Some(kind) = rule.kind {
            block.push(Instruction::new(0x55, 2, 0, 0, kind.cast_signed()));
        }
        block.push(Instruction::new(0xbc, 1, 3, 0, 0));
        block.push(Instruction::new(0x54, 1, 0, 0, rule.access.cast_signed()));
        block.push(Instruction::new(0x5d, 1, 3, 0, 0));
        for (register, number) in [(4, rule.major), (5, rule.minor)] {
            if let Some(number) = number {
                block.push(Instruction::new(0x55, register, 0, 0, number.cast_signed()));
            }
        }
        block.push(Instruction::new(0xb4, 0, 0, 0, i32::from(rule.allow)));
        block.push(Instruction::new(0x95, 0, 0, 0, 0));
        let length = block.len();
        for (at, instruction) in block.iter_mut().enumerate() {
            if matches!(instruction.code, 0x55 | 0x5d) {
                instruction.offset = i16::try_from(length - at - 1).unwrap();
            }
        }
        program.extend(block);
    }
    program.push(Instruction::new(0xb4, 0, 0, 0, i32::from(default)));
    program.push(Instruction::new(0x95, 0, 0, 0, 0));
    program
}

fn bytes(program: &[Instruction]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for i in program {
        bytes.extend([i.code, i.dst() | i.src() << 4]);
        bytes.extend(i.offset.to_le_bytes());
        bytes.extend(i.immediate.to_le_bytes());
    }
    bytes
}

/// Returns rbpf's result.
fn oracle(program: &[Instruction], kind: u32, access: u32, device: DeviceNumber) -> u64 {
    let mut request = Vec::new();
    for word in [access << 16 | kind, device.major, device.minor] {
        request.extend(word.to_le_bytes());
    }
    let bytes = bytes(program);
    let vm = rbpf::EbpfVmRaw::new(Some(&bytes)).unwrap();
    vm.execute_program(&mut request).unwrap()
}

fn device(major: u32, minor: u32) -> DeviceNumber {
    DeviceNumber { major, minor }
}

fn any_device() -> impl Strategy<Value = DeviceNumber> {
    (
        prop_oneof![Just(1u32), Just(195), 508..511u32],
        prop_oneof![0..4u32, Just(255)],
    )
        .prop_map(|(major, minor)| device(major, minor))
}

fn any_rule() -> impl Strategy<Value = Rule> {
    (
        prop::option::of(1..3u32),
        1..8u32,
        prop::option::of(prop_oneof![Just(1u32), Just(195), 508..511u32]),
        prop::option::of(0..4u32),
        any::<bool>(),
    )
        .prop_map(|(kind, access, major, minor, allow)| Rule {
            kind,
            access,
            major,
            minor,
            allow,
        })
}

/// Generates instructions that both sides support; jumps lead forward by a few.
fn any_instruction() -> impl Strategy<Value = Instruction> {
    let operation = prop::sample::select(vec![
        0x00u8, 0x10, 0x20, 0x40, 0x50, 0x60, 0x70, 0xa0, 0xb0, 0xc0,
    ]);
    let condition = prop::sample::select(vec![
        0x10u8, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xa0, 0xb0, 0xc0, 0xd0,
    ]);
    let constant = prop_oneof![any::<i32>(), -3..70i32];
    let source = prop_oneof![Just(0u8), Just(8)];
    prop_oneof![
        (
            operation,
            source.clone(),
            prop_oneof![Just(4u8), Just(7)],
            2..6u8,
            2..6u8,
            constant.clone()
        )
            .prop_map(|(operation, source, class, dst, src, constant)| {
                let shift = matches!(operation, 0x60 | 0x70 | 0xc0);
                let constant = if shift { constant & 31 } else { constant };
                // Implementations differ in shifts beyond the width.
                let source = if shift { 0 } else { source };
                let src = if source == 0 { 0 } else { src };
                Instruction::new(operation | source | class, dst, src, 0, constant)
            }),
        (
            condition,
            source,
            prop_oneof![Just(5u8), Just(6)],
            2..6u8,
            2..6u8,
            0..3i16,
            constant
        )
            .prop_map(|(condition, source, class, dst, src, offset, constant)| {
                let src = if source == 0 { 0 } else { src };
                // In 64-bit comparisons rbpf treats constants as unsigned, the kernel as signed: see the test below.
                let wide = class == 5 && source == 0;
                let constant = if wide { constant & i32::MAX } else { constant };
                Instruction::new(condition | source | class, dst, src, offset, constant)
            }),
        (0..3usize, 2..6u8, 0..12i16).prop_map(|(size, dst, offset)| {
            let (code, bytes) = [(0x61, 4), (0x69, 2), (0x71, 1)][size];
            Instruction::new(code, dst, 1, offset.min(12 - bytes), 0)
        }),
    ]
}

/// BPF instruction set (RFC 9669), section 4.3: a 64-bit comparison sign-extends its constant.
#[test]
fn constants_of_wide_comparisons_are_signed() {
    let program = |register: i32, compared: i32| {
        [
            Instruction::new(0xb7, 0, 0, 0, 0),
            Instruction::new(0xb7, 2, 0, 0, register),
            Instruction::new(0x55, 2, 0, 1, compared), // skips the next unless they are equal
            Instruction::new(0xb7, 0, 0, 0, 1),
            Instruction::new(0x95, 0, 0, 0, 0),
        ]
    };
    let device = DeviceNumber { major: 1, minor: 3 };
    assert_eq!(decide(&program(-1, -1), 2, 2, device), Some(true));
    assert_eq!(decide(&program(-1, 1), 2, 2, device), Some(false));
}

proptest! {
    #[test]
    fn exactly_the_added_devices_become_allowed(
        rules in prop::collection::vec(any_rule(), 0..8),
        default in any::<bool>(),
        added in prop::collection::vec(any_device(), 0..6),
        probes in prop::collection::vec((1..3u32, 1..8u32, any_device()), 1..40),
    ) {
        let original = filter(&rules, default);
        prop_assert_eq!(obstacle(&original), None);
        let extended = extend(&original, &added);
        prop_assert_eq!(obstacle(&extended), None);
        for (kind, access, device) in probes {
            let first = rules.iter().find(|rule| rule.matches(kind, access, device));
            let before = first.map_or(default, |rule| rule.allow);
            prop_assert_eq!(oracle(&original, kind, access, device), u64::from(before));
            prop_assert_eq!(decide(&original, kind, access, device), Some(before));
            let chosen = kind == 2 && access & MKNOD == 0 && added.contains(&device);
            prop_assert_eq!(oracle(&extended, kind, access, device), u64::from(before || chosen));
            prop_assert_eq!(decide(&extended, kind, access, device), Some(before || chosen));
        }
        for device in &added {
            prop_assert!(allows(&extended, *device));
        }
        prop_assert_eq!(missing(&extended, &added), []);
        let (found, rest) = split(&extended);
        prop_assert_eq!(found, added.into_iter().collect());
        prop_assert_eq!(rest, &original[..]);
    }

    #[test]
    fn arithmetic_agrees_with_rbpf(
        body in prop::collection::vec(any_instruction(), 1..30),
        kind in 1..3u32,
        access in 1..8u32,
        device in any_device(),
    ) {
        let mut program: Vec<_> = (2..6u8)
            .map(|register| Instruction::new(0xb7, register, 0, 0, i32::from(register) - 4))
            .collect();
        program.extend(&body);
        // Targets of the last jumps.
        program.extend([Instruction::new(0xb7, 5, 0, 0, 9); 3]);
        for register in 2..6 {
            program.push(Instruction::new(0xaf, 0, register, 0, 0));
        }
        program.insert(0, Instruction::new(0xb7, 0, 0, 0, 0));
        program.push(Instruction::new(0x95, 0, 0, 0, 0));
        prop_assert_eq!(
            decide(&program, kind, access, device),
            Some(oracle(&program, kind, access, device) & 1 == 1)
        );
        // Every bit, including those that do not matter.
        let at = program.len() - 1;
        for bit in [7, 31, 32, 63] {
            let mut shifted = program.clone();
            shifted.insert(at, Instruction::new(0x77, 0, 0, 0, bit));
            prop_assert_eq!(
                decide(&shifted, kind, access, device),
                Some(oracle(&shifted, kind, access, device) & 1 == 1)
            );
        }
    }
}

#[test]
fn only_exact_rules_are_recognised() {
    let program = extend(&filter(&[], false), &[device(195, 0), device(195, 1)]);
    assert_eq!(split(&program).0.len(), 2);
    for at in 0..PROLOGUE + 2 * RULE {
        let mut other = program.clone();
        other[at].code ^= 0x80;
        assert_eq!(split(&other).0.len(), 0, "{at}");
        assert!(split(&program[..at]).0.is_empty(), "{at}");
    }
}

#[test]
fn more_rules_than_one_jump_leads_past() {
    let added: Vec<_> = (0..9000).map(|minor| device(240, minor)).collect();
    let deny = filter(&[], false);
    let program = extend(&deny, &added);
    for minor in [0, 4095, 4096, 8999] {
        assert!(allows(&program, device(240, minor)), "{minor}");
    }
    assert!(!allows(&program, device(240, 9000)));
    let one_more: Vec<_> = (0..9001).map(|minor| device(240, minor)).collect();
    assert_eq!(missing(&program, &one_more), [device(240, 9000)]);
    assert_eq!(decide(&program, BLOCK, READ, device(240, 1)), Some(false));
    assert_eq!(decide(&program, 2, MKNOD, device(240, 1)), Some(false));
}

#[test]
fn unsupported_instructions_are_unknown() {
    let exit = Instruction::new(0x95, 0, 0, 0, 0);
    let one = Instruction::new(0xb7, 0, 0, 0, 1);
    for (name, program) in [
        ("nothing", vec![]),
        ("no result", vec![exit]),
        (
            "the address of the request",
            vec![Instruction::new(0xbf, 0, 1, 0, 0), exit],
        ),
        (
            "division",
            vec![one, Instruction::new(0x37, 0, 0, 0, 1), exit],
        ),
        ("call", vec![Instruction::new(0x85, 0, 0, 0, 5), exit]),
        (
            "map",
            vec![
                Instruction::new(0x18, 0, 1, 0, 3),
                Instruction::default(),
                exit,
            ],
        ),
        ("loop", vec![Instruction::new(0x05, 0, 0, -1, 0)]),
        (
            "before the start",
            vec![Instruction::new(0x05, 0, 0, -2, 0)],
        ),
        ("past the end", vec![one]),
        (
            "stack",
            vec![one, Instruction::new(0x7b, 10, 0, -8, 0), exit],
        ),
        (
            "outside of the request",
            vec![Instruction::new(0x61, 0, 1, 9, 0), exit],
        ),
        (
            "before the request",
            vec![Instruction::new(0x61, 0, 1, -1, 0), exit],
        ),
    ] {
        assert_eq!(decide(&program, 2, READ, device(1, 3)), None, "{name}");
    }
    let wide = [
        Instruction::new(0x18, 0, 0, 0, 0),
        Instruction::new(0, 0, 0, 0, 1),
        exit,
    ];
    assert_eq!(decide(&wide, 2, READ, device(1, 3)), Some(false));
}

#[test]
fn obstacles_are_seen() {
    let exit = Instruction::new(0x95, 0, 0, 0, 0);
    for (program, expected) in [
        (
            vec![Instruction::new(0x85, 0, 0, 0, 5), exit],
            Some("it calls functions"),
        ),
        (
            vec![Instruction::new(0x85, 0, 1, 0, 5), exit],
            Some("it calls functions"),
        ),
        (
            vec![Instruction::new(0x85, 0, 0, 0, 12), exit],
            Some("it calls other programs"),
        ),
        (
            vec![Instruction::new(0x18, 1, 1, 0, 3), Instruction::default()],
            Some("it uses maps"),
        ),
        (vec![Instruction::new(0xb7, 11, 0, 0, 3)], Some(BLINDED)),
        // The second half of a constant may look like any instruction.
        (
            vec![
                Instruction::new(0x18, 1, 0, 0, 3),
                Instruction::new(0x85, 0, 0, 0, 0),
                exit,
            ],
            None,
        ),
        (vec![exit], None),
    ] {
        assert_eq!(obstacle(&program), expected, "{program:?}");
    }
}
