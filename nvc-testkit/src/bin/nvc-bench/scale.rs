//! Measures how times and system calls scale with the machine, the image and the container.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;
use std::{fs, io};

use nix::mount::{MsFlags, mount};
use nvc_testkit::driver;
use nvc_testkit::elf::{Machine, SharedObject};
use nvc_testkit::files;
use nvc_testkit::machine::Scratch;
use nvc_testkit::profile::Profile;
use nvc_testkit::rootfs::{self, Layout};

use crate::bed::{Bed, Roots};
use crate::cases::{Case, Ldconfig, Program, USUAL};
use crate::timing::{Figures, measure};
use crate::trace::Memory;

/// A series of measurements of growing size.
pub(crate) struct Series {
    /// Name for the marks in the text and the file.
    pub(crate) title: &'static str,
    /// The variable.
    pub(crate) axis: &'static str,
    /// In ascending order.
    pub(crate) points: Vec<Point>,
}

/// Measurements at one size.
pub(crate) struct Point {
    /// The size's name in tables.
    pub(crate) label: String,
    /// The measurements.
    pub(crate) lines: Vec<Line>,
}

/// Measurement of one command at one size.
pub(crate) struct Line {
    /// The command's name.
    pub(crate) name: String,
    /// Median time, ms.
    pub(crate) time: f64,
    /// System calls; None if they were not counted.
    pub(crate) calls: Option<u64>,
}

