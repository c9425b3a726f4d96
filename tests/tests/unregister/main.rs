//! Registers the runtime with engines, and unregisters it as the scripts of the packages do, on a machine of its own.
#![allow(clippy::unwrap_used)]

mod daemons;
mod names;
mod world;

use std::fs;
use std::os::unix::fs::chown;
use std::process::ExitCode;

use nvc_testkit::harness;
use nvc_testkit::harness::Need::Root;

use daemons::{
    a_command_line_with_our_program_is_named, a_default_runtime_is_forgotten_by_the_running_docker,
    a_process_of_others_is_no_daemon, an_unchanged_file_needs_no_restart,
    the_file_that_a_daemon_reads_is_edited, what_dockerd_refuses_twice_is_refused,
};
use names::{
    a_default_runtime_gives_way, an_administrators_drop_in_keeps_the_import,
    drop_ins_share_an_import, each_name_is_removed_by_itself,
};
use world::*;

fn main() -> ExitCode {
    harness::main(nvc_testkit::tests![&[Root];
        engines_get_the_installed_program,
        a_missing_program_is_a_warning,
        what_is_ours_goes,
        what_older_versions_wrote_goes,
        a_dry_run_changes_nothing,
        hook_files_go_with_the_hook,
        what_others_wrote_stays,
        another_installation_keeps_its_registrations,
        the_specification_of_the_units_goes,
        a_broken_machine_is_survived,
        each_name_is_removed_by_itself,
        a_service_manager_that_hangs_is_given_up,
        containerd_1_6_ignores_cdi,
        features_that_stay_are_named,
        a_default_runtime_gives_way,
        drop_ins_share_an_import,
        an_administrators_drop_in_keeps_the_import,
        a_template_is_named,
        an_option_that_is_not_given_changes_nothing,
        the_file_that_a_daemon_reads_is_edited,
        what_dockerd_refuses_twice_is_refused,
        a_command_line_with_our_program_is_named,
        a_default_runtime_is_forgotten_by_the_running_docker,
        an_unchanged_file_needs_no_restart,
        a_process_of_others_is_no_daemon,
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

/// Registers with every engine.
fn register_everywhere(world: &World) {
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
    for path in FILES {
        assert!(world.text(path).is_some_and(|now| now.contains("nvidia")));
    }
}

/// The files that it writes.
const FILES: [&str; 4] = [DAEMON, DROP_IN, CRIO, HOOK];

fn what_is_ours_goes() {
    let world = World::new();
    register_everywhere(&world);
    world.put("programs/containerd", "#!/bin/sh\n", 0o755);
    let outcome = world.succeeds(UNREGISTER);
    // The default runtime and docker's CDI are not brought back.
    let daemon: serde_json::Value = serde_json::from_str(&world.text(DAEMON).unwrap()).unwrap();
    let left = serde_json::json!({"log-driver": "local", "features": {"cdi": true}});
    assert_eq!(daemon, left);
    let containerd = world.text(CONTAINERD).unwrap();
    assert_eq!(containerd, "# mine\nversion = 2\nroot = \"/x\"\n");
    for path in [DROP_IN, CRIO, HOOK] {
        assert_eq!(world.text(path), None, "{outcome:#?}");
    }
    // Nobody restarts an engine that is not installed.
    for (unit, is_there) in [("containerd", true), ("crio", false)] {
        let command = format!("systemctl restart {unit}\"");
        assert_eq!(outcome.stderr.contains(&command), is_there, "{outcome:#?}");
    }
    assert!(!outcome.stderr.contains("warning"), "{outcome:#?}");
    // There is nothing left to be done.
    let outcome = world.succeeds(UNREGISTER);
    assert_eq!(outcome.stderr, "");
}

/// NVIDIA's older nvidia-ctk writes into the main file; our 1.20.2 wrote a line with its names into the drop-in.
fn what_older_versions_wrote_goes() {
    let section = "[plugins.\"io.containerd.grpc.v1.cri\".containerd";
    let entry = format!(
        "{section}.runtimes.nvidia]\nruntime_type = \"t\"\n{section}.runtimes.nvidia.options]\n\
         BinaryName = \"{BIN}/nvidia-container-runtime\"\n"
    );
    let world = World::new();
    let main = format!(
        "version = 2 # mine\n{section}]\ndefault_runtime_name = \"nvidia\"\n{section}.runtimes.runc]\nx = 1\n{entry}"
    );
    world.put(CONTAINERD, &main, 0o644);
    world.succeeds(UNREGISTER);
    let text = world.text(CONTAINERD).unwrap();
    assert!(
        !text.contains("nvidia") && text.contains("# mine") && text.contains("x = 1"),
        "{text}"
    );

    let world = World::new();
    world.put(
        CONTAINERD,
        "version = 2\nroot = \"/x\"\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n",
        0o644,
    );
    let own =
        format!("# Registered by nvidia-ctk runtime configure: [\"nvidia\"]\nversion = 2\n{entry}");
    world.put(DROP_IN, &own, 0o644);
    world.succeeds(UNREGISTER);
    assert_eq!(world.text(DROP_IN), None);
    assert_eq!(
        world.text(CONTAINERD).as_deref(),
        Some("version = 2\nroot = \"/x\"\n")
    );
}

fn a_dry_run_changes_nothing() {
    let world = World::new();
    register_everywhere(&world);
    let now = FILES.map(|path| (path, world.text(path)));
    let outcome = world.succeeds(&format!("{UNREGISTER} --dry-run"));
    for (path, text) in now {
        assert_eq!(world.text(path), text);
        assert!(outcome.stderr.contains(path), "{path} {outcome:#?}");
    }
    let asked = world.text("systemctl").unwrap_or_default();
    assert!(
        asked.lines().all(|line| line.starts_with("is-active")),
        "{asked}"
    );
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
        outcome.stderr.contains(&format!("/{HOOK} names")),
        "{outcome:#?}"
    );
}

fn what_others_wrote_stays() {
    let world = World::new();
    let drop_in = "etc/crio/crio.conf.d/10-mine.conf";
    let wrapper = "{\"runtimes\": {\"nvidia\": {\"path\": \"/opt/wrapper\"}}}";
    let kata = "[crio.runtime.runtimes.kata]\nruntime_path = \"/k\"\n";
    world.put(DAEMON, wrapper, 0o644);
    let both = format!(
        "{kata}[crio.runtime.runtimes.nvidia]\nruntime_path = \"{BIN}/nvidia-container-runtime\"\n"
    );
    world.put(drop_in, &both, 0o644);
    let engine = "[engine.runtimes]\nnvidia = [\"/opt/nv/bin/nvidia-container-runtime\"]\n";
    world.put("etc/containers/containers.conf", engine, 0o644);
    let outcome = world.succeeds(UNREGISTER);
    assert_eq!(world.text(DAEMON).as_deref(), Some(wrapper));
    // An entry with our program is ours, whoever wrote it.
    assert_eq!(world.text(drop_in).as_deref(), Some(kata));
    let named = "/etc/containers/containers.conf names";
    assert!(outcome.stderr.contains(named), "{outcome:#?}");
    // Files of users are not read.
    let passwd = "root:x:0:0::/root:/bin/sh\nana:x:4242:4242::/home/ana:/bin/sh\n";
    world.put("etc/passwd", passwd, 0o644);
    world.put("home/ana/.config/docker/daemon.json", &both, 0o644);
    let outcome = world.succeeds(UNREGISTER);
    assert!(!outcome.stderr.contains("/home"), "{outcome:#?}");
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
            assert!(outcome.stderr.contains("/etc/cdi/nvidia.yaml names"));
        }
        let names = format!("{UNREGISTER} --program=nvidia-container-runtime");
        assert_eq!(world.succeeds(&names).stderr, "");
    }
}

