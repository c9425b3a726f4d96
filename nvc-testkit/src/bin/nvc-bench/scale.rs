//! Measures how times and system calls scale with the machine, the image and the container, and on real images.

use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::mount::{MsFlags, mount};
use nvc_testkit::driver;
use nvc_testkit::elf::{Machine, SharedObject};
use nvc_testkit::files;
use nvc_testkit::machine::Scratch;
use nvc_testkit::profile::Profile;
use nvc_testkit::rootfs::{self, Layout};

use crate::bed::{Bed, cached};
use crate::cases::{Case, Ldconfig, Program, USUAL};
use crate::timing::{measure, percentile, time};

/// A series of measurements of growing size.
pub(crate) struct Series {
    pub(crate) title: &'static str,
    /// The variable.
    pub(crate) axis: &'static str,
    /// The name of each size in tables, and each command with its cell.
    pub(crate) points: Vec<(String, Vec<(String, String)>)>,
}

/// Options of the measurements.
pub(crate) struct Scale<'a> {
    pub(crate) program: &'a Program,
    pub(crate) runs: usize,
    /// Largest size to measure: for the test of this program.
    pub(crate) up_to: u32,
}

impl Scale<'_> {
    /// Measures all series.
    ///
    /// # Errors
    /// A file or container cannot be created, or a command fails.
    pub(crate) fn all(&self) -> io::Result<Vec<Series>> {
        let gpus = [(1, 0), (8, 0), (16, 0), (64, 0), (64, 7)];
        let title = "GPUs of the machine";
        let migs = |size: &(u32, u32)| match size {
            (gpus, 0) => gpus.to_string(),
            (gpus, migs) => format!("{gpus} with {migs} MIG devices each"),
        };
        let fits = |(gpus, migs): &(u32, u32)| gpus * (1 + migs) <= self.up_to;
        let gpus = gpus.into_iter().filter(fits);
        let numbers = |sizes: &[u32]| {
            let sizes = sizes.iter().copied().filter(|size| *size <= self.up_to);
            sizes.collect::<Vec<_>>().into_iter()
        };
        // With 20,000 libraries, ldconfig exceeds its deadline.
        let on_image = [100, 1000, 5000];
        Ok(vec![
            self.series(title, "GPUs, MIG devices included", gpus, migs, with_gpus)?,
            self.series(
                "Libraries of the host",
                "libraries in the host's ld.so.cache",
                numbers(&[100, 1000, 5000, 20_000]),
                u32::to_string,
                with_host_libraries,
            )?,
            self.series(
                "Libraries of the image",
                "libraries in the image's ld.so.cache",
                numbers(&on_image),
                u32::to_string,
                |size| on_generated(generated(Layout::Debian, size, 1)?),
            )?,
            self.series(
                "Layers of the image",
                "overlay layers, 1,000 libraries in all",
                numbers(&[1, 5, 10, 20, 40]),
                u32::to_string,
                |size| on_generated(generated(Layout::Debian, 1000, size)?),
            )?,
            self.series(
                "Files of the image",
                "files that are no libraries",
                numbers(&[1000, 10_000, 100_000]),
                u32::to_string,
                with_files,
            )?,
            self.series(
                "Mounts of the container's namespace",
                "mounts before configure",
                numbers(&[10, 100, 1000, 10_000]),
                u32::to_string,
                with_mounts,
            )?,
            self.parallel(numbers(&[1, 4, 16, 64]))?,
        ])
    }

    /// Measures `configure` with and without ldconfig, and ldconfig alone, on the images of `scripts/bench-image.sh`,
    /// or generated ones of the same shape: there ldconfig takes longer than everything else together.
    ///
    /// # Errors
    /// An image cannot be made, or a command fails.
    pub(crate) fn images(&self) -> io::Result<Series> {
        let cache = cached("NVC_BENCH_CACHE", "nvc-bench");
        let cache = cache.filter(|cache| cache.join("complete").exists());
        let images = [
            ("Debian 12", "debian", Layout::Debian, 1),
            (
                "the same libraries in Fedora's layout",
                "usr-lib64",
                Layout::Rhel,
                1,
            ),
            (
                "the Debian in 20 overlay layers",
                "layers",
                Layout::Debian,
                20,
            ),
        ];
        let name = |(name, ..): &(&str, _, _, _)| match cache {
            Some(_) => (*name).to_owned(),
            None => format!("{name}, 2000 generated libraries"),
        };
        let make = |(_, directory, layout, layers): (_, &str, Layout, u32)| match &cache {
            None => on_generated(generated(layout, 2000, layers)?),
            Some(cache) if layers == 1 => on_image(vec![cache.join(directory)], None),
            Some(cache) => {
                let layers = (0..layers)
                    .rev()
                    .map(|n| cache.join(format!("{directory}/{n:02}")));
                on_image(layers.collect(), None)
            }
        };
        self.series(
            "Images of a real size",
            "image",
            images.into_iter(),
            name,
            make,
        )
    }

    fn series<S>(
        &self,
        title: &'static str,
        axis: &'static str,
        sizes: impl Iterator<Item = S>,
        name: impl Fn(&S) -> String,
        make: impl Fn(S) -> io::Result<Made>,
    ) -> io::Result<Series> {
        let mut points = Vec::new();
        for size in sizes {
            let label = name(&size);
            eprintln!("{label} {axis}");
            // The roots use the scratch space, so it is dropped last.
            let (bed, cases, _scratch) = make(size)?;
            let figures = measure(&cases, std::slice::from_ref(self.program), &bed, self.runs)?;
            let cells = figures.into_iter().map(|figures| {
                let (time, calls) = (figures.median(), figures.trace.calls);
                (figures.case.name, format!("{time:.2} ms, {calls} calls"))
            });
            points.push((label, cells.collect()));
        }
        Ok(Series {
            title,
            axis,
            points,
        })
    }

    /// Configures containers in parallel: the time until the last is done.
    fn parallel(&self, sizes: impl Iterator<Item = u32>) -> io::Result<Series> {
        let bed = Bed::simulated(&driver::Builder::default())?;
        let case = Case::configure("configure", USUAL, Ldconfig::Host);
        let mut points = Vec::new();
        for size in sizes {
            let mut times = Vec::new();
            for _ in 0..self.runs.div_ceil(4) {
                let ready = (0..size).map(|_| case.prepare(self.program, &bed));
                let mut ready = ready.collect::<io::Result<Vec<_>>>()?;
                times.push(time(ready.iter_mut().map(|ready| &mut ready.command))?);
            }
            let all = percentile(times, 50);
            let cell = |name: &str, time: f64| (name.to_owned(), format!("{time:.2} ms"));
            let each = all / f64::from(size);
            let cells = vec![cell("all of them", all), cell("per container", each)];
            points.push((size.to_string(), cells));
        }
        Ok(Series {
            title: "Containers at the same time",
            axis: "containers",
            points,
        })
    }
}

