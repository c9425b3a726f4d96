//! Tests that in legacy mode the runtime hands NVML's answers to the hook in its arguments: NVML is queried once, the hook
//! grants what the runtime resolved, and an image cannot supply answers.

use std::fs;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nvc_testkit::driver::{Builder, Driver};
use nvc_testkit::profile::Profile;
use nvc_tests::bundle::{Bundle, hook_words};
use nvc_tests::world::{World, both, complaint, look, printed, sight};
use serde_json::{Value, json};

use super::runtimes::Body;

/// Name and body of each test; the argument is the low-level runtime.
pub(crate) const TESTS: &[(&str, Body)] = &[
    ("queries_nvml_once", queries_once),
    ("checks_demands_by_what_was_handed_over", checks_demands),
    ("takes_no_answers_from_images", no_answers_of_images),
    ("queries_nvml_if_answers_are_odd", odd_answers),
    ("grants_no_more_than_was_resolved", no_more),
    ("follows_a_driver_update", follows_an_update),
    ("lets_managers_partition_gpus", partitions),
];

const ANSWERS: &str = "--nvml=";

/// Prints the GPUs' nodes and the driver's library. Mount points of earlier runs are empty files.
pub(crate) const SCRIPT: &str = "for f in /usr/lib/*/libcuda.so.*.*; do [ -s $f ] && set -- $f; done; \
                                 echo /dev/nvidia[0-9] /dev/nvidia-caps/* $1";

/// Counts queries of a driver: the simulated NVML reads its profile for each.
pub(crate) struct Queries {
    events: Inotify,
    /// Number of times that one query reads it.
    each: usize,
}

impl Queries {
    pub(crate) fn of(world: &World, driver: &Driver) -> Self {
        let events = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC);
        let events = events.unwrap_or_else(|error| panic!("{error}"));
        // With the ends, because equal events in a row become one.
        let flags = AddWatchFlags::IN_OPEN | AddWatchFlags::IN_CLOSE;
        let profile = driver.path("/etc/nvidia-sim/profile");
        let added = events.add_watch(&profile, flags);
        added.unwrap_or_else(|error| panic!("{}: {error}", profile.display()));
        let mut queries = Self { events, each: 1 };
        let mut cli = world.command("nvidia-container-cli");
        printed(cli.arg("--root").arg(driver.root()).arg("info"));
        queries.each = queries.count();
        queries
    }

    /// Returns the number of queries since the last call.
    pub(crate) fn count(&self) -> usize {
        let mut opened = 0;
        while let Ok(events) = self.events.read_events() {
            let opens = |mask: AddWatchFlags| mask.contains(AddWatchFlags::IN_OPEN);
            opened += events.iter().filter(|event| opens(event.mask)).count();
        }
        assert_eq!(opened % self.each, 0, "{opened} of {}", self.each);
        opened / self.each
    }
}

/// Builds a driver in a world, and makes it the world's.
pub(crate) fn install(world: &World, name: &str, version: &str) -> Driver {
    let driver = build(world, name, version);
    world.set_root(world.driver.root(), driver.root());
    driver
}

/// Replaces such a driver by another version.
pub(crate) fn replace(world: &World, old: &Driver, name: &str, version: &str) -> Driver {
    let driver = build(world, name, version);
    world.set_root(old.root(), driver.root());
    driver
}

fn build(world: &World, name: &str, version: &str) -> Driver {
    let profile = Profile {
        driver: version.into(),
        ..Profile::default()
    };
    // As the machine's /proc/devices says.
    let builder = Builder::new(profile).majors(world.driver.majors());
    let driver = builder.build(world.path(name));
    driver.unwrap_or_else(|error| panic!("{error}"))
}

fn legacy(runtime: &str) -> (World, Driver, Queries) {
    let world = World::new(runtime, "legacy", "");
    let driver = install(&world, "driver", &Profile::default().driver);
    let queries = Queries::of(&world, &driver);
    (world, driver, queries)
}

