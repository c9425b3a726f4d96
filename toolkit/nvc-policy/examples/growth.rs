//! Measures how the work for a container's lists grows with their length, without the limits that the programs set.
//!
//! ```text
//! cargo run --release -p nvc-policy --example growth
//! ```
//!
//! Prints the user time for 2^10 and 2^14 entries of each list that an image can fill, and the ratio: 16 if it is
//! linear, 256 if it is quadratic. A ratio above 20 fails for names, above 40 for the rest: their entries are larger and
//! outgrow the caches at 2^14, where even copying or parsing them without our code takes up to 23 times as long.

use std::hint::black_box;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use libnvc::host::{CharDrivers, DriverVersions, Gpu};
use libnvc::require::{self, Requirement};
use libnvc::select::select_devices;
use nix::sys::resource::{UsageWho, getrusage};
use nvc_cdi::edits::{self, Host};
use nvc_cdi::nodes::HostNode;
use nvc_cdi::{DeviceNode, Edits, Hook, Registry};
use nvc_oci::lenient;
use nvc_oci::spec::Spec;
use nvc_policy::config::Config;
use nvc_policy::container;
use nvc_policy::image::{
    Container, Denoted, Devices, Environment, Machine, Mount, Policy, capabilities, devices, names,
    qualified, requirements,
};
use serde_json::{Value, json};

const SIZES: [usize; 2] = [1 << 10, 1 << 14];
const MAX_RATIO_OF_NAMES: f64 = 20.0;
const MAX_RATIO: f64 = 40.0;
/// User time that each batch of runs takes at least: the kernel divides a process's time into its own and the user's by
/// ticks of 4 ms. Batches of both sizes are interrupted by other processes.
const MIN_DURATION: Duration = Duration::from_millis(60);
/// Rounds of one batch for each size. The fastest batch counts: others are slower because of other processes' use of the
/// caches. More rounds can only make both figures truer, so a busy machine gets more.
const ROUNDS: std::ops::RangeInclusive<u32> = 6..=40;

/// A piece of work for a list of some length.
type Work = Box<dyn Fn()>;

/// Prepares the work for a length.
type Prepare = fn(usize) -> Work;

const LISTS: [(&str, Prepare); 16] = [
    ("names: counted", counted),
    ("names: in the variable", |size| {
        choice(environment(size), false)
    }),
    ("names: Swarm's variable narrows another", swarm),
    ("names: in annotations", annotations),
    ("names: as mounts", |size| choice(mounts(size), true)),
    ("names: qualified", qualified_names),
    ("names: looked up in specifications", specifications),
    ("names: selected among 64 GPUs", selected),
    ("environment: variables", variables),
    ("environment: NVIDIA_REQUIRE_*", requirement_variables),
    ("environment: alternatives of a requirement", alternatives),
    ("environment: capabilities", capability_names),
    ("config.json: read", read),
    (
        "config.json: mounts, environment and groups get edits",
        edited,
    ),
    ("edits: nodes, mounts, variables, groups", many_edits),
    ("edits: hooks", many_hooks),
];

fn main() -> ExitCode {
    let mut result = ExitCode::SUCCESS;
    println!("| list | 2^10, ms | 2^14, ms | ratio |\n| --- | ---: | ---: | ---: |");
    for (name, prepare) in LISTS {
        let limit = if name.starts_with("names") {
            MAX_RATIO_OF_NAMES
        } else {
            MAX_RATIO
        };
        let works = SIZES.map(prepare);
        let mut growth = Growth::of(&works);
        for round in 1..=*ROUNDS.end() {
            growth.measure();
            if round >= *ROUNDS.start() && growth.ratio() <= limit {
                break;
            }
        }
        let ([small, large], ratio) = (growth.fastest, growth.ratio());
        println!("| {name} | {small:.3} | {large:.2} | {ratio:.1} |");
        if ratio > limit {
            eprintln!("growth: {name}: the ratio is above {limit}");
            result = ExitCode::FAILURE;
        }
    }
    result
}

/// The fastest batches so far.
struct Growth<'a> {
    works: &'a [Work; 2],
    /// Milliseconds for each run.
    fastest: [f64; 2],
}

impl<'a> Growth<'a> {
    fn of(works: &'a [Work; 2]) -> Self {
        works.iter().for_each(|work| work()); // allocates
        let fastest = [f64::INFINITY; 2];
        Self { works, fastest }
    }

    /// Measures a batch of each size in turn: the load of the machine changes with time.
    fn measure(&mut self) {
        for (work, fastest) in self.works.iter().zip(&mut self.fastest) {
            *fastest = fastest.min(user_time(work));
        }
    }

