//! Engines whose command line names another file, or contradicts it.

use super::world::*;

const UNITS: &str = "etc/systemd/system";

/// A daemon reads the file that its command line names.
pub(super) fn the_file_that_a_daemon_reads_is_edited() {
    for (engine, daemon, file, text) in [
        ("docker", "dockerd --config-file", "srv/other.json", "{}"),
        (
            "containerd",
            "containerd --config",
            "srv/other.toml",
            "version = 2\n",
        ),
        ("crio", "crio --config", "srv/crio.conf", ""),
    ] {
        for line in [
            format!("ExecStart=/usr/bin/{daemon} /{file}"),
            format!("Environment=FILE=/{file}\nExecStart=/usr/bin/{daemon}=${{FILE}}"),
        ] {
            let world = World::new();
            world.put(file, text, 0o644);
            let unit = format!("[Service]\n{line}\n");
            world.put(&format!("{UNITS}/{engine}.service"), &unit, 0o644);
            let configure = format!("{CONFIGURE} --runtime={engine}");
            let outcome = world.succeeds(&configure);
            let said = format!("{engine} reads /{file}");
            assert!(outcome.stderr.contains(&said), "{outcome:#?}");
            let written = match engine {
                "docker" => file,
                "containerd" => "srv/conf.d/99-nvidia.toml",
                _ => CRIO,
            };
            assert!(
                world.text(written).unwrap().contains("nvidia"),
                "{outcome:#?}"
            );
            if engine == "containerd" {
                assert!(world.text(file).unwrap().contains("/srv/conf.d/*.toml"));
            }
            world.succeeds(UNREGISTER);
            for path in [written, file] {
                assert!(
                    !world.text(path).unwrap_or_default().contains("nvidia"),
                    "{path}"
                );
            }
            // The caller's option wins.
            if engine == "docker" {
                world.succeeds(&format!("{configure} --config=/{DAEMON}"));
                assert!(world.text(DAEMON).is_some());
            }
        }
    }
}

/// dockerd does not start with a setting in both places.
pub(super) fn what_dockerd_refuses_twice_is_refused() {
    let world = World::new();
    let unit = "[Service]\nExecStart=/usr/bin/dockerd\n";
    world.put(&format!("{UNITS}/docker.service"), unit, 0o644);
    let options = "EnvironmentFile=-/etc/default/docker\nExecStart=\nExecStart=dockerd $OPTIONS";
    let drop_in = format!("[Service]\n{options}\n");
    world.put(&format!("{UNITS}/docker.service.d/o.conf"), &drop_in, 0o644);
    world.put(
        "etc/default/docker",
        "OPTIONS=\"--default-runtime=nvidia --add-runtime nvidia=/x\"\n",
        0o644,
    );
    let configure = format!("{CONFIGURE} --runtime=docker");
    let outcome = world.run(&format!("{configure} --nvidia-set-as-default"));
    assert_eq!(outcome.status, Some(1), "{outcome:#?}");
    for said in [
        "docker.service.d/o.conf:4",
        "--default-runtime",
        "leave out",
    ] {
        assert!(outcome.stderr.contains(said), "{said} {outcome:#?}");
    }
    assert_eq!(world.text(DAEMON), None);
    let outcome = world.succeeds(&configure);
    assert!(
        outcome.stderr.contains("--add-runtime=nvidia=/x"),
        "{outcome:#?}"
    );
    let outcome = world.succeeds(UNREGISTER);
    let last = outcome.stderr.lines().last().unwrap();
    assert!(last.contains("systemctl restart docker"), "{outcome:#?}");
    assert!(
        outcome.stderr.contains("remove --default-runtime"),
        "{outcome:#?}"
    );
}

/// A runtime that only dockerd's command line names: no file changes, but the engine would not start a container.
pub(super) fn a_command_line_with_our_program_is_named() {
    let world = World::new();
    let unit =
        "[Service]\nExecStart=/usr/bin/dockerd --default-runtime=gpu --add-runtime gpu=PROGRAM\n";
    for (program, options) in [
        (
            "/opt/nv/bin/nvidia-container-runtime",
            "--default-runtime and --add-runtime",
        ),
        ("/elsewhere/nvidia-container-runtime", ""),
    ] {
        let unit = unit.replace("PROGRAM", program);
        world.put(&format!("{UNITS}/docker.service"), &unit, 0o644);
        let outcome = world.succeeds(UNREGISTER);
        let last = outcome.stderr.lines().last().unwrap_or_default();
        let is_named = last.contains(&format!("docker.service:2: remove {options} from"));
        assert_eq!(is_named, !options.is_empty(), "{program}: {outcome:#?}");
    }
}

