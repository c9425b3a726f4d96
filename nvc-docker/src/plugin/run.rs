//! Runs the plugin from its command line to its end.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use libnvc::{Error, ErrorKind, Result};
use nix::sys::prctl;
use nvc_program::messages::{write_fixed, write_lines};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::gpus::Gpus;
use super::listeners::{self, Listeners, notify};
use super::options::{Invocation, OPTIONS, Options, lossy, read};
use super::rest::Rest;
use super::server::{Service, serve};
use super::volume::{Keeper, Volumes, give_up_capabilities};
use crate::log_line::{log_error, log_text};
use crate::modprobe;

/// Threads that wait for the driver. More would not be faster.
const MAX_WAITING: usize = 4;
/// How long a plugin that systemd started answers without a driver. The next client starts it again, and it may find a
/// driver then. Less often than systemd's limit of starts, at which the socket would fail.
const DRIVERLESS_LIFETIME: Duration = Duration::from_secs(30);

/// Runs the plugin; returns its exit code.
pub fn run() -> u8 {
    let mut words = std::env::args_os();
    let program = words.next();
    let program = program.map_or("nvidia-docker-plugin".into(), |word| lossy(&word));
    let words: Vec<_> = words.collect();
    match read(&program, &words) {
        Invocation::Serve(options) => match work(&options) {
            Ok(()) => 0,
            Err(failure) => {
                log_error(&failure);
                1
            }
        },
        Invocation::Print(text) => u8::from(std::io::stdout().write_all(text.as_bytes()).is_err()),
        Invocation::Misuse(mistake) => {
            write_lines([mistake, format!("Usage of {program}:")]);
            write_fixed(OPTIONS);
            2
        }
    }
}

fn work(options: &Options) -> Result<()> {
    if options.loads_module {
        log_text("Loading NVIDIA unified memory");
        modprobe::load_unified_memory()?;
    }
    close_to_tracers()?;
    // Before any other thread starts: capabilities are per thread, and only the keeper retains any.
    let volumes = Path::new(&options.volumes);
    let keeper = Keeper::start(volumes)?;
    log_text("Loading NVIDIA management library");
    let gpus = Arc::new(Gpus::of_this_machine());
    log_text("Discovering GPU devices");
    // Its threads still have capabilities, and end with it.
    let lifetime = match runtime()?.block_on(gpus.discover()) {
        Ok((_, problems)) => {
            for problem in problems {
                log_text(&format!("Warning: {problem}"));
            }
            None
        }
        Err(failure) if listeners::are_passed() => {
            log_error(&failure);
            Some(DRIVERLESS_LIFETIME)
        }
        Err(failure) => return Err(failure),
    };
    log_text(&format!("Provisioning volumes at {}", options.volumes));
    log_text(&format!("Serving plugin API at {}", options.sockets));
    log_text(&format!("Serving remote API at {}", options.listen));
    let listeners = Listeners::open(&options.listen, Path::new(&options.sockets))?;
    give_up_capabilities();
    let hosts = host_names(options);
    runtime()?.block_on(answer(&listeners, keeper, gpus, hosts, lifetime))?;
    drop(listeners);
    log_text("Successfully terminated");
    Ok(())
}

/// Makes this process untraceable.
///
/// A thread without capabilities could be traced by a container in the host's pid namespace whose user has the same
/// number, and all threads share the keeper's memory and root directory.
fn close_to_tracers() -> Result<()> {
    prctl::set_dumpable(false)
        .map_err(|errno| Error::new(ErrorKind::System, format!("prctl: {errno}")))
}

fn runtime() -> Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_WAITING)
        .thread_stack_size(512 << 10)
        .build()
        .map_err(|error| Error::new(ErrorKind::System, format!("event loop: {error}")))
}

async fn answer(
    listeners: &Listeners,
    keeper: Keeper,
    gpus: Arc<Gpus>,
    hosts: Vec<String>,
    lifetime: Option<Duration>,
) -> Result<()> {
    let failed = |error: std::io::Error| Error::new(ErrorKind::System, format!("sockets: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let (stop, stopping) = watch::channel(false);
    let mut servers = JoinSet::new();
    let rest = Service::Rest(Arc::new(Rest::new(Arc::clone(&gpus), hosts)));
    for listener in &listeners.rest {
        let listener = listener.try_clone().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        servers.spawn(serve(listener, rest.clone(), stopping.clone()));
    }
    let listener = listeners.plugin.try_clone().map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let listener = UnixListener::from_std(listener).map_err(failed)?;
    let volumes = Service::Volumes(Arc::new(Volumes::new(keeper, gpus)));
    servers.spawn(serve(listener, volumes, stopping));
    notify("READY=1");
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        () = over(lifetime) => {}
        // A server ends only when it is stopped, or by a bug in this program.
        _ = servers.join_next() => {}
    }
    notify("STOPPING=1");
    // The servers still receive it.
    let _ = stop.send(true);
    while servers.join_next().await.is_some() {}
    Ok(())
}

async fn over(lifetime: Option<Duration>) {
    match lifetime {
        Some(lifetime) => sleep(lifetime).await,
        None => std::future::pending().await,
    }
}

/// Returns the names that browsers may use: this machine's own, and those of the command line.
fn host_names(options: &Options) -> Vec<String> {
    let own = nix::unistd::gethostname().ok();
    let own = own.and_then(|name| name.into_string().ok());
    let short = own
        .as_deref()
        .and_then(|name| name.split('.').next())
        .map(str::to_owned);
    let listens = options
        .listen
        .rsplit_once(':')
        .map(|(host, _)| host.to_owned());
    own.into_iter()
        .chain(short)
        .chain(listens)
        .chain(options.hosts.iter().cloned())
        .filter(|name| !name.is_empty())
        .collect()
}
