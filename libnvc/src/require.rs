//! Evaluates requirement expressions: an image's conditions on the driver and on each GPU.
//!
//! An expression is alternatives separated by spaces; an alternative is tests separated by commas, all of which must
//! hold; a test is `NAME OP VALUE` without blanks, e.g. `cuda>=12.4` or `brand=tesla,driver>=470`. Images carry these
//! in `NVIDIA_REQUIRE_*`, so everything that upstream accepts is accepted, and errors are reported only when reached: a
//! malformed test after one that failed, or after an alternative that holds, is never evaluated.

#![forbid(unsafe_code)]

use std::cmp::Ordering;

use crate::error::{Error, ErrorKind, Result};
use crate::host::{DriverVersions, Gpu};

/// Longest test that can be reported; upstream has a buffer of 128 bytes and calls a longer failing test invalid.
const MAX_TEST_LEN: usize = 127;

/// Most requirements of a container, as in upstream's command line. Images have one or two.
pub const MAX_REQUIREMENTS: usize = 32;

/// Longest list of failed tests in a hint.
const LISTED: usize = 8;

/// A container's requirement, in the language of `--require`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement(String);

/// Checks that every requirement holds on every GPU. Without GPUs, tests of `arch` and `brand` hold.
///
/// # Errors
/// `too many requirements`, `invalid expression`, and `unsatisfied condition: <first alternative>` with a hint that
/// names the tests that failed.
pub fn check(requirements: &[Requirement], versions: &DriverVersions, gpus: &[&Gpu]) -> Result<()> {
    if requirements.len() > MAX_REQUIREMENTS {
        let error = Error::new(ErrorKind::InvalidArgument, "too many requirements");
        return Err(error.hint(format!("at most {MAX_REQUIREMENTS}")));
    }
    let some = gpus.iter().copied().map(Some);
    let none = gpus.is_empty().then_some(None);
    for gpu in some.chain(none) {
        let facts = Facts { versions, gpu };
        for requirement in requirements {
            requirement.check(&facts)?;
        }
    }
    Ok(())
}

/// The facts that tests are evaluated against.
struct Facts<'a> {
    versions: &'a DriverVersions,
    gpu: Option<&'a Gpu>,
}

/// A test that does not hold, and the actual value.
struct FailedTest<'a> {
    test: &'a str,
    subject: &'static str,
    actual: &'a str,
}

impl Requirement {
    /// Wraps `text`, which is parsed when the requirement is checked.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    fn check(&self, facts: &Facts<'_>) -> Result<()> {
        let mut failures = Vec::new();
        for alternative in words(&self.0, ' ') {
            match first_failure(alternative, facts)? {
                None => return Ok(()),
                Some(failed) if failures.len() < LISTED => failures.push(failed),
                Some(_) => {}
            }
        }
        match words(&self.0, ' ').next() {
            Some(first) => Err(unsatisfied(first, &failures)),
            None => Ok(()),
        }
    }
}

fn first_failure<'a>(alternative: &'a str, facts: &Facts<'a>) -> Result<Option<FailedTest<'a>>> {
    for text in words(alternative, ',') {
        let Some((subject, actual)) = Test::parse(text)?.failure(facts)? else {
            continue;
        };
        if text.len() > MAX_TEST_LEN {
            return Err(invalid(text));
        }
        return Ok(Some(FailedTest {
            test: text,
            subject,
            actual,
        }));
    }
    Ok(None)
}

fn words(text: &str, separator: char) -> impl Iterator<Item = &str> {
    text.split(separator).filter(|word| !word.is_empty())
}

fn is_op(c: char) -> bool {
    matches!(c, '<' | '>' | '=' | '!')
}