    fn ratio(&self) -> f64 {
        let [small, large] = self.fastest;
        large / small
    }
}

/// Returns the user time of one run in a batch, in milliseconds.
fn user_time(work: &Work) -> f64 {
    let now = || {
        let time = getrusage(UsageWho::RUSAGE_SELF).map(|usage| usage.user_time());
        let time = time.expect("the kernel knows this process");
        Duration::from_micros(
            u64::try_from(time.tv_sec() * 1_000_000 + time.tv_usec()).unwrap_or(0),
        )
    };
    let (begin, mut runs) = (now(), 0);
    while now() - begin < MIN_DURATION {
        work();
        runs += 1;
    }
    (now() - begin).as_secs_f64() * 1000.0 / f64::from(runs)
}

fn list(size: usize, name: impl Fn(usize) -> String) -> String {
    (0..size).map(name).collect::<Vec<_>>().join(",")
}

fn variable(value: &str) -> Container {
    let entries = [format!("NVIDIA_VISIBLE_DEVICES={value}")];
    Container {
        environment: Environment::new(entries).expect("variables"),
        ..Container::default()
    }
}

fn environment(size: usize) -> Container {
    variable(&list(size, |name| name.to_string()))
}

fn mounts(size: usize) -> Container {
    let mount = |name| Mount {
        source: "/dev/null".into(),
        destination: format!("/var/run/nvidia-container-devices/{name}"),
    };
    Container {
        mounts: (0..size).map(mount).collect(),
        ..Container::default()
    }
}

fn policy(accept_mounts: bool) -> Policy {
    let config = Config {
        swarm_resource: "DOCKER_RESOURCE_GPU".into(),
        accept_volume_mounts: accept_mounts,
        ..Config::default()
    };
    let policy = Policy::new(&config).expect("the default is valid");
    policy.with_annotations(&config)
}

/// Knows every name as a device of its own.
struct AllDifferent;

impl Machine for AllDifferent {
    fn denoted(&self, name: &str) -> libnvc::Result<Denoted> {
        Ok(Denoted::Gpus(vec![format!("GPU-{name}")]))
    }

    fn names(&self, _: &str) -> Vec<String> {
        Vec::new()
    }
}

fn counted(size: usize) -> Work {
    let container = environment(size);
    let policy = policy(false);
    Box::new(move || drop(black_box(names::check(&container, &policy))))
}

fn choice(container: Container, accept_mounts: bool) -> Work {
    let policy = policy(accept_mounts);
    Box::new(move || {
        drop(black_box(devices::choice(
            &container,
            &policy,
            &AllDifferent,
        )));
    })
}

/// No name is text of the other list, so the machine must be asked for each.
fn swarm(size: usize) -> Work {
    let visible = list(size, |n| n.to_string());
    let narrower = list(size, |n| format!("GPU-x{n}"));
    let entries = [
        format!("NVIDIA_VISIBLE_DEVICES={visible}"),
        format!("DOCKER_RESOURCE_GPU={narrower}"),
    ];
    let container = Container {
        environment: Environment::new(entries).expect("variables"),
        ..Container::default()
    };
    choice(container, false)
}

fn annotations(size: usize) -> Work {
    let annotation = |n| (format!("cdi.k8s.io/a{n}"), format!("nvidia.com/gpu={n}"));
    let container = Container {
        annotations: (0..size).map(annotation).collect(),
        ..Container::default()
    };
    choice(container, false)
}

fn qualified_names(size: usize) -> Work {
    let names = (0..size).map(|name| name.to_string()).collect();
    let devices = Devices::Names(names);
    Box::new(move || drop(black_box(qualified::split(&devices, "nvidia.com/gpu"))))
}

/// A machine's specification, and names of a device each, or of none.
fn specifications(size: usize) -> Work {
    let directory = tempfile::tempdir().expect("a directory");
    let device =
        |n| json!({"name": format!("{n}"), "containerEdits": {"env": [format!("A{n}=x")]}});
    let spec = json!({
        "cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": (0..512).map(device).collect::<Vec<_>>(),
    });
    std::fs::write(directory.path().join("x.json"), spec.to_string()).expect("a file");
    let registry = Registry::load(&[directory.path()]);
    let names = |many: usize| (0..size).map(move |n| format!("nvidia.com/gpu={}", n % many));
    let (there, missing): (Vec<_>, Vec<_>) = (names(512).collect(), names(size).collect());
    Box::new(move || {
        assert!(black_box(registry.edits(&there)).is_ok());
        drop(black_box(registry.edits(&missing)));
    })
}

