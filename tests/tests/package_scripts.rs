//! Tests that the scripts of the packages follow no link of the user nvidia-docker, who owns a directory of theirs, and
//! when they undo registrations and make the links to devices.
//!
//! Runs the scripts themselves, as root in a mount namespace with its own /var/lib and stand-ins of systemd's and
//! docker's commands.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use nvc_testkit::cli::{Outcome, Run};
use nvc_testkit::files;
use nvc_testkit::harness;
use nvc_testkit::harness::Need::{Command, Root};
use nvc_testkit::machine::Scratch;

/// Where the plugin's user puts links.
const STATE: &str = "/var/lib/nvidia-docker";

fn main() -> ExitCode {
    let mut tests = Vec::new();
    for package in [Package::Deb, Package::Rpm] {
        let needs = [Root, Command("mountpoint")];
        tests.extend([
            harness::test(format!("{package:?}_state"), &needs, move || {
                state_is_roots(package);
            }),
            harness::test(format!("{package:?}_volumes"), &needs, move || {
                volumes_are_unmounted(package);
            }),
            harness::test(format!("{package:?}_names"), &[Root], move || {
                only_the_plugins_volumes_are_removed(package);
            }),
        ]);
    }
    tests.push(harness::test(
        "registrations_are_undone_at_removal",
        &[Root],
        registrations_are_undone_at_removal,
    ));
    tests.push(harness::test(
        "links_to_devices_are_made_at_installation",
        &[Root],
        links_to_devices_are_made_at_installation,
    ));
    tests.push(harness::test(
        "times_with_the_hook_are_noted",
        &[Root],
        times_with_the_hook_are_noted,
    ));
    harness::main(tests)
}

#[derive(Clone, Copy, Debug)]
enum Package {
    Deb,
    Rpm,
}

impl Package {
    /// Returns the commands before and after an installation, and after a removal with all data.
    fn scripts(self) -> [String; 3] {
        match self {
            Self::Deb => [
                deb("preinst", "install"),
                deb("postinst", "configure"),
                format!("{}\n{}", deb("postrm", "remove"), deb("postrm", "purge")),
            ],
            Self::Rpm => [rpm("pre", 1), rpm("post", 1), rpm("postun", 0)],
        }
    }
}

fn source(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pkg");
    fs::read_to_string(root.join(path)).unwrap()
}

fn deb(name: &str, argument: &str) -> String {
    deb_of("nvidia-docker", name, argument)
}

fn deb_of(package: &str, name: &str, argument: &str) -> String {
    let text = source(&format!("debian/{package}.{name}"));
    format!("(set -- {argument}\n{text}\n)")
}

fn rpm(section: &str, argument: u32) -> String {
    rpm_of("nvidia-docker", section, argument)
}

fn rpm_of(package: &str, section: &str, argument: u32) -> String {
    let text = source("rpm/libnvidia-container.spec");
    let start = format!("\n%{section} -n {package}\n");
    let text = text.split_once(&start).unwrap().1;
    let text = text.split("\n%").next().unwrap();
    let text = text.replace(
        "%{nvc_state}",
        "/var/lib/rpm-state/nvidia-container-toolkit",
    );
    assert!(!text.contains("%{"), "{text}");
    format!("(set -- {argument}\n{text}\n)")
}

/// docker takes the name of another driver's volume for that volume, whichever plugin has said it.
fn only_the_plugins_volumes_are_removed(package: Package) {
    let canary = Scratch::new().unwrap();
    let script = match package {
        Package::Deb => deb("prerm", "remove"),
        Package::Rpm => rpm("preun", 0),
    };
    let outcome = run(canary.path(), &script);
    assert_eq!(
        outcome.stderr, "volume rm -- nvidia_driver_1.2\n",
        "{outcome:#?}"
    );
}

