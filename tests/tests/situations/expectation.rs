//! Compares what a container finds with what it should find.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use super::machine::Machine;
use super::real;

/// What a word leads to: `look` in the container takes the name of a library, a program or a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    /// The host's file of this path, and its path in the container if that matters.
    Host(&'static str, Option<&'static str>),
    /// Another file, of the image or a volume, with this path in the container.
    Own(&'static str),
    Nothing,
}

/// What a cell expects.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    words: BTreeMap<&'static str, Target>,
    /// SONAMEs of the driver that the user wants to lead elsewhere.
    lost: Vec<&'static str>,
    /// What the driver's libraries need and the image lacks.
    lacks: Vec<&'static str>,
    /// The container does not start, and the message has these texts.
    fails: Option<&'static [&'static str]>,
    /// A warning has this text.
    warns: Option<&'static str>,
    /// No message has this text.
    unsaid: Option<&'static str>,
    /// NVML was asked about so many GPUs.
    attached: Option<usize>,
}

impl Default for Expected {
    /// Everything that an ordinary host has is the host's.
    fn default() -> Self {
        let libraries = [
            ("libcuda.so.1", "/LIB/libcuda.so.VER"),
            ("libnvidia-ml.so.1", "/LIB/libnvidia-ml.so.VER"),
            ("libGLX_nvidia.so.0", "/LIB/libGLX_nvidia.so.VER"),
            ("libnvidia-glcore.so.VER", "/LIB/libnvidia-glcore.so.VER"),
        ];
        let words = libraries.map(|(word, path)| (word, Target::Host(path, None)));
        let expected = Self {
            words: words.into(),
            lost: Vec::new(),
            lacks: Vec::new(),
            fails: None,
            warns: None,
            unsaid: None,
            attached: None,
        };
        expected.program("nvidia-smi", "/usr/bin/nvidia-smi")
    }
}

impl Expected {
    /// The host's files are where a real machine has them, and need what they need there.
    pub(crate) fn on_a_real_layout(self) -> Self {
        let place = |target: Target| match target {
            Target::Host(path, at) => Target::Host(real::place(path), at),
            other => other,
        };
        let words = self.words.into_iter();
        let words = words.map(|(word, target)| (word, place(target)));
        let words = words.filter(|(word, _)| *word != "libGLX_nvidia.so.0");
        Self {
            words: words.collect(),
            lacks: real::LACKS.to_vec(),
            ..self
        }
    }

    /// Nothing is said about any word.
    pub(crate) fn wordless(mut self) -> Self {
        self.words.clear();
        self
    }

    /// The word leads to the host's file.
    pub(crate) fn host(mut self, word: &'static str, path: &'static str) -> Self {
        self.words.insert(word, Target::Host(path, None));
        self
    }

    /// All libraries of an ordinary host are in this directory of it.
    pub(crate) fn libraries(self, paths: [&'static str; 4]) -> Self {
        let [cuda, nvml, glx, core] = paths;
        self.host("libcuda.so.1", cuda)
            .host("libnvidia-ml.so.1", nvml)
            .host("libGLX_nvidia.so.0", glx)
            .host("libnvidia-glcore.so.VER", core)
    }

    /// The program is at /usr/bin in the container, and the host's of this path.
    pub(crate) fn program(mut self, name: &'static str, path: &'static str) -> Self {
        let at = if name == "nvidia-smi" {
            "/usr/bin/nvidia-smi"
        } else {
            name
        };
        self.words.insert(name, Target::Host(path, Some(at)));
        self
    }

    /// The word leads to a file of the image or a volume.
    pub(crate) fn own(mut self, word: &'static str, path: &'static str) -> Self {
        self.words.insert(word, Target::Own(path));
        self
    }

    /// The word leads nowhere.
    pub(crate) fn nothing(mut self, word: &'static str) -> Self {
        self.words.insert(word, Target::Nothing);
        self
    }

    /// Nothing is said about the word.
    pub(crate) fn without(mut self, word: &'static str) -> Self {
        self.words.remove(word);
        self
    }

    /// A SONAME of the driver leads to another file, which the user wants.
    pub(crate) fn lost(mut self, soname: &'static str) -> Self {
        self.lost.push(soname);
        self
    }

    /// The image lacks these, which libraries of the driver need.
    pub(crate) fn lacks(mut self, names: &[&'static str]) -> Self {
        self.lacks.extend(names);
        self
    }

    pub(crate) fn fails(mut self, texts: &'static [&'static str]) -> Self {
        self.fails = Some(texts);
        self
    }

    pub(crate) fn warns(mut self, text: &'static str) -> Self {
        self.warns = Some(text);
        self
    }

    pub(crate) fn never_says(mut self, text: &'static str) -> Self {
        self.unsaid = Some(text);
        self
    }

    pub(crate) fn attached(mut self, gpus: usize) -> Self {
        self.attached = Some(gpus);
        self
    }

    /// Nothing is said about warnings.
    pub(crate) fn silent(mut self) -> Self {
        self.warns = None;
        self
    }

    /// Returns the words that `look` is asked.
    pub(crate) fn words(&self) -> impl Iterator<Item = &'static str> {
        self.words.keys().copied()
    }
}

