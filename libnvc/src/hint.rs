//! Says what to do about a failure, for readers who have different ways to do it.

#![forbid(unsafe_code)]

use std::fmt;

/// A setting of libnvc's caller. Each program names it as its reader can change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The driver root.
    Root,
    /// No device rules.
    NoCgroups,
    /// The host's ldconfig.
    Ldconfig,
    /// Loads kernel modules and creates nodes.
    LoadKmods,
    /// No pivot_root for ldconfig.
    NoPivot,
    /// The user of the query.
    User,
}

/// As the C library's option words spell it.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Root => "root",
            Self::NoCgroups => "no-cgroups",
            Self::Ldconfig => "ldconfig=@PATH",
            Self::LoadKmods => "load-kmods",
            Self::NoPivot => "no-pivot",
            Self::User => "user",
        })
    }
}

impl Setting {
    /// Returns a hint that names this setting between two texts.
    pub fn between(self, before: impl Into<String>, after: impl Into<String>) -> Hint {
        Hint {
            before: before.into(),
            rest: Some((self, after.into())),
        }
    }
}

/// A sentence without a full stop, with at most one setting in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    before: String,
    rest: Option<(Setting, String)>,
}

impl Hint {
    /// Returns the text, with `name` for the setting.
    pub fn worded<N: fmt::Display>(&self, name: impl FnOnce(Setting) -> N) -> String {
        let before = &self.before;
        match &self.rest {
            Some((setting, after)) => format!("{before}{}{after}", name(*setting)),
            None => before.clone(),
        }
    }
}

impl<T: Into<String>> From<T> for Hint {
    fn from(text: T) -> Self {
        Self {
            before: text.into(),
            rest: None,
        }
    }
}
