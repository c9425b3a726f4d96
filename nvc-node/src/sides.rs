//! Divides the program into two processes with few rights each, joined by two pipes.
//!
//! The *machine side* watches the driver, makes its nodes and writes what claims get. It has the rights for that, and
//! neither network nor token. The *cluster side* speaks with kubelet and API server, and has no rights. The one says what
//! there is; the other names devices and claims, and no path. Neither believes the other: a message has a limit and a
//! form, and what it asks for is judged. If one ends, so does the other, and Kubernetes starts the container again:
//! verdicts and records are on disk.

use std::io::{self, BufReader, PipeReader, PipeWriter, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use libnvc::frame::{encode, receive};
use libnvc::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};
use tokio::task::spawn_blocking;

use crate::grants::Record;
use crate::machine::{Watch, World};

mod call;
pub(crate) mod machine_side;

pub(crate) use call::Call;

/// The first argument of the machine side, which no user gives: `--machine-side=WORD`, the word of its sockets.
pub(crate) const MARKER: &str = "--machine-side=";
/// Seconds that NVML may take for a claim.
const TIMEOUT: &str = "NVC_DRIVER_TIMEOUT";
/// The default: the kubelet waits 45 for all claims of a pod.
const DEFAULT_TIMEOUT: &str = "10";
/// The name of the machine side, for those who look at processes.
const NAME: &str = "nvc:[machine]";
/// Size limits of what the sides say: a claim of 32 devices; 16 GPUs with 7 MIG devices each take 60 KiB.
const MAX_CALL: usize = 256 << 10;
const MAX_NEWS: usize = 4 << 20;

/// What the machine side says.
#[derive(Debug, Serialize, Deserialize)]
enum News {
    World(World),
    Answer(Result<Answer, Refusal>),
}

/// The answer to a call, of which each fills in its part.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// The claim had no devices.
    pub(crate) is_new: bool,
    /// Of devices that must not be claimed yet.
    pub(crate) names: Vec<String>,
    pub(crate) records: Vec<Record>,
}

/// An error, with its way out.
type Refusal = (String, Option<String>);

/// The machine side, as the cluster side has it.
#[derive(Debug)]
pub(crate) struct MachineSide(Mutex<(PipeWriter, Receiver<Result<Answer, Refusal>>)>);

/// Resolves when the machine side has ended, with the reason. The sender keeps receivers of its worlds open.
pub(crate) type End = oneshot::Receiver<(String, watch::Sender<Arc<World>>)>;

/// A machine side that has said its first word.
#[derive(Debug)]
pub(crate) struct Started {
    child: Child,
    calls: PipeWriter,
    news: BufReader<PipeReader>,
    first: World,
}

/// Starts the machine side, and waits for its first world.
///
/// # Errors
/// It cannot be started, or has ended, for a reason that it has said itself.
pub(crate) fn start(word: &str) -> Result<Started> {
    let failed = |error: io::Error| ended(&error.to_string());
    let (their_calls, calls) = io::pipe().map_err(failed)?;
    let (news, their_news) = io::pipe().map_err(failed)?;
    let timeout = std::env::var_os(TIMEOUT).unwrap_or_else(|| DEFAULT_TIMEOUT.into());
    let mut child = Command::new("/proc/self/exe")
        .arg0(NAME)
        .arg(format!("{MARKER}{word}"))
        .args(std::env::args_os().skip(1))
        .env(TIMEOUT, timeout)
        .stdin(their_calls)
        .stdout(their_news)
        // A signal of a terminal is for the cluster side, which ends the other one.
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let mut news = BufReader::new(news);
    match receive(&mut news, MAX_NEWS) {
        Ok(Some(News::World(first))) => Ok(Started {
            child,
            calls,
            news,
            first,
        }),
        other => Err(ended(&last_words(&mut child, other.map(drop)))),
    }
}

