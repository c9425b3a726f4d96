//! Runs the driver from its command line to its end.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use libnvc::{Error, ErrorKind, Result};
use nvc_generate::HookProgram;
use nvc_program::hints::{Reader, one_line};
use nvc_program::messages;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::api;
use crate::api::events::{Events, report};
use crate::api::slices::publish;
use crate::claims::Claims;
use crate::grants::Grants;
use crate::kubelet::pods::Pods;
use crate::kubelet::probes::{self, Probes};
use crate::kubelet::registration::{self, Registration};
use crate::kubelet::{services, sockets};
use crate::machine::{self, Source, Watch};
use crate::options::{DRIVER, Invocation, Options, read};
use crate::proto::registration::PluginInfo;

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

/// Runs the program; returns its exit code.
pub fn run() -> u8 {
    messages::take_panics();
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    log_to_stderr(false);
    let done =
        read(&words, &|name| std::env::var_os(name)).and_then(|invocation| match invocation {
            Invocation::Serve(options) => {
                log_to_stderr(options.debug);
                work(&options)
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

fn work(options: &Options) -> Result<()> {
    let source = Source {
        driver_root: options.driver_root.clone(),
        dev_root: dev_root(&options.driver_root),
        query: nvc_generate::query_program(),
        ignored_xids: options.ignored_xids.clone(),
        verdicts: options.state.join("health.json"),
        quiet: QUIET,
    };
    let world = machine::watched(source.clone());

    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_WAITING)
        .build()
        .map_err(|error| system("event loop", &error))?;
    let done = runtime.block_on(serve(options, source, world));
    // A query that hangs does not keep the program.
    runtime.shutdown_background();
    done
}

async fn serve(options: &Options, source: Source, world: Watch) -> Result<()> {
    let failed = |error: std::io::Error| system("signals", &error);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let client = api::client(&options.kubeconfig).await?;
    let word = format!("{:08x}", word());
    let (listener, service) = sockets::listen(&options.state, "dra", ".sock", &word)?;
    let (stop, stopping) = watch::channel(false);
    let (registered, registration) = watch::channel(false);
    let events = Events::new(client.clone(), &options.node);
    tokio::spawn(report(events.clone(), world.clone()));
    let claims = Claims {
        client,
        node: options.node.clone(),
        world: world.clone(),
        grants: Arc::new(grants(options, source)?),
        pods: Pods::new(options.pods.clone()),
        events,
    };
    let mut servers = JoinSet::new();
    servers.spawn(services::serve(listener, claims.clone(), stopping));
    if let Some(port) = options.health_port {
        let listener = TcpListener::bind(("::", port)).await;
        let listener = listener.map_err(|error| system("the port of the probes", &error))?;
        let registered = registration.clone();
        tokio::spawn(probes::serve(listener, Probes { registered, world }));
    }
    let answers = Arc::new(Registration {
        info: PluginInfo {
            r#type: "DRAPlugin".into(),
            name: DRIVER.into(),
            endpoint: service.path().display().to_string(),
            supported_versions: SERVICES.map(String::from).into(),
        },
        registered,
    });
    // The services must be there before the kubelet hears of them.
    let (listener, entry) = sockets::listen(&options.registrar, DRIVER, "-reg.sock", &word)?;
    tokio::spawn(registration::serve(listener, answers));
    tokio::spawn(claims.clone().keep());
    let publishing = publish(claims, &options.state, registration);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        // They end only by a bug.
        () = publishing => log::error!("nothing is published any more"),
        ended = servers.join_next() => log::error!("a server has ended: {ended:?}"),
    }
    log::info!("Stopping");
    // The kubelet calls another daemon from now on, if there is one.
    drop(entry);
    let _ = stop.send(true);
    let _ = timeout(LAST_CALLS, async {
        while servers.join_next().await.is_some() {}
    })
    .await;
    Ok(())
}

/// Returns what writes files of claims, with the hook program that they name.
fn grants(options: &Options, source: Source) -> Result<Grants> {
    let is_hook_ours = options.hook.is_empty();
    let path = if is_hook_ours {
        installed_hook(&options.state)?
    } else {
        options.hook.clone()
    };
    Ok(Grants {
        source,
        host_driver_root: options.host_driver_root.clone(),
        cdi_root: options.cdi_root.clone(),
        state: options.state.clone(),
        hook: HookProgram { path },
        is_hook_ours,
    })
}

/// Copies the hook program to where the host's engine finds it: the kubelet's directory has the same path there.
fn installed_hook(state: &Path) -> Result<String> {
    let own = std::env::current_exe().map_err(|error| system("/proc/self/exe", &error))?;
    let path = own.with_file_name(HOOK);
    let bytes = std::fs::read(&path).map_err(|error| {
        let error = system(&path.display().to_string(), &error);
        error.hint(
            "it belongs beside this program; or name one of the host with --nvidia-cdi-hook-path",
        )
    })?;
    let target = state.join(HOOK);
    if std::fs::read(&target).is_ok_and(|known| known == bytes) {
        return Ok(target.display().to_string());
    }
    nvc_hostfile::create(&target, &bytes, 0o755)?;
    Ok(target.display().to_string())
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

fn log_to_stderr(debug: bool) {
    struct Stderr;
    impl log::Log for Stderr {
        fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
            metadata.level() <= log::max_level()
        }
        fn log(&self, record: &log::Record<'_>) {
            let target = record.target();
            // Other crates return their errors too.
            if !target.starts_with("nvc") && !target.starts_with("libnvc") {
                return;
            }
            // Steps of our libraries are for debugging.
            let level = match record.level() {
                log::Level::Error => messages::Level::Error,
                log::Level::Warn => messages::Level::Warning,
                log::Level::Info if target.starts_with("nvc_node") => messages::Level::Info,
                _ if log::max_level() < log::LevelFilter::Debug => return,
                _ => messages::Level::Debug,
            };
            messages::write_record(level, &record.args().to_string());
        }
        fn flush(&self) {}
    }
    // Fails only if there is already a logger.
    let _ = log::set_logger(&Stderr);
    log::set_max_level(if debug {
        log::LevelFilter::Debug
    } else {
        log::LevelFilter::Info
    });
}