/// Returns the path of a driver's library in containers.
pub(crate) fn libcuda(driver: &Driver) -> String {
    let (triplet, version) = (nvc_testkit::driver::TRIPLET, &driver.profile().driver);
    format!("/usr/lib/{triplet}/libcuda.so.{version}")
}

fn queries_once(runtime: &str) {
    for (devices, nodes) in [
        ("1", "/dev/nvidia1 /dev/nvidia-caps/*"),
        ("0,1", "/dev/nvidia0 /dev/nvidia1 /dev/nvidia-caps/*"),
        (
            "1:1",
            "/dev/nvidia1 /dev/nvidia-caps/nvidia-cap156 /dev/nvidia-caps/nvidia-cap157",
        ),
        (
            "all",
            "/dev/nvidia0 /dev/nvidia1 /dev/nvidia-caps/nvidia-cap147 /dev/nvidia-caps/nvidia-cap148 \
             /dev/nvidia-caps/nvidia-cap156 /dev/nvidia-caps/nvidia-cap157",
        ),
        ("none", "/dev/nvidia[0-9] /dev/nvidia-caps/*"),
    ] {
        let (world, driver, queries) = legacy(runtime);
        let variable = format!("NVIDIA_VISIBLE_DEVICES={devices}");
        let bundle = Bundle::new(world, &[&variable], SCRIPT);
        let expected = format!("{nodes} {}\n", libcuda(&driver));
        assert_eq!(printed(&mut bundle.run()), expected, "{devices}");
        assert_eq!(queries.count(), 1, "{devices}");
        // A second pass replaces the answers.
        assert_eq!(printed(&mut bundle.run()), expected, "{devices}");
        assert_eq!(queries.count(), 1, "{devices}");
        let words = hook_words(&bundle.spec());
        let answers = words.iter().filter(|word| word.starts_with(ANSWERS));
        assert_eq!(answers.count(), 1, "{words:?}");
    }
}

fn checks_demands(runtime: &str) {
    let (world, driver, queries) = legacy(runtime);
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=0"], SCRIPT);
    let spec = bundle.spec();
    for (demand, is_met) in [
        ("cuda>=12.8 brand=nvidia arch>=8.9", true),
        (&format!("driver={}", driver.profile().driver), true),
        ("cuda>=12.9", false),
        ("arch<8.9", false),
        ("brand=tesla", false),
    ] {
        let mut demanding = spec.clone();
        let env = demanding["process"]["env"].as_array_mut();
        env.expect("a list")
            .push(json!(format!("NVIDIA_REQUIRE_X={demand}")));
        bundle.write(&demanding);
        if is_met {
            printed(&mut bundle.run());
        } else {
            let said = complaint(&mut bundle.run());
            assert!(said.contains("unsatisfied condition"), "{said}");
        }
        assert_eq!(queries.count(), 1, "{demand}");
    }
}

