//! Compiles C programs against the built C library and runs them, plain, under sanitizers and under valgrind.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use nvc_testkit::cli::Run;
use nvc_testkit::machine::Scratch;

/// Returns the directory with the built library: `$NVC_LIB_DIR`, or that of the running test's profile.
///
/// # Panics
/// The library is not there.
pub fn library_dir() -> PathBuf {
    let directory = match env::var_os("NVC_LIB_DIR") {
        Some(directory) => PathBuf::from(directory),
        None => {
            let test = env::current_exe().unwrap_or_else(|error| panic!("{error}"));
            // target/debug/deps/test-0123 → target/debug
            let directory = test.parent().and_then(Path::parent);
            directory.unwrap_or(Path::new(".")).to_owned()
        }
    };
    assert!(
        directory.join("libnvidia-container.so").exists(),
        "no libnvidia-container.so in {}; build it with scripts/build/capi.sh --debug",
        directory.display()
    );
    directory
}

/// Returns the shared object.
///
/// # Panics
/// It is not there.
pub fn shared_object() -> PathBuf {
    let link = library_dir().join("libnvidia-container.so");
    link.canonicalize()
        .unwrap_or_else(|error| panic!("{}: {error}", link.display()))
}

/// Returns the root of the sources.
pub fn repository() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests)
}

/// The checker to compile for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Nothing in particular.
    Plain,
    /// To be run under valgrind.
    Valgrind,
    /// With the address sanitizer, its leak checker, and the undefined behaviour sanitizer.
    Sanitizers,
    /// Statically linked with the library.
    Static,
    /// Statically linked with everything, by `-static`.
    AllStatic,
}

/// A compiled C program.
#[derive(Debug)]
pub struct Program {
    scratch: Scratch,
    check: Check,
}

impl Program {
    /// Compiles a source of the repository; warnings are errors.
    ///
    /// # Panics
    /// It fails, or there is no compiler.
    pub fn compile(compiler: &str, source: &str, check: Check) -> Self {
        let scratch = Scratch::new().unwrap_or_else(|error| panic!("scratch space: {error}"));
        let lib = library_dir();
        let mut command = Command::new(compiler);
        command
            .args(["-std=gnu11", "-Wall", "-Wextra", "-pedantic", "-Werror"])
            .args(["-g", "-O1", "-pthread", "-o"])
            .arg(scratch.join("program"))
            .arg(repository().join(source))
            .arg("-I")
            .arg(repository().join("include"));
        match check {
            Check::Sanitizers => {
                command.args([
                    "-fsanitize=address,undefined",
                    "-fno-sanitize-recover=all",
                    "-fno-omit-frame-pointer",
                ]);
            }
            Check::AllStatic => {
                command.arg("-static");
            }
            Check::Plain | Check::Valgrind | Check::Static => {}
        }
        if check == Check::Static {
            command.arg(lib.join("libnvidia-container.a"));
            command.args(private_libraries(&lib));
        } else {
            command.arg("-L").arg(&lib).arg("-lnvidia-container");
        }
        if check == Check::AllStatic {
            command.args(private_libraries(&lib));
        }
        let output = command
            .output()
            .unwrap_or_else(|error| panic!("{compiler}: {error}"));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler} {source}: {text}");
        Self { scratch, check }
    }

    /// Returns its path.
    pub fn path(&self) -> PathBuf {
        self.scratch.join("program")
    }

    /// Runs it; it must succeed.
    ///
    /// # Panics
    /// It fails, prints to standard error, leaves a process behind, or a checker reports an error.
    pub fn succeeds<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> String {
        let outcome = self.run().args(arguments).outcome();
        let outcome = outcome.unwrap_or_else(|error| panic!("{error}"));
        let quiet = outcome.stderr.is_empty() && outcome.orphans.is_empty();
        let fine = outcome.status == Some(0) && quiet;
        assert!(fine, "{outcome:#?}\n{}", self.findings());
        outcome.stdout
    }

    /// Returns valgrind's findings.
    fn findings(&self) -> String {
        let entries = fs::read_dir(self.scratch.path()).into_iter().flatten();
        let logs = entries.flatten().map(|entry| entry.path());
        let logs = logs.filter(|path| path.to_string_lossy().contains("/valgrind."));
        let texts = logs.filter_map(|path| fs::read_to_string(path).ok());
        let lines = |text: String| {
            text.lines()
                .filter(|l| l.starts_with("=="))
                .map(|l| l.to_owned() + "\n")
                .collect::<String>()
        };
        texts.map(lines).collect()
    }

    /// Prepares a run of the program without arguments.
    pub fn run(&self) -> Run {
        let run = match self.check {
            Check::Valgrind => Run::other("valgrind").args([
                // Not on standard error, where it warns about every system call it does not know.
                &format!("--log-file={}", self.scratch.join("valgrind.%p").display()),
                &format!(
                    "--suppressions={}",
                    repository().join("tests/c/valgrind.supp").display()
                ),
                "--quiet",
                "--error-exitcode=99",
                "--leak-check=full",
                // Rust's pointers into the middle of blocks are only "possibly" lost; count definite losses.
                "--show-leak-kinds=definite",
                "--errors-for-leak-kinds=definite",
                "--child-silent-after-fork=yes",
            ]),
            _ => Run::other("env"),
        };
        run.args([self.path()])
            .env("LD_LIBRARY_PATH", library_dir())
            .env("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=1")
            .env("UBSAN_OPTIONS", "print_stacktrace=1")
    }
}

/// Returns the other libraries that programs with the archive need, from the pkg-config file.
fn private_libraries(lib: &Path) -> Vec<String> {
    let file = lib.join("libnvidia-container.pc");
    let text = fs::read_to_string(&file).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("Libs.private:"));
    let words = line.unwrap_or_default().split_whitespace();
    words.map(str::to_owned).collect()
}