fn a_broken_machine_is_survived() {
    let world = World::new();
    register_everywhere(&world);
    // A file with a mistake, a file that went, and a directory that is a user's now.
    let broken = world.text(CONTAINERD).unwrap() + "[x\n";
    world.put(CONTAINERD, &broken, 0o644);
    fs::remove_file(world.at(CRIO)).unwrap();
    chown(world.at("etc/docker"), Some(4242), Some(4242)).unwrap();
    let daemon = world.text(DAEMON);
    let outcome = world.run(UNREGISTER);
    assert_eq!(outcome.status, Some(1), "{outcome:#?}");
    assert_eq!(world.text(CONTAINERD), Some(broken.clone()));
    assert_eq!(world.text(DAEMON), daemon);
    assert!(world.text(HOOK).is_none());
    for named in [
        format!("/{DAEMON}: the runtime stays"),
        format!("/{CONTAINERD}: the runtime stays"),
    ] {
        assert!(outcome.stderr.contains(&named), "{named} {outcome:#?}");
    }
    // It can be done once they are repaired.
    chown(world.at("etc/docker"), Some(0), Some(0)).unwrap();
    world.put(CONTAINERD, broken.trim_end_matches("[x\n"), 0o644);
    world.succeeds(UNREGISTER);
    for path in [DAEMON, CONTAINERD, DROP_IN] {
        assert!(
            !world.text(path).unwrap_or_default().contains("nvidia"),
            "{path}"
        );
    }
}

