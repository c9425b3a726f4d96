//! Registers the runtime with engines, and unregisters it as the scripts of the packages do, on a machine of its own.
#![allow(clippy::unwrap_used)]

mod names;
mod world;

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::process::ExitCode;

use nvc_testkit::harness;
use nvc_testkit::harness::Need::Root;

use names::{
    a_default_runtime_gives_way, an_administrators_drop_in_keeps_the_import,
    an_administrators_import_stays, drop_ins_share_an_import, each_name_is_removed_by_itself,
};
use world::*;

fn main() -> ExitCode {
    harness::main(nvc_testkit::tests![&[Root];
        engines_get_the_installed_program,
        a_missing_program_is_a_warning,
        registrations_are_undone,
        a_dry_run_changes_nothing,
        hook_files_go_with_the_hook,
        what_others_wrote_is_named,
        files_of_users_are_named,
        another_installation_keeps_its_registrations,
        the_specification_of_the_units_goes,
        packages_undo_only_their_own,
        a_broken_machine_is_survived,
        each_name_is_removed_by_itself,
        a_service_manager_that_hangs_is_given_up,
        containerd_1_6_ignores_cdi,
        features_that_stay_are_named,
        a_default_runtime_gives_way,
        drop_ins_share_an_import,
        an_administrators_import_stays,
        an_administrators_drop_in_keeps_the_import,
    ])
}

fn engines_get_the_installed_program() {
    let world = World::new();
    let dry = |engine: &str| {
        let outcome = world.succeeds(&format!("{CONFIGURE} --runtime={engine} --dry-run"));
        assert!(!outcome.stderr.contains("does not exist"), "{outcome:#?}");
        outcome.stdout
    };
    let runtime = format!("\"{BIN}/nvidia-container-runtime\"");
    assert!(dry("containerd").contains(&format!("BinaryName = {runtime}")));
    assert!(dry("crio").contains(&format!("runtime_path = {runtime}")));
    assert!(dry("docker").contains(&format!("\"path\": {runtime}")));
    let hook = format!("\"{BIN}/nvidia-container-runtime-hook\"");
    assert!(dry("crio --config-mode=oci-hook").contains(&hook));
    // dockerd finds this one by its name; the others still get the one beside nvidia-ctk.
    world.put("programs/nvidia-container-runtime", "#!/bin/sh\n", 0o755);
    assert!(dry("docker").contains("\"path\": \"nvidia-container-runtime\""));
    assert!(dry("containerd").contains(&runtime));
}

fn a_missing_program_is_a_warning() {
    let world = World::new();
    for name in ["nvidia-container-runtime", "nvidia-container-runtime-hook"] {
        fs::remove_file(world.at(&format!("{BIN}/{name}"))).unwrap();
    }
    let program = "/usr/bin/nvidia-container-runtime";
    for (options, named) in [
        ("--runtime=docker", program),
        ("--runtime=containerd", program),
        ("--runtime=crio", program),
        ("--runtime=docker --nvidia-runtime-path=/opt/x", "/opt/x"),
        (
            "--runtime=crio --config-mode=oci-hook --oci-hook-path=/h.json",
            "/usr/bin/nvidia-container-runtime-hook",
        ),
    ] {
        let outcome = world.succeeds(&format!("{CONFIGURE} {options}"));
        let expected = format!("level=warning msg=\"{named} does not exist: ");
        assert!(outcome.stderr.contains(&expected), "{options} {outcome:#?}");
        let outcome = world.succeeds(&format!("{CONFIGURE} {options} --remove"));
        assert!(!outcome.stderr.contains("does not exist"), "{outcome:#?}");
    }
}