impl From<&Figures> for Line {
    fn from(figures: &Figures) -> Self {
        Self {
            name: figures.case.name.clone(),
            time: figures.median(),
            calls: Some(figures.trace.calls),
        }
    }
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
        Ok(vec![
            self.gpus()?,
            self.host_libraries()?,
            self.image_libraries()?,
            self.layers()?,
            self.image_files()?,
            self.mounts()?,
            self.parallel()?,
        ])
    }

    fn gpus(&self) -> io::Result<Series> {
        let mut points = Vec::new();
        for (gpus, migs) in [(1, 0), (8, 0), (16, 0), (64, 0), (64, 7)] {
            let size = gpus * (1 + migs);
            if size > self.up_to {
                continue;
            }
            let bed = Bed::of_size(gpus, migs)?;
            let devices = match migs {
                0 => "--device=all".to_owned(),
                _ => format!("--device={}", every_mig_device(gpus, migs)),
            };
            let all = ["--compute", "--utility", devices.as_str()];
            let cases = [
                Case::info(),
                Case::list(),
                Case::configure("configure, one GPU", USUAL, Ldconfig::Host),
                Case::configure("configure, all devices", &all, Ldconfig::Host),
            ];
            let label = match migs {
                0 => gpus.to_string(),
                _ => format!("{gpus} with {migs} MIG devices each"),
            };
            points.push(self.point(label, "GPUs", &cases, &bed)?);
        }
        Ok(Series {
            title: "GPUs of the machine",
            axis: "GPUs, MIG devices included",
            points,
        })
    }

    fn host_libraries(&self) -> io::Result<Series> {
        let cases = [Case::info(), Case::list(), self.configure(Ldconfig::Host)];
        let directory = PathBuf::from(format!("usr/lib/{}", driver::TRIPLET));
        self.sizes(
            "Libraries of the host",
            "libraries in the host's ld.so.cache",
            &[100, 1000, 5000, 20_000],
            |size| {
                let directory = directory.clone();
                let edit = move |root: &Path| libraries(&root.join(&directory), 0..size);
                let builder = driver::Builder::new(Profile::default()).edit(edit);
                Ok((Bed::simulated(&builder)?, cases.to_vec(), None))
            },
        )
    }

    fn image_libraries(&self) -> io::Result<Series> {
        let cases = self.with_ldconfig();
        self.sizes(
            "Libraries of the image",
            "libraries in the image's ld.so.cache",
            // With 20,000 libraries, ldconfig under ptrace exceeds its deadline.
            &[100, 1000, 5000],
            |size| {
                let (layers, scratch) = generated(Layout::Debian, size, 1)?;
                let bed = Bed::simulated(&driver::Builder::default())?;
                let bed = bed.with_roots(Roots::Overlay(layers));
                Ok((bed, cases.clone(), Some(scratch)))
            },
        )
    }

    fn layers(&self) -> io::Result<Series> {
        let cases = self.with_ldconfig();
        self.sizes(
            "Layers of the image",
            "overlay layers, 1,000 libraries in all",
            &[1, 5, 10, 20, 40],
            |size| {
                let (layers, scratch) = generated(Layout::Debian, 1000, size)?;
                let bed = Bed::simulated(&driver::Builder::default())?;
                let bed = bed.with_roots(Roots::Overlay(layers));
                Ok((bed, cases.clone(), Some(scratch)))
            },
        )
    }

    fn image_files(&self) -> io::Result<Series> {
        let cases = self.with_ldconfig();
        self.sizes(
            "Files of the image",
            "files that are no libraries",
            &[1000, 10_000, 100_000],
            |size| {
                let (layers, scratch) = generated(Layout::Debian, 100, 1)?;
                for file in 0..size {
                    let name = format!("usr/share/d{}/f{file}", file / 100);
                    files::file(&scratch.join("layer0").join(name), "", 0o644)?;
                }
                let bed = Bed::simulated(&driver::Builder::default())?;
                let bed = bed.with_roots(Roots::Overlay(layers));
                Ok((bed, cases.clone(), Some(scratch)))
            },
        )
    }

    fn mounts(&self) -> io::Result<Series> {
        let mut cases = self.with_ldconfig();
        cases.extend(Case::all(None).into_iter().filter(Case::has_cgroup));
        self.sizes(
            "Mounts of the container's namespace",
            "mounts before configure",
            &[10, 100, 1000, 10_000],
            |size| {
                // Created in this namespace, from which containers' are copied.
                let scratch = Scratch::new()?;
                for number in 0..size {
                    let point = scratch.join(format!("d{}/m{number}", number / 100));
                    files::directory(&point)?;
                    let bind = MsFlags::MS_BIND;
                    mount(Some("/etc"), &point, None::<&str>, bind, None::<&str>)?;
                }
                let bed = Bed::simulated(&driver::Builder::default())?;
                Ok((bed, cases.clone(), Some(scratch)))
            },
        )
    }

    /// Configures containers in parallel: the time until the last is done.
    fn parallel(&self) -> io::Result<Series> {
        let bed = Bed::simulated(&driver::Builder::default())?;
        let case = self.configure(Ldconfig::Host);
        let mut points = Vec::new();
        for size in [1, 4, 16, 64] {
            if size > self.up_to {
                continue;
            }
            let mut times = Vec::new();
            for _ in 0..self.runs.div_ceil(4) {
                let ready: io::Result<Vec<_>> = (0..size)
                    .map(|_| case.prepare(self.program, &bed))
                    .collect();
                let mut ready = ready?;
                let start = Instant::now();
                let started: io::Result<Vec<Child>> = ready
                    .iter_mut()
                    .map(|ready| {
                        let command = &mut ready.command;
                        command.stdin(Stdio::null()).stdout(Stdio::null());
                        command.stderr(Stdio::null()).spawn()
                    })
                    .collect();
                for mut child in started? {
                    if !child.wait()?.success() {
                        let text = "configure of containers in parallel failed";
                        return Err(io::Error::other(text));
                    }
                }
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
            times.sort_by(f64::total_cmp);
            let all = times.get(times.len() / 2).copied().unwrap_or_default();
            let line = |name: &str, time| Line {
                name: name.into(),
                time,
                calls: None,
            };
            points.push(Point {
                label: size.to_string(),
                lines: vec![
                    line("all of them", all),
                    line("per container", all / f64::from(size)),
                ],
            });
        }
        Ok(Series {
            title: "Containers at the same time",
            axis: "containers",
            points,
        })
    }

    fn sizes(
        &self,
        title: &'static str,
        axis: &'static str,
        sizes: &[u32],
        mut make: impl FnMut(u32) -> io::Result<(Bed, Vec<Case>, Option<Scratch>)>,
    ) -> io::Result<Series> {
        let mut points = Vec::new();
        for &size in sizes.iter().filter(|size| **size <= self.up_to) {
            // The roots use the scratch space, so it is dropped last.
            let (bed, cases, _scratch) = make(size)?;
            points.push(self.point(size.to_string(), axis, &cases, &bed)?);
        }
        Ok(Series {
            title,
            axis,
            points,
        })
    }

    fn point(&self, label: String, axis: &str, cases: &[Case], bed: &Bed) -> io::Result<Point> {
        let programs = std::slice::from_ref(self.program);
        eprintln!("{label} {axis}");
        let figures = measure(cases, programs, bed, self.runs, Memory::Ignored)?;
        Ok(Point {
            label,
            lines: figures.iter().map(Line::from).collect(),
        })
    }

    fn configure(&self, ldconfig: Ldconfig) -> Case {
        let name = match ldconfig {
            Ldconfig::Host => "configure",
            Ldconfig::Builtin => "configure, builtin",
        };
        Case::configure(name, USUAL, ldconfig)
    }

    fn with_ldconfig(&self) -> Vec<Case> {
        vec![
            Case::bare_ldconfig(),
            self.configure(Ldconfig::Host),
            self.configure(Ldconfig::Builtin),
        ]
    }
}

