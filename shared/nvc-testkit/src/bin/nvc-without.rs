//! Runs a command without some system calls, as on old kernels and in sandboxes.
//!
//! `nvc-without open_tree clone3 -- true` makes these calls return `ENOSYS`, `nvc-without EPERM open_tree -- true`
//! makes them return `EPERM`, and `nvc-without linux-5.4 -- true` answers like that version for every later call that
//! the programs under test could use, including new flags of older calls if they are visible in the arguments. A filter
//! does not see memory (docs/kernel-features.md lists the gaps).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use nix::libc::{EINVAL, ENOSYS, EPERM, EXDEV};
use nvc_testkit::syscalls;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

type Failure = Box<dyn std::error::Error>;
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// An addition of a Linux version.
struct News {
    since: (u32, u32),
    call: &'static str,
    /// For an older call: the argument's index, and its new bits.
    argument: Option<(u8, Bits)>,
    /// The errno on older kernels.
    answer: i32,
}

#[derive(Clone, Copy)]
enum Bits {
    /// Exactly this value.
    Value(u64),
    /// This value or a greater one.
    From(u64),
    /// This flag.
    Flag(u64),
}

const fn call(major: u32, minor: u32, call: &'static str) -> News {
    News {
        since: (major, minor),
        call,
        argument: None,
        answer: ENOSYS,
    }
}

const fn flag(since: (u32, u32), call: &'static str, place: u8, bits: Bits) -> News {
    News {
        since,
        call,
        argument: Some((place, bits)),
        answer: EINVAL,
    }
}

const NEWS: &[News] = &[
    call(5, 1, "pidfd_send_signal"),
    call(5, 2, "open_tree"),
    call(5, 2, "move_mount"),
    call(5, 2, "fsopen"),
    call(5, 2, "fsconfig"),
    call(5, 2, "fsmount"),
    call(5, 3, "pidfd_open"),
    call(5, 3, "clone3"),
    // Between different filesystems, such as a copy to memory.
    News {
        since: (5, 3),
        call: "copy_file_range",
        argument: None,
        answer: EXDEV,
    },
    flag((5, 4), "waitid", 0, Bits::Value(3)), // P_PIDFD
    call(5, 6, "openat2"),
    flag((5, 7), "bpf", 0, Bits::From(28)), // BPF_LINK_CREATE and what follows it
    flag((5, 8), "bpf", 0, Bits::From(30)), // BPF_LINK_GET_FD_BY_ID
    call(5, 8, "faccessat2"),
    call(5, 9, "close_range"),
    flag((5, 11), "close_range", 2, Bits::Flag(4)), // CLOSE_RANGE_CLOEXEC
    call(5, 12, "mount_setattr"),
    flag((5, 17), "prctl", 0, Bits::Value(0x5356_4d41)), // PR_SET_VMA
    flag((6, 3), "memfd_create", 1, Bits::Flag(0x10)),   // MFD_EXEC
    flag((6, 3), "memfd_create", 1, Bits::Flag(0x8)),    // MFD_NOEXEC_SEAL
    call(6, 6, "fchmodat2"),
    call(6, 8, "statmount"),
    call(6, 8, "listmount"),
    flag((6, 13), "madvise", 2, Bits::Value(102)), // MADV_GUARD_INSTALL
    call(6, 15, "open_tree_attr"),
];

fn main() -> ExitCode {
    match run(env::args_os().skip(1).collect()) {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("nvc-without: {error}");
            ExitCode::from(127)
        }
    }
}

fn run(mut words: Vec<OsString>) -> Result<Infallible, Failure> {
    let end = words
        .iter()
        .position(|word| word == "--")
        .ok_or("usage: nvc-without [EPERM] CALL|linux-VERSION... -- COMMAND...")?;
    let command = words.split_off(end + 1);
    words.pop();
    let words: Vec<String> = words
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    for (answer, rules) in answers(&words)? {
        let action = SeccompAction::Errno(u32::try_from(answer)?);
        let arch = env::consts::ARCH.try_into()?;
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch)?;
        seccompiler::apply_filter(&BpfProgram::try_from(filter)?)?;
    }
    let (program, arguments) = command.split_first().ok_or("no command")?;
    Err(Command::new(program).args(arguments).exec().into())
}

/// Returns the filtered calls by errno.
fn answers(words: &[String]) -> Result<BTreeMap<i32, Rules>, Failure> {
    let mut answers: BTreeMap<i32, Rules> = BTreeMap::new();
    let mut missing = ENOSYS;
    for word in words {
        if word == "EPERM" {
            missing = EPERM;
        } else if let Some(version) = word.strip_prefix("linux-") {
            let (major, minor) = version.split_once('.').ok_or("a version has a point")?;
            let version = (major.parse()?, minor.parse()?);
            for news in NEWS.iter().filter(|news| news.since > version) {
                add(answers.entry(news.answer).or_default(), news)?;
            }
        } else {
            let number = number(word).ok_or_else(|| format!("{word}: unknown system call"))?;
            answers
                .entry(missing)
                .or_default()
                .insert(number, Vec::new());
        }
    }
    Ok(answers)
}

fn add(rules: &mut Rules, news: &News) -> Result<(), Failure> {
    let number = number(news.call).ok_or(news.call)?;
    let Some((place, bits)) = news.argument else {
        rules.insert(number, Vec::new());
        return Ok(());
    };
    let (operation, value) = match bits {
        Bits::Value(value) => (SeccompCmpOp::Eq, value),
        Bits::From(value) => (SeccompCmpOp::Ge, value),
        Bits::Flag(flag) => (SeccompCmpOp::MaskedEq(flag), flag),
    };
    let condition = SeccompCondition::new(place, SeccompCmpArgLen::Dword, operation, value)?;
    let rule = SeccompRule::new(vec![condition])?;
    match rules.get(&number) {
        // The call itself is already missing.
        Some(conditions) if conditions.is_empty() => {}
        _ => rules.entry(number).or_default().push(rule),
    }
    Ok(())
}

/// Returns the number of a call, including calls that nothing here uses yet.
fn number(name: &str) -> Option<i64> {
    match name {
        // The same on all architectures; some C libraries' headers lack it.
        "fchmodat2" => Some(452),
        "statmount" => Some(457),
        "listmount" => Some(458),
        "open_tree_attr" => Some(467),
        _ => syscalls::number(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_what_came_before_them() -> Result<(), Failure> {
        let calls = |word: &str| -> Result<Vec<(i32, usize)>, Failure> {
            let found = answers(&[word.to_owned()])?.into_iter();
            Ok(found.map(|(answer, rules)| (answer, rules.len())).collect())
        };
        assert_eq!(
            calls("linux-4.18")?,
            [(EXDEV, 1), (EINVAL, 6), (ENOSYS, 16)]
        );
        assert_eq!(calls("linux-5.12")?, [(EINVAL, 3), (ENOSYS, 4)]);
        assert_eq!(calls("linux-6.13")?, [(ENOSYS, 1)]);
        assert_eq!(calls("linux-6.15")?, []);
        assert!(calls("linux-next").is_err());
        Ok(())
    }
}
