//! Runs bundles by our runtime with runc and with crun, without an engine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nvc_tests::bundle::{Bundle, hook_words};
use nvc_tests::hook_matrix::Machine;
use nvc_tests::world::{World, both, complaint, look, printed, sight};
use serde_json::{Value, json};

/// Returns the script of [`look`] with one more line: the container's view of the driver's procfs.
fn look_at_all() -> String {
    format!(
        "{}; ls /proc/driver/nvidia/gpus | grep -c :; echo /usr/lib/*/libcuda.so",
        look()
    )
}

/// A test; the argument is the low-level runtime.
pub(crate) type Body = fn(&str);

/// Name and body of each test.
pub(crate) const TESTS: &[(&str, Body)] = &[
    ("gives_one_gpu", gives_one_gpu),
    ("gives_one_gpu_in_a_user_namespace", in_a_user_namespace),
    ("gives_one_gpu_by_cruns_config", by_cruns_config),
    ("gives_nodes_by_capability", gives_nodes_by_capability),
    ("gives_one_gpu_with_a_foreign_cli", with_a_foreign_cli),
    ("gives_one_gpu_by_jit_cdi", by_jit_cdi),
    ("refuses_foreign_hooks", by_foreign_hooks),
    ("leaves_foreign_programs_aside", by_no_foreign_program),
    ("gives_one_gpu_by_a_specification", by_a_specification),
    ("hook_serves_cdi_names", hook_serves_cdi_names),
    ("honours_what_images_demand", honours_demands),
    ("leaves_others_alone", leaves_others_alone),
    ("says_what_is_missing", says_what_is_missing),
    ("shows_why_a_hook_failed", shows_why_a_hook_failed),
    ("ignores_features_of_images", ignores_features_of_images),
    ("hooks_obey_no_image", hooks_obey_no_image),
    (
        "gives_one_gpu_by_an_operators_folder",
        by_an_operators_folder,
    ),
];

fn gives_one_gpu(runtime: &str) {
    let world = World::new(runtime, "legacy", "");
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=1"], &look());
    let (seen, said) = both(&mut bundle.run());
    assert_eq!(seen, sight(bundle.world.driver, 1), "{said}");
    assert_eq!(said, "", "a hook that succeeds says nothing");
    // Also in config.json: rules that are only in the cgroup are lost when systemd reloads.
    let spec = bundle.spec();
    let expected = [
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia1",
        "/dev/nvidiactl",
    ];
    assert_eq!(paths_of_nodes(&spec), expected);
    let rules = spec["linux"]["resources"]["devices"].to_string();
    assert!(rules.contains("195"), "{rules}");
    let log = bundle.world.log();
    assert!(
        log.contains("devices 1 by NVIDIA_VISIBLE_DEVICES; mode legacy"),
        "{log}"
    );
    // Our hook gets the resolved devices in an argument, which no image can set.
    let uuid = &bundle.world.driver.profile().gpus[1].uuid;
    let words = hook_words(&spec);
    assert_eq!(
        words[1..3],
        ["prestart".to_owned(), format!("--devices={uuid}")]
    );
    assert!(words[3].starts_with("--nvml={"), "{words:?}");
    let told = match runtime {
        "crun" => {
            let directory = bundle.path().display();
            vec![
                format!("--bundle={directory}"),
                format!("--config-json={directory}/config.json"),
            ]
        }
        _ => Vec::new(),
    };
    assert_eq!(words[4..], told);
    // One entry for each name.
    let env = spec["process"]["env"].as_array().into_iter().flatten();
    let names = env.filter_map(|entry| entry.as_str()?.split('=').next());
    let mut names: Vec<&str> = names.collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "{spec}");
}