/// Returns `0:0,0:1,…`
fn every_mig_device(gpus: u32, migs: u32) -> String {
    let all = (0..gpus).flat_map(|gpu| (0..migs).map(move |mig| format!("{gpu}:{mig}")));
    all.collect::<Vec<_>>().join(",")
}

/// Writes libraries of two names each, as in packages.
fn libraries(directory: &Path, numbers: std::ops::Range<u32>) -> io::Result<()> {
    for number in numbers {
        let soname = format!("libbench{number}.so.1");
        let object = SharedObject::new(Machine::NATIVE)
            .soname(soname.as_str())
            .needed("libc.so.6");
        files::file(
            &directory.join(format!("{soname}.0.{number}")),
            object.bytes(),
            0o644,
        )?;
        files::link(&directory.join(&soname), &format!("{soname}.0.{number}"))?;
    }
    Ok(())
}

/// Generates an image whose libraries are spread over layers, topmost first.
///
/// # Errors
/// It cannot be created.
pub(crate) fn generated(
    layout: Layout,
    size: u32,
    count: u32,
) -> io::Result<(Vec<PathBuf>, Scratch)> {
    let scratch = Scratch::new()?;
    let builder = rootfs::Builder::new(layout);
    let directory = PathBuf::from(builder.libraries().trim_start_matches('/'));
    let within = directory.clone();
    let base = builder
        .edit(move |root| libraries(&root.join(&within), 0..size))
        .build(scratch.join("layer0"))?;
    let mut layers = vec![base.clone()];
    for layer in 1..count {
        let path = scratch.join(format!("layer{layer}"));
        files::directory(&path.join(&directory))?;
        for number in (layer..size).step_by(count as usize) {
            let soname = format!("libbench{number}.so.1");
            for name in [format!("{soname}.0.{number}"), soname] {
                let name = directory.join(name);
                fs::rename(base.join(&name), path.join(&name))?;
            }
        }
        layers.insert(0, path);
    }
    // As after the installation of the last library: newer than all directories.
    let cache = base.join("etc/ld.so.cache");
    fs::write(&cache, fs::read(&cache)?)?;
    Ok((layers, scratch))
}
