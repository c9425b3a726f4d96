//! `nvc-simdriver`: creates simulated driver roots and container roots for manual experiments.

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use nvc_testkit::driver;
use nvc_testkit::profile::{Profile, machines};
use nvc_testkit::rootfs::{self, Layout};

const USAGE: &str = "\
usage: nvc-simdriver build DIR [--profile FILE] [--size GPUS MIGS] [--no-nodes]   make a simulated driver root
       nvc-simdriver rootfs DIR [LAYOUT]                       make a container root: debian (default), rhel, arch,
                                                               alpine, empty
       nvc-simdriver profile [MACHINE]                         print a built-in profile, to be changed: debian (default: an
                                                               ordinary package's files), h100, h200, orin-pair,
                                                               thor-pair. Without --profile, `build` has two GPUs with
                                                               the h100's files
       nvc-simdriver profile machine SEED                      print a generated one, in which no two numbers agree

DIR must be missing or empty. Then, for example:
       nvidia-container-cli --root=DRIVER list
       nvidia-container-cli --root=DRIVER configure --pid=PID --utility --device=0 --no-cgroups ROOTFS
";

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let wants_help = words.iter().any(|word| matches!(*word, "--help" | "-h"));
    let done = match words.as_slice() {
        _ if wants_help => {
            print!("{USAGE}");
            Ok(())
        }
        // What people change is short: it lists no files.
        ["profile"] | ["profile", "debian"] => shown(&Profile::default().on_debian()),
        ["profile", "orin-pair"] => shown(&Profile::orin_pair()),
        ["profile", "thor-pair"] => shown(&Profile::thor_pair()),
        ["profile", name] => Profile::real(name)
            .ok_or(USAGE.to_owned())
            .and_then(|profile| shown(&profile)),
        ["profile", "machine", seed] => match seed.parse() {
            Ok(seed) => shown(&machines::machine(seed)),
            Err(_) => Err(USAGE.to_owned()),
        },
        ["build", directory, options @ ..] => build(directory, options),
        ["rootfs", directory] => make_rootfs(directory, "debian"),
        ["rootfs", directory, layout] => make_rootfs(directory, layout),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("nvc-simdriver: {}", text.trim_end());
            ExitCode::FAILURE
        }
    }
}

fn shown(profile: &Profile) -> Result<(), String> {
    print!("{profile}");
    Ok(())
}

fn build(directory: &str, options: &[&str]) -> Result<(), String> {
    let mut profile = Profile::default();
    let mut nodes = true;
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match *option {
            "--no-nodes" => nodes = false,
            "--size" => {
                let mut number = || options.next().and_then(|word| word.parse().ok());
                let (gpus, migs) = (number().ok_or(USAGE)?, number().ok_or(USAGE)?);
                profile = Profile::of_size(gpus, migs);
            }
            "--profile" => {
                let file = options.next().ok_or(USAGE)?;
                let text = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
                profile = Profile::parse(&text).map_err(|error| format!("{file}: {error}"))?;
            }
            _ => return Err(USAGE.to_owned()),
        }
    }
    let directory = empty(directory)?;
    let mut builder = driver::Builder::new(profile).answering_cuda();
    if !nodes {
        builder = builder.no_nodes();
    }
    let driver = builder
        .build(directory)
        .map_err(|error| error.to_string())?;
    for what in driver.left_out() {
        println!("left out: {what}");
    }
    Ok(())
}

fn make_rootfs(directory: &str, layout: &str) -> Result<(), String> {
    let layout = match layout {
        "debian" => Layout::Debian,
        "rhel" => Layout::Rhel,
        "arch" => Layout::Arch,
        "alpine" => Layout::Alpine,
        "empty" => Layout::Empty,
        _ => return Err(USAGE.to_owned()),
    };
    let directory = empty(directory)?;
    let mut builder = rootfs::Builder::new(layout);
    if !matches!(layout, Layout::Alpine | Layout::Empty) {
        // To look around in containers: a node that is made there stays closed.
        builder = builder.programs(&["mknod", "grep", "rm"]);
    }
    let made = builder.build(directory);
    made.map(drop).map_err(|error| error.to_string())
}

/// Checks that a directory is empty or missing: a mistyped one must not be filled with a root.
fn empty(directory: &str) -> Result<&Path, String> {
    if directory.starts_with('-') {
        return Err(USAGE.to_owned());
    }
    let path = Path::new(directory);
    match fs::read_dir(path).map(|mut entries| entries.next().is_some()) {
        Ok(true) => Err(format!("{directory} is not empty")),
        _ => Ok(path),
    }
}