/// crun 1.8 passes the bundle `/` to hooks there, and starts them in that directory.
fn in_a_user_namespace(runtime: &str) {
    for mode in ["legacy", "jit-cdi"] {
        let world = World::new(runtime, mode, "");
        let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=1"], &look());
        let mut spec = bundle.spec();
        let linux = &mut spec["linux"];
        if let Some(namespaces) = linux["namespaces"].as_array_mut() {
            namespaces.push(json!({"type": "user"}));
        }
        let ids = json!([{"containerID": 0, "hostID": 0, "size": 65536}]);
        linux["uidMappings"] = ids.clone();
        linux["gidMappings"] = ids;
        // crun binds it, and has left the bundle then.
        linux["devices"] = json!([{"path": "/dev/full", "type": "c", "major": 1, "minor": 7}]);
        // The kernel refuses a new procfs where the host's is covered, as it is by the simulated driver.
        for mount in spec["mounts"].as_array_mut().into_iter().flatten() {
            if mount["destination"] == "/proc" {
                *mount = json!({
                    "destination": "/proc", "type": "bind", "source": "/proc", "options": ["rbind"],
                });
            }
        }
        bundle.write(&spec);
        let seen = printed(&mut bundle.run());
        assert_eq!(seen, sight(bundle.world.driver, 1), "{mode}");
    }
}

/// The request is in another file than the bundle's.
fn by_cruns_config(runtime: &str) {
    if runtime != "crun" {
        return;
    }
    for mode in ["legacy", "jit-cdi"] {
        let world = World::new(runtime, mode, "");
        let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=1"], &look());
        let mut other = bundle.spec();
        let file = bundle.world.path("gpu.json");
        fs::write(&file, other.to_string()).unwrap_or_else(|error| panic!("{error}"));
        other["process"]["args"] = json!(["false"]);
        other["process"]["env"] = json!([]);
        bundle.write(&other);
        let mut command = bundle.world.command("nvidia-container-runtime");
        command
            .arg("--root")
            .arg(bundle.world.path("state"))
            .args(["run", "--bundle", "bundle", "--config", "gpu.json"])
            .arg(bundle.world.name())
            .current_dir(bundle.world.path(""));
        let seen = printed(&mut command);
        assert_eq!(seen, sight(bundle.world.driver, 1), "{mode}");
        assert_eq!(bundle.spec(), other, "{mode}");
    }
}

/// Returns the device nodes in a config.json, sorted.
fn paths_of_nodes(spec: &Value) -> Vec<&str> {
    let devices = spec["linux"]["devices"].as_array().into_iter().flatten();
    let mut paths: Vec<&str> = devices
        .filter_map(|device| device["path"].as_str())
        .collect();
    paths.sort_unstable();
    paths
}

/// Tests that config.json gets the nodes of the requested capabilities, those that the hook adds too.
fn gives_nodes_by_capability(runtime: &str) {
    for (capabilities, more) in [
        ("utility", &[][..]),
        (
            "utility,video",
            &["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"],
        ),
        ("utility,display", &["/dev/nvidia-modeset"]),
    ] {
        let world = World::new(runtime, "legacy", "").on_debian();
        let variable = format!("NVIDIA_DRIVER_CAPABILITIES={capabilities}");
        let env = ["NVIDIA_VISIBLE_DEVICES=1", &variable];
        let bundle = Bundle::new(world, &env, "ls /dev/nvidia*");
        let seen = printed(&mut bundle.run());
        let spec = bundle.spec();
        let expected = [more, &["/dev/nvidia1", "/dev/nvidiactl"]].concat();
        let nodes = paths_of_nodes(&spec).into_iter();
        let nodes: Vec<&str> = nodes
            .filter(|path| path.starts_with("/dev/nvidia"))
            .collect();
        assert_eq!(nodes, expected, "{capabilities}");
        // The hook knows no others.
        assert_eq!(seen.lines().collect::<Vec<_>>(), expected, "{capabilities}");
    }
}