/// What a container found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) succeeded: bool,
    /// The output of `look`.
    pub(crate) out: String,
    /// All messages: standard error, and the system's log.
    pub(crate) said: String,
}

impl Found {
    /// Returns what differs from the expectation.
    pub(crate) fn faults(&self, machine: &Machine, expected: &Expected) -> Vec<String> {
        let text = |text: &str| machine.driver.fill(text);
        if let Some(texts) = expected.fails {
            let missing = texts.iter().find(|part| !self.said.contains(&text(part)));
            return match missing {
                _ if self.succeeded => vec![format!("started, should have failed with {texts:?}")],
                Some(part) => vec![format!("no `{part}` in: {}", self.said)],
                None => Vec::new(),
            };
        }
        if !self.succeeded {
            return vec![format!("failed: {}", self.said)];
        }
        let mut faults = Vec::new();
        let lines: Vec<Vec<&str>> = self
            .out
            .lines()
            .map(|line| line.split('\t').collect())
            .collect();
        for (word, target) in &expected.words {
            let word = text(word);
            let columns = lines.iter().find(|columns| columns[0] == word);
            let found = columns.and_then(|columns| match columns[..] {
                [_, path, device, inode] => Some((path, device, inode)),
                _ => None,
            });
            let is_right = match (target, found) {
                (Target::Nothing, None) => true,
                (Target::Own(own), Some((path, ..))) => path == text(own),
                (Target::Host(file, at), Some((path, device, inode))) => {
                    let own = fs::metadata(machine.driver.path(text(file)));
                    own.is_ok_and(|own| {
                        device.parse() == Ok(own.dev()) && inode.parse() == Ok(own.ino())
                    }) && at.is_none_or(|at| path == text(at))
                }
                _ => false,
            };
            if !is_right {
                let found = found.map_or("nothing", |(path, ..)| path);
                faults.push(format!("{word} leads to {found}, should be {target:?}"));
            }
        }
        for columns in &lines {
            if let Some(soname) = columns[0].strip_prefix("wrong ")
                && !expected.lost.iter().any(|lost| text(lost) == soname)
            {
                faults.push(format!(
                    "{soname} of {} leads to {}",
                    columns[1], columns[2]
                ));
            }
        }
        for columns in &lines {
            if let Some(name) = columns[0].strip_prefix("lacks ")
                && !expected.lacks.contains(&name)
            {
                faults.push(format!("{name} is missing, which {} needs", columns[1]));
            }
        }
        let attached = machine.attached();
        if expected.attached.is_some_and(|gpus| gpus != attached) {
            faults.push(format!("NVML was asked about {attached} GPUs"));
        }
        if let Some(warning) = expected.warns
            && !self.said.contains(&text(warning))
        {
            faults.push(format!("no `{warning}` in: {}", self.said));
        }
        if let Some(unsaid) = expected.unsaid
            && self.said.contains(unsaid)
        {
            faults.push(format!("`{unsaid}` in: {}", self.said));
        }
        faults
    }
}
