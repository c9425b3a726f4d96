//! `nvc-hook-matrix PROGRAMS LIBRARY ROOT WORK RUNTIME...`: runs the matrix of hooks with other low-level runtimes than
//! this machine's tests have (scripts/test/engines.sh).

use std::path::PathBuf;
use std::process::ExitCode;

use nvc_tests::hook_matrix::Machine;

fn main() -> ExitCode {
    let words: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [programs, library, root, work, runtimes @ ..] = words.as_slice() else {
        eprintln!("usage: nvc-hook-matrix PROGRAMS LIBRARY ROOT WORK RUNTIME...");
        return ExitCode::from(2);
    };
    let mut wrong = runtimes.is_empty();
    for (number, runtime) in runtimes.iter().enumerate() {
        let machine = Machine {
            programs: programs.clone(),
            library: library.clone(),
            root: root.clone(),
            work: work.join(number.to_string()),
            runtime: runtime.clone(),
        };
        match machine.run() {
            Ok(problems) => wrong |= !problems.is_empty(),
            Err(error) => {
                eprintln!("{}: {error}", runtime.display());
                wrong = true;
            }
        }
    }
    ExitCode::from(u8::from(wrong))
}