/// Returns the commands of our createContainer hooks.
fn commands(spec: &Value) -> Vec<String> {
    let entries = spec["hooks"]["createContainer"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let words = entries
        .iter()
        .map(|entry| entry["args"][1].as_str().unwrap_or_default());
    words.map(String::from).collect()
}

/// Replaces a program by one that records its arguments and executes the original.
fn noting(world: &World, name: &str) -> PathBuf {
    let (program, notes) = (world.bin().join(name), world.path(&format!("{name}.notes")));
    let real = world.path(&format!("real-{name}"));
    fs::rename(&program, &real).unwrap_or_else(|error| panic!("{error}"));
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> {}\nexec {} \"$@\"\n",
        notes.display(),
        real.display()
    );
    nvc_testkit::files::file(&program, script, 0o755).unwrap_or_else(|error| panic!("{error}"));
    notes
}

fn with_a_foreign_cli(runtime: &str) {
    let world = World::new(runtime, "legacy", "");
    let notes = noting(&world, "nvidia-container-cli");
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=1"], &look());
    assert_eq!(printed(&mut bundle.run()), sight(bundle.world.driver, 1));
    let called = fs::read_to_string(&notes).unwrap_or_default();
    let uuid = &bundle.world.driver.profile().gpus[1].uuid;
    // Ubuntu has a script in the program's place.
    let has_script = Path::new("/sbin/ldconfig.real").exists();
    let ldconfig = if has_script {
        "@/sbin/ldconfig.real"
    } else {
        "@/sbin/ldconfig"
    };
    assert!(
        called.contains(&format!(
            "configure --cuda-compat-mode=ldconfig --ldconfig={ldconfig} --device={uuid} "
        )),
        "{called}"
    );

    // A foreign hook gets nothing but the environment.
    let world = World::new(runtime, "legacy", "");
    world.forget();
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=1"], &look());
    assert_eq!(printed(&mut bundle.run()), sight(bundle.world.driver, 1));
    assert_eq!(
        hook_words(&bundle.spec()),
        ["nvidia-container-runtime-hook", "prestart"]
    );
}

fn by_jit_cdi(runtime: &str) {
    let world = World::new(runtime, "auto", "");
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=1"], &look_at_all());
    let seen = printed(&mut bundle.run());
    let expected = sight(bundle.world.driver, 1);
    let rest = seen.strip_prefix(&expected);
    let rest = rest.unwrap_or_else(|| panic!("{seen}\n{expected}"));
    assert!(rest.starts_with("1\n/usr/lib/"), "{seen}");
    assert!(!rest.contains('*'), "the link is missing: {seen}");
    let log = bundle.world.log();
    assert!(log.contains("automatic mode jit-cdi"), "{log}");
    let spec = bundle.spec();
    assert_eq!(commands(&spec), ["apply"]);
    assert!(hook_words(&spec).is_empty());
    // A second pass of the same bundle changes nothing but the simulated kernel's own hook, put in by each run.
    printed(&mut bundle.run());
    let mut twice = bundle.spec();
    twice["hooks"]["prestart"] = spec["hooks"]["prestart"].clone();
    assert_eq!(spec, twice);
}

fn by_foreign_hooks(runtime: &str) {
    let world = World::new(runtime, "jit-cdi", "");
    let copied = fs::copy("/bin/true", world.bin().join("nvidia-cdi-hook"));
    copied.unwrap_or_else(|error| panic!("{error}"));
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=1"], &look());
    let before = bundle.spec();
    let said = refused(&bundle);
    let hint = "install the package nvidia-container-toolkit-base of the same version";
    assert!(said.contains("nvidia-cdi-hook is not"), "{said}");
    assert!(said.contains(hint), "{said}");
    assert_eq!(bundle.spec(), before);
}