/// An image names GPU 0 wherever it can.
fn no_answers_of_images(runtime: &str) {
    let (world, driver, queries) = legacy(runtime);
    let other = Bundle::new(
        World::new(runtime, "legacy", ""),
        &["NVIDIA_VISIBLE_DEVICES=0"],
        SCRIPT,
    );
    printed(&mut other.run());
    let forged = hook_words(&other.spec());
    let [.., devices, answers] = &forged[..] else {
        panic!("{forged:?}");
    };
    let json = &answers[ANSWERS.len()..];
    let env = [
        "NVIDIA_VISIBLE_DEVICES=1".to_owned(),
        answers.clone(),
        devices.clone(),
        format!("NVIDIA_NVML={json}"),
        format!("NVIDIA_INVENTORY={json}"),
        format!("NVC_NVML={json}"),
        format!("NVML={json}"),
        format!("nvml={json}"),
    ];
    let env: Vec<&str> = env.iter().map(String::as_str).collect();
    let bundle = Bundle::new(world, &env, &look());
    let mut spec = bundle.spec();
    spec["annotations"] = json!({
        "--nvml": json, "nvml": json, "nvidia.nvml": json, answers: "", "args": devices,
    });
    let args = spec["process"]["args"].as_array_mut().expect("a list");
    args.extend([json!(answers), json!(devices)]);
    bundle.write(&spec);
    assert_eq!(printed(&mut bundle.run()), sight(&driver, 1));
    let words = hook_words(&bundle.spec());
    let uuid = &driver.profile().gpus[1].uuid;
    assert_eq!(
        words[1..3],
        ["prestart".to_owned(), format!("--devices={uuid}")]
    );
    // crun's state does not say which files it has read.
    let told = if runtime == "crun" { 2 } else { 0 };
    assert!(
        words[3].starts_with(ANSWERS) && words.len() == 4 + told,
        "{words:?}"
    );
    assert!(
        !words[3].contains(&driver.profile().gpus[0].uuid),
        "{words:?}"
    );
    let _ = queries.count();

    // The hook alone, as docker's --gpus starts it: it queries NVML itself.
    drop_handed_over(&bundle);
    assert_eq!(
        printed(&mut bundle.run_with(&format!("sim-{runtime}"))),
        sight(&driver, 1)
    );
    assert!(queries.count() >= 1);
}

/// Removes what the runtime added to the hook's arguments.
fn drop_handed_over(bundle: &Bundle) {
    change_words(bundle, |words| words.truncate(2));
}

/// Changes the arguments of our hook in config.json, without the simulated kernel's hook, which each run adds.
fn change_words(bundle: &Bundle, change: impl Fn(&mut Vec<String>)) {
    let mut spec = bundle.spec();
    let hooks = spec["hooks"]["prestart"].as_array_mut().expect("hooks");
    hooks.retain(|hook| hook["args"][0] != "nvc-simruntime");
    let hook = hooks.first_mut().expect("our hook");
    let words: Vec<Value> = hook["args"].as_array().cloned().unwrap_or_default();
    let text = |word: &Value| word.as_str().unwrap_or_default().to_owned();
    let mut words = words.iter().map(text).collect();
    change(&mut words);
    hook["args"] = json!(words);
    bundle.write(&spec);
}

