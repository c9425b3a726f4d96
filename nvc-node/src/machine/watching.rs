//! Keeps a [`World`] current: by NVML's events, by a poll as the cross-check, and by the names in /proc.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libnvc::host::events::{self, GpuEvent};
use nix::time::{ClockId, clock_gettime};
use tokio::sync::watch;

use super::footprint::footprint;
use super::look::{Looker, request};
use super::verdicts::Kept;
use super::world::{News, Rules, State};
use super::xids::{Class, class};
use super::{Health, Source, Watch, World, verdicts};

/// Interval of the poll.
const INTERVAL: Duration = Duration::from_secs(5);
/// Interval of looking for changes without NVML.
const GLANCE: Duration = Duration::from_millis(500);
/// Pauses before a watch that ended is started again.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// The GPUs to wait for: NVML's index and UUID; with the driver's version.
type Watched = (String, Vec<(u32, String)>);

/// Starts the watch, in threads of its own that live as long as the program. The first world is there when this returns.
pub fn watched(source: Source) -> Watch {
    let rules = Rules {
        ignored: source.ignored_xids.clone(),
        quiet: source.quiet.as_secs(),
    };
    let kept = verdicts::read(&source.verdicts);
    let mut state = State::new(rules, kept.clone());
    let mut seen = footprint(&source.driver_root);
    let mut looker = Looker::new(source.clone());
    state.fold(News::Look(looker.look()), now());
    let (sender, receiver) = watch::channel(Arc::new(state.world(now())));
    let (news, all_news) = channel();
    let (nudge, nudges) = channel();
    let wanted = Arc::new(Mutex::new(Watched::default()));
    let (root, polled) = (source.driver_root.clone(), news.clone());
    thread::spawn(move || {
        let mut patience = INTERVAL;
        loop {
            let is_early = wait(&nudges, patience, || footprint(&root) != seen);
            // NVML may be later than what was noticed: look again soon.
            patience = if is_early { 2 * GLANCE } else { INTERVAL };
            seen = footprint(&root);
            let _ = polled.send(News::Look(looker.look()));
        }
    });
    let (of_events, to_watch) = (source.clone(), Arc::clone(&wanted));
    thread::spawn(move || wait_for_events(&of_events, &to_watch, &news, &nudge));
    thread::spawn(move || judge(state, kept, &source, &all_news, &wanted, &sender));
    receiver
}

/// Folds all news, keeps the verdicts, and publishes each new world.
fn judge(
    mut state: State,
    mut kept: Kept,
    source: &Source,
    news: &Receiver<News>,
    wanted: &Mutex<Watched>,
    sender: &watch::Sender<Arc<World>>,
) {
    let mut can_keep = true;
    loop {
        let to_keep = state.kept();
        // Before anybody acts on it.
        if kept != to_keep {
            match verdicts::write(&source.verdicts, &to_keep) {
                Ok(()) => (kept, can_keep) = (to_keep, true),
                Err(error) => {
                    if std::mem::take(&mut can_keep) {
                        log::error!("{}: a restart will forget who is sick", error.message());
                    }
                }
            }
        }
        let world = state.world(now());
        let driver = world.as_ref().map(|machine| machine.driver.clone());
        *wanted.lock().unwrap_or_else(PoisonError::into_inner) =
            (driver.unwrap_or_default(), state.watchable());
        sender.send_if_modified(|known| {
            let is_new = **known != world;
            if is_new {
                tell(known, &world);
                *known = Arc::new(world);
            }
            is_new
        });
        // Silence becomes news too.
        let next = news.recv_timeout(INTERVAL).unwrap_or(News::Nothing);
        state.fold(next, now());
    }
}

/// Waits for a while; returns true early for a nudge or a change.
fn wait(nudges: &Receiver<()>, patience: Duration, has_changed: impl Fn() -> bool) -> bool {
    let end = Instant::now() + patience;
    while Instant::now() < end {
        if nudges.recv_timeout(GLANCE).is_ok() {
            // Several nudges are one.
            while nudges.try_recv().is_ok() {}
            return true;
        }
        if has_changed() {
            return true;
        }
    }
    false
}

/// Waits for events of the wanted GPUs, by one process after the other.
fn wait_for_events(
    source: &Source,
    wanted: &Mutex<Watched>,
    news: &Sender<News>,
    nudge: &Sender<()>,
) {
    let [shortest, longest] = PAUSES;
    let mut pause = shortest;
    let mut current: Option<(Watched, events::Watch)> = None;
    loop {
        let now = Watched::clone(&wanted.lock().unwrap_or_else(PoisonError::into_inner));
        if now.1.is_empty() {
            current = None;
            thread::sleep(GLANCE);
            continue;
        }
        let started = Instant::now();
        let failed = match &mut current {
            Some((known, watch)) if *known == now => match watch.wait() {
                Ok(Some(event)) => {
                    let is_harmless = matches!(event, GpuEvent::Xid { code, .. }
                        if class(code, &source.ignored_xids) == Class::Program);
                    let _ = news.send(News::Event(event));
                    if !is_harmless {
                        // Is it lost, and which MIG devices are there?
                        let _ = nudge.send(());
                    }
                    None
                }
                Ok(None) => {
                    pause = shortest;
                    None
                }
                Err(error) => Some(error),
            },
            // The old one, if there is one, ends when the new one is there, so that nothing is missed.
            _ => {
                let indices: Vec<u32> = now.1.iter().map(|(index, _)| *index).collect();
                match events::Watch::start(&source.query, &request(source), &indices) {
                    Ok((watch, uuids)) => {
                        for (_, uuid) in now.1.iter().filter(|(_, uuid)| !uuids.contains(uuid)) {
                            log::warn!("GPU {uuid} has no events: only the poll sees its faults");
                        }
                        current = Some((now, watch));
                        None
                    }
                    Err(error) => Some(error),
                }
            }
        };
        if let Some(error) = failed {
            log::warn!("no events of GPUs: {}", error.message());
            current = None;
            let _ = nudge.send(());
            // One that lived for long is replaced at once.
            thread::sleep(pause.saturating_sub(started.elapsed()));
            pause = (2 * pause).min(longest);
        }
    }
}

/// Logs what has changed.
fn tell(before: &World, after: &World) {
    let sick = |world: &World| -> BTreeMap<String, String> {
        let gpus = world.iter().flat_map(|machine| &machine.gpus);
        let all = gpus.flat_map(|gpu| {
            let migs = gpu.migs.iter().map(|mig| (&mig.uuid, &mig.health));
            migs.chain([(&gpu.uuid, &gpu.health)])
        });
        all.filter_map(|(uuid, health)| match health {
            Health::Well => None,
            Health::Sick { reason, .. } => Some((uuid.clone(), reason.clone())),
        })
        .collect()
    };
    let (before, after) = (sick(before), sick(after));
    for (uuid, reason) in after
        .iter()
        .filter(|(uuid, reason)| before.get(*uuid) != Some(reason))
    {
        log::warn!("{uuid} cannot be given: {reason}");
    }
    for uuid in before.keys().filter(|uuid| !after.contains_key(*uuid)) {
        log::info!("{uuid} is no longer sick");
    }
}

/// Returns the seconds since the boot, during which verdicts count.
fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |time| time.tv_sec());
    u64::try_from(time).unwrap_or_default()
}