/// Registers with every engine; returns the former texts of the files that existed.
fn register_everywhere(world: &World) -> [(&'static str, Option<&'static str>); 5] {
    let daemon = "{\n   \"log-driver\": \"local\"   ,\"default-runtime\": \"runc\"\n}";
    let containerd = "# mine\nversion = 2\nroot = \"/x\"\n";
    world.put(DAEMON, daemon, 0o600);
    world.put(CONTAINERD, containerd, 0o644);
    for options in [
        "docker --nvidia-set-as-default --cdi.enabled",
        "containerd --nvidia-set-as-default",
        "crio",
        &format!("crio --config-mode=oci-hook --oci-hook-path=/{HOOK}"),
    ] {
        world.succeeds(&format!("{CONFIGURE} --runtime={options}"));
    }
    let before = [
        (DAEMON, Some(daemon)),
        (CONTAINERD, Some(containerd)),
        (DROP_IN, None),
        (CRIO, None),
        (HOOK, None),
    ];
    for (path, text) in before {
        assert!(world.text(path).is_some_and(|now| Some(&*now) != text));
    }
    before
}

fn registrations_are_undone() {
    let world = World::new();
    let before = register_everywhere(&world);
    let outcome = world.succeeds(UNREGISTER);
    for (path, text) in before {
        assert_eq!(world.text(path).as_deref(), text, "{path} {outcome:#?}");
    }
    assert!(!world.notes());
    let told = world.text("systemctl").unwrap();
    assert_eq!(told, "is-active -q docker.service\nreload docker.service\n");
    for unit in ["containerd", "crio"] {
        let command = format!("systemctl restart {unit}\"");
        assert!(outcome.stderr.contains(&command), "{outcome:#?}");
    }
    assert!(!outcome.stderr.contains("warning"), "{outcome:#?}");
    // There is nothing left to be done.
    let outcome = world.succeeds(UNREGISTER);
    assert_eq!(outcome.stderr, "");
    // An undone registration is no registration.
    for remove in ["", "--remove"] {
        world.succeeds(&format!("{CONFIGURE} --runtime=docker {remove}"));
    }
    assert!(!world.notes());
}

fn a_dry_run_changes_nothing() {
    let world = World::new();
    let before = register_everywhere(&world);
    let now = before.map(|(path, _)| (path, world.text(path)));
    let outcome = world.succeeds(&format!("{UNREGISTER} --dry-run"));
    for (path, text) in now {
        assert_eq!(world.text(path), text);
        assert!(outcome.stderr.contains(path), "{path} {outcome:#?}");
    }
    assert!(world.text("systemctl").is_none());
    let outcome = world.succeeds(UNREGISTER);
    assert!(!outcome.stderr.contains("warning"), "{outcome:#?}");
}

fn hook_files_go_with_the_hook() {
    let world = World::new();
    register_everywhere(&world);
    let names = "--program=nvidia-container-runtime-hook,nvidia-container-toolkit";
    world.succeeds(&format!("{UNREGISTER} {names}"));
    assert!(world.text(HOOK).is_none());
    assert!(world.text(DAEMON).unwrap().contains("nvidia"));
    assert!(world.text(CRIO).is_some());
    // A hook file that was edited is somebody else's.
    world.succeeds(&format!(
        "{CONFIGURE} --runtime=crio --config-mode=oci-hook --oci-hook-path=/{HOOK}"
    ));
    let text = world.text(HOOK).unwrap().replace("\".*\"", "\".*sh\"");
    world.put(HOOK, &text, 0o644);
    let outcome = world.succeeds(&format!("{UNREGISTER} {names}"));
    assert_eq!(world.text(HOOK), Some(text));
    assert!(
        outcome.stderr.contains(&format!("rm /{HOOK}\"")),
        "{outcome:#?}"
    );
}

