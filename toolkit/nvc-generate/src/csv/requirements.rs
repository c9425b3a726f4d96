//! Checks an image's requirements on each GPU of a Jetson: alternatives separated by blanks, tests separated by commas.

use std::cmp::Ordering;

/// Properties of a Jetson's GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The CUDA version of the driver, if known.
    pub cuda: Option<String>,
    /// The GPU's architecture, if known.
    pub arch: Option<String>,
}

/// Checks every requirement.
///
/// # Errors
/// The first requirement that is not met or malformed.
pub fn check(requirements: &[String], facts: &Facts) -> Result<(), String> {
    for requirement in requirements {
        let mut first = None;
        let mut met = false;
        for alternative in requirement.split_whitespace() {
            match failing(alternative, facts)? {
                None => met = true,
                Some(test) => {
                    first.get_or_insert(test);
                }
            }
        }
        if let (Some(test), false) = (first, met) {
            return Err(format!(
                "requirements not met: unsatisfied condition: {test}"
            ));
        }
    }
    Ok(())
}

/// Returns the failing test of an alternative, with the actual value.
fn failing(alternative: &str, facts: &Facts) -> Result<Option<String>, String> {
    for test in alternative.split(',').filter(|test| !test.is_empty()) {
        let (name, operator, value) = parse(test)
            .ok_or_else(|| format!("requirements not met: \"{test}\" is not a requirement"))?;
        let found = match name {
            "cuda" => facts.cuda.as_deref(),
            "arch" => facts.arch.as_deref(),
            // Not available on a Jetson.
            "driver" | "brand" => None,
            _ => continue,
        };
        let holds = found.is_some_and(|found| operator.holds(compare(found, value)));
        if !holds {
            let found = found.unwrap_or_default();
            return Ok(Some(format!("{test} ({name}={found})")));
        }
    }
    Ok(None)
}

#[derive(Clone, Copy)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Operator {
    fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
        }
    }
}

fn parse(test: &str) -> Option<(&str, Operator, &str)> {
    let at = test.find(['<', '>', '=', '!'])?;
    let (name, rest) = test.split_at(at);
    let operators = [
        ("<=", Operator::LessOrEqual),
        (">=", Operator::GreaterOrEqual),
        ("!=", Operator::NotEqual),
        ("<", Operator::Less),
        (">", Operator::Greater),
        ("=", Operator::Equal),
    ];
    let (operator, value) = operators
        .into_iter()
        .find_map(|(text, operator)| Some((operator, rest.strip_prefix(text)?)))?;
    let plain = !name.is_empty() && !value.is_empty() && !value.contains(['<', '>', '=', '!']);
    plain.then_some((name, operator, value))
}

/// Compares versions part by part; a missing part is 0.
fn compare(one: &str, other: &str) -> Ordering {
    let parts = |text: &str| -> Vec<u64> {
        let mut parts: Vec<u64> = text
            .trim_start_matches('v')
            .split('.')
            .map(|part| part.parse().unwrap_or(0))
            .collect();
        while parts.last() == Some(&0) {
            parts.pop();
        }
        parts
    };
    parts(one).cmp(&parts(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_checked() {
        let orin = Facts {
            cuda: Some("12.2".into()),
            arch: Some("8.7".into()),
        };
        let of = |text: &str, facts: &Facts| check(&[text.to_owned()], facts);
        for text in [
            "",
            "cuda>=12.0",
            "cuda>=13 arch=8.7",
            "cuda>=12.2.0,arch!=9.0",
            "frob=x",
            "cuda<12.10",
        ] {
            assert_eq!(of(text, &orin), Ok(()), "{text}");
        }
        assert_eq!(
            of("cuda>=12.0", &Facts::default()),
            Err("requirements not met: unsatisfied condition: cuda>=12.0 (cuda=)".into())
        );
        for text in [
            "cuda>12.2",
            "driver>=1",
            "brand=tesla",
            "cuda>=12,arch<8",
            "cuda",
            "cuda>=",
            "=1",
        ] {
            assert!(of(text, &orin).is_err(), "{text}");
        }
    }
}
