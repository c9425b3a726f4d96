//! Measures on images of a real size, where ldconfig takes longer than everything else together.

use std::path::PathBuf;
use std::{env, io};

use nvc_testkit::driver;
use nvc_testkit::machine::Scratch;
use nvc_testkit::rootfs::Layout;

use crate::bed::{Bed, Roots};
use crate::cases::{Case, Ldconfig, Program, USUAL};
use crate::scale::generated;
use crate::timing::{Figures, measure};
use crate::trace::Memory;

/// Measurements on an image.
pub(crate) struct Image {
    /// Its name.
    pub(crate) name: String,
    pub(crate) figures: Vec<Figures>,
}

/// Number of libraries in a generated image.
const LIBRARIES: u32 = 2000;

/// Measures `configure` with and without ldconfig, and ldconfig alone, on three images.
///
/// # Errors
/// An image cannot be made, or a command fails.
pub(crate) fn all(programs: &[Program], runs: usize) -> io::Result<Vec<Image>> {
    let cases = [
        Case::start(),
        Case::bare_ldconfig(),
        Case::configure("configure", USUAL, Ldconfig::Host),
        Case::configure("configure, builtin", USUAL, Ldconfig::Builtin),
    ];
    let mut images = Vec::new();
    for (name, layers, _scratch) in found()? {
        let bed = Bed::simulated(&driver::Builder::default())?;
        let bed = bed.with_roots(Roots::Overlay(layers));
        images.push(Image {
            name,
            figures: measure(&cases, programs, &bed, runs, Memory::Ignored)?,
        });
    }
    Ok(images)
}

type Layers = (String, Vec<PathBuf>, Option<Scratch>);

/// Returns the images of `scripts/bench-image.sh`, or generated ones of the same shape.
fn found() -> io::Result<Vec<Layers>> {
    let cache = env::var_os("NVC_BENCH_CACHE").map(PathBuf::from);
    let cache = cache.or_else(|| {
        let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".cache"));
        let base = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        Some(base.or_else(home)?.join("nvc-bench"))
    });
    let Some(cache) = cache.filter(|cache| cache.join("complete").exists()) else {
        let image = |name: &str, layout, layers| -> io::Result<Layers> {
            let (layers, scratch) = generated(layout, LIBRARIES, layers)?;
            let name = format!("{name}, {LIBRARIES} generated libraries");
            Ok((name, layers, Some(scratch)))
        };
        return Ok(vec![
            image("Debian's layout", Layout::Debian, 1)?,
            image("Fedora's layout", Layout::Rhel, 1)?,
            image("Debian's layout in 20 layers", Layout::Debian, 20)?,
        ]);
    };
    let layers = (0..20).rev().map(|n| cache.join(format!("layers/{n:02}")));
    Ok(vec![
        ("Debian 12".into(), vec![cache.join("debian")], None),
        (
            "the same libraries in Fedora's layout".into(),
            vec![cache.join("usr-lib64")],
            None,
        ),
        (
            "the Debian in 20 overlay layers".into(),
            layers.collect(),
            None,
        ),
    ])
}
