//! A node of the tests: the driver between a kubelet and an API server, which are Python programs.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvc_testkit::cli::{PATH, beside};
use nvc_testkit::driver::{Builder, Driver};
use nvc_testkit::harness::{PYTHON, kubelet_protocols};
use nvc_testkit::machine::{self, Scratch};
use serde_json::{Value, json};

use crate::{plugins, protocols};

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const NODE: &str = "n1";
/// Nothing takes as long, on a busy machine either.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program that answers each line of JSON with one.
#[derive(Debug)]
struct Talk {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Talk {
    fn start(script: &str, argument: Option<&Path>) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/kubelet")
            .join(script);
        let mut command = Command::new(PYTHON);
        command.arg("-B").arg(script).args(argument);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (questions, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let answers = BufReader::new(answers);
        Self {
            child,
            questions,
            answers,
        }
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    #[allow(clippy::needless_pass_by_value)]
    fn ask(&mut self, question: Value) -> Value {
        writeln!(self.questions, "{question}").unwrap();
        self.line()
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A driver's process.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    pub(crate) log: PathBuf,
}

impl Daemon {
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the end.
    #[track_caller]
    pub(crate) fn ended(&mut self) {
        wait("the end of the driver", || !self.is_alive());
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A node; its files are removed with it.
#[derive(Debug)]
pub(crate) struct Node {
    api: Talk,
    kubelet: Talk,
    pub(crate) scratch: Scratch,
    /// A driver root that the test may change.
    pub(crate) driver: Driver,
    /// The API server's address.
    pub(crate) server: String,
    daemons: u32,
}

impl Node {
    /// A node with the simulated driver's default machine.
    pub(crate) fn new() -> Self {
        Self::with(Builder::default())
    }

    /// A node whose API server has a certificate.
    pub(crate) fn secure() -> Self {
        Self::of(Builder::default(), true)
    }

    pub(crate) fn with(builder: Builder) -> Self {
        Self::of(builder, false)
    }

    fn of(builder: Builder, is_secure: bool) -> Self {
        // The major numbers in /proc/devices are those of the machine's driver.
        let majors = machine::driver().majors();
        let scratch = Scratch::new().unwrap();
        let driver = builder
            .majors(majors)
            .build(scratch.join("driver"))
            .unwrap();
        let descriptors = scratch.join("protocols");
        fs::write(&descriptors, protocols::published(&kubelet_protocols())).unwrap();
        fs::create_dir(scratch.join("account")).unwrap();
        let authority = scratch.join("account/ca.crt");
        let mut api = Talk::start("apiserver.py", is_secure.then_some(&*authority));
        let scheme = if is_secure { "https" } else { "http" };
        let server = format!("{scheme}://127.0.0.1:{}", api.line());
        let kubelet = Talk::start("kubelet.py", Some(&descriptors));
        fs::write(scratch.join("account/token"), "first").unwrap();
        for directory in ["cdi", "plugins", "registry"] {
            fs::create_dir(scratch.join(directory)).unwrap();
        }
        let mut node = Self {
            api,
            kubelet,
            scratch,
            driver,
            server,
            daemons: 0,
        };
        node.put(
            &format!("/api/v1/nodes/{NODE}"),
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}),
        );
        node.plugins(json!({}));
        node
    }

    // The API server.

    #[allow(clippy::needless_pass_by_value)]
    pub(crate) fn api(&mut self, command: Value) -> Value {
        self.api.ask(command)
    }

    #[allow(clippy::needless_pass_by_value)]
    pub(crate) fn put(&mut self, path: &str, object: Value) {
        self.api(json!({"put": path, "object": object}));
    }

    /// Starts the API server anew with a certificate for a name, up to a year, by its own authority or another one.
    pub(crate) fn certify(&mut self, name: &str, year: u32, by: &str) {
        self.api(json!({"certify": name, "year": year, "by": by}));
        self.api(json!({"open": false}));
        self.api(json!({"open": true}));
    }

    /// Makes a claim that was allocated devices.
    pub(crate) fn claim(&mut self, name: &str, devices: &[&str]) {
        let results: Vec<_> = devices.iter().map(|device| result(device)).collect();
        self.claim_of(name, json!({"results": results}));
    }

    #[allow(clippy::needless_pass_by_value)]
    pub(crate) fn claim_of(&mut self, name: &str, devices: Value) {
        let path = format!("/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/{name}");
        let object = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "ns", "uid": uid(name), "creationTimestamp": "2026-01-27T12:00:00Z"}, "spec": {},
            "status": {"allocation": {"devices": devices}},
        });
        self.put(&path, object);
    }