fn a_service_manager_that_hangs_is_given_up() {
    let world = World::new();
    let systemctl = "#!/bin/sh\n[ \"$1\" != reload ] || sleep 1000\n";
    world.put("programs/systemctl", systemctl, 0o755);
    let outcome = world.succeeds(&format!("{CONFIGURE} --runtime=docker; {UNREGISTER}"));
    assert_eq!(world.text(DAEMON), None);
    let last = outcome.stderr.lines().last().unwrap();
    assert!(last.contains("systemctl restart docker"), "{outcome:#?}");
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

fn features_that_stay_are_named() {
    let world = World::new();
    let configure = format!("{CONFIGURE} --runtime=docker");
    world.succeeds(&format!("{configure} --cdi.enabled"));
    let outcome = world.succeeds(&format!("{configure} --remove"));
    let warning = format!("/{DAEMON}: features.cdi stays");
    assert!(outcome.stderr.contains(&warning), "{outcome:#?}");
    assert!(world.text(DAEMON).unwrap().contains("\"cdi\": true"));
    // Without it nothing is left.
    fs::remove_file(world.at(DAEMON)).unwrap();
    world.succeeds(&configure);
    let outcome = world.succeeds(&format!("{configure} --remove"));
    assert!(!outcome.stderr.contains("features.cdi"), "{outcome:#?}");
    assert_eq!(world.text(DAEMON), None);
}

/// Its placeholders would get into a file that nobody expands.
fn a_template_is_named() {
    let world = World::new();
    let template = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"${SNAPSHOTTER}\"\n";
    let file = "var/lib/rancher/k3s/agent/etc/containerd/config.toml";
    for (path, text, named) in [
        (
            "srv/containerd-template.toml",
            template,
            "srv/containerd-template.toml is a template",
        ),
        (
            "srv/config.toml.tmpl",
            "{{ template \"base\" . }}\n",
            "srv/config.toml.tmpl is a template",
        ),
        (file, "version = 2\n", "is made from the template"),
    ] {
        world.put(path, text, 0o644);
        let configure = format!("{CONFIGURE} --runtime=containerd --config=/{path}");
        let outcome = world.run(&configure);
        assert_eq!(outcome.status, Some(1), "{outcome:#?}");
        assert!(outcome.stderr.contains(named), "{outcome:#?}");
        assert_eq!(world.text(path).as_deref(), Some(text));
        assert_eq!(world.text(DROP_IN), None);
        let outcome = world.succeeds(&format!("{configure} --dry-run"));
        assert!(outcome.stdout.contains("runtimes.nvidia") && !outcome.stdout.contains("${"));
    }
}

/// A default runtime that the administrator has set stays.
fn an_option_that_is_not_given_changes_nothing() {
    for (head, plugin, option) in [
        ("version = 2\n", "\"io.containerd.grpc.v1.cri\"", ""),
        ("version = 3\n", "\"io.containerd.cri.v1.runtime\"", ""),
        (
            "version = 2\n",
            "\"io.containerd.grpc.v1.cri\"",
            "--drop-in-config=",
        ),
        ("", "cri", ""),
    ] {
        let world = World::new();
        let text = format!(
            "{head}[plugins.{plugin}.containerd]\ndefault_runtime_name = \"nvidia\"\n\
             [plugins.{plugin}.containerd.runtimes.nvidia]\nruntime_type = \"io.containerd.runc.v2\"\n"
        );
        world.put(CONTAINERD, &text, 0o644);
        world.succeeds(&format!("{CONFIGURE} --runtime=containerd {option}"));
        let default = "default_runtime_name = \"nvidia\"";
        assert!(world.text(CONTAINERD).unwrap().contains(default));
        let own = world.text(DROP_IN);
        // Up to version 2 the drop-in's section is the one that counts.
        if head == "version = 2\n" && option.is_empty() {
            assert!(own.unwrap().contains(default));
        }
    }
    // What an earlier call of ours wrote may go, and a line says so.
    for engine in ["containerd", "crio"] {
        let world = World::new();
        let configure = format!("{CONFIGURE} --runtime={engine}");
        world.succeeds(&format!("{configure} --nvidia-set-as-default"));
        let outcome = world.succeeds(&configure);
        let said = "nvidia is no longer the default runtime";
        assert!(outcome.stderr.contains(said), "{outcome:#?}");
    }
}
