//! Compiles C programs against the built C library and runs them, plainly, under sanitizers and under valgrind.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use nvc_testkit::cli::Run;
use nvc_testkit::machine::Scratch;

/// The directory with the built library: `$NVC_LIB_DIR`, or that of the running test's profile.
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
        "no libnvidia-container.so in {}; build it with scripts/build-capi.sh --debug",
        directory.display()
    );
    directory
}

/// The shared object itself.
///
/// # Panics
/// It is not there.
pub fn shared_object() -> PathBuf {
    let link = library_dir().join("libnvidia-container.so");
    link.canonicalize()
        .unwrap_or_else(|error| panic!("{}: {error}", link.display()))
}

/// The top of the sources.
pub fn repository() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests)
}

/// What a program is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Nothing in particular.
    Plain,
    /// To be run under valgrind.
    Valgrind,
    /// With the address sanitizer, its leak checker, and the undefined behaviour sanitizer.
    Sanitizers,
    /// With the library in it.
    Static,
}

/// A compiled C program.
#[derive(Debug)]
pub struct Program {
    scratch: Scratch,
    check: Check,
}

impl Program {
    /// Compiles a source of the repository; the compiler may not warn.
    ///
    /// # Panics
    /// It does, or there is none.
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
            Check::Plain | Check::Valgrind | Check::Static => {}
        }
        if check == Check::Static {
            command.arg(lib.join("libnvidia-container.a"));
            command.args(private_libraries(&lib));
        } else {
            command.arg("-L").arg(&lib).arg("-lnvidia-container");
        }
        let output = command
            .output()
            .unwrap_or_else(|error| panic!("{compiler}: {error}"));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler} {source}: {text}");
        Self { scratch, check }
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.scratch.join("program")
    }

    /// The program as a command, without arguments.
    pub fn run(&self) -> Run {
        let run = match self.check {
            Check::Valgrind => Run::other("valgrind").args([
                "--quiet",
                "--error-exitcode=99",
                "--leak-check=full",
                "--show-leak-kinds=definite,possible",
                "--errors-for-leak-kinds=definite,possible",
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

/// What programs with the archive need besides, as the pkg-config file says.
fn private_libraries(lib: &Path) -> Vec<String> {
    let file = lib.join("libnvidia-container.pc");
    let text = fs::read_to_string(&file).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("Libs.private:"));
    let words = line.unwrap_or_default().split_whitespace();
    words.map(str::to_owned).collect()
}
