//! `nvc-cri`: runs a command in a container by a CRI engine, like a kubelet.
//!
//! Creates one pod with the host's network, so that no CNI plugin is needed, with one sleeping container, and runs the
//! command by `ExecSync`. `run` removes the pod afterwards; `start`, `exec` and `remove` are its three steps.

mod call;
mod wire;

use std::process::ExitCode;

use call::Engine;
use wire::{Fields, Message};

const USAGE: &str = "\
usage: nvc-cri SOCKET version
       nvc-cri SOCKET run [--handler NAME] [--env NAME=VALUE]... [--device CDI-NAME]... [--annotation NAME=VALUE]...
               [--cgroup-parent SLICE] IMAGE COMMAND [ARGUMENT...]
       nvc-cri SOCKET start OPTIONS... IMAGE    (prints the pod's id and the container's)
       nvc-cri SOCKET exec CONTAINER COMMAND [ARGUMENT...]
       nvc-cri SOCKET remove POD
";

/// Value of NamespaceMode for the host's own namespace.
const NODE: u64 = 2;

/// Time limit of the command in seconds.
const TIMEOUT: u64 = 60;

#[derive(Default)]
struct Container {
    handler: String,
    env: Vec<(String, String)>,
    devices: Vec<String>,
    annotations: Vec<(String, String)>,
    cgroup_parent: String,
    image: String,
    command: Vec<String>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match act(&words) {
        Ok(code) => ExitCode::from(code),
        Err(text) => {
            eprintln!("nvc-cri: {}", text.trim_end());
            ExitCode::FAILURE
        }
    }
}

fn act(words: &[String]) -> Result<u8, String> {
    let [socket, verb, rest @ ..] = words else {
        return Err(USAGE.into());
    };
    let mut engine = Engine::connect(socket)?;
    match verb.as_str() {
        "version" => {
            let answer = engine.call("Version", &Message::new())?;
            println!("{} {}", answer.text(2), answer.text(3));
            Ok(0)
        }
        "run" => {
            let container = container(rest)?;
            if container.command.is_empty() {
                return Err(USAGE.into());
            }
            run(&mut engine, &container)
        }
        "start" => {
            let container = container(rest)?;
            let pod = pod(&container);
            let id = start_pod(&mut engine, &container, &pod)?;
            println!("{id}\n{}", start(&mut engine, &container, &pod, &id)?);
            Ok(0)
        }
        "exec" => match rest {
            [id, command @ ..] => exec(&mut engine, id, command),
            [] => Err(USAGE.into()),
        },
        "remove" => match rest {
            [id] => remove(&mut engine, id).map(|()| 0),
            _ => Err(USAGE.into()),
        },
        _ => Err(USAGE.into()),
    }
}

fn container(words: &[String]) -> Result<Container, String> {
    let mut container = Container::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().cloned().ok_or(USAGE);
        match word.as_str() {
            "--handler" => container.handler = value()?,
            "--device" => container.devices.push(value()?),
            "--env" => container.env.push(pair(&value()?)?),
            "--annotation" => container.annotations.push(pair(&value()?)?),
            "--cgroup-parent" => container.cgroup_parent = value()?,
            _ if word.starts_with('-') => return Err(USAGE.into()),
            _ => {
                container.image.clone_from(word);
                container.command = words.cloned().collect();
                break;
            }
        }
    }
    if container.image.is_empty() {
        return Err(USAGE.into());
    }
    Ok(container)
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or(USAGE)?;
    Ok((name.into(), value.into()))
}

/// Builds a PodSandboxConfig.
fn pod(container: &Container) -> Message {
    let name = format!("nvc-{}", std::process::id());
    let metadata = Message::new().text(1, &name).text(2, &name).text(3, "nvc");
    let namespaces = Message::new().number(1, NODE);
    let security = Message::new().message(1, &namespaces);
    let mut linux = Message::new();
    if !container.cgroup_parent.is_empty() {
        linux = linux.text(1, &container.cgroup_parent);
    }
    let linux = linux.message(2, &security);
    Message::new()
        .message(1, &metadata)
        .pairs(7, &container.annotations)
        .message(8, &linux)
}

/// Builds a ContainerConfig: a container that sleeps.
fn sleeper(container: &Container) -> Message {
    let mut config = Message::new()
        .message(1, &Message::new().text(1, "one"))
        .message(2, &Message::new().text(1, &container.image));
    for word in ["sleep", "1000"] {
        config = config.text(3, word);
    }
    for (name, value) in &container.env {
        config = config.message(6, &Message::new().text(1, name).text(2, value));
    }
    config = config.pairs(10, &container.annotations);
    for device in &container.devices {
        config = config.message(17, &Message::new().text(1, device));
    }
    config
}

fn run(engine: &mut Engine, container: &Container) -> Result<u8, String> {
    let pod = pod(container);
    let id = start_pod(engine, container, &pod)?;
    let code =
        start(engine, container, &pod, &id).and_then(|one| exec(engine, &one, &container.command));
    let removed = remove(engine, &id);
    code.and_then(|code| removed.map(|()| code))
}

/// Starts the pod; returns its id.
fn start_pod(engine: &mut Engine, container: &Container, pod: &Message) -> Result<String, String> {
    let request = Message::new().message(1, pod).text(2, &container.handler);
    Ok(engine.call("RunPodSandbox", &request)?.text(1))
}

/// Starts the container in the pod; returns its id.
fn start(
    engine: &mut Engine,
    container: &Container,
    pod: &Message,
    pod_id: &str,
) -> Result<String, String> {
    let request = Message::new()
        .text(1, pod_id)
        .message(2, &sleeper(container))
        .message(3, pod);
    let id = engine.call("CreateContainer", &request)?.text(1);
    engine.call("StartContainer", &Message::new().text(1, &id))?;
    Ok(id)
}

/// Runs a command in the container; returns its exit code.
fn exec(engine: &mut Engine, id: &str, command: &[String]) -> Result<u8, String> {
    let mut request = Message::new().text(1, id);
    for word in command {
        request = request.text(2, word);
    }
    let answer: Fields = engine.call("ExecSync", &request.number(3, TIMEOUT))?;
    print!("{}", answer.text(1));
    eprint!("{}", answer.text(2));
    Ok(u8::try_from(answer.number(3)).unwrap_or(u8::MAX))
}

fn remove(engine: &mut Engine, pod_id: &str) -> Result<(), String> {
    ["StopPodSandbox", "RemovePodSandbox"]
        .into_iter()
        .try_for_each(|call| engine.call(call, &Message::new().text(1, pod_id)).map(drop))
}
