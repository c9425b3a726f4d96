//! Runs the driver from its command line to its end.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use libnvc::{Error, ErrorKind, Result};
use log::LevelFilter;
use nvc_generate::HookProgram;
use nvc_program::hints::{Reader, one_line};
use nvc_program::messages;
use tokio::net::UnixListener;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::api;
use crate::api::events::{Events, report};
use crate::api::slices::publish;
use crate::claims::{Claims, Turns};
use crate::drafts::sweep;
use crate::grants::Grants;
use crate::kubelet::pods::Pods;
use crate::kubelet::probes::{self, Probes};
use crate::kubelet::registration::{self, Registration};
use crate::kubelet::{services, sockets};
use crate::lock;
use crate::machine::{Source, Watch};
use crate::options::{DRIVER, Invocation, Options, read};
use crate::proto::registration::PluginInfo;
use crate::rights;
use crate::sides::{self, Answer, Call, End, MARKER, MachineSide, machine_side};

/// The services at the driver's socket, in the order in which the kubelet chooses.
const SERVICES: [&str; 3] = [
    "v1.DRAPlugin",
    "v1beta1.DRAPlugin",
    "v1alpha1.DRAResourceHealth",
];
const HOOK: &str = "nvidia-cdi-hook";
/// How long a GPU must be quiet after an error that needs no reset.
const QUIET: Duration = Duration::from_secs(300);
/// Threads that wait for the driver.
const MAX_WAITING: usize = 4;
/// How long calls that have begun may take at the end. Kubernetes kills a pod after 30 seconds.
const LAST_CALLS: Duration = Duration::from_secs(20);

/// The pod's account.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// What the cluster side sees: its account, how to find an API server and which authorities to believe, and where GPUs are.
const SHOWN: [&str; 8] = [
    TOKEN,
    "/etc/ssl/certs",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted",
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/nsswitch.conf",
    "/sys",
];

/// Runs the program; returns its exit code.
pub fn run() -> u8 {
    messages::take_panics();
    let mut words: Vec<_> = std::env::args_os().skip(1).collect();
    let first = words.first().and_then(|word| word.to_str());
    let of_sockets = first.and_then(|word| word.strip_prefix(MARKER).map(str::to_owned));
    if of_sockets.is_some() {
        // What is wrong with the others was said by the cluster side.
        words.remove(0);
    } else {
        messages::log_records(env!("CARGO_CRATE_NAME"), LevelFilter::Info);
    }
    let done =
        read(&words, &|name| std::env::var_os(name)).and_then(|invocation| match invocation {
            Invocation::Serve(options) => {
                messages::log_records(env!("CARGO_CRATE_NAME"), LevelFilter::Info);
                if options.debug {
                    log::set_max_level(LevelFilter::Debug);
                }
                match of_sockets {
                    Some(word) => be_machine_side(&options, &word),
                    None => be_cluster_side(&options),
                }
            }
            Invocation::Print(text) => std::io::stdout()
                .write_all(text.as_bytes())
                .map_err(|error| system("standard output", &error)),
        });
    match done {
        Ok(()) => 0,
        Err(error) => {
            log::error!("{}", one_line(&error, Reader::Node));
            1
        }
    }
}

fn be_machine_side(options: &Options, word: &str) -> Result<()> {
    let kubelets = options.state.ancestors().nth(2).unwrap_or(Path::new("/"));
    let kubelets = kubelets.strip_prefix("/").unwrap_or(kubelets);
    // The host's files have the tokens of all pods, and the kubelet's own.
    let on_host = options.driver_root.join(kubelets);
    let hidden = [TOKEN.into(), on_host.join("pods"), on_host.join("pki")];
    let sockets = sockets::places(options).map(|place| place.path(word));
    machine_side::serve(grants(options), sockets.into(), &hidden)
}

fn be_cluster_side(options: &Options) -> Result<()> {
    let word = format!("{:08x}", word());
    let [services, registrations] = sockets::places(options);
    let of_state = |error: std::io::Error| system(&options.state.display().to_string(), &error);
    fs::create_dir_all(&options.state).map_err(of_state)?;
    if options.hook.is_empty() {
        install_hook(&grants(options))?;
    }
    let lock = options.state.join("publisher.lock");
    lock::open(&lock).map_err(of_state)?;
    let pods = Pods::new(&options.pods, &options.state);
    let pods = pods.map_err(|error| system(&options.pods.display().to_string(), &error))?;
    let machine = sides::start(&word)?;
    let listeners = [services.listen(&word)?, registrations.listen(&word)?];
    let mut shown: Vec<PathBuf> = SHOWN.iter().map(Into::into).collect();
    let of_pods = pods.socket.as_deref().and_then(Path::parent);
    shown.extend(of_pods.map(Into::into));
    shown.push(lock.clone());
    if let Some(kubeconfig) = &options.kubeconfig {
        shown.extend(api::files(kubeconfig)?);
    }
    rights::cluster_side(&shown)?;
    // Of a mount that is read-only, so that neither its bytes nor its mode can be changed.
    let lock = (File::open(&lock).map_err(of_state)?, lock);
    let cluster = ClusterSide {
        machine: machine.attend(),
        listeners,
        endpoint: services.path(&word),
        pods,
        lock,
    };
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_WAITING)
        .build()
        .map_err(|error| system("event loop", &error))?;
    let done = runtime.block_on(serve(options, cluster));
    // A query that hangs does not keep the program.
    runtime.shutdown_background();
    done
}