fn what_others_wrote_is_named() {
    let world = World::new();
    let daemon =
        format!("{{\"runtimes\": {{\"gpu\": {{\"path\": \"{BIN}/nvidia-container-runtime\"}}}}}}");
    world.put(DAEMON, &daemon, 0o644);
    let drop_in = "etc/crio/crio.conf.d/10-mine.conf";
    let crio = format!(
        "[crio.runtime.runtimes.nvidia]\nruntime_path = \"{BIN}/nvidia-container-runtime\"\n"
    );
    world.put(drop_in, &crio, 0o644);
    let outcome = world.succeeds(UNREGISTER);
    assert_eq!(world.text(DAEMON), Some(daemon.clone()));
    assert_eq!(world.text(drop_in), Some(crio));
    for command in [
        format!(
            "{CONFIGURE} --runtime=docker --config=/{DAEMON} --remove --nvidia-runtime-name=gpu"
        ),
        format!("{CONFIGURE} --runtime=crio --drop-in-config=/{drop_in} --remove"),
    ] {
        assert!(outcome.stderr.contains(&command), "{outcome:#?}");
        world.succeeds(&command);
    }
    assert_eq!(world.text(DAEMON), None, "an empty object is no file");
    assert_eq!(world.text(drop_in), None);
    assert_eq!(world.succeeds(UNREGISTER).stderr, "");

    // One that was ours, and that somebody has changed since.
    world.succeeds(&format!("{CONFIGURE} --runtime=docker"));
    let text = world.text(DAEMON).unwrap();
    let text = text.replace(&format!("{BIN}/nvidia-container-runtime"), "/opt/wrapper");
    world.put(DAEMON, &text, 0o644);
    world.succeeds(UNREGISTER);
    assert_eq!(world.text(DAEMON), Some(text));
}

fn files_of_users_are_named() {
    let world = World::new();
    let passwd = "root:x:0:0::/root:/bin/sh\nana:x:4242:4242::/home/ana:/bin/sh\nbo:x:4243:4243::/home/bo:/bin/sh\n";
    world.put("etc/passwd", passwd, 0o644);
    let secret = format!("\"{BIN}/nvidia-container-runtime\"\n");
    world.put("root/secret", &secret, 0o600);
    let file = "home/ana/.config/docker/daemon.json";
    let daemon = format!(
        "{{\"runtimes\": {{\"nvidia\": {{\"path\": \"{BIN}/nvidia-container-runtime\"}}}}}}"
    );
    world.put(file, &daemon, 0o644);
    world.put("home/bo/.config/docker/x", "", 0o644);
    let link = world.at("home/bo/.config/docker/daemon.json");
    symlink("/root/secret", &link).unwrap();
    for (user, id) in [("ana", 4242), ("bo", 4243)] {
        for path in ["", "/.config", "/.config/docker"] {
            chown(world.at(&format!("home/{user}{path}")), Some(id), Some(id)).unwrap();
        }
    }
    chown(world.at(file), Some(4242), Some(4242)).unwrap();
    std::os::unix::fs::lchown(link, Some(4243), Some(4243)).unwrap();
    // The printed command is for root to copy.
    let evil = format!(
        "{{\"runtimes\": {{\"x; touch /x\": {{\"path\": \"{BIN}/nvidia-container-runtime\"}}}}}}"
    );
    for text in [&evil, &daemon] {
        world.put(file, text, 0o644);
        let outcome = world.succeeds(UNREGISTER);
        assert!(outcome.stderr.contains(file) && !outcome.stderr.contains("touch"));
    }
    let outcome = world.succeeds(UNREGISTER);
    assert_eq!(world.text(file), Some(daemon));
    let command = format!("sudo -u ana {CONFIGURE} --runtime=docker --config=/{file} --remove\"");
    assert!(outcome.stderr.contains(&command), "{outcome:#?}");
    assert!(!outcome.stderr.contains("bo/"), "{outcome:#?}");
    assert_eq!(world.text("root/secret"), Some(secret));
}

/// The packages' and that of `make install` may be on one machine.
fn another_installation_keeps_its_registrations() {
    let world = World::new();
    world.put("programs/nvidia-container-runtime", "#!/bin/sh\n", 0o755);
    let other = "/usr/local/bin/nvidia-container-runtime";
    // By name for docker: the other one is found.
    world.succeeds(&format!("{CONFIGURE} --runtime=docker"));
    world.succeeds(&format!(
        "{CONFIGURE} --runtime=crio --nvidia-runtime-path={other}"
    ));
    let now = [DAEMON, CRIO].map(|path| world.text(path).unwrap());
    let outcome = world.succeeds(UNREGISTER);
    assert_eq!([DAEMON, CRIO].map(|path| world.text(path).unwrap()), now);
    assert_eq!(outcome.stderr, "");
    // Without it the name would be that of a missing program.
    fs::remove_file(world.at("programs/nvidia-container-runtime")).unwrap();
    world.succeeds(UNREGISTER);
    assert_eq!(world.text(DAEMON), None);
}