fn selected(size: usize) -> Work {
    let gpus: Vec<Gpu> = (0..64)
        .map(|index| Gpu {
            index,
            uuid: format!("GPU-{index}"),
            ..Gpu::default()
        })
        .collect();
    let name = |n: usize| format!("{}{}", "0".repeat(n / 64 % 4), n % 64);
    let names: Vec<String> = (0..size).map(name).collect();
    Box::new(move || assert!(black_box(select_devices(&gpus, &[], &names)).is_ok()))
}

fn entries(size: usize) -> Vec<String> {
    (0..size)
        .map(|n| format!("NVIDIA_REQUIRE_{n}=cuda>={n}"))
        .collect()
}

fn variables(size: usize) -> Work {
    let entries = entries(size);
    Box::new(move || drop(black_box(Environment::new(&entries))))
}

fn requirement_variables(size: usize) -> Work {
    let environment = Environment::new(entries(size)).expect("variables");
    Box::new(move || drop(black_box(requirements::of(&environment, false))))
}

fn alternatives(size: usize) -> Work {
    let text = "cuda>=99,driver>=1 ".repeat(size);
    let all = [Requirement::new(text)];
    let versions = DriverVersions {
        driver: "570.1".into(),
        cuda: "12.8".into(),
    };
    Box::new(move || drop(black_box(require::check(&all, &versions, &[]))))
}

fn capability_names(size: usize) -> Work {
    let value = list(size, |n| format!("capability{n}"));
    let entries = [format!("NVIDIA_DRIVER_CAPABILITIES={value}")];
    let environment = Environment::new(entries).expect("variables");
    let supported = libnvc::request::Capabilities::all();
    Box::new(move || drop(black_box(capabilities::of(&environment, supported))))
}

/// Returns a config.json with lists of an image: VOLUMEs, ENV, LABELs and groups.
fn config_json(size: usize) -> Value {
    let mounts = (0..size).map(|n| json!({"destination": format!("/volume/{n}"), "source": "/x"}));
    let mut annotations = serde_json::Map::new();
    annotations.extend((0..size).map(|n| (format!("label{n}"), json!("x"))));
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "env": (0..size).map(|n| format!("A{n}=x")).collect::<Vec<_>>(),
            "user": {"additionalGids": (0..size).collect::<Vec<_>>()},
        },
        "mounts": mounts.collect::<Vec<_>>(),
        "annotations": annotations,
    })
}

fn read(size: usize) -> Work {
    let text = config_json(size).to_string().into_bytes();
    Box::new(move || {
        let value = lenient::first_value(&text).expect("JSON");
        let facts = container::facts(&value).expect("a container");
        drop(black_box(facts.container()));
    })
}

/// Returns edits with this many entries of each kind except hooks.
fn of_each(size: usize) -> Edits {
    let node = |n| DeviceNode {
        path: format!("/dev/n{n}"),
        ..DeviceNode::default()
    };
    let mount = |n| nvc_cdi::Mount {
        host_path: format!("/h/{n}"),
        container_path: format!("/c/{n}"),
        ..nvc_cdi::Mount::default()
    };
    Edits {
        env: (0..size).map(|n| format!("B{n}=x")).collect(),
        device_nodes: (0..size).map(node).collect(),
        mounts: (0..size).map(mount).collect(),
        additional_gids: (1..=u32::try_from(size).unwrap_or(u32::MAX)).collect(),
        ..Edits::default()
    }
}

fn look_up(path: &Path) -> libnvc::Result<HostNode> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(HostNode {
        kind: 'c',
        major: 195,
        minor: name.trim_start_matches('n').parse().unwrap_or(0),
        mode: 0o666,
    })
}

/// Applies edits twice, as engine and runtime do.
fn apply(before: Value, edits: Edits) -> Work {
    let all = [edits];
    Box::new(move || {
        let drivers = &CharDrivers::default();
        let mut spec = Spec::new(before.clone());
        for _ in 0..2 {
            assert!(edits::apply(&mut spec, &all, Host { look_up, drivers }).is_ok());
        }
        drop(black_box(spec));
    })
}

fn edited(size: usize) -> Work {
    apply(config_json(size), of_each(64))
}

fn many_edits(size: usize) -> Work {
    apply(json!({}), of_each(size))
}

fn many_hooks(size: usize) -> Work {
    let hook = |n: usize| Hook {
        hook_name: "createContainer".into(),
        path: format!("/hook{n}"),
        ..Hook::default()
    };
    let hooks = (0..size).map(hook).collect();
    apply(
        json!({}),
        Edits {
            hooks,
            ..Edits::default()
        },
    )
}