/// What the cluster side has when it has given up its rights.
struct ClusterSide {
    machine: (Arc<MachineSide>, Watch, End),
    /// For the services and for the registration.
    listeners: [StdListener; 2],
    endpoint: PathBuf,
    pods: Pods,
    /// Of the daemon that publishes.
    lock: (File, PathBuf),
}

async fn serve(options: &Options, side: ClusterSide) -> Result<()> {
    let (machine, world, mut end) = side.machine;
    let failed = |error: std::io::Error| system("signals", &error);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let config = api::config(options.kubeconfig.as_deref()).await?;
    let authorities = config.root_cert.clone();
    let client = api::client(config)?;
    let [services, registrations] = side.listeners.map(UnixListener::from_std);
    let (services, registrations) = (services.map_err(failed)?, registrations.map_err(failed)?);
    let (stop, stopping) = watch::channel(false);
    let (registered, registration) = watch::channel(false);
    let events = Events::new(client.clone(), &options.node);
    // They end only by a bug.
    let mut lasting = JoinSet::new();
    lasting.spawn(report(events.clone(), world.clone()));
    let claims = Claims {
        client,
        node: options.node.clone(),
        world: world.clone(),
        machine: Arc::clone(&machine),
        pods: side.pods,
        events,
        turns: Turns::default(),
    };
    let mut servers = JoinSet::new();
    servers.spawn(services::serve(services, claims.clone(), stopping));
    if let Some(port) = options.health_port {
        let registered = registration.clone();
        probes::start(port, Probes { registered, world })
            .map_err(|error| system("the port of the probes", &error))?;
    }
    let answers = Arc::new(Registration {
        info: PluginInfo {
            r#type: "DRAPlugin".into(),
            name: DRIVER.into(),
            endpoint: side.endpoint.display().to_string(),
            supported_versions: SERVICES.map(String::from).into(),
        },
        registered,
    });
    lasting.spawn(registration::serve(registrations, answers));
    lasting.spawn(claims.clone().compare());
    lasting.spawn(publish(claims, side.lock, registration));
    let failure = |text: String| Error::new(ErrorKind::System, text);
    let done = tokio::select! {
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
        why = &mut end => return Err(sides::ended(&why.map_or_else(|_| "nobody listens".into(), |(why, _)| why))),
        // Kubernetes starts the container again, with a client that has read them.
        () = api::replaced(options.kubeconfig.as_deref(), authorities) => Err(failure("the API server has other authorities now".into())),
        ended = servers.join_next() => Err(failure(format!("a server has ended: {ended:?}"))),
        ended = lasting.join_next() => Err(failure(format!("a part has ended: {ended:?}"))),
    };
    log::info!("Stopping");
    let last = timeout(LAST_CALLS, async {
        // The kubelet calls another daemon from now on, if there is one.
        machine.ask(Call::RemoveSocket).await?;
        let _ = stop.send(true);
        while servers.join_next().await.is_some() {}
        machine.ask(Call::RemoveSocket).await
    });
    // Who starts next removes sockets that are left.
    last.await
        .unwrap_or_else(|_| Ok(Answer::default()))
        .and(done)
}

/// Returns what writes files of claims, with the hook program that they name.
fn grants(options: &Options) -> Grants {
    let is_hook_ours = options.hook.is_empty();
    let path = if is_hook_ours {
        options.state.join(HOOK).display().to_string()
    } else {
        options.hook.clone()
    };
    Grants {
        source: Source {
            driver_root: options.driver_root.clone(),
            dev_root: dev_root(&options.driver_root),
            query: nvc_generate::query_program(),
            ignored_xids: options.ignored_xids.clone(),
            verdicts: options.state.join("health.json"),
            quiet: QUIET,
        },
        host_driver_root: options.host_driver_root.clone(),
        cdi_root: options.cdi_root.clone(),
        state: options.state.clone(),
        hook: HookProgram { path },
        is_hook_ours,
    }
}

/// Copies the hook program to where the host's engine finds it: the kubelet's directory has the same path there.
fn install_hook(grants: &Grants) -> Result<()> {
    let own = std::env::current_exe().map_err(|error| system("/proc/self/exe", &error))?;
    let path = own.with_file_name(HOOK);
    let bytes = fs::read(&path).map_err(|error| {
        let error = system(&path.display().to_string(), &error);
        error.hint(
            "it belongs beside this program; or name one of the host with --nvidia-cdi-hook-path",
        )
    })?;
    let target = Path::new(&grants.hook.path);
    if fs::read(target).is_ok_and(|known| known == bytes) {
        return Ok(());
    }
    // Another daemon that starts writes it, too.
    let _locked = grants.lock()?;
    sweep(target, Duration::ZERO);
    nvc_hostfile::create(target, &bytes, 0o755)
}

/// Returns the root of the device nodes: the driver root if it has some, as with NVIDIA's driver.
fn dev_root(driver_root: &Path) -> std::path::PathBuf {
    if driver_root.join("dev").is_dir() {
        driver_root.to_owned()
    } else {
        "/".into()
    }
}

/// Returns a number that no other process of this driver has.
fn word() -> u32 {
    use std::hash::{BuildHasher as _, Hasher as _};
    // The standard library seeds it from getrandom(2).
    let seeded = std::hash::RandomState::new().build_hasher().finish();
    u32::try_from(seeded & u64::from(u32::MAX)).unwrap_or_default()
}

fn system(object: &str, error: &std::io::Error) -> Error {
    Error::fault(ErrorKind::System, object, error.to_string())
}
