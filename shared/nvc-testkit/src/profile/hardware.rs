//! Describes the parts of a machine beside its GPUs: DRM nodes, IMEX channels, other drivers, and odd nodes.
//!
//! They are statements of a profile. NVML skips them; the builder of a driver root creates what they say:
//!
//! ```text
//! drm gpu=1 card=0 render=129                      DRM nodes of a GPU; gpu counts `gpu` lines from 0
//! channel number=2047                              an IMEX channel
//! module name=nvidia-fs                            a driver in /proc/devices, whose major number the builder chooses
//! node type=c major=nvidia-fs minor=0 path=/dev/nvidia-fs0
//! ```
//!
//! A `node` replaces what is at its path. Its type is `c`, `b`, `p` (a fifo) or `f` (a file); its major number is a
//! number, or the name of a driver in /proc/devices.

use std::fmt;

use super::word;

/// Parts beside the GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    /// DRM nodes of GPUs.
    pub displays: Vec<Display>,
    /// IMEX channels; an ordinary package without any has 0, 1 and 2047.
    pub channels: Vec<u32>,
    /// Other drivers in /proc/devices.
    pub modules: Vec<String>,
    /// Further nodes, in the order of their creation.
    pub nodes: Vec<Node>,
}

/// A GPU's DRM nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Display {
    /// Index of the GPU in NVML's order.
    pub gpu: usize,
    /// Number of the node for displays.
    pub card: u32,
    /// Number of the node for rendering.
    pub render: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its path in the root.
    pub path: String,
    /// `c`, `b`, `p` or `f`.
    pub kind: char,
    /// A number, or the name of a driver.
    pub major: String,
    /// Minor number.
    pub minor: u32,
}

impl Display {
    /// Returns the nodes' names and minor numbers.
    pub fn nodes(&self) -> [(String, u32); 2] {
        let (card, render) = (self.card, self.render);
        [
            (format!("card{card}"), card),
            (format!("renderD{render}"), render),
        ]
    }
}

impl Hardware {
    /// Parses a statement; None if it is another one, or incomplete.
    pub(super) fn statement(&mut self, line: &str) -> Option<()> {
        let (kind, words) = line.split_once(' ')?;
        let number = |key: &str| word(words, key)?.parse().ok();
        match kind {
            "drm" => self.displays.push(Display {
                gpu: word(words, "gpu")?.parse().ok()?,
                card: number("card")?,
                render: number("render")?,
            }),
            "channel" => self.channels.push(number("number")?),
            "module" => self.modules.push(word(words, "name")?.into()),
            "node" => self.nodes.push(Node {
                path: word(words, "path")?.into(),
                kind: word(words, "type")?
                    .chars()
                    .next()
                    .filter(|kind| "cbpf".contains(*kind))?,
                major: word(words, "major")?.into(),
                minor: number("minor")?,
            }),
            _ => return None,
        }
        Some(())
    }
}

impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Display { gpu, card, render } in &self.displays {
            writeln!(f, "drm gpu={gpu} card={card} render={render}")?;
        }
        for number in &self.channels {
            writeln!(f, "channel number={number}")?;
        }
        for name in &self.modules {
            writeln!(f, "module name={name}")?;
        }
        for node in &self.nodes {
            let (kind, major, minor) = (node.kind, &node.major, node.minor);
            writeln!(
                f,
                "node type={kind} major={major} minor={minor} path={}",
                node.path
            )?;
        }
        Ok(())
    }
}