/// Runs a script on a machine with the user nvidia-docker and its directory. `canary` is the host's.
fn run(canary: &Path, script: &str) -> Outcome {
    let programs = canary.join("programs");
    for (name, answer) in [
        ("systemctl", "echo \"${0##*/} $*\""),
        ("systemd-sysusers", "echo \"${0##*/} $*\""),
        (
            "docker",
            "[ $2 != ls ] || exec echo \"nvidia_driver_1.2 data -f\"; echo \"$*\" >&2",
        ),
    ] {
        let text = format!("#!/bin/sh\n{answer}\n");
        files::file(&programs.join(name), text, 0o755).unwrap();
    }
    let passwd = "root:x:0:0::/:/bin/sh\nnvidia-docker:x:4242:4242::/:/bin/sh\n";
    files::file(&canary.join("passwd"), passwd, 0o644).unwrap();
    files::file(
        &canary.join("group"),
        "root:x:0:\nnvidia-docker:x:4242:\n",
        0o644,
    )
    .unwrap();
    let whole = format!(
        "set -e; canary={}; mount --bind $canary /mnt; mount -t tmpfs none /var/lib; mount -t tmpfs none /run\n\
         mkdir -p $canary; mount --bind /mnt $canary\n\
         mount --bind $canary/passwd /etc/passwd; mount --bind $canary/group /etc/group\n\
         install -d -o 4242 -g 4242 {STATE}; PATH=$canary/programs:$PATH\n{script}",
        canary.display()
    );
    let run = Run::other("unshare").args(["-m", "sh", "-c", &whole]);
    let outcome = run.outcome().unwrap();
    assert_eq!(outcome.status, Some(0), "{outcome:#?}\n{whole}");
    outcome
}

fn state_is_roots(package: Package) {
    let scratch = Scratch::new().unwrap();
    let canary = scratch.path();
    fs::write(canary.join("shadow"), "secret").unwrap();
    let [before, after, removal] = package.scripts();
    let attack = "setpriv --reuid=4242 --regid=4242 --clear-groups ln -s $canary/shadow";
    let outcome = run(
        canary,
        &format!(
            "{attack} {STATE}/new-units\n{before}\n{after}\nls -A {STATE} /var/lib\n{removal}\nls -A /var/lib"
        ),
    );
    assert_eq!(fs::read_to_string(canary.join("shadow")).unwrap(), "secret");
    let enabled = "systemctl enable nvidia-docker-plugin.socket";
    assert!(outcome.stdout.contains(enabled), "{outcome:#?}");
    assert!(!outcome.stdout.contains("packaging"), "{outcome:#?}");
    // The second installation is an upgrade: the units exist.
    let outcome = run(canary, &after);
    assert!(!outcome.stdout.contains(enabled), "{outcome:#?}");
}

fn volumes_are_unmounted(package: Package) {
    let volumes = format!("{STATE}/volumes/nvidia_driver");
    for link in [
        format!("{STATE}/volumes"),
        volumes.clone(),
        format!("{volumes}/victim"),
    ] {
        let scratch = Scratch::new().unwrap();
        let canary = scratch.path();
        let target = match link.strip_prefix(STATE).unwrap().split('/').count() {
            2 => "",
            3 => "/nvidia_driver",
            _ => "/nvidia_driver/victim",
        };
        let victim = canary.join("host/nvidia_driver/victim");
        files::directory(&victim).unwrap();
        let removal = &package.scripts()[2];
        let script = format!(
            "mount -t tmpfs none {victim}; mkdir -p {parent}; ln -s {canary}/host{target} {link}\n\
             ls {volumes} | grep -q victim\n{removal}\nmountpoint -q {victim}",
            victim = victim.display(),
            canary = canary.display(),
            parent = Path::new(&link).parent().unwrap().display(),
        );
        run(canary, &script);
    }
    // A volume of the plugin's, with a mount in it.
    let scratch = Scratch::new().unwrap();
    let script = format!(
        "mkdir -p {volumes}/570.1; mount -t tmpfs none {volumes}/570.1; mkdir {volumes}/570.1/x\n\
         mount -t tmpfs none {volumes}/570.1/x\n{}\n[ ! -e {STATE} ]; ! grep {STATE} /proc/self/mountinfo",
        package.scripts()[2]
    );
    run(scratch.path(), &script);
}

/// What a package's script before its removal calls.
const CALLS: [(&str, &str); 4] = [
    ("nvidia-container-toolkit-base", "runtime unregister"),
    (
        "nvidia-container-toolkit",
        "runtime unregister --program=nvidia-container-runtime-hook,nvidia-container-toolkit",
    ),
    (
        "nvidia-container-toolkit-operator-extensions",
        "runtime unregister --program=nvidia-container-runtime.cdi,nvidia-container-runtime.legacy",
    ),
    (
        "nvidia-docker2",
        "runtime configure --runtime=docker --remove",
    ),
];