impl Started {
    /// Listens to the machine side from now on, in a thread, which has the rights of its caller: those that are left.
    pub(crate) fn attend(mut self) -> (Arc<MachineSide>, Watch, End) {
        let (sender, world) = watch::channel(Arc::new(self.first));
        let (answers, answered) = sync_channel(1);
        let (end, ending) = oneshot::channel();
        let side = Arc::new(MachineSide(Mutex::new((self.calls, answered))));
        thread::spawn(move || {
            let why = listen(self.news, &sender, &answers);
            drop(answers);
            // Its reader has ended if this is the end of the program.
            let _ = end.send((last_words(&mut self.child, why), sender));
        });
        (side, world, ending)
    }
}

/// Passes on what the machine side says, until it ends or makes no sense.
fn listen(
    mut news: impl Read,
    worlds: &watch::Sender<Arc<World>>,
    answers: &SyncSender<Result<Answer, Refusal>>,
) -> io::Result<()> {
    while let Some(news) = receive(&mut news, MAX_NEWS)? {
        match news {
            News::World(world) => drop(worlds.send_replace(Arc::new(world))),
            News::Answer(answer) => answers
                .try_send(answer)
                .map_err(|_| io::Error::other("an answer without a question"))?,
        }
    }
    Ok(())
}

/// Ends a machine side that has said its last word; returns why.
fn last_words(child: &mut Child, why: io::Result<()>) -> String {
    if why.is_err() {
        // It may have ended.
        let _ = child.kill();
    }
    let status = child.wait().map(|status| status.to_string());
    let status = status.unwrap_or_default();
    why.map_or_else(|error| format!("{error}; {status}"), |()| status.clone())
}

/// Returns the error that the machine side has ended.
pub(crate) fn ended(why: &str) -> Error {
    let object = "the side that speaks with the driver";
    Error::fault(ErrorKind::System, object, why)
}

impl MachineSide {
    /// Asks the machine side, and waits for its answer.
    ///
    /// # Errors
    /// It refuses, or has ended.
    pub(crate) async fn ask(self: &Arc<Self>, call: Call) -> Result<Answer> {
        let side = Arc::clone(self);
        let answer = spawn_blocking(move || {
            let mut side = side.0.lock().unwrap_or_else(PoisonError::into_inner);
            let sent = encode(&call, MAX_CALL).and_then(|bytes| side.0.write_all(&bytes));
            sent.map_err(|error| ended(&error.to_string()))?;
            side.1.recv().map_err(|_| ended("it has ended"))
        });
        let answer = answer.await.map_err(|error| ended(&error.to_string()))??;
        answer.map_err(|(text, hint)| {
            let error = Error::new(ErrorKind::NotFound, text);
            hint.map_or(error.clone(), |hint| error.hint(hint))
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_have_a_form() {
        let sent = encode(&Call::TakeBack("a".into()), MAX_CALL).unwrap();
        let call = receive(sent.as_slice(), MAX_CALL).unwrap();
        assert!(matches!(call, Some(Call::TakeBack(uid)) if uid == "a"));
        for call in [
            json!(null),
            json!({"Give": {}}),
            json!({"Open": "/etc/shadow"}),
        ] {
            let sent = encode(&call, MAX_CALL).unwrap();
            assert!(receive::<Call>(sent.as_slice(), MAX_CALL).is_err());
        }
    }

    #[test]
    fn an_answer_without_a_question_is_the_end() {
        let (worlds, world) = watch::channel(Arc::new(Err(String::new())));
        let (answers, _answered) = sync_channel(1);
        let news = [
            News::World(Err("x".into())),
            News::Answer(Err(("x".into(), None))),
        ];
        let sent = news.map(|news| encode(&news, MAX_NEWS).unwrap()).concat();
        assert!(listen(sent.as_slice(), &worlds, &answers).is_ok());
        assert_eq!(**world.borrow(), Err("x".into()));
        assert!(listen(sent.as_slice(), &worlds, &answers).is_err());
    }
}
