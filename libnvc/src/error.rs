//! Describes failures: one operation, one object, one cause and, if known, the way out.
//!
//! An [`Error`] prints like upstream's messages, `<operation>: <object>: <cause>`, since tools grep for them. Its
//! [`kind`](Error::kind) is for callers to match on; one table turns it into the C library's numbers.

#![forbid(unsafe_code)]

use std::fmt;
use std::path::Path;

use nix::errno::Errno;

use crate::hint::Hint;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller passed a malformed or contradictory argument.
    InvalidArgument,
    /// A device, file or process that the caller named does not exist.
    NotFound,
    /// A file of the driver or the system is malformed.
    Malformed,
    /// The driver's library could not be loaded or initialised, or its process could not be started.
    DriverUnavailable,
    /// The driver's library failed, crashed or gave an invalid answer after it was initialised.
    DriverFailed,
    /// The driver did not answer in time.
    TimedOut,
    /// A requirement of the container does not hold.
    Unsatisfied,
    /// The container's ld.so.cache could not be updated.
    LdCache,
    /// A place in the container may not be changed: it is on a volume.
    Volume,
    /// A system call failed.
    System,
}

/// The phase in which a configuration failed. Front ends print it in their own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Opening the driver.
    Initialization,
    /// Examining the container.
    Container,
    /// Looking for the driver's files and GPUs.
    Detection,
    /// Choosing devices.
    Device,
    /// Choosing GPUs whose MIG configuration may be changed.
    MigConfig,
    /// Choosing GPUs whose MIG instances may be monitored.
    MigMonitor,
    /// Checking requirements.
    Requirement,
    /// Planning or applying.
    Mount,
    /// Updating the container's library path.
    LibraryPath,
}

/// Upstream's words for a failure in this phase; runtimes and people search logs for them.
impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Initialization => "initialization error",
            Self::Container => "container error",
            Self::Detection => "detection error",
            Self::Device => "device error",
            Self::MigConfig => "mig-config error",
            Self::MigMonitor => "mig-monitor error",
            Self::Requirement => "requirement error",
            Self::Mount => "mount error",
            Self::LibraryPath => "ldcache error",
        })
    }
}

/// A failure: operation, object, cause and, if known, a remedy.
#[derive(Clone, Debug)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    kind: ErrorKind,
    phase: Option<Phase>,
    /// The callers' operations, the outermost first.
    context: Option<String>,
    /// Missing in texts of upstream that name only object and cause.
    operation: Option<String>,
    object: Option<String>,
    cause: Option<Cause>,
    hint: Option<Hint>,
    cleanup: Vec<Error>,
}

/// The cause of an [`Error`]; its text is lower case, as upstream prints it.
#[derive(Clone, Debug, thiserror::Error)]
enum Cause {
    #[error("{}", errno_text(*.0))]
    System(Errno),
    #[error("{0}")]
    Text(String),
}

