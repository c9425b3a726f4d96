//! Checks an image's requirements on each GPU of a Jetson, as upstream's toolkit reads them in mode csv.
//!
//! A requirement is alternatives separated by spaces, an alternative tests separated by commas. Unlike in
//! [`libnvc::require`], versions are semantic ones, tests of other names do not count, a fact that the driver does not
//! tell is less than any value, and a malformed test is an error wherever it is.

use std::cmp::Ordering;

use libnvc::{Error, ErrorKind, Result};
use nvc_policy::semver::Version;

/// Longest list of failed tests in a hint.
const LISTED: usize = 8;

/// Properties of a Jetson's GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The CUDA version of the driver, if known.
    pub cuda: Option<String>,
    /// The GPU's architecture, if known.
    pub arch: Option<String>,
}

type Accepts = fn(Ordering) -> bool;

/// One `NAME OP VALUE`.
struct Test<'a> {
    text: &'a str,
    name: &'a str,
    accepts: Accepts,
    value: &'a str,
}

/// Checks every requirement.
///
/// # Errors
/// The first one that is not met; before that, the first malformed test.
pub fn check(requirements: &[String], facts: &Facts) -> Result<()> {
    let parsed = requirements.iter().map(|text| parse(text));
    let parsed: Vec<_> = parsed.collect::<Result<_>>()?;
    for alternatives in parsed {
        let first_failed = |tests: &Vec<Test<'_>>| {
            let failed = tests.iter().find(|test| !test.holds(facts))?;
            Some(format!(
                "{} ({}={})",
                failed.text,
                failed.name,
                facts.text(failed.name)
            ))
        };
        // None if one of the alternatives has no failed test.
        let failed: Option<Vec<String>> = alternatives.iter().map(first_failed).collect();
        if let Some([first, others @ ..]) = failed.as_deref() {
            let error = Error::new(ErrorKind::Unsatisfied, "unsatisfied condition").of(first);
            let others = others.get(..LISTED.min(others.len())).unwrap_or_default();
            return Err(match others {
                [] => error,
                _ => error.hint(format!("nor does one of these hold: {}", others.join("; "))),
            });
        }
    }
    Ok(())
}

/// Returns the alternatives of a requirement that have tests of known names.
fn parse(requirement: &str) -> Result<Vec<Vec<Test<'_>>>> {
    let tests = |alternative| {
        let tests = str::split(alternative, ',').filter(|test| !test.trim().is_empty());
        tests
            .filter_map(|text| Test::parse(text).transpose())
            .collect::<Result<Vec<_>>>()
    };
    let alternatives = requirement.split(' ').map(tests);
    let is_some = |tests: &Result<Vec<_>>| !tests.as_ref().is_ok_and(Vec::is_empty);
    alternatives.filter(is_some).collect()
}

impl<'a> Test<'a> {
    /// Parses a test; None if it is of another name.
    fn parse(text: &'a str) -> Result<Option<Self>> {
        let invalid = |hint: &str| {
            let error = Error::new(ErrorKind::InvalidArgument, "invalid constraint").of(text);
            Err(error.hint(hint))
        };
        let Some(end) = text.find(['<', '>', '=', '!']) else {
            return invalid("a test is NAME OP VALUE, and OP is =, !=, <, <=, > or >=");
        };
        let (name, rest) = text.split_at(end);
        if !["cuda", "driver", "arch", "brand"].contains(&name) {
            return Ok(None);
        }
        let ops: [(&str, Accepts); 6] = [
            ("!=", Ordering::is_ne),
            ("<=", Ordering::is_le),
            (">=", Ordering::is_ge),
            ("=", Ordering::is_eq),
            ("<", Ordering::is_lt),
            (">", Ordering::is_gt),
        ];
        let mut found = ops
            .into_iter()
            .map(|(op, accepts)| Some((rest.strip_prefix(op)?, accepts)));
        let Some((value, accepts)) = found.find_map(|found| found) else {
            return invalid("there is no operator !");
        };
        if name != "brand" && Version::parse(value).is_none() {
            return invalid("a version is one, two or three numbers without leading zeros: 12.4");
        }
        Ok(Some(Self {
            text,
            name,
            accepts,
            value,
        }))
    }

    fn holds(&self, facts: &Facts) -> bool {
        let here = facts.text(self.name);
        let order = match (Version::parse(here), Version::parse(self.value)) {
            (Some(here), Some(value)) if self.name != "brand" => here.order(&value),
            _ if self.name == "brand" => here.cmp(self.value),
            _ => Ordering::Less,
        };
        (self.accepts)(order)
    }
}

impl Facts {
    /// Returns a fact; empty if it is not known, as the driver's version and the brand.
    fn text(&self, name: &str) -> &str {
        let fact = match name {
            "cuda" => &self.cuda,
            "arch" => &self.arch,
            _ => &None,
        };
        fact.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The results are those of upstream's program.
    #[test]
    fn requirements_are_read_as_upstream_reads_them() {
        let check = |text: &str, cuda: &str, arch: &str| {
            let known = |fact: &str| (!fact.is_empty()).then(|| fact.to_owned());
            let (cuda, arch) = (known(cuda), known(arch));
            check(&[text.to_owned()], &Facts { cuda, arch })
        };
        for text in [
            "",
            "cuda>=v12.0",
            "cuda>=13 arch=8.7",
            "cuda>=12.2.0,arch!=9.0",
            "cuda>12.2.0-rc1",
            "cuda=12.2.0+x",
            "cuda<99999999999999999999",
            "cuda<12.10",
            "brand!=tesla",
            "brand<tesla",
            "brand=",
            // What other programs read.
            "frob=x",
            "frob=x frob=y,other=1",
            "frob=x cuda>=12",
            "frob=x,cuda>=12",
            "=1",
            "CUDA>=99",
            "driver<536",
            "driver!=1,driver<=1",
        ] {
            assert!(check(text, "12.2", "8.7").is_ok(), "{text}");
        }
        for text in [
            "cuda>12.2",
            "driver>=1",
            "brand=tesla",
            "brand>tesla",
            "brand==x",
            "cuda>=12,arch<8",
            "colour=red cuda>=99.0",
            "cuda>=99.0 colour=red,frob=x",
            "cuda>=99999999999999999999",
        ] {
            let error = check(text, "12.2", "8.7").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsatisfied, "{text}");
        }
        for text in [
            "cuda",
            "frob",
            "cuda>=",
            "cuda>=012",
            "cuda>=12.08",
            "cuda!12",
            "cuda=12.2.0.1",
            "cuda=12..2.",
            "cuda=vv12.2",
            "cuda>=12.2-rc1",
            "cuda==12.2",
            "brand!x",
            "driver<535.261.03",
            "cuda>=12\t",
            // Wherever it is.
            "cuda>=12 cuda>=foo",
            "arch>99,cuda>=foo cuda>=12",
        ] {
            let error = check(text, "12.2", "8.7").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{text}");
        }
        assert!(check("cuda<12.2,arch!=8.7", "", "").is_ok());
        let error = check("cuda>=13,arch>8 brand=x", "12.2", "8.7").unwrap_err();
        let message = "unsatisfied condition: cuda>=13 (cuda=12.2)";
        assert_eq!(error.message(), message);
        assert!(error.advice().unwrap().contains("brand=x (brand=)"));
        let error = check("cuda>=12.0", "", "").unwrap_err();
        assert_eq!(error.message(), "unsatisfied condition: cuda>=12.0 (cuda=)");
        assert_eq!(error.advice(), None);
    }
}
