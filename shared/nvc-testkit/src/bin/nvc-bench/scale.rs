//! Measures how times and system calls scale with the machine, the image and the container, and on real images.

use std::path::{Path, PathBuf};
use std::{fs, io, slice};

use nix::mount::{MsFlags, mount};
use nvc_testkit::driver;
use nvc_testkit::elf::{Machine, SharedObject};
use nvc_testkit::files;
use nvc_testkit::machine::Scratch;
use nvc_testkit::profile::Profile;
use nvc_testkit::rootfs::{self, Layout};

use crate::bed::{Bed, cached};
use crate::cases::{BUILTIN, Case, HOST, Program, USUAL};
use crate::report::table;
use crate::timing::{measure, percentile, time};

/// The setup for one size, the commands, and files that must stay until the end.
type Made = (Bed, Vec<Case>, Option<Scratch>);

/// Measures all series up to a size; returns their tables.
pub(crate) fn all(program: &Program, runs: usize, up_to: u32) -> io::Result<String> {
    let mut tables = String::new();
    let mut series = |axis, sizes: &[u32], make: fn(u32) -> io::Result<Made>| {
        let mut rows = Vec::new();
        for size in sizes.iter().filter(|size| **size <= up_to) {
            let name = match *size {
                WITH_MIGS => "64 with 7 MIG devices each".to_owned(),
                size => size.to_string(),
            };
            rows.push((name, of_size(program, runs, make(*size)?)?));
        }
        tables += &titled(axis, &rows);
        io::Result::Ok(())
    };
    let gpus = [1, 64, WITH_MIGS];
    series(
        "GPUs of the machine, MIG devices included",
        &gpus,
        with_gpus,
    )?;
    series(
        "GPUs whose first handle takes 7 ms",
        &[1, 16],
        with_slow_gpus,
    )?;
    series(
        "libraries in the host's ld.so.cache",
        &[100, 20_000],
        with_host_libraries,
    )?;
    // With 20,000 libraries, ldconfig exceeds its deadline.
    series(
        "libraries in the image's ld.so.cache",
        &[100, 5000],
        |size| on_generated(Layout::Debian, size, 1),
    )?;
    series("overlay layers, 1,000 libraries in all", &[1, 40], |size| {
        on_generated(Layout::Debian, 1000, size)
    })?;
    series(
        "mounts of the namespace before configure",
        &[10, 10_000],
        with_mounts,
    )?;
    Ok(tables + &parallel(program, runs, up_to)?)
}

/// Measures the images of `scripts/bench/images.sh`, or generated ones of the same shape: there ldconfig takes longer
/// than everything else together.
pub(crate) fn images(program: &Program, runs: usize) -> io::Result<String> {
    let cache = cached("NVC_BENCH_CACHE", "nvc-bench");
    let cache = cache.filter(|cache| cache.join("complete").exists());
    let mut rows = Vec::new();
    for (name, directory, layout, layers) in [
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
    ] {
        let Some(cache) = &cache else {
            let made = on_generated(layout, 2000, layers)?;
            let name = format!("{name}, 2000 generated libraries");
            rows.push((name, of_size(program, runs, made)?));
            continue;
        };
        let numbered = |n| cache.join(format!("{directory}/{n:02}"));
        let layers = match layers {
            1 => vec![cache.join(directory)],
            _ => (0..layers).rev().map(numbered).collect(),
        };
        rows.push((
            name.to_owned(),
            of_size(program, runs, on_image(layers, None)?)?,
        ));
    }
    Ok(titled("image", &rows))
}

/// A command with its result.
type Cell = (String, String);

fn of_size(program: &Program, runs: usize, (bed, cases, _scratch): Made) -> io::Result<Vec<Cell>> {
    let figures = measure(&cases, slice::from_ref(program), &bed, runs)?;
    let cells = figures.into_iter().map(|figures| {
        let (time, calls) = (figures.percentile(50), figures.trace.calls);
        (figures.case.name, format!("{time:.2} ms, {calls} calls"))
    });
    Ok(cells.collect())
}

/// Formats a series: a row for each size, a column for each command.
fn titled(axis: &str, rows: &[(String, Vec<Cell>)]) -> String {
    let Some((_, first)) = rows.first() else {
        return String::new();
    };
    let names = first.iter().map(|(name, _)| name.as_str());
    let heads: Vec<_> = [axis].into_iter().chain(names).collect();
    let rows = rows.iter().map(|(size, cells)| {
        let cells = cells.iter().map(|(_, cell)| cell);
        [size].into_iter().chain(cells).cloned().collect()
    });
    format!("{}\n", table(&heads.join(" | "), 1, rows))
}

