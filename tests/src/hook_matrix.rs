//! Runs createContainer hooks in containers whose image chooses each variable that a program on the host could obey.
//!
//! Some engines give a hook without `env` the environment of the container, in the image's root as working directory, as
//! root of the host. The matrix is {our programs, by each name} x {hook with `env`, without} x {our runtime by a
//! specification, our runtime where the engine has applied it, the low-level runtime alone}; the caller names the
//! low-level runtime. In each cell the hooks do their work, and the image neither loads nor executes nor writes anything
//! on the host. Controls show that the image could.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fmt, fs, io};

use nvc_testkit::cli::PATH;
use serde_json::{Value, json};

/// What the matrix needs of a machine.
#[derive(Debug)]
pub struct Machine {
    /// The directory of our programs.
    pub programs: PathBuf,
    /// The library that tests/c/evil.c becomes.
    pub library: PathBuf,
    /// A container's root, which is changed.
    pub root: PathBuf,
    /// An empty directory.
    pub work: PathBuf,
    /// The low-level runtime.
    pub runtime: PathBuf,
}

/// The ways in which engines call our programs: the words before the hook's name.
const PROGRAMS: [&[&str]; 4] = [
    &["nvidia-cdi-hook"],
    &["nvidia-cdi-hook", "--quiet"],
    &["nvidia-ctk", "hook"],
    &["nvidia-ctk", "--quiet", "hook"],
];

/// The hooks of a container, and the links that they make in its /etc.
const HOOKS: [&str; 3] = [
    "create-symlinks --link target::/etc/separate",
    "update-ldcache --folder /usr/lib",
    "apply --plan={\"version\":1,\"intents\":[{\"need\":\"best-effort\",\"intent\":\"link\",\"at\":{\"at\":\"/etc/planned\"},\"target\":\"target\",\"replaces\":true},{\"need\":\"where-permitted\",\"intent\":\"library-path\",\"directories\":[{\"at\":\"/usr/lib\"}],\"after_hooks\":true}]}",
];
const LINKS: [&str; 2] = ["separate", "planned"];

/// The variables of a hook with `env`, as `cdi generate` writes them.
const ENVIRONMENT: &str = "NVIDIA_CTK_DEBUG=false";

/// The variables of a hook without `env` under our runtime.
const FIXED: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The directory of the image's files, as a hook would see it.
const EVIL: &str = "/proc/self/cwd/evil";

/// The number of containers so far: their names are those of cgroups.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// How a container is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// Our runtime in mode cdi, with a specification.
    Ours,
    /// Our runtime without a request: the engine has applied a specification and put the hooks into config.json.
    Engine,
    /// The low-level runtime, with the hooks in config.json.
    Plain,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours => "our runtime",
            Self::Engine => "our runtime, by the engine",
            Self::Plain => "plain",
        })
    }
}

/// Returns a hook of config.json.
fn hook(program: &Path, args: &[&str], env: Option<&str>) -> Value {
    let mut hook = json!({ "path": program, "args": args });
    if let Some(env) = env {
        hook["env"] = json!([env]);
    }
    hook
}

impl Machine {
    /// Runs all cells, and prints each; returns the problems.
    ///
    /// # Errors
    /// The machine cannot be prepared.
    pub fn run(&self) -> io::Result<Vec<String>> {
        self.prepare()?;
        let version = self.version();
        let mut problems = Vec::new();
        let mut print = |cell: &str, found: io::Result<()>| match found {
            Ok(()) => println!("ok     {version}, {cell}"),
            Err(error) => {
                println!("WRONG  {version}, {cell}: {error}");
                problems.push(format!("{version}, {cell}: {error}"));
            }
        };
        for by in [By::Ours, By::Engine, By::Plain] {
            for program in PROGRAMS {
                for env in [Some(ENVIRONMENT), None] {
                    let with = if env.is_some() {
                        "with env"
                    } else {
                        "without env"
                    };
                    let cell = format!("{}, {with}, {by}", program.join(" "));
                    print(&cell, self.cell(by, program, env));
                }
            }
        }
        print("a foreign program without env, our runtime", self.foreign());
        print("what our runtime gives it", self.given(By::Ours));
        print(
            "what our runtime gives a hook put there by the engine",
            self.given(By::Engine),
        );
        print(
            "control: a dynamic program with the image's env",
            self.control(),
        );
        let given = self.gives_environment()?;
        let gives = if given { "gives" } else { "does not give" };
        println!("note   {version}: {gives} hooks without env the container's environment");
        Ok(problems)
    }