fn the_specification_of_the_units_goes() {
    let world = World::new();
    let text = |program: &str| {
        format!(
            "# generated by nvidia-ctk 1.2\n# command: nvidia-ctk cdi generate\ncontainerEdits:\n  hooks:\n  - path: {program}\n"
        )
    };
    let own = text(&format!("{BIN}/nvidia-cdi-hook"));
    for (path, text, stays) in [
        ("run/cdi/nvidia.yaml", own.clone(), false),
        (
            "run/cdi/nvidia.yaml",
            text("/usr/bin/nvidia-cdi-hook"),
            true,
        ),
        (
            "run/cdi/nvidia.yaml",
            own.replacen("# gen", "# Gen", 1),
            true,
        ),
        ("etc/cdi/nvidia.yaml", own, true),
    ] {
        world.put(path, &text, 0o644);
        // What is announced to go is not said to stay.
        let outcome = world.succeeds(&format!("{UNREGISTER} --dry-run"));
        let (goes, named) = ("dry run: Removed", "which is being removed");
        assert_eq!(outcome.stderr.contains(goes), !stays, "{outcome:#?}");
        assert!(stays || !outcome.stderr.contains(named), "{outcome:#?}");
        let outcome = world.succeeds(UNREGISTER);
        assert_eq!(world.text(path).is_some(), stays, "{text} {outcome:#?}");
        if path.starts_with("etc") {
            assert!(outcome.stderr.contains("rm /etc/cdi/nvidia.yaml"));
        }
        let names = format!("{UNREGISTER} --program=nvidia-container-runtime");
        assert_eq!(world.succeeds(&names).stderr, "");
    }
}

fn packages_undo_only_their_own() {
    let by_package = format!("NVIDIA_CTK_FOR_PACKAGE=nvidia-docker2 {CONFIGURE} --runtime=docker");
    let removed = format!("{by_package} --remove");
    let by_admin = format!("{CONFIGURE} --runtime=docker");
    let has_runtime = |world: &World| world.text(DAEMON).is_some();
    // The package's own goes with it, also after an upgrade.
    let world = World::new();
    for _ in 0..2 {
        world.succeeds(&by_package);
    }
    assert!(has_runtime(&world));
    world.succeeds(&removed);
    assert!(!has_runtime(&world));
    // What was there stays: the administrator's call, and one written by hand, as it is.
    for by_hand in [false, true] {
        let world = World::new();
        if by_hand {
            let text = "{\"runtimes\": {\"nvidia\": {\"path\": \"/mine\"}}}";
            world.put(DAEMON, text, 0o644);
        } else {
            world.succeeds(&by_admin);
        }
        let text = world.text(DAEMON);
        world.succeeds(&by_package);
        assert_eq!(world.text(DAEMON), text);
        let outcome = world.succeeds(&removed);
        assert_eq!(world.text(DAEMON), text);
        assert!(
            outcome
                .stderr
                .contains("nvidia-docker2 did not register it")
        );
    }
    // The administrator takes over.
    let world = World::new();
    world.succeeds(&by_package);
    world.succeeds(&format!("{by_admin} --nvidia-set-as-default"));
    world.succeeds(&removed);
    assert!(has_runtime(&world));
    world.succeeds(UNREGISTER);
    assert!(!has_runtime(&world) && !world.notes());
}