/// The setup for one size, the commands, and files that must stay until the end.
type Made = (Bed, Vec<Case>, Option<Scratch>);

fn with_gpus((gpus, migs): (u32, u32)) -> io::Result<Made> {
    let bed = Bed::simulated(&driver::Builder::new(Profile::of_size(gpus, migs)))?;
    let names = (0..gpus).flat_map(|gpu| (0..migs).map(move |mig| format!("{gpu}:{mig}")));
    let names = names.collect::<Vec<_>>().join(",");
    let devices = format!("--device={}", if migs == 0 { "all" } else { &names });
    let all = ["--compute", "--utility", devices.as_str()];
    let mut cases = Case::shows().to_vec();
    cases.push(Case::configure("configure, one GPU", USUAL, Ldconfig::Host));
    cases.push(Case::configure(
        "configure, all devices",
        &all,
        Ldconfig::Host,
    ));
    Ok((bed, cases, None))
}

fn with_host_libraries(size: u32) -> io::Result<Made> {
    let directory = format!("usr/lib/{}", driver::TRIPLET);
    let edit = move |root: &Path| libraries(&root.join(&directory), size);
    let bed = Bed::simulated(&driver::Builder::new(Profile::default()).edit(edit))?;
    let mut cases = Case::shows().to_vec();
    cases.push(Case::configure("configure", USUAL, Ldconfig::Host));
    Ok((bed, cases, None))
}

