//! The side that speaks with the driver: says what there is, gives devices to claims, and keeps what they were given.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use libnvc::frame::{encode, receive};
use libnvc::{Error, ErrorKind, Result};
use nix::sys::prctl;
use nix::unistd::{dup2_stdin, dup2_stdout};
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::{Answer, Call, MAX_CALL, MAX_NEWS, News};
use crate::devices;
use crate::grants::{Grants, Record, check_uid};
use crate::machine::{self, Watch, World};
use crate::rights;

/// How often the specifications of claims are looked for.
const KEEP: Duration = Duration::from_secs(5);
/// The most devices of a claim, and the length limit of its names.
const MAX_DEVICES: usize = 32;
const MAX_NAME: usize = 253;

/// Serves the cluster side at the other ends of standard input and output, until it ends. The caller must end then.
///
/// # Errors
/// A right cannot be given up, or the cluster side makes no sense.
pub(crate) fn serve(grants: Grants, mut sockets: Vec<PathBuf>, hidden: &[PathBuf]) -> Result<()> {
    let failed = |error: io::Error| {
        let object = "the side that speaks with the cluster";
        Error::fault(ErrorKind::System, object, error.to_string())
    };
    // For users who look at the process table; nothing depends on it.
    let _ = prctl::set_name(c"nvc:[machine]");
    // A panic ends the process, and so both sides, if others rely on its thread. That of calls goes on.
    let say = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        say(panic);
        if thread::current().name() != Some("main") {
            process::abort();
        }
    }));
    let (calls, news) = streams().map_err(failed)?;
    grants.load_modules();
    rights::machine_side(hidden)?;
    let grants = Arc::new(grants);
    let world = machine::watched(grants.source.clone());
    let news = Arc::new(Mutex::new(news));
    let say = move |what: &News| {
        let news = news.lock().unwrap_or_else(PoisonError::into_inner);
        (&*news).write_all(&bytes_of(what)?)
    };
    // Each in a thread of its own, since both wait for others: for the cluster side, and for disks.
    let waiting = || Builder::new_current_thread().enable_time().build();
    let (tells, keeps) = (waiting().map_err(failed)?, waiting().map_err(failed)?);
    let (watched, teller) = (world.clone(), say.clone());
    thread::spawn(move || tells.block_on(tell(watched, teller)));
    let (all, watched) = (Arc::clone(&grants), world.clone());
    thread::spawn(move || keeps.block_on(keep(&all, watched)));
    let mut calls = BufReader::new(calls);
    while let Some(call) = receive(&mut calls, MAX_CALL).map_err(failed)? {
        // Who borrows a world longer holds up the next one.
        let now = world.borrow().clone();
        let answer = carry_out(call, &grants, &now, &mut sockets);
        let answer = answer.map_err(|error| (error.message(), error.advice()));
        say(&News::Answer(answer)).map_err(failed)?;
    }
    // A query that hangs keeps nobody. Who starts next removes the sockets of the cluster side.
    Ok(())
}

/// Returns what is sent. In the place of what is too long, of very many GPUs or claims, an error is said: the other side
/// must neither end nor keep what was true before.
fn bytes_of(news: &News) -> io::Result<Vec<u8>> {
    encode(news, MAX_NEWS).or_else(|error| {
        let said = match news {
            News::World(_) => News::World(Err(format!("what the driver lists: {error}"))),
            News::Answer(_) => News::Answer(Err((format!("the answer: {error}"), None))),
        };
        encode(&said, MAX_NEWS)
    })
}

/// Takes the pipes away from standard input and output, which programs that are started here get too.
fn streams() -> io::Result<(File, File)> {
    let calls = io::stdin().as_fd().try_clone_to_owned()?;
    let news = io::stdout().as_fd().try_clone_to_owned()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    Ok((calls.into(), news.into()))
}

/// Does what the cluster side asks for, if it may. A panic costs that call alone.
fn carry_out(
    call: Call,
    grants: &Grants,
    world: &World,
    sockets: &mut Vec<PathBuf>,
) -> Result<Answer> {
    guarded(|| done(call, grants, world, sockets))
}

fn guarded(work: impl FnOnce() -> Result<Answer>) -> Result<Answer> {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let text = "a fault of this driver, which its log shows";
        Err(Error::new(ErrorKind::System, text))
    })
}

fn done(call: Call, grants: &Grants, world: &World, sockets: &mut Vec<PathBuf>) -> Result<Answer> {
    let mut answer = Answer::default();
    match call {
        Call::Give(mut record) => {
            judge(&record, world)?;
            record.driver = world.as_ref().map_or("", |it| &it.driver).into();
            // A claim of the future could have what was moved since.
            record.since = record.since.min(devices::now());
            answer.is_new = grants.give(&record)?;
        }
        Call::Records => answer.records = grants.lock()?.records()?,
        Call::Name(names) => {
            for (name, gpu) in &names {
                check(world, name, |entry| entry.gpu.uuid == *gpu)?;
            }
            answer.names = grants.lock()?.name(&names, devices::now())?;
        }
        Call::TakeBack(uid) => {
            check_uid(&uid)?;
            grants.lock()?.take_back(&uid)?;
        }
        Call::RemoveSocket => {
            // It may be gone with its directory.
            let _ = sockets.pop().map(fs::remove_file);
        }
    }
    Ok(answer)
}