/// A reload keeps a default runtime that the file no longer names.
pub(super) fn a_default_runtime_is_forgotten_by_the_running_docker() {
    let systemctl = "#!/bin/sh\necho \"$*\" >> /systemctl\n\
        [ \"$1\" != reload ] || sed -n \"s/.*default-runtime\\\": *\\\"\\\\([a-z]*\\\\).*/\\\\1/p\" /etc/docker/daemon.json > /new\n\
        [ ! -s /new ] || mv /new /default\n";
    let docker = format!(
        "#!/bin/sh\necho \"{{\\\"ServerVersion\\\": \\\"26.1\\\", \\\"DefaultRuntime\\\": \\\"$(cat /default)\\\", \\\"Runtimes\\\": \
         {{\\\"nvidia\\\": {{\\\"path\\\": \\\"{BIN}/nvidia-container-runtime\\\"}}}}}}\"\n"
    );
    // Its file names it or, after `configure --remove`, no longer.
    for (answers, is_in_file) in [(true, true), (false, true), (true, false)] {
        let world = World::new();
        world.put("default", "nvidia\n", 0o644);
        world.put("programs/systemctl", systemctl, 0o755);
        if answers {
            world.put("programs/docker", &docker, 0o755);
        }
        let configure = format!("{CONFIGURE} --runtime=docker");
        world.succeeds(&format!("{configure} --nvidia-set-as-default"));
        if !is_in_file {
            world.succeeds(&format!("{configure} --remove"));
        }
        let outcome = world.succeeds(UNREGISTER);
        assert_eq!(world.text(DAEMON), None);
        assert_eq!(world.text("default").unwrap().trim(), "runc");
        let last = outcome.stderr.lines().last().unwrap();
        let needs_restart = last.contains("systemctl restart docker");
        assert_eq!(needs_restart, !answers, "{outcome:#?}");
    }
}

pub(super) fn an_unchanged_file_needs_no_restart() {
    for engine in ["docker", "containerd", "crio"] {
        let world = World::new();
        let configure = format!("{CONFIGURE} --runtime={engine} --restart");
        let outcome = world.succeeds(&configure);
        assert!(outcome.stderr.contains("Restarted"), "{outcome:#?}");
        let restart = format!("restart {engine}\n");
        assert_eq!(world.text("systemctl"), Some(restart.clone()));
        let outcome = world.succeeds(&configure);
        assert!(outcome.stderr.contains("Nothing to change"), "{outcome:#?}");
        assert_eq!(world.text("systemctl"), Some(restart));
    }
}

/// A container with the host's root as a volume can have a process that looks like a daemon of it, and a user one of a
/// setuid program.
pub(super) fn a_process_of_others_is_no_daemon() {
    for (mode, start, counts) in [
        (755, "", true),
        (755, "unshare -m --propagation private", false),
        (4755, "", false),
    ] {
        let world = World::new();
        let huge = format!("{{{}\"x\": 1}}", "\"\": 0, ".repeat(200_000));
        world.put("srv/other.json", &huge, 0o644);
        let daemon = format!("{start} /opt/dockerd -c \"sleep 30\" --config-file=/srv/other.json");
        let outcome = world.run(&format!(
            "cp /bin/sh /opt/dockerd; chmod {mode} /opt/dockerd; {daemon} & sleep 1; {CONFIGURE} --runtime=docker; status=$?; kill $!; exit $status"
        ));
        assert_eq!(
            outcome.stderr.contains("/srv/other.json"),
            counts,
            "{outcome:#?}"
        );
        // No engine's file is so large.
        assert_eq!(
            outcome.stderr.contains("larger than 1 MiB"),
            counts,
            "{outcome:#?}"
        );
        assert_eq!(world.text(DAEMON).is_some(), !counts);
    }
}