impl Error {
    /// Describes a failed operation.
    pub fn new(kind: ErrorKind, operation: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            phase: None,
            context: None,
            operation: Some(operation.into()),
            object: None,
            cause: None,
            hint: None,
            cleanup: Vec::new(),
        }))
    }

    /// Describes an object with a fault, independent of any operation: `<object>: <cause>`.
    pub fn fault(kind: ErrorKind, object: impl fmt::Display, cause: impl Into<String>) -> Self {
        let mut error = Self::new(kind, String::new()).of(object);
        error.0.operation = None;
        error.with_cause(cause)
    }

    /// Describes a failed system call: `<operation>: <cause>`.
    pub fn system(operation: impl Into<String>, errno: Errno) -> Self {
        let mut error = Self::new(ErrorKind::System, operation);
        error.0.cause = Some(Cause::System(errno));
        match errno {
            Errno::EMFILE => error.hint("raise the limit of open files: ulimit -n, LimitNOFILE="),
            _ => error,
        }
    }

    /// Describes a failed system call on a file: `<operation>: <path>: <cause>`.
    pub fn file(operation: &str, path: impl AsRef<Path>, errno: Errno) -> Self {
        Self::system(operation, errno).of(path.as_ref().display())
    }

    /// Sets the object of the operation: `<operation>: <object>`.
    #[must_use]
    pub fn of(mut self, object: impl fmt::Display) -> Self {
        self.0.object = Some(object.to_string());
        self
    }

    /// Changes the kind.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Adds the caller's operation: `<context>: <error>`.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.0.context = Some(match self.0.context.take() {
            Some(inner) => format!("{context}: {inner}"),
            None => context.to_string(),
        });
        self
    }

    /// Adds a cause, converted to lower case.
    #[must_use]
    pub(crate) fn because(mut self, cause: impl fmt::Display) -> Self {
        self.0.cause = Some(Cause::Text(cause.to_string().to_lowercase()));
        self
    }

    /// Adds a cause as it stands, for one that contains names.
    #[must_use]
    pub fn with_cause(mut self, cause: impl Into<String>) -> Self {
        self.0.cause = Some(Cause::Text(cause.into()));
        self
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<Hint>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Adds an error that occurred while cleaning up after this one.
    #[must_use]
    pub fn with_cleanup(mut self, errors: impl IntoIterator<Item = Error>) -> Self {
        self.0.cleanup.extend(errors);
        self
    }

    /// Sets the phase, unless an earlier caller has set one.
    #[must_use]
    pub(crate) fn during(mut self, phase: Phase) -> Self {
        self.0.phase.get_or_insert(phase);
        self
    }

    /// Returns the phase, if the failure occurred in a whole configuration.
    pub fn phase(&self) -> Option<Phase> {
        self.0.phase
    }

    /// Returns the category.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns true if nothing may be changed at the place: it is on a volume, or read-only.
    pub(crate) fn is_for_place(&self) -> bool {
        self.0.kind == ErrorKind::Volume || self.errno() == Some(Errno::EROFS)
    }

    /// Returns the errno of the failed system call, if one failed.
    pub fn errno(&self) -> Option<Errno> {
        match self.0.cause {
            Some(Cause::System(errno)) => Some(errno),
            _ => None,
        }
    }

    /// Returns true if the object of the operation is this file.
    pub(crate) fn is_about(&self, path: &Path) -> bool {
        self.0.object.as_deref() == Some(&*path.to_string_lossy())
    }

    /// Returns the operations of the callers, with which the whole text begins.
    pub fn callers(&self) -> Option<&str> {
        self.0.context.as_deref()
    }

    /// Returns the hint, if there is one.
    pub fn remedy(&self) -> Option<&Hint> {
        self.0.hint.as_ref()
    }

    /// Returns the hint as text, in the words of the C library.
    pub fn advice(&self) -> Option<String> {
        self.remedy().map(|hint| hint.worded(|setting| setting))
    }

    /// Returns the errors that occurred while cleaning up after this one.
    pub fn cleanup(&self) -> &[Error] {
        &self.0.cleanup
    }

    /// Returns the whole text on one line: operation, object and cause.
    pub fn message(&self) -> String {
        match &self.0.cause {
            Some(cause) => format!("{self}: {cause}"),
            None => self.to_string(),
        }
    }
}

/// Operation and object; the cause is the [source](std::error::Error::source).
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            context,
            operation,
            object,
            ..
        } = &*self.0;
        let mut parts = [context, operation, object].into_iter().flatten();
        f.write_str(parts.next().map_or("", String::as_str))?;
        parts.try_for_each(|part| write!(f, ": {part}"))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.cause.as_ref().map(|cause| cause as _)
    }
}

/// Returns the errno of an error of the standard library.
pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// Returns the C library's text for an errno, in lower case: `no such file or directory`.
pub(crate) fn errno_text(errno: Errno) -> String {
    let text = std::io::Error::from_raw_os_error(errno as i32).to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    text.to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_like_upstream() {
        let error = Error::file("open failed", "/etc/ld.so.cache", Errno::ENOENT);
        assert_eq!(
            error.message(),
            "open failed: /etc/ld.so.cache: no such file or directory"
        );
        assert_eq!(error.to_string(), "open failed: /etc/ld.so.cache");
        let error = Error::system("x", Errno::ELOOP);
        assert_eq!(error.message(), "x: too many levels of symbolic links");
        let error = Error::new(ErrorKind::DriverFailed, "nvml error").because("GPU is lost");
        assert_eq!(error.message(), "nvml error: gpu is lost");
        let error = Error::new(ErrorKind::System, "x failed").with_cause("/A is B");
        assert_eq!(error.message(), "x failed: /A is B");
        assert_eq!(error.to_string(), "x failed");
        let error = Error::fault(ErrorKind::NotFound, 7, "unknown device");
        assert_eq!(error.message(), "7: unknown device");
    }

    #[test]
    fn parts_stay_apart() {
        let error = Error::file("open failed", "/a: b", Errno::ENOENT).context("saving");
        assert_eq!(error.0.operation.as_deref(), Some("open failed"));
        assert_eq!(error.0.object.as_deref(), Some("/a: b"));
        assert_eq!(error.errno(), Some(Errno::ENOENT));
        assert_eq!(error.to_string(), "saving: open failed: /a: b");
        let error = error.context("applying");
        let text = "applying: saving: open failed: /a: b: no such file or directory";
        assert_eq!(error.message(), text);
        let error = Error::fault(ErrorKind::NotFound, "7", "unknown device");
        assert_eq!(error.0.operation, None);
        assert_eq!(error.0.object.as_deref(), Some("7"));
    }

    #[test]
    fn context_goes_in_front() {
        let error = Error::system("open /x/devices.allow", Errno::EACCES)
            .context("failed to add device rules");
        assert_eq!(
            error.message(),
            "failed to add device rules: open /x/devices.allow: permission denied"
        );
    }
}