    /// Returns the runtime's name and version.
    ///
    /// # Panics
    /// It does not start.
    pub fn version(&self) -> String {
        let output = Command::new(&self.runtime).arg("--version").output();
        let output = output.unwrap_or_else(|error| panic!("{}: {error}", self.runtime.display()));
        let text = String::from_utf8_lossy(&output.stdout);
        let words = text.lines().next().unwrap_or_default().split(' ');
        words
            .filter(|word| *word != "version")
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn marks(&self) -> PathBuf {
        self.work.join("marks")
    }

    fn prepare(&self) -> io::Result<()> {
        let evil = self.root.join("evil");
        for directory in [
            &self.marks(),
            &self.work.join("bundle"),
            &self.work.join("cdi"),
            &evil,
        ] {
            fs::create_dir_all(directory)?;
        }
        for name in [
            "evil.so",
            "libgcc_s.so.1",
            "libm.so.6",
            "libselinux.so.1",
            "libnss_files.so.2",
        ] {
            fs::copy(&self.library, evil.join(name))?;
        }
        let script = format!("#!/bin/sh\n: > {}/executed-$$\n", self.marks().display());
        for name in [
            "ldconfig",
            "ldconfig.real",
            "nvc-query",
            "nvidia-ctk",
            "nvidia-cdi-hook",
            "true",
            "sh",
        ] {
            nvc_testkit::files::file(&evil.join(name), &script, 0o755)?;
        }
        fs::write(
            evil.join("gconv-modules"),
            "module EVIL// INTERNAL evil 1\nmodule INTERNAL EVIL// evil 1\n",
        )?;
        fs::write(evil.join("config.toml"), "not TOML")?;
        let config = format!(
            "[nvidia-container-runtime]\nmode = \"cdi\"\nruntimes = [\"{}\"]\nmodes.cdi.spec-dirs = [\"{}\"]\n",
            self.runtime.display(),
            self.work.join("cdi").display()
        );
        fs::write(self.work.join("config.toml"), config)
    }

    /// Returns the variables of the image.
    fn variables(&self) -> Vec<String> {
        let marks = self.marks();
        let marks = marks.display();
        let mut all = vec![
            format!("LD_PRELOAD={EVIL}/evil.so"),
            format!("LD_AUDIT={EVIL}/evil.so"),
            format!("LD_LIBRARY_PATH={EVIL}"),
            "LD_DEBUG=all".into(),
            format!("LD_DEBUG_OUTPUT={marks}/debug"),
            "LD_PROFILE=libc.so.6".into(),
            format!("LD_PROFILE_OUTPUT={marks}"),
            "GLIBC_TUNABLES=glibc.malloc.check=3:glibc.malloc.perturb=165".into(),
            format!("MALLOC_TRACE={marks}/malloc"),
            "NVIDIA_CTK_DEBUG=true".into(),
            format!("NVC_DEBUG_FILE={marks}/nvc"),
            format!("NVC_MARKS={marks}"),
            format!("TMPDIR={marks}"),
            format!("NVIDIA_CTK_CONFIG_FILE_PATH={EVIL}/config.toml"),
            "RUST_LOG=trace".into(),
            "RUST_BACKTRACE=full".into(),
            "LC_ALL=evil.EVIL".into(),
            format!("PATH={EVIL}:/usr/bin:/bin"),
        ];
        for name in [
            "GCONV_PATH",
            "LOCPATH",
            "NLSPATH",
            "TZDIR",
            "HOSTALIASES",
            "NVIDIA_CTK_CONFIG",
            "XDG_CONFIG_HOME",
            "ENV",
            "BASH_ENV",
        ] {
            all.push(format!("{name}={EVIL}"));
        }
        all
    }

    /// Runs a container with hooks; returns whether it started, with what was printed.
    fn start(&self, by: By, hooks: &[Value]) -> io::Result<(bool, String)> {
        let bundle = self.work.join("bundle");
        let mount = |place: &str, kind: &str, source: &str, options: &[&str]| json!({ "destination": place, "type": kind, "source": source, "options": options });
        let mut env = self.variables();
        let mut own = json!({});
        match by {
            By::Plain => own = json!({ "createContainer": hooks }),
            By::Engine => {
                env.push("NVIDIA_VISIBLE_DEVICES=void".into());
                let words = ["nvidia-ctk", "--version"];
                let gpu = hook(&self.programs.join(words[0]), &words, Some(ENVIRONMENT));
                own = json!({ "createContainer": hooks, "poststop": [gpu] });
            }
            By::Ours => {
                env.push("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=cell".into());
                let named = |hook: &Value| {
                    let mut hook = hook.clone();
                    hook["hookName"] = "createContainer".into();
                    hook
                };
                let hooks: Vec<Value> = hooks.iter().map(named).collect();
                let device = json!({ "name": "cell", "containerEdits": { "hooks": hooks } });
                let spec =
                    json!({ "cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [device] });
                fs::write(self.work.join("cdi/cell.json"), spec.to_string())?;
            }
        }
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "terminal": false, "user": { "uid": 0, "gid": 0 }, "args": ["/bin/sh", "-c", ":"], "env": env, "cwd": "/",
            },
            "root": { "path": self.root },
            "mounts": [
                mount("/proc", "proc", "proc", &[]),
                mount("/dev", "tmpfs", "tmpfs", &["nosuid", "mode=755", "size=65536k"]),
            ],
            "hooks": own,
            "linux": { "namespaces": [{ "type": "mount" }, { "type": "pid" }] },
        });
        fs::write(bundle.join("config.json"), config.to_string())?;
        let program = match by {
            By::Ours | By::Engine => self.programs.join("nvidia-container-runtime"),
            By::Plain => self.runtime.clone(),
        };
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("nvc-cell-{}-{number}", std::process::id());
        let mut command = Command::new(program);
        command.env_clear().env("PATH", PATH);
        command.env("NVIDIA_CTK_CONFIG_FILE_PATH", self.work.join("config.toml"));
        command.arg("--root").arg(self.work.join("state"));
        let output = command.args(["run", &name]).current_dir(bundle).output()?;
        Ok((
            output.status.success(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ))
    }

    /// Returns what the image did on the host since the last call.
    fn take_marks(&self) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.marks())? {
            let entry = entry?;
            found.push(entry.file_name().to_string_lossy().into_owned());
            fs::remove_file(entry.path())?;
        }
        Ok(found)
    }

    fn nothing_happened(&self) -> io::Result<()> {
        match self.take_marks()? {
            none if none.is_empty() => Ok(()),
            some => Err(io::Error::other(format!(
                "the image left {some:?} on the host"
            ))),
        }
    }

    fn cell(&self, by: By, program: &[&str], env: Option<&str>) -> io::Result<()> {
        let hooks: Vec<Value> = HOOKS
            .iter()
            .map(|words| {
                let args: Vec<&str> = program.iter().copied().chain(words.split(' ')).collect();
                hook(&self.programs.join(program[0]), &args, env)
            })
            .collect();
        for link in LINKS {
            let _ = fs::remove_file(self.root.join("etc").join(link));
        }
        let (started, said) = self.start(by, &hooks)?;
        self.nothing_happened()?;
        let is_made = |link: &&str| self.root.join("etc").join(link).is_symlink();
        if started && LINKS.iter().all(is_made) {
            Ok(())
        } else {
            Err(io::Error::other(format!("the hooks did not run: {said}")))
        }
    }

    /// A dynamic program that is not ours.
    fn foreign(&self) -> io::Result<()> {
        let (started, said) =
            self.start(By::Ours, &[hook(Path::new("/bin/true"), &["true"], None)])?;
        self.nothing_happened()?;
        if started {
            Ok(())
        } else {
            Err(io::Error::other(said))
        }
    }

    /// Compares the whole environment.
    fn given(&self, by: By) -> io::Result<()> {
        let seen = self.work.join("seen");
        let copy = ["cp", "/proc/self/environ", &seen.display().to_string()];
        let (_, said) = self.start(by, &[hook(Path::new("/bin/cp"), &copy, None)])?;
        let found = fs::read_to_string(&seen);
        let _ = fs::remove_file(&seen);
        match found {
            Ok(seen) if seen == format!("{FIXED}\0") => Ok(()),
            seen => Err(io::Error::other(format!("{seen:?} {said}"))),
        }
    }

    /// A dynamic program with the image's variables obeys them: the matrix can see it.
    fn control(&self) -> io::Result<()> {
        let mut hook = hook(Path::new("/bin/true"), &["true"], None);
        hook["env"] = json!(self.variables());
        let (_, said) = self.start(By::Plain, &[hook])?;
        match self.take_marks()? {
            none if none.is_empty() => Err(io::Error::other(format!("nothing happened: {said}"))),
            _ => Ok(()),
        }
    }

    /// Returns true if the runtime gives a dynamic program without `env` the container's environment.
    fn gives_environment(&self) -> io::Result<bool> {
        self.start(By::Plain, &[hook(Path::new("/bin/true"), &["true"], None)])?;
        Ok(!self.take_marks()?.is_empty())
    }
}