/// The low-level runtime is started alone, with a config.json that our runtime has edited.
fn odd_answers(runtime: &str) {
    let (world, driver, queries) = legacy(runtime);
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=1"], SCRIPT);
    let expected = format!("/dev/nvidia1 /dev/nvidia-caps/* {}\n", libcuda(&driver));
    let again = |change: &dyn Fn(&str) -> String| {
        printed(&mut bundle.run());
        let _ = queries.count();
        change_words(&bundle, |words| {
            let mut answers = words.iter_mut().filter(|word| word.starts_with(ANSWERS));
            let answers = answers.next().expect("answers");
            *answers = format!("{ANSWERS}{}", change(&answers[ANSWERS.len()..]));
        });
        let (seen, said) = both(&mut bundle.run_with(&format!("sim-{runtime}")));
        assert_eq!(seen, expected, "{said}");
        (queries.count(), said)
    };
    assert_eq!(again(&str::to_owned).0, 0);
    let version = driver.profile().driver.as_str();
    let time = |text: &str, change: &dyn Fn(u64) -> u64| {
        let mut value: Value = serde_json::from_str(text).expect("JSON");
        let time = value["time"].as_u64().expect("a time");
        let (old, new) = (
            format!("\"time\":{time},"),
            format!("\"time\":{},", change(time)),
        );
        value["time"] = json!(0);
        text.replace(&old, &new)
    };
    type Change<'a> = &'a dyn Fn(&str) -> String;
    let changes: [(Change<'_>, &str); 9] = [
        (&|_| String::new(), "EOF"),
        (&|text| text[..text.len() / 2].to_owned(), "EOF"),
        (&|text| format!(" {text}"), "spelt"),
        (
            &|text| text.replace("\"version\":2", "\"version\":1"),
            "version 1",
        ),
        (
            &|text| text.replace("\"gpus\"", "\"all\":true,\"gpus\""),
            "unknown field",
        ),
        (
            &|text| text.replace("\"minor\":1", "\"minor\":99999999"),
            "malformed minor",
        ),
        (&|text| time(text, &|time| time - 60), " s old"),
        (&|text| time(text, &|time| time + 60), "future"),
        (
            &|text| text.replace(version, "570.124.07"),
            "it is of driver 570.124.07",
        ),
    ];
    for (change, reason) in changes {
        let (count, said) = again(change);
        assert_eq!(count, 1, "{reason}");
        // Only crun shows messages of hooks that succeed.
        let says = said.contains("querying NVML: ") && said.contains(reason);
        assert!(says || runtime == "runc", "{reason}: {said}");
    }
}

/// Answers about more GPUs than the devices name grant no more; answers without the named device grant nothing.
fn no_more(runtime: &str) {
    let (world, driver, queries) = legacy(runtime);
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=all"], &look());
    let [first, second] = [0, 1].map(|index| driver.profile().gpus[index].uuid.clone());
    let alone = || bundle.run_with(&format!("sim-{runtime}"));
    let resolve = || {
        printed(&mut bundle.run());
        let _ = queries.count();
        let mut spec = bundle.spec();
        spec["linux"]["devices"] = json!([]);
        spec["linux"]["resources"]["devices"] = json!([{"allow": false, "access": "rwm"}]);
        bundle.write(&spec);
    };
    resolve();
    change_words(&bundle, |words| words[2] = format!("--devices={first}"));
    assert_eq!(printed(&mut alone()), sight(&driver, 0));
    resolve();
    change_words(&bundle, |words| {
        words[2] = format!("--devices={second}");
        let start = words[3].find("{\"index\":1").expect("GPU 1");
        words[3].replace_range(start - 1.., "]}");
    });
    let said = complaint(&mut alone());
    assert!(said.contains("unknown device"), "{said}");
}

/// After an update of the driver, a start by our runtime takes the new one; so does one of an outdated config.json.
fn follows_an_update(runtime: &str) {
    let (world, old, _) = legacy(runtime);
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=1"], SCRIPT);
    let expected =
        |driver: &Driver| format!("/dev/nvidia1 /dev/nvidia-caps/* {}\n", libcuda(driver));
    assert_eq!(printed(&mut bundle.run()), expected(&old));
    let new = replace(&bundle.world, &old, "new", "570.133.20");
    let queries = Queries::of(&bundle.world, &new);

    // The low-level runtime alone, with the old answers.
    change_words(&bundle, |_| {});
    let seen = printed(&mut bundle.run_with(&format!("sim-{runtime}")));
    assert_eq!((seen, queries.count()), (expected(&new), 1));
    assert_eq!(printed(&mut bundle.run()), expected(&new));
    assert_eq!(queries.count(), 1);
}

/// Who may partition GPUs must see those without MIG devices too, so the hook asks for all GPUs.
fn partitions(runtime: &str) {
    for right in ["CONFIG", "MONITOR"] {
        let (world, driver, _) = legacy(runtime);
        let variable = format!("NVIDIA_MIG_{right}_DEVICES=all");
        let env = ["NVIDIA_VISIBLE_DEVICES=all", variable.as_str()];
        let bundle = Bundle::new(world, &env, "echo /dev/nvidia[0-9]; ls /dev/nvidia-caps");
        let mut spec = bundle.spec();
        for set in ["bounding", "effective", "permitted"] {
            if let Some(list) = spec["process"]["capabilities"][set].as_array_mut() {
                list.push(json!("CAP_SYS_ADMIN"));
            }
        }
        bundle.write(&spec);
        let seen = printed(&mut bundle.run());
        assert!(seen.starts_with("/dev/nvidia0 /dev/nvidia1\n"), "{seen}");
        let nodes = fs::read_dir(driver.path("/dev/nvidia-caps")).map_or(0, Iterator::count);
        assert_eq!(seen.lines().count(), nodes + 1, "{seen}");
    }
}