    pub(crate) fn slices(&mut self) -> Vec<Value> {
        let Value::Array(slices) = self.api(json!({"list": SLICES})) else {
            panic!("no list")
        };
        slices
    }

    /// Waits until the API server has slices, and returns the names of their devices.
    #[track_caller]
    pub(crate) fn published(&mut self) -> Vec<String> {
        wait("slices", || !self.slices().is_empty());
        let slices = self.slices();
        let devices = slices.iter().flat_map(|slice| {
            slice["spec"]["devices"]
                .as_array()
                .cloned()
                .unwrap_or_default()
        });
        devices
            .map(|device| device["name"].as_str().unwrap().to_owned())
            .collect()
    }

    pub(crate) fn remove_slices(&mut self) {
        for slice in self.slices() {
            let path = format!("{SLICES}/{}", slice["metadata"]["name"].as_str().unwrap());
            self.api(json!({"remove": path}));
        }
    }

    // The driver.

    /// Returns the driver's command line.
    pub(crate) fn command(&mut self, words: &[&str]) -> Command {
        let kubeconfig = self.scratch.join("kubeconfig");
        let mut cluster = json!({"server": self.server});
        let authority = self.scratch.join("account/ca.crt");
        if authority.exists() {
            cluster["certificate-authority"] = json!(authority);
        }
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": cluster}],
            "users": [{"name": "x", "user": {"tokenFile": self.scratch.join("account/token")}}],
        });
        fs::write(&kubeconfig, text.to_string()).unwrap();
        // As in a pod, the host knows the driver's files by another path.
        let on_host = self.scratch.join("driver-on-host");
        if !on_host.exists() {
            symlink(self.driver.root(), &on_host).unwrap();
        }
        let mut command = Command::new("env");
        command
            .env_clear()
            .env("PATH", PATH)
            .arg(beside("gpu-kubelet-plugin").unwrap());
        command.args(["--node-name", NODE]);
        for (option, path) in [
            ("--kubeconfig", kubeconfig),
            ("--container-driver-root", self.driver.root().to_owned()),
            ("--nvidia-driver-root", on_host),
            ("--cdi-root", self.scratch.join("cdi")),
            (
                "--kubelet-plugins-directory-path",
                self.scratch.join("plugins"),
            ),
            (
                "--kubelet-registrar-directory-path",
                self.scratch.join("registry"),
            ),
        ] {
            command.arg(option).arg(path);
        }
        command.args(words);
        command
    }

    /// Returns the command line of a driver in a pod, with the pod's account.
    pub(crate) fn command_in_pod(&mut self) -> Command {
        let inner = self.command(&["--kubeconfig="]);
        let account = self.scratch.join("account");
        fs::write(account.join("namespace"), "nvidia-dra").unwrap();
        let script = "mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io &&\n\
            ln -s \"$0\" /run/secrets/kubernetes.io/serviceaccount && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]);
        command.arg(account).args(["env", "-i"]);
        command.arg("KUBERNETES_SERVICE_HOST=127.0.0.1");
        let (_, port) = self.server.rsplit_once(':').unwrap();
        command.arg(format!("KUBERNETES_SERVICE_PORT={port}"));
        command.arg(format!("PATH={PATH}")).args(inner.get_args());
        command
    }

    pub(crate) fn spawn(&mut self, mut command: Command) -> Daemon {
        // The caller's, which the cluster side would not see.
        command
            .env_remove("SSL_CERT_FILE")
            .env_remove("SSL_CERT_DIR");
        self.daemons += 1;
        let log = self.scratch.join(format!("log-{}", self.daemons));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap());
        Daemon {
            child: command.spawn().unwrap(),
            log,
        }
    }

    /// Starts a driver, which is not registered yet.
    pub(crate) fn start(&mut self) -> Daemon {
        let command = self.command(&["-v", "6"]);
        self.spawn(command)
    }

    /// Starts a driver, registers it and waits for its slice.
    #[track_caller]
    pub(crate) fn started(&mut self) -> Daemon {
        let mut daemon = self.start();
        self.register(&mut daemon);
        self.published();
        daemon
    }

    // The kubelet.

    /// Returns the registration sockets.
    pub(crate) fn registrations(&self) -> Vec<PathBuf> {
        sockets(&self.scratch.join("registry"))
    }

    /// Returns the service's sockets.
    pub(crate) fn services(&self) -> Vec<PathBuf> {
        sockets(&self.scratch.join("plugins/gpu.nvidia.com"))
    }

    /// Registers the driver as the kubelet does; returns what it says of itself.
    #[track_caller]
    pub(crate) fn register(&mut self, daemon: &mut Daemon) -> Value {
        let mut info = Value::Null;
        wait("a registration", || {
            assert!(daemon.is_alive(), "{}", daemon.log());
            // One that was killed has left its socket.
            let sockets = self.registrations();
            sockets.iter().any(|socket| {
                info = self.registration(socket, "GetInfo", json!({}));
                info.is_array()
                    && self
                        .registration(
                            socket,
                            "NotifyRegistrationStatus",
                            json!({"plugin_registered": true}),
                        )
                        .is_array()
            })
        });
        info[0].clone()
    }

    #[allow(clippy::needless_pass_by_value)]
    pub(crate) fn registration(&mut self, socket: &Path, method: &str, request: Value) -> Value {
        // As the kubelet has it.
        let authority = socket.display().to_string().replace('/', "%2F");
        let method = format!("pluginregistration.Registration/{method}");
        self.kubelet.ask(
            json!({"socket": socket, "method": method, "request": request, "authority": authority}),
        )
    }

    /// Returns the socket at which the kubelet says what device plugins have given.
    pub(crate) fn pods_socket(&self) -> PathBuf {
        self.scratch.join("pod-resources/kubelet.sock")
    }

    /// Says there, from now on, what kubelet.py is told.
    pub(crate) fn plugins(&mut self, mut how: Value) {
        let socket = self.pods_socket();
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        how["serve"] = json!(socket);
        assert_eq!(self.kubelet.ask(how), json!([]));
    }

    /// Makes a call for one claim at a service socket; returns the claim's part of the answer.
    pub(crate) fn call_at(&mut self, socket: &Path, method: &str, name: &str, uid: &str) -> Value {
        let answer = self.kubelet.ask(question(socket, method, name, uid));
        answer
            .get(0)
            .map_or_else(|| answer.clone(), |answer| answer["claims"][uid].clone())
    }

    /// Prepares two claims at the same moment; returns the answers.
    pub(crate) fn prepare_both(&mut self, names: [&str; 2]) -> [Value; 2] {
        let service = self.services().remove(0);
        let [mut one, other] =
            names.map(|name| question(&service, "NodePrepareResources", name, &uid(name)));
        one["meanwhile"] = other;
        let answers = self.kubelet.ask(one);
        [0, 1].map(|n| answers[n]["claims"][&uid(names[n])].clone())
    }

    /// Begins to prepare a claim, and closes the connection when there is a file, or after a second.
    #[track_caller]
    pub(crate) fn hang_up(&mut self, name: &str, until: Option<&Path>) {
        let service = self.services().remove(0);
        let mut call = question(&service, "NodePrepareResources", name, &uid(name));
        call["until"] = until.map_or(json!(""), |path| json!(path));
        assert_eq!(self.kubelet.ask(call), json!(true), "it has been answered");
    }

    /// Prepares claims and cancels that, at the same moment as it unprepares them; returns how this was answered.
    pub(crate) fn cancelled(&mut self, names: &[&str]) -> Value {
        let service = self.services().remove(0);
        let locked = self.scratch.join("plugins/gpu.nvidia.com/pu.lock");
        let all = |method: &str| -> Value {
            let of = |name: &&str| question(&service, method, name, &uid(name));
            names.iter().map(of).collect()
        };
        let (first, then) = (all("NodePrepareResources"), all("NodeUnprepareResources"));
        self.kubelet
            .ask(json!({"cancelled": first, "calls": then, "locked": locked}))
    }

    #[track_caller]
    fn call(&mut self, method: &str, name: &str) -> Value {
        let services = self.services();
        assert_eq!(services.len(), 1, "{services:?}");
        self.call_at(&services[0], method, name, &uid(name))
    }

    /// Lets a device plugin have given a device to the pod other/p as soon as a file exists.
    pub(crate) fn plugin_gives(&mut self, device: &str, once: &Path) {
        let mut answer = plugins::with(device);
        answer["once"] = json!(once);
        self.plugins(answer);
    }

    pub(crate) fn prepare(&mut self, name: &str) -> Value {
        self.call("NodePrepareResources", name)
    }

    /// Prepares a claim, and checks that its file is there for the devices that are named.
    #[track_caller]
    pub(crate) fn prepared(&mut self, name: &str) {
        let answer = self.prepare(name);
        assert_eq!(answer["error"], "", "{answer}");
        let file = fs::read_to_string(self.specification(name)).unwrap();
        let devices = answer["devices"].as_array().unwrap();
        assert!(!devices.is_empty());
        for device in devices {
            let id = device["cdi_device_ids"][0].as_str().unwrap();
            let short = id.strip_prefix("k8s.gpu.nvidia.com/claim=").unwrap();
            assert!(file.contains(short), "{id}: {file}");
        }
    }

    /// Prepares a claim, which must be refused and get nothing; returns the reason.
    #[track_caller]
    pub(crate) fn refused(&mut self, name: &str) -> String {
        let answer = self.prepare(name);
        let error = answer["error"]
            .as_str()
            .unwrap_or_else(|| panic!("{answer}"));
        assert!(
            !error.is_empty() && answer["devices"] == json!([]),
            "{answer}"
        );
        assert!(!self.specification(name).exists());
        error.to_owned()
    }

    #[track_caller]
    pub(crate) fn unprepared(&mut self, name: &str) {
        let answer = self.call("NodeUnprepareResources", name);
        assert_eq!(answer["error"], "", "{answer}");
        assert!(!self.specification(name).exists());
    }

    // Files.

    pub(crate) fn specification(&self, name: &str) -> PathBuf {
        self.scratch
            .join(format!("cdi/k8s.gpu.nvidia.com-claim_{}.yaml", uid(name)))
    }

    pub(crate) fn record(&self, name: &str) -> PathBuf {
        self.scratch
            .join(format!("plugins/gpu.nvidia.com/claims/{}.json", uid(name)))
    }

    /// Returns all files of claims, whatever they are called.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut names: Vec<_> = [
            self.scratch.join("cdi"),
            self.scratch.join("plugins/gpu.nvidia.com/claims"),
        ]
        .iter()
        .flat_map(|directory| fs::read_dir(directory).into_iter().flatten())
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
        names.sort();
        names
    }
}

/// Returns a call for one claim.
fn question(socket: &Path, method: &str, name: &str, uid: &str) -> Value {
    let method = format!("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}");
    let request = json!({"claims": [{"namespace": "ns", "name": name, "uid": uid}]});
    json!({"socket": socket, "method": method, "request": request, "authority": "localhost"})
}

/// Returns the UID of a claim of this name.
pub(crate) fn uid(name: &str) -> String {
    format!("c1a1c1a1-0000-4000-8000-{name}")
}

/// Returns an allocated device of this driver.
pub(crate) fn result(device: &str) -> Value {
    json!({"request": "r", "driver": "gpu.nvidia.com", "pool": NODE, "device": device})
}

/// Waits until something is the case.
#[track_caller]
pub(crate) fn wait(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        sleep(Duration::from_millis(10));
    }
}

fn sockets(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| path.extension().is_some_and(|ending| ending == "sock"))
        .collect()
}
