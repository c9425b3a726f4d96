//! Installs the build as `make install` does, and checks the paths, which the libraries expect.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use nvc_testkit::harness;
use nvc_testkit::harness::Need;
use nvc_testkit::machine::Scratch;
use nvc_tests::capi::{library_dir, repository};

fn main() -> ExitCode {
    harness::main(
        nvc_testkit::tests![&[Need::Command("readelf")];
            another_place_than_that_of_the_build_is_refused,
            the_libraries_are_where_they_are_expected,
            udev_rules_are_installed,
        ]
        .into_iter()
        .chain(nvc_testkit::tests![&[Need::Root];
            the_user_and_the_units_are_set_up,
            registrations_are_undone_first,
            files_and_units_of_packages_stay,
            links_to_devices_are_made_once,
            times_with_the_hook_are_noted,
            a_missing_build_or_installation_is_named,
        ])
        .collect(),
    )
}

/// Returns a path that the library was built for, by its name in the pkg-config file.
fn built(name: &str) -> String {
    let file = fs::read_to_string(library_dir().join("libnvidia-container.pc")).unwrap();
    let line = file.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().strip_prefix('=').unwrap().to_owned()
}

fn install(scratch: &Scratch, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(repository().join("scripts/build/install.sh"));
    for name in ["PREFIX", "LIBDIR", "LIBEXECDIR", "INCLUDEDIR"] {
        command.env_remove(name);
    }
    // A job of a service manager has neither.
    command.env_remove("HOME").env_remove("CARGO_HOME");
    command
        .env("DESTDIR", scratch.path())
        .env("BUILD", library_dir())
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

/// By `make install` and in the RPM package; the Debian one takes all.
fn udev_rules_are_installed() {
    let root = repository();
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    let places = [
        read("scripts/build/install.sh"),
        read("pkg/rpm/libnvidia-container.spec"),
    ];
    let mut count = 0;
    for entry in fs::read_dir(root.join("pkg/udev")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let file = format!("udev/rules.d/{name}");
        assert!(places.iter().all(|text| text.contains(&file)), "{file}");
        count += 1;
    }
    assert_eq!(count, 2);
}

/// The static library contains the path of its helper.
fn another_place_than_that_of_the_build_is_refused() {
    for variable in ["PREFIX", "LIBEXECDIR"] {
        let scratch = Scratch::new().unwrap();
        let output = install(&scratch, &[(variable, "/elsewhere")]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        let expected = format!("was built for {}, and not for", built("libexecdir"));
        assert!(text.contains(&expected), "{text}");
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }
}

fn a_missing_build_or_installation_is_named() {
    let machine = Machine::new();
    for is_there in [true, false] {
        let output = machine.install("--uninstall", true, "true");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{text}");
        assert_eq!(
            !text.contains("our programs are not in"),
            is_there,
            "{text}"
        );
    }
    fs::remove_dir_all(machine.scratch.join("build")).unwrap();
    let output = machine.install("", true, "true");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let build = machine.scratch.join("build").display().to_string();
    let expected = format!("install: there is no build in {build}; build first: make build\n");
    assert_eq!(text, expected);
}

/// A debug build has no manual pages, at which the script stops; by then the libraries are installed.
fn the_libraries_are_where_they_are_expected() {
    let scratch = Scratch::new().unwrap();
    let output = install(&scratch, &[]);
    let text = String::from_utf8(output.stderr).unwrap();
    let at = |path: &str| -> PathBuf { scratch.join(path.trim_start_matches('/')) };
    let helper = at(&built("libexecdir")).join("libnvidia-container/nvc-query");
    assert!(helper.is_file(), "{text}");
    let archive = fs::read(library_dir().join("libnvidia-container.a")).unwrap();
    let place = format!("{}/libnvidia-container", built("libexecdir"));
    let holds = archive
        .windows(place.len())
        .any(|bytes| bytes == place.as_bytes());
    assert!(holds, "{place}");
    for name in ["libnvidia-container", "libnvidia-container-go"] {
        let library = at(&built("libdir")).join(format!("{name}.so.1"));
        assert!(library.is_symlink(), "{text}");
        assert_eq!(soname(&library), format!("{name}.so.1"));
    }
    let empty = at(&built("libdir")).join("libnvidia-container-go.so.1");
    let symbols = Command::new("readelf")
        .args(["-W", "--dyn-syms"])
        .arg(&empty)
        .output()
        .unwrap();
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    assert!(!symbols.contains("GLOBAL"), "{symbols}");
    assert!(fs::metadata(empty).unwrap().len() < 20_000);
}

/// A build of empty files, for a prefix, and a machine to install it on.
struct Machine {
    scratch: Scratch,
}

impl Machine {
    fn new() -> Self {
        let machine = Self {
            scratch: Scratch::new().unwrap(),
        };
        let text = format!(
            "prefix={0}\nlibexecdir={0}/libexec\n",
            machine.scratch.join("prefix").display()
        );
        machine.put("build/libnvidia-container.pc", &text);
        for name in ["systemctl", "systemd-sysusers", "ldconfig", "install"] {
            let text = "#!/bin/sh\necho \"${0##*/} $*\" >> LOG\n";
            // The state directory belongs to a user that this machine does not have.
            let text = match name {
                "install" => {
                    "#!/bin/sh\ncase \" $* \" in *\" -o \"*) echo \"install $*\" >> LOG ;; *) exec /usr/bin/install \"$@\" ;; esac\n"
                }
                _ => text,
            };
            let log = machine.scratch.join("log").display().to_string();
            machine.put(&format!("programs/{name}"), &text.replace("LOG", &log));
        }
        // The script names the first file that is missing.
        for _ in 0..100 {
            let output = machine.install("", true, "");
            let text = String::from_utf8(output.stderr).unwrap();
            let Some(name) = text.strip_prefix("install: ") else {
                assert!(output.status.success(), "{text}");
                break;
            };
            let name = name.split(" is missing").next().unwrap();
            let below = name.strip_prefix(machine.scratch.path().to_str().unwrap());
            machine.put(below.unwrap(), "#!/bin/sh\n");
        }
        machine
    }

    fn put(&self, path: &str, text: &str) {
        let path = path.trim_start_matches('/');
        nvc_testkit::files::file(&self.scratch.join(path), text, 0o755).unwrap();
    }

    /// Runs the script in a mount namespace with its own /run and /var/lib.
    fn install(&self, arguments: &str, has_destdir: bool, before: &str) -> Output {
        let top = self.scratch.path().display();
        let destdir = if has_destdir {
            format!("{top}/root")
        } else {
            String::new()
        };
        let script = format!(
            "mount -t tmpfs none /run && mkdir -p /run/systemd/system && {before}\n\
             PATH={top}/programs:$PATH DESTDIR={destdir} BUILD={top}/build exec {} {arguments}",
            repository().join("scripts/build/install.sh").display()
        );
        let mut command = Command::new("unshare");
        for name in ["PREFIX", "LIBDIR", "LIBEXECDIR", "INCLUDEDIR"] {
            command.env_remove(name);
        }
        command
            .args(["-m", "--propagation", "private", "sh", "-c", &script])
            .output()
            .unwrap()
    }

    /// Installs on the machine itself, or uninstalls; returns the calls of the machine's programs.
    fn calls(&self, arguments: &str, before: &str) -> Vec<String> {
        let _ = fs::remove_file(self.scratch.join("log"));
        let output = self.install(arguments, false, before);
        assert!(output.status.success(), "{output:?}");
        let log = fs::read_to_string(self.scratch.join("log")).unwrap_or_default();
        log.lines().map(Into::into).collect()
    }
}

const UNITS: &str = "nvidia-cdi-refresh.service nvidia-cdi-refresh.path nvidia-cdi-verify.timer nvidia-docker-plugin.socket";

fn the_user_and_the_units_are_set_up() {
    let machine = Machine::new();
    let output = machine.install("", true, "true");
    let text = String::from_utf8(output.stdout).unwrap();
    let prefix = machine.scratch.join("prefix").display().to_string();
    for command in [
        format!("systemd-sysusers {prefix}/lib/sysusers.d/nvidia-docker.conf\n"),
        format!("systemctl enable --now {UNITS}\n"),
    ] {
        assert!(text.contains(&command), "{text}");
    }
    let log = machine.scratch.join("log");
    assert!(!log.exists(), "{:?}", fs::read_to_string(log));

    let calls = machine.calls("", "true");
    let user = format!("systemd-sysusers {prefix}/lib/sysusers.d/nvidia-docker.conf");
    let enabled = format!("systemctl enable {UNITS}");
    let started = "systemctl start nvidia-cdi-refresh.path nvidia-cdi-verify.timer nvidia-docker-plugin.socket";
    let reload = "systemctl daemon-reload";
    for call in [&user, &enabled, started, reload] {
        assert!(calls.iter().any(|made| made == call), "{call} {calls:#?}");
    }
    assert!(
        calls
            .iter()
            .any(|made| made.ends_with("/var/lib/nvidia-docker"))
    );
    // A second time nothing is new, so nothing is loaded again, and what was disabled stays so.
    let calls = machine.calls("", "true");
    for call in [&enabled, started, reload] {
        assert!(!calls.iter().any(|made| made == call), "{call} {calls:#?}");
    }
    // Without systemd the commands are printed.
    let output = machine.install("", false, "rm -r /run/systemd");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains(&format!("systemctl enable --now {UNITS}\n")),
        "{text}"
    );
}

fn registrations_are_undone_first() {
    let machine = Machine::new();
    machine.calls("", "true");
    let ctk = machine.scratch.join("prefix/bin/nvidia-ctk");
    let log = machine.scratch.join("log").display().to_string();
    // As long as the runtime is there.
    let text = format!(
        "#!/bin/sh\n[ -e {} ] && echo \"ctk $*\" >> {log}; exit 1\n",
        machine
            .scratch
            .join("prefix/bin/nvidia-container-runtime")
            .display()
    );
    fs::write(&ctk, text).unwrap();
    let calls = machine.calls("--uninstall", "true");
    assert_eq!(calls[0], "ctk runtime unregister", "{calls:#?}");
    let disabled = format!("systemctl disable --now {UNITS} nvidia-docker-plugin.service");
    assert_eq!(calls[1], disabled);
    assert!(!ctk.exists());
    // A half-removed machine.
    let calls = machine.calls("--uninstall", "true");
    assert!(
        !calls.iter().any(|call| call.starts_with("ctk")),
        "{calls:#?}"
    );
}

/// Both kinds of installation have units of the same names; those of /usr/local hide the others.
fn files_and_units_of_packages_stay() {
    let machine = Machine::new();
    machine.calls("", "true");
    let dpkg = "#!/bin/sh\ncase $2 in /usr/lib/systemd/system/nvidia-cdi-* | */bin/nvidia-ctk | */nvc-query) ;; *) exit 1 ;; esac\n";
    machine.put("programs/dpkg", dpkg);
    let calls = machine.calls("--uninstall", "true");
    let about_units: Vec<&str> = calls
        .iter()
        .filter_map(|call| call.strip_prefix("systemctl "))
        .filter(|call| !call.starts_with("is-enabled"))
        .collect();
    assert_eq!(
        about_units,
        [
            "disable --now nvidia-docker-plugin.socket nvidia-docker-plugin.service",
            "daemon-reload",
            "reenable nvidia-cdi-refresh.service nvidia-cdi-refresh.path nvidia-cdi-verify.timer",
            "--no-block start nvidia-cdi-refresh.service",
        ]
    );
    assert!(machine.scratch.join("prefix/bin/nvidia-ctk").exists());
    assert!(!machine.scratch.join("prefix/bin/nvidia-cdi-hook").exists());
}

/// The udev rule acts when the driver is registered, which has happened long before an installation.
fn links_to_devices_are_made_once() {
    let machine = Machine::new();
    let log = machine.scratch.join("log");
    let text = format!("#!/bin/sh\necho \"ctk $*\" >> {}; exit 1\n", log.display());
    machine.put("build/nvidia-ctk", &text);
    for (before, expected) in [("true", 1), ("rm -r /run/systemd", 0)] {
        let calls = machine.calls("", before);
        let made = |call: &&String| *call == "ctk --quiet system create-dev-char-symlinks";
        assert_eq!(calls.iter().filter(made).count(), expected, "{calls:#?}");
    }
}

/// A dockerd that was started while the hook was installed knows it, also after a removal.
fn times_with_the_hook_are_noted() {
    let machine = Machine::new();
    let noted = machine.scratch.join("noted");
    let noted_there = format!(
        "mkdir -p {0} /run/nvidia-container-toolkit && mount --bind {0} /run/nvidia-container-toolkit",
        noted.display()
    );
    for (arguments, times) in [("", 1), ("", 1), ("--uninstall", 2), ("", 3)] {
        machine.calls(arguments, &noted_there);
        let text = fs::read_to_string(noted.join("hook-installed")).unwrap();
        assert_eq!(text.lines().count(), times, "{arguments} {text}");
    }
}

fn soname(library: &Path) -> String {
    let output = Command::new("readelf")
        .args(["-W", "-d"])
        .arg(library)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("(SONAME)")).unwrap();
    let name = line.split_once('[').unwrap().1;
    name.trim_end_matches(']').to_owned()
}