/// Only a removal undoes registrations: no upgrade, and no replacement by NVIDIA's package of the same name, which is an
/// upgrade too.
fn registrations_are_undone_at_removal() {
    for (package, call) in CALLS {
        let deb = |argument: &str| deb_of(package, "prerm", argument);
        let rpm = |argument: u32| rpm_of(package, "preun", argument);
        for (script, is_removal) in [
            (deb("remove"), true),
            (deb("upgrade 1.20.3-1"), false),
            (deb("failed-upgrade 1.20.1-1"), false),
            (deb("remove in-favour another 1.0"), false),
            (deb("deconfigure in-favour another 1.0"), false),
            (deb("deconfigure in-favour a 1 removing b 2"), false),
            (rpm(0), true),
            (rpm(1), false),
        ] {
            for status in [Some(0), Some(1), None] {
                let scratch = Scratch::new().unwrap();
                let ctk = scratch.path().join("programs/nvidia-ctk");
                if let Some(status) = status {
                    let text = format!("#!/bin/sh\necho \"ctk $*\"; exit {status}\n");
                    files::file(&ctk, &text, 0o755).unwrap();
                }
                let script = script.replace("/usr/bin/nvidia-ctk", ctk.to_str().unwrap());
                // nvidia-docker2 removes what it registered.
                let mark =
                    "mkdir -p /var/lib/nvidia-docker2; : > /var/lib/nvidia-docker2/registered";
                let script = format!("{mark}\n{script}");
                // The script succeeds whatever nvidia-ctk does, and without it.
                let outcome = run(scratch.path(), &script);
                let is_called = outcome
                    .stdout
                    .lines()
                    .any(|line| line == format!("ctk {call}"));
                assert_eq!(
                    is_called,
                    is_removal && status.is_some(),
                    "{script}\n{outcome:#?}"
                );
                assert_eq!(outcome.stdout.contains("ctk "), is_called, "{outcome:#?}");
            }
        }
    }
}

/// The udev rule acts when the driver is registered, which has happened long before. A machine without systemd needs no
/// links, and without a GPU there are none.
fn links_to_devices_are_made_at_installation() {
    let base = "nvidia-container-toolkit-base";
    for script in [
        deb_of(base, "postinst", "configure"),
        rpm_of(base, "posttrans", 1),
    ] {
        for (before, expected) in [("mkdir -p /run/systemd/system", 1), ("true", 0)] {
            let scratch = Scratch::new().unwrap();
            let programs = scratch.path().join("programs");
            let ctk = programs.join("nvidia-ctk");
            files::file(&ctk, "#!/bin/sh\necho \"ctk $*\"; exit 1\n", 0o755).unwrap();
            let helper = programs.join("dpkg-maintscript-helper");
            files::file(&helper, "#!/bin/sh\n", 0o755).unwrap();
            let script = script.replace("/usr/bin/nvidia-ctk", ctk.to_str().unwrap());
            let outcome = run(scratch.path(), &format!("{before}\n{script}"));
            let made = |line: &&str| *line == "ctk --quiet system create-dev-char-symlinks";
            let count = outcome.stdout.lines().filter(made).count();
            assert_eq!(count, expected, "{before}\n{outcome:#?}");
        }
    }
}

/// A dockerd that was started while the hook was installed knows it, also after a removal.
fn times_with_the_hook_are_noted() {
    let of = "nvidia-container-toolkit";
    for [before, after, removed] in [
        [
            deb_of(of, "preinst", "install"),
            deb_of(of, "postinst", "configure"),
            deb_of(of, "postrm", "remove"),
        ],
        [
            rpm_of(of, "pre", 1),
            rpm_of(of, "post", 1),
            rpm_of(of, "postun", 0),
        ],
    ] {
        let installed = format!("{before}\n: > $canary/hook\n{after}\n");
        let removed = format!("rm $canary/hook\n{removed}\n");
        // An upgrade; after a boot; a hook of somebody else.
        for (script, times, is_from_boot) in [
            (installed.repeat(2), 1, false),
            (format!("{installed}{removed}{installed}"), 3, false),
            (format!(": > $canary/hook\n{removed}{installed}"), 3, true),
            (format!(": > $canary/hook\n{installed}"), 1, true),
        ] {
            let scratch = Scratch::new().unwrap();
            let script = script.replace("/usr/bin/nvidia-container-runtime-hook", "$canary/hook");
            let read = "cat /run/nvidia-container-toolkit/hook-installed";
            let noted = run(scratch.path(), &format!("{script}{read}")).stdout;
            assert_eq!(noted.lines().count(), times, "{script}\n{noted}");
            assert_eq!(noted.starts_with("0\n"), is_from_boot, "{script}\n{noted}");
        }
    }
}