fn a_broken_machine_is_survived() {
    let world = World::new();
    let before = register_everywhere(&world);
    // A file with a mistake, a note with one, a file that went, and a directory that is a user's now.
    let broken = world.text(CONTAINERD).unwrap() + "[x\n";
    world.put(CONTAINERD, &broken, 0o644);
    world.put(&format!("{NOTES}/registrations/x"), "{}", 0o644);
    fs::remove_file(world.at(CRIO)).unwrap();
    chown(world.at("etc/docker"), Some(4242), Some(4242)).unwrap();
    let daemon = world.text(DAEMON);
    let outcome = world.run(UNREGISTER);
    assert_eq!(outcome.status, Some(1), "{outcome:#?}");
    assert_eq!(world.text(CONTAINERD), Some(broken.clone()));
    assert_eq!(world.text(DAEMON), daemon);
    assert!(world.text(HOOK).is_none());
    for named in [
        &format!("--config=/{DAEMON} --remove"),
        &format!("--config=/{CONTAINERD} --remove"),
        "registrations/x is not a note of nvidia-ctk",
    ] {
        assert!(outcome.stderr.contains(named), "{named} {outcome:#?}");
    }
    // It can be done once they are repaired.
    chown(world.at("etc/docker"), Some(0), Some(0)).unwrap();
    fs::remove_file(world.at(&format!("{NOTES}/registrations/x"))).unwrap();
    world.put(CONTAINERD, broken.trim_end_matches("[x\n"), 0o644);
    world.succeeds(UNREGISTER);
    for (path, text) in before {
        assert_eq!(world.text(path).as_deref(), text, "{path}");
    }
    assert!(!world.notes());
}

fn a_service_manager_that_hangs_is_given_up() {
    let world = World::new();
    let systemctl = "#!/bin/sh\n[ \"$1\" != reload ] || sleep 1000\n";
    world.put("programs/systemctl", systemctl, 0o755);
    let outcome = world.succeeds(&format!("{CONFIGURE} --runtime=docker; {UNREGISTER}"));
    assert_eq!(world.text(DAEMON), None);
    assert!(outcome.stderr.contains("kill -s HUP"), "{outcome:#?}");
}

fn containerd_1_6_ignores_cdi() {
    let world = World::new();
    for (version, is_ignored) in [("1.6.20~ds1", true), ("1.7.24", false), ("v2.1.4", false)] {
        let text =
            format!("#!/bin/sh\necho containerd github.com/containerd/containerd {version} x\n");
        world.put("programs/containerd", &text, 0o755);
        let program = "--executable-path=/usr/local/bin/containerd";
        let configure = format!("{CONFIGURE} --runtime=containerd --dry-run {program}");
        let outcome = world.succeeds(&format!("{configure} --cdi.enabled"));
        let warning = "--cdi.enabled is ignored by containerd 1.6";
        assert_eq!(outcome.stderr.contains(warning), is_ignored, "{outcome:#?}");
        assert!(!world.succeeds(&configure).stderr.contains("cdi"));
    }
}

/// An editor that writes a new file loses the record of what was there before.
fn features_that_stay_are_named() {
    let world = World::new();
    let configure = format!("{CONFIGURE} --runtime=docker");
    let edit = |options: &str| {
        world.succeeds(&format!("{configure} --cdi.enabled {options}"));
        let text = world.text(DAEMON).unwrap();
        fs::remove_file(world.at(DAEMON)).unwrap();
        world.put(
            DAEMON,
            &text.replacen('{', "{\n    \"debug\": true,", 1),
            0o644,
        );
    };
    edit("");
    let outcome = world.succeeds(&format!("{configure} --remove"));
    let warning = format!("/{DAEMON}: features.cdi stays");
    assert!(outcome.stderr.contains(&warning), "{outcome:#?}");
    assert!(world.text(DAEMON).unwrap().contains("\"cdi\": true"));
    // Without an edit it goes.
    fs::remove_file(world.at(DAEMON)).unwrap();
    world.succeeds(&format!("{configure} --cdi.enabled"));
    let outcome = world.succeeds(&format!("{configure} --remove"));
    assert!(!outcome.stderr.contains("features.cdi"), "{outcome:#?}");
    assert_eq!(world.text(DAEMON), None);
}