/// Configures containers in parallel: the time until the last is done.
fn parallel(program: &Program, runs: usize, up_to: u32) -> io::Result<String> {
    let bed = Bed::simulated(&driver::Builder::default())?;
    let case = Case::configure("configure", HOST, USUAL);
    let mut rows = Vec::new();
    for size in [1, 64].into_iter().filter(|size| *size <= up_to) {
        let mut times = Vec::new();
        for _ in 0..runs.div_ceil(4) {
            let ready = (0..size).map(|_| case.prepare(program, &bed));
            let mut ready = ready.collect::<io::Result<Vec<_>>>()?;
            times.push(time(ready.iter_mut().map(|ready| &mut ready.command))?);
        }
        let all = percentile(times, 50);
        let cells = [all, all / f64::from(size)].map(|time| format!("{time:.2} ms"));
        rows.push([vec![size.to_string()], cells.into()].concat());
    }
    Ok(table(
        "containers at the same time | all of them | per container",
        1,
        rows,
    ))
}

/// Stands for 64 GPUs with seven MIG devices each.
const WITH_MIGS: u32 = 64 * 8;

fn with_gpus(size: u32) -> io::Result<Made> {
    let (gpus, migs) = if size == WITH_MIGS {
        (64, 7)
    } else {
        (size, 0)
    };
    let bed = Bed::simulated(&driver::Builder::new(Profile::of_size(gpus, migs)))?;
    let names = (0..gpus).flat_map(|gpu| (0..migs).map(move |mig| format!("{gpu}:{mig}")));
    let names = names.collect::<Vec<_>>().join(",");
    let names = if migs == 0 { "all" } else { &names };
    let all = format!("--compute --utility --device={names}");
    let mut cases = Case::shows();
    cases.push(Case::configure("configure, one GPU", HOST, USUAL));
    cases.push(Case::configure("configure, all devices", HOST, &all));
    Ok((bed, cases, None))
}

/// A request for one GPU must not pay for the others.
fn with_slow_gpus(size: u32) -> io::Result<Made> {
    let profile = Profile {
        attach_ms: 7,
        ..Profile::of_size(size, 0)
    };
    let bed = Bed::simulated(&driver::Builder::new(profile))?;
    let cases = vec![
        Case::list("list, all GPUs", ""),
        Case::list("list, one GPU", "--device=0"),
        Case::configure("configure, one GPU", HOST, USUAL),
    ];
    Ok((bed, cases, None))
}

fn with_host_libraries(size: u32) -> io::Result<Made> {
    let directory = format!("usr/lib/{}", driver::TRIPLET);
    let edit = move |root: &Path| libraries(&root.join(&directory), size);
    let bed = Bed::simulated(&driver::Builder::new(Profile::default()).edit(edit))?;
    let mut cases = Case::shows();
    cases.push(Case::configure("configure", HOST, USUAL));
    Ok((bed, cases, None))
}

fn with_mounts(size: u32) -> io::Result<Made> {
    // Created in this namespace, from which containers' are copied.
    let (scratch, none) = (Scratch::new()?, None::<&str>);
    for number in 0..size {
        let point = scratch.join(format!("d{}/m{number}", number / 100));
        files::directory(&point)?;
        mount(Some("/etc"), &point, none, MsFlags::MS_BIND, none)?;
    }
    let mut cases = on_ldconfig();
    cases.extend(Case::cgroups());
    let bed = Bed::simulated(&driver::Builder::default())?;
    Ok((bed, cases, Some(scratch)))
}

fn on_generated(layout: Layout, size: u32, layers: u32) -> io::Result<Made> {
    let (layers, scratch) = generated(layout, size, layers)?;
    on_image(layers, Some(scratch))
}

fn on_image(layers: Vec<PathBuf>, scratch: Option<Scratch>) -> io::Result<Made> {
    Ok((Bed::on_layers(layers)?, on_ldconfig(), scratch))
}

/// Returns the commands that depend on the updater of the cache.
fn on_ldconfig() -> Vec<Case> {
    let with = |name, updater| Case::configure(name, updater, USUAL);
    vec![
        Case::bare_ldconfig(),
        with("configure", HOST),
        with("configure, builtin", BUILTIN),
    ]
}

/// Writes libraries of two names each, as in packages.
fn libraries(directory: &Path, count: u32) -> io::Result<()> {
    for [file, soname] in (0..count).map(names) {
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
    let builder = builder.edit(move |root| libraries(&root.join(&within), size));
    let base = builder.build(scratch.join("layer0"))?;
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