/// Returns what the runtime says when it fails.
fn refused(bundle: &Bundle) -> String {
    let output = bundle.run().output();
    let output = output.unwrap_or_else(|error| panic!("{error}"));
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A configured program of another version is left aside.
fn by_no_foreign_program(runtime: &str) {
    let world = World::new(runtime, "jit-cdi", "");
    world.set_at_top("[nvidia-ctk]\npath = \"/bin/true\"");
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=1"], &look());
    assert_eq!(printed(&mut bundle.run()), sight(bundle.world.driver, 1));
    let program = bundle.spec()["hooks"]["createContainer"][0]["path"].clone();
    assert_eq!(program, json!(bundle.world.bin().join("nvidia-cdi-hook")));
    let log = bundle.world.log();
    let warning = "/bin/true is not of this version";
    assert!(
        log.contains("nvidia-ctk.path") && log.contains(warning),
        "{log}"
    );
}

/// An operator's installer renames each program to NAME.real and puts a script in its place, which a shell must not run
/// as a hook. The configuration has the path of nvidia-ctk's script.
fn by_an_operators_folder(runtime: &str) {
    let world = World::new(runtime, "jit-cdi", "");
    let folder = world.path("toolkit");
    fs::create_dir(&folder).unwrap_or_else(|error| panic!("{error}"));
    for name in ["nvidia-ctk", "nvidia-cdi-hook"] {
        let copied = nvc_testkit::files::copy_program(
            &world.bin().join(name),
            &folder.join(format!("{name}.real")),
        );
        let script = format!("#!/bin/sh\nexec {}/{name}.real \"$@\"\n", folder.display());
        let written =
            copied.and_then(|()| nvc_testkit::files::file(&folder.join(name), script, 0o755));
        written.unwrap_or_else(|error| panic!("{error}"));
    }
    world.set_at_top(&format!(
        "[nvidia-ctk]\npath = \"{}/nvidia-ctk\"",
        folder.display()
    ));
    fs::remove_file(world.bin().join("nvidia-cdi-hook")).unwrap_or_else(|error| panic!("{error}"));
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=1"], &look());
    let original = bundle.spec();
    assert_eq!(printed(&mut bundle.run()), sight(bundle.world.driver, 1));
    assert_eq!(commands(&bundle.spec()), ["apply"]);
    let program = bundle.spec()["hooks"]["createContainer"][0]["path"].clone();
    assert_eq!(program, json!(folder.join("nvidia-cdi-hook.real")));

    fs::remove_file(folder.join("nvidia-cdi-hook.real")).unwrap_or_else(|error| panic!("{error}"));
    bundle.write(&original);
    assert!(refused(&bundle).contains("nvidia-cdi-hook is not"));
}

fn hooks_obey_no_image(runtime: &str) {
    let world = World::new(runtime, "cdi", "");
    let library = world.path("evil.so");
    let source = nvc_tests::capi::repository().join("tests/c/evil.c");
    let mut compile = Command::new("cc");
    printed(
        compile
            .args(["-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(source),
    );
    let work = world.path("matrix");
    fs::create_dir(&work).unwrap_or_else(|error| panic!("{error}"));
    let machine = Machine {
        programs: world.bin(),
        library,
        root: world.rootfs("matrix-root"),
        work,
        runtime: world.bin().join(format!("sim-{runtime}")),
    };
    let problems = machine.run().unwrap_or_else(|error| panic!("{error}"));
    for others in ["runc 1.3", "crun 1.21", "crun 1.28"] {
        println!("not here: {others} (make test-engines)");
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

fn by_a_specification(runtime: &str) {
    let world = World::with_specification(runtime, &[]);
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=0"], &look());
    assert_eq!(printed(&mut bundle.run()), sight(bundle.world.driver, 0));
    let said = bundle.world.log();
    assert!(
        said.contains("mode cdi (nvidia-container-runtime.mode: "),
        "{said}"
    );
}

/// Tests the hook alone, for an engine without our runtime.
fn hook_serves_cdi_names(runtime: &str) {
    for mode in ["auto", "cdi", "legacy"] {
        let world = World::new(runtime, mode, "");
        let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=1"], &look());
        let mut spec = bundle.spec();
        let hook = bundle.world.bin().join("nvidia-container-runtime-hook");
        let config = bundle.world.path("config.toml");
        spec["hooks"]["prestart"] = json!([{
            "path": hook, "args": ["nvidia-container-runtime-hook", "prestart"],
            "env": [format!("NVIDIA_CTK_CONFIG_FILE_PATH={}", config.display())],
        }]);
        bundle.write(&spec);
        let seen = printed(&mut bundle.run_with(&format!("sim-{runtime}")));
        assert_eq!(seen, sight(bundle.world.driver, 1), "{mode}");

        // A foreign CLI is served as upstream's hook serves it.
        bundle.world.forget();
        spec["hooks"]["prestart"][0]["args"] = json!(["nvidia-container-runtime-hook", "prestart"]);
        bundle.write(&spec);
        let output = bundle.run_with(&format!("sim-{runtime}")).output();
        let failed = output.is_ok_and(|output| !output.status.success());
        assert!(failed, "{mode} with a foreign CLI");
    }
}

/// Tests the keys of jit-cdi for capabilities and requirements, which upstream ignores.
fn honours_demands(runtime: &str) {
    let run = |key: &str, env: &[&str], script: &str| {
        let world = World::new(runtime, "jit-cdi", "");
        world.set(key);
        let env = [&["NVIDIA_VISIBLE_DEVICES=0"], env].concat();
        let bundle = Bundle::new(world, &env, script);
        let (seen, said) = both(&mut bundle.run());
        (seen, said, bundle.world.log())
    };
    let compute = ["NVIDIA_DRIVER_CAPABILITIES=compute"];
    let script = "ls /usr/bin/nvidia-smi /usr/lib/*/libcuda.so.* 2>/dev/null";
    let (seen, ..) = run("", &compute, script);
    assert!(
        seen.contains("nvidia-smi") && seen.contains("libcuda"),
        "{seen}"
    );
    let (seen, said, _) = run(
        "modes.jit-cdi.driver-capabilities = \"honour\"",
        &compute,
        script,
    );
    assert!(
        !seen.contains("nvidia-smi") && seen.contains("libcuda"),
        "{seen}{said}"
    );

    let demand = ["NVIDIA_REQUIRE_CUDA=cuda>=99.0"];
    let (seen, _, log) = run("", &demand, "echo here");
    assert_eq!(seen, "here\n");
    assert!(log.contains("unsatisfied condition: cuda>=99.0"), "{log}");
    let (seen, _, log) = run(
        "modes.jit-cdi.requirements = \"ignore\"",
        &demand,
        "echo here",
    );
    assert_eq!(seen, "here\n");
    assert!(!log.contains("unsatisfied"), "{log}");
    let (seen, said, _) = run(
        "modes.jit-cdi.requirements = \"honour\"",
        &demand,
        "echo here",
    );
    assert_eq!(seen, "");
    assert!(said.contains("unsatisfied condition: cuda>=99.0"), "{said}");
    let (seen, said, _) = run("modes.jit-cdi.requirements = \"enforce\"", &[], "echo here");
    assert_eq!(seen, "");
    assert!(said.contains("must be warn, honour or ignore"), "{said}");
}

fn leaves_others_alone(runtime: &str) {
    let world = World::new(runtime, "legacy", "");
    let bundle = Bundle::new(
        world,
        &["NVIDIA_VISIBLE_DEVICES=void"],
        "ls /dev; ls /usr/bin/nvidia-smi",
    );
    let before = bundle.spec();
    let (seen, _) = both(&mut bundle.run());
    assert!(!seen.contains("nvidia"), "{seen}");
    let mut after = bundle.spec();
    // The hook of the simulated kernel.
    if let Some(object) = after.as_object_mut() {
        object.remove("hooks");
    }
    assert_eq!(before, after);
}

fn says_what_is_missing(runtime: &str) {
    let world = World::new(runtime, "legacy", "");
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=7"], "true");
    let said = complaint(&mut bundle.run());
    assert!(said.contains("7: unknown device"), "{said}");
}

/// The image's cache is a directory, so that neither we nor ldconfig can write it. crun shows a hook's exit code only,
/// unless config.json says where the hook's messages go.
fn shows_why_a_hook_failed(runtime: &str) {
    let failed = |world: World| {
        let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=0"], "true");
        let cache = bundle.path().join("rootfs/etc/ld.so.cache");
        let _ = fs::remove_file(&cache);
        fs::create_dir_all(cache.join("full")).unwrap_or_else(|error| panic!("{error}"));
        let said = complaint(&mut bundle.run());
        (bundle, said)
    };
    for mode in ["jit-cdi", "cdi"] {
        let world = match mode {
            "cdi" => World::with_specification(runtime, &[]),
            mode => World::new(runtime, mode, ""),
        };
        let (bundle, said) = failed(world);
        let mut ours = said.lines().filter(|line| line.contains("ld.so.cache"));
        // The rest of the text is the runtime's own.
        let last = ours.next_back().unwrap_or_else(|| panic!("{mode}: {said}"));
        assert!(last.contains("level=error msg="), "{mode}: {said}");
        let annotation = &bundle.spec()["annotations"]["run.oci.hooks.stderr"];
        assert_eq!(annotation.is_string(), runtime == "crun", "{annotation}");
    }
    let (_, said) = failed(World::new(runtime, "legacy", ""));
    assert!(said.contains("nvidia-container-cli: "), "{said}");

    // crun cannot open a socket by its name, and would not start the container.
    let world = World::new(runtime, "jit-cdi", "");
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=0"], "echo here");
    for _ in 0..2 {
        let pair = std::os::unix::net::UnixStream::pair();
        let (socket, _other) = pair.unwrap_or_else(|error| panic!("{error}"));
        let mut command = bundle.run();
        command.stderr(std::os::fd::OwnedFd::from(socket));
        let output = command.output().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "here\n");
        // With the annotation of this run, the next one must do without it.
        assert_eq!(printed(&mut bundle.run()), "here\n");
    }
}

/// Where the environment of an unprivileged container does not count, it gives no other devices either.
fn ignores_features_of_images(runtime: &str) {
    let strict = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n\
                  accept-nvidia-visible-devices-as-volume-mounts = true";
    for mode in ["legacy", "jit-cdi", "csv"] {
        for (is_strict, has_switch) in [(true, false), (true, true), (false, false)] {
            let world = match mode {
                "csv" => World::jetson(runtime),
                mode => World::new(runtime, mode, ""),
            };
            if is_strict {
                world.set_at_top(strict);
            } else {
                world.set_at_top("accept-nvidia-visible-devices-as-volume-mounts = true");
            }
            if has_switch {
                world.set_at_top("accept-nvidia-features-when-unprivileged = true");
            }
            let env = [
                "NVIDIA_GDRCOPY=enabled",
                "NVIDIA_REQUIRE_JETPACK=csv-mounts=all",
            ];
            let bundle = Bundle::new(world, &env, "ls /dev");
            bundle.request_by_mount("0");
            let seen = printed(&mut bundle.run());
            assert!(seen.contains("nvidia0\n"), "{mode}: {seen}");
            let log = bundle.world.log();
            let ignored = "unprivileged container: [NVIDIA_GDRCOPY]";
            let is_ignored = is_strict && !has_switch;
            assert_eq!(log.contains(ignored), is_ignored, "{mode}: {log}");
            let ignored = "Ignoring NVIDIA_REQUIRE_JETPACK";
            assert_eq!(
                log.contains(ignored),
                is_strict && mode == "csv",
                "{mode}: {log}"
            );
        }
    }
}