fn unsatisfied(first: &str, failures: &[FailedTest<'_>]) -> Error {
    let mut condition = first.to_owned();
    if first.starts_with("cuda>=") {
        condition +=
            ", please update your driver to a newer version, or use an earlier cuda container";
    }
    let error = Error::new(ErrorKind::Unsatisfied, "unsatisfied condition").of(condition);
    error.hint(reasons(failures))
}

fn reasons(failures: &[FailedTest<'_>]) -> String {
    let reasons = failures.iter().map(|failed| {
        let FailedTest { test, subject, .. } = failed;
        format!(
            "{test} does not hold, {subject} here is {}",
            shown(failed.actual)
        )
    });
    reasons.collect::<Vec<_>>().join("; ")
}

fn shown(actual: &str) -> &str {
    if actual.is_empty() { "unknown" } else { actual }
}

fn invalid(test: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, "invalid expression").hint(format!(
        "`{test}' is not a test that this program knows: NAME OP VALUE with cuda, driver or arch and a version, \
         or brand, = or != and a name"
    ))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    Cuda,
    Driver,
    Arch,
    Brand,
}

#[derive(Clone, Copy)]
enum Op {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// One `NAME OP VALUE`.
struct Test<'a> {
    text: &'a str,
    name: Name,
    op: Op,
    value: &'a str,
}

impl<'a> Test<'a> {
    fn parse(text: &'a str) -> Result<Self> {
        let name_end = text.find(is_op).unwrap_or(text.len());
        let (name, rest) = text.split_at(name_end);
        let value = rest.trim_start_matches(is_op);
        let op = rest.strip_suffix(value).unwrap_or(rest);
        match (Name::parse(name), Op::parse(op)) {
            (Some(name), Some(op)) if !value.is_empty() => Ok(Self {
                text,
                name,
                op,
                value,
            }),
            _ => Err(invalid(text)),
        }
    }

    /// Returns the test's property and its actual value if the test does not hold.
    fn failure(&self, facts: &Facts<'a>) -> Result<Option<(&'static str, &'a str)>> {
        let versions = facts.versions;
        let (subject, actual) = match (self.name, facts.gpu) {
            (Name::Cuda, _) => ("the driver's CUDA version", versions.cuda.as_str()),
            (Name::Driver, _) => ("the driver's version", versions.driver.as_str()),
            (Name::Arch, Some(gpu)) => ("a selected GPU's compute capability", gpu.arch.as_str()),
            (Name::Brand, Some(gpu)) => ("a selected GPU's brand", gpu.brand.as_str()),
            (Name::Arch | Name::Brand, None) => return Ok(None),
        };
        let holds = if actual.is_empty() {
            // What is unknown meets no requirement.
            Some(false)
        } else if self.name == Name::Brand {
            self.op.holds_for_names(actual, self.value)
        } else {
            compare_versions(actual, self.value).map(|order| self.op.accepts(order))
        };
        match holds {
            Some(true) => Ok(None),
            Some(false) => Ok(Some((subject, actual))),
            None => Err(invalid(self.text)),
        }
    }
}

impl Name {
    fn parse(text: &str) -> Option<Self> {
        let names = [
            ("cuda", Self::Cuda),
            ("driver", Self::Driver),
            ("arch", Self::Arch),
            ("brand", Self::Brand),
        ];
        let known = names
            .into_iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(text));
        known.map(|(_, name)| name)
    }
}

impl Op {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "=" => Some(Self::Equal),
            // Upstream compares only as many characters as were given, so a lone `!` is accepted.
            "!=" | "!" => Some(Self::NotEqual),
            "<" => Some(Self::Less),
            "<=" => Some(Self::LessOrEqual),
            ">" => Some(Self::Greater),
            ">=" => Some(Self::GreaterOrEqual),
            _ => None,
        }
    }

    fn accepts(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
        }
    }

    /// Compares names. Returns None for an ordering operator: names have no order.
    fn holds_for_names(self, actual: &str, wanted: &str) -> Option<bool> {
        let same = actual.eq_ignore_ascii_case(wanted);
        match self {
            Self::Equal => Some(same),
            Self::NotEqual => Some(!same),
            _ => None,
        }
    }
}

/// Compares two versions number by number; missing numbers are zero. Returns None if one is not digits separated by
/// dots.
pub(crate) fn compare_versions(left: &str, right: &str) -> Option<Ordering> {
    let (mut left, mut right) = (numbers(left)?, numbers(right)?);
    loop {
        let (l, r) = (left.next(), right.next());
        if l.is_none() && r.is_none() {
            return Some(Ordering::Equal);
        }
        // Numbers of any length, without leading zeros: the longer is greater, then digit by digit.
        let (l, r) = (l.unwrap_or_default(), r.unwrap_or_default());
        let order = l.len().cmp(&r.len()).then_with(|| l.cmp(r));
        if order.is_ne() {
            return Some(order);
        }
    }
}

/// Splits a version into numbers without leading zeros; several dots count as one.
fn numbers(version: &str) -> Option<impl Iterator<Item = &str>> {
    let well_formed = version.starts_with(|c: char| c.is_ascii_digit())
        && version.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let numbers = words(version, '.').map(|number| number.trim_start_matches('0'));
    well_formed.then_some(numbers)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