fn with_files(size: u32) -> io::Result<Made> {
    let (layers, scratch) = generated(Layout::Debian, 100, 1)?;
    for file in 0..size {
        let name = format!("layer0/usr/share/d{}/f{file}", file / 100);
        files::file(&scratch.join(name), "", 0o644)?;
    }
    on_image(layers, Some(scratch))
}

fn with_mounts(size: u32) -> io::Result<Made> {
    // Created in this namespace, from which containers' are copied.
    let scratch = Scratch::new()?;
    for number in 0..size {
        let point = scratch.join(format!("d{}/m{number}", number / 100));
        files::directory(&point)?;
        mount(
            Some("/etc"),
            &point,
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )?;
    }
    let bed = Bed::simulated(&driver::Builder::default())?;
    let mut cases = on_ldconfig();
    cases.extend(Case::cgroups());
    Ok((bed, cases, Some(scratch)))
}

fn on_generated((layers, scratch): (Vec<PathBuf>, Scratch)) -> io::Result<Made> {
    on_image(layers, Some(scratch))
}

fn on_image(layers: Vec<PathBuf>, scratch: Option<Scratch>) -> io::Result<Made> {
    Ok((Bed::on_layers(layers)?, on_ldconfig(), scratch))
}

/// Returns the commands that depend on the updater of the cache.
fn on_ldconfig() -> Vec<Case> {
    vec![
        Case::bare_ldconfig(),
        Case::configure("configure", USUAL, Ldconfig::Host),
        Case::configure("configure, builtin", USUAL, Ldconfig::Builtin),
    ]
}

/// Writes libraries of two names each, as in packages.
fn libraries(directory: &Path, count: u32) -> io::Result<()> {
    for number in 0..count {
        let [file, soname] = names(number);
        let object = SharedObject::new(Machine::NATIVE).soname(soname.as_str());
        let object = object.needed("libc.so.6");
        files::file(&directory.join(&file), object.bytes(), 0o644)?;
        files::link(&directory.join(&soname), &file)?;
    }
    Ok(())
}

fn names(number: u32) -> [String; 2] {
    let soname = format!("libbench{number}.so.1");
    [format!("{soname}.0.{number}"), soname]
}

/// Generates an image whose libraries are spread over layers, topmost first.
fn generated(layout: Layout, size: u32, count: u32) -> io::Result<(Vec<PathBuf>, Scratch)> {
    let scratch = Scratch::new()?;
    let builder = rootfs::Builder::new(layout);
    let directory = PathBuf::from(builder.libraries().trim_start_matches('/'));
    let within = directory.clone();
    let base = builder
        .edit(move |root| libraries(&root.join(&within), size))
        .build(scratch.join("layer0"))?;
    let mut layers = vec![base.clone()];
    for layer in 1..count {
        let path = scratch.join(format!("layer{layer}"));
        files::directory(&path.join(&directory))?;
        for name in (layer..size).step_by(count as usize).flat_map(names) {
            let name = directory.join(name);
            fs::rename(base.join(&name), path.join(&name))?;
        }
        layers.insert(0, path);
    }
    // As after the installation of the last library: newer than all directories.
    let cache = base.join("etc/ld.so.cache");
    fs::write(&cache, fs::read(&cache)?)?;
    Ok((layers, scratch))
}