/// Checks that a claim is one of Kubernetes, and names devices of this machine.
fn judge(record: &Record, world: &World) -> Result<()> {
    check_uid(&record.uid)?;
    let mut names = [&record.namespace, &record.name].into_iter();
    let are_short = names.all(|name| name.len() <= MAX_NAME);
    if !are_short || !(1..=MAX_DEVICES).contains(&record.grants.len()) {
        let text = "a claim without devices, with too many, or with a name that is too long";
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    record.grants.iter().try_for_each(|grant| {
        check(world, &grant.name, |entry| {
            entry.uuid() == grant.uuid && entry.gpu.uuid == grant.gpu
        })
    })
}

/// Checks that this machine has a device with this name, as it is meant.
fn check(world: &World, name: &str, is_meant: impl Fn(&devices::Entry<'_>) -> bool) -> Result<()> {
    let mut entries = world.iter().flat_map(devices::entries);
    if entries.any(|entry| entry.name() == name && is_meant(&entry)) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::NotFound,
        format!("there is no {name} now"),
    ))
}

/// Says what there is at each change, as long as somebody listens.
async fn tell(mut world: Watch, say: impl Fn(&News) -> io::Result<()>) {
    loop {
        let now = (**world.borrow_and_update()).clone();
        if say(&News::World(now)).is_err() || world.changed().await.is_err() {
            return;
        }
    }
}

/// Keeps the specifications of claims that have been given devices, as long as the driver is watched: makes those again
/// that are gone, or of another driver than now.
async fn keep(grants: &Grants, mut world: Watch) {
    let (mut said, mut is_thorough) = (BTreeMap::new(), true);
    loop {
        let now = world.borrow_and_update().clone();
        let records = grants.lock().and_then(|locked| locked.records());
        let records = records.unwrap_or_else(|error| {
            log::warn!("{}", error.message());
            Vec::new()
        });
        let mut failed = BTreeMap::new();
        for record in &records {
            let (uid, claim) = (&record.uid, format!("{}/{}", record.namespace, record.name));
            let Ok(machine) = &*now else { break };
            let renewed = grants
                .lock()
                .and_then(|locked| locked.renew(uid, &machine.driver, is_thorough));
            match renewed {
                Ok(false) => {}
                Ok(true) => log::info!("Made the specification of {claim} again"),
                Err(error) => {
                    let text = error.message();
                    if said.get(uid) != Some(&text) {
                        log::warn!("{claim} has no specification now: {text}");
                    }
                    failed.insert(uid.clone(), text);
                }
            }
        }
        said = failed;
        is_thorough = match timeout(KEEP, world.changed()).await {
            Ok(Ok(())) => true,
            Ok(Err(_)) => return,
            Err(_) => false,
        };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::grants::Grant;

    #[test]
    fn a_panic_costs_its_call_alone() {
        let said = guarded(|| Ok("".parse::<u32>().map(|_| Answer::default()).unwrap()))
            .unwrap_err()
            .message();
        assert_eq!(said, "a fault of this driver, which its log shows");
        assert!(guarded(|| Ok(Answer::default())).is_ok());
    }

    #[test]
    fn claims_have_bounds() {
        let machine = devices::tests::machine();
        let entry = devices::entries(&machine).next().unwrap();
        let grant = Grant {
            name: entry.name(),
            uuid: entry.uuid().into(),
            gpu: entry.gpu.uuid.clone(),
            instances: None,
            is_shared: false,
        };
        let record = |name: usize, devices: usize| Record {
            uid: "u1".into(),
            name: "n".repeat(name),
            grants: vec![grant.clone(); devices],
            ..Record::default()
        };
        let world = Ok(machine.clone());
        for (name, devices, is_good) in [
            (253, 32, true),
            (1, 0, false),
            (1, 33, false),
            (254, 1, false),
        ] {
            let judged = judge(&record(name, devices), &world);
            assert_eq!(judged.is_ok(), is_good, "{name} {devices}: {judged:?}");
        }
    }

    #[test]
    fn what_is_too_long_is_an_error_that_is_said() {
        let long = || "x".repeat(MAX_NEWS);
        let sent = bytes_of(&News::World(Err(long()))).unwrap();
        let said = receive(sent.as_slice(), MAX_NEWS).unwrap();
        let expected = "what the driver lists: it is too long";
        assert!(matches!(said, Some(News::World(Err(text))) if text == expected));
        let sent = bytes_of(&News::Answer(Err((long(), None)))).unwrap();
        let said = receive(sent.as_slice(), MAX_NEWS).unwrap();
        let expected = "the answer: it is too long";
        assert!(matches!(said, Some(News::Answer(Err((text, None)))) if text == expected));
    }
}
