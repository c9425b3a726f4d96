//! Compares the output that README shows with what the programs print; `UPDATE=1` rewrites it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use nvc_testkit::cli;
use nvc_testkit::harness::{Need, Test};
use nvc_testkit::machine::Scratch;
use nvc_testkit::tests;

use super::page;
use super::world::{World, repository};

pub(crate) fn tests() -> Vec<Test> {
    tests![&[Need::Root]; readme_shows_the_demo, readme_shows_doctor]
}

/// A machine on which docker 28 has just been installed: the same lines whatever engines this one has.
const MACHINE: &str = r#"
for program in docker dockerd containerd podman crun crio runc nvidia-persistenced; do
  for file in $(type -ap $program); do rm -f "$file"; done
done
hash -r
printf '#!/bin/sh\n' > /usr/bin/dockerd
printf '#!/bin/sh\necho runc version 1.3.3\n' > /usr/bin/runc
cat > /usr/bin/docker <<'END'
#!/bin/sh
echo '{"ServerVersion":"28.5.2","DefaultRuntime":"runc","Runtimes":{"runc":{"path":"runc"}},"CDISpecDirs":["/etc/cdi","/var/run/cdi"]}'
END
chmod 755 /usr/bin/docker /usr/bin/dockerd /usr/bin/runc
"#;

/// Compares a block of README, which begins with this command, with its output.
#[track_caller]
fn compare(command: &str, output: &str) {
    static README: Mutex<()> = Mutex::new(());
    let _lock = README.lock().unwrap_or_else(PoisonError::into_inner);
    let path: PathBuf = repository().join("README.md");
    let readme = fs::read_to_string(&path).unwrap();
    let blocks = page::blocks(&readme);
    let prompt = format!("# {command}\n");
    let block = blocks
        .into_iter()
        .find(|block| block.language == "console" && block.text.starts_with(&prompt))
        .unwrap_or_else(|| panic!("README does not show the output of {command}"));
    let expected = format!("{prompt}{output}");
    if std::env::var_os("UPDATE").is_some() {
        let [old, new] = [&block.text, &expected].map(|text| format!("```console\n{text}```\n"));
        fs::write(&path, readme.replace(&old, &new)).unwrap();
    } else {
        assert_eq!(block.text, expected, "UPDATE=1 rewrites README");
    }
}

/// Shows what is not in order, and the end.
fn readme_shows_doctor() {
    let command = "nvidia-ctk doctor";
    let output = World::new().run(&format!("{MACHINE}\n{command}"));
    let (first, rest) = output.split_once("ok  ").unwrap();
    let last = rest.lines().last().unwrap();
    compare(command, &format!("{first}...\n{last}\n"));
}

/// Shows the sections about GPU 0, and the end.
fn readme_shows_the_demo() {
    const SHOWN: [&str; 4] = [
        "Driver: ",
        "The driver's GPUs",
        "A container with GPU 0",
        "Afterwards",
    ];
    let scratch = Scratch::new().unwrap();
    // It compares the mounts before and afterwards, and other tests mount meanwhile.
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private"])
        .arg(repository().join("scripts/demo.sh"))
        .arg("--simulated")
        .env("NVC_CLI", cli::program().unwrap())
        .env("NVC_SIMDRIVER", cli::beside("nvc-simdriver").unwrap())
        .env("TMPDIR", scratch.path())
        .output()
        .unwrap();
    let [text, errors] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{text}{errors}");
    let mut shown = String::new();
    for section in text.split("\n== ") {
        let section = section.trim_matches('\n');
        if SHOWN.iter().any(|title| section.starts_with(title)) {
            shown += &format!("\n== {section}\n");
        } else if !section.is_empty() && !shown.ends_with("...\n") {
            shown += "\n...\n";
        }
    }
    // The name of its directory, and Ubuntu's name of ldconfig.
    let directory = shown.split("/nvc-demo.").nth(1).unwrap();
    let name = format!("nvc-demo.{}", directory.split('/').next().unwrap());
    let place = scratch.join(name).display().to_string();
    let shown = shown
        .replace(&place, "/tmp/nvc-demo")
        .replace("@/sbin/ldconfig.real", "@/sbin/ldconfig");
    compare("make demo", shown.trim_start_matches('\n'));
}
