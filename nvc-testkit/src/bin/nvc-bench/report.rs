//! Writes measurements as Markdown tables, and inserts them between marks in a page.

use std::path::Path;
use std::process::Command;
use std::{fs, io, thread};

use crate::bed::Bed;
use crate::cases::{Program, UPSTREAM_TRUE};
use crate::timing::Figures;

/// Replaces the text between `<!-- bench: MARK -->` and `<!-- end -->` in a page by tables.
pub(crate) fn put(page: &Path, mark: &str, tables: &str) -> io::Result<()> {
    let text = fs::read_to_string(page)?;
    let start = format!("<!-- bench: {mark} -->\n");
    let missing = || io::Error::other(format!("{}: no {start}", page.display()));
    let (before, rest) = text.split_once(&start).ok_or_else(missing)?;
    let (_, after) = rest.split_once("<!-- end -->").ok_or_else(missing)?;
    fs::write(page, format!("{before}{start}{tables}<!-- end -->{after}"))
}

/// Formats a table; the first `words` columns are text, the others numbers.
pub(crate) fn table(
    heads: &str,
    words: usize,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let rules = heads.split(" | ").enumerate();
    let rules = rules.map(|(column, _)| if column < words { "---" } else { "---:" });
    let rules = rules.collect::<Vec<_>>().join(" | ");
    let rows = rows.into_iter().map(|row| row.join(" | "));
    let lines = [heads.to_owned(), rules].into_iter().chain(rows);
    lines.map(|line| format!("| {line} |\n")).collect()
}

/// Describes machine, date and number of runs.
pub(crate) fn machine(bed: &Bed, runs: usize) -> io::Result<String> {
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let cpu = cpu.unwrap_or("an unknown processor");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let date = Command::new("date").args(["-u", "+%F %R UTC"]).output()?;
    Ok(format!(
        "{} of {} cores, Linux {}, {}; {runs} runs of each command, in turn, on {}.\n",
        cpu.trim_start_matches([' ', '\t', ':']),
        thread::available_parallelism()?,
        kernel.trim(),
        String::from_utf8_lossy(&date.stdout).trim(),
        bed.name
    ))
}

/// Formats the tables of commands: the short one of the README, times relative to the start of any program and to
/// upstream, resources, the memory of each process, and other programs relative to the first.
pub(crate) fn commands(all: &[Figures], programs: &[Program], bed: &Bed) -> [String; 5] {
    let own = || all.iter().filter(|figures| figures.program == 0);
    let median_of = |name: &str| {
        let found = own().find(|figures| figures.case.name == name);
        found.map_or(f64::NAN, |found| found.percentile(50))
    };
    let start = median_of("/bin/true");
    let cell = |figures: &Figures, head: &str| {
        let (name, time, trace) = (&figures.case.name, figures.percentile(50), &figures.trace);
        // On a machine of this speed.
        let upstream = figures.case.upstream.filter(|_| bed.is_fixture);
        let upstream =
            upstream.map(|(time, calls, goal)| (time * start / UPSTREAM_TRUE, calls, goal));
        match head {
            "command" => Some(name.clone()),
            "program" => Some(programs[figures.program].path.display().to_string()),
            "p50" => Some(format!("{time:.2} ms")),
            "p99" => Some(format!("{:.2} ms", figures.percentile(99))),
            "of `/bin/true`" => Some(format!("{:.1}", time / start)),
            "of the baseline" => {
                let ratio = time / median_of(&format!("baseline of {name}"));
                (!ratio.is_nan()).then(|| format!("{ratio:.2}"))
            }
            "upstream, scaled" => upstream.map(|(scaled, ..)| format!("{scaled:.1} ms")),
            "of upstream" | "of upstream's time" => {
                upstream.map(|(scaled, ..)| format!("{:.2}", time / scaled))
            }
            "goal" => upstream.map(|(.., goal)| format!("{goal:.2}")),
            "upstream's" => upstream.map(|(_, calls, _)| calls.to_string()),
            "system calls" => Some(trace.calls.to_string()),
            "processes" => Some(trace.processes.len().to_string()),
            "more threads" => Some(trace.threads.to_string()),
            "largest process" => {
                let peaks = trace.processes.iter().map(|(_, peak)| peak);
                peaks.max().map(|peak| format!("{peak} kB"))
            }
            "paired ratio to the first" => {
                let first = own().find(|first| first.case.name == *name);
                first.map(|first| format!("{:.3}", figures.paired_ratio(first)))
            }
            _ => None,
        }
    };
    let row = |figures, heads: &str| {
        let cells = heads.split(" | ").map(|head| cell(figures, head));
        cells.map(Option::unwrap_or_default).collect()
    };
    let of_own = |heads: &str| table(heads, 1, own().map(|figures| row(figures, heads)));
    let memory = own()
        .filter(|figures| figures.case.is_ours())
        .flat_map(|figures| {
            let processes = figures.trace.processes.iter();
            processes.map(|(process, peak)| {
                vec![
                    figures.case.name.clone(),
                    process.clone(),
                    format!("{peak} kB"),
                ]
            })
        });
    let ratios = "command | program | p50 | paired ratio to the first | system calls";
    let ours = all.iter().filter(|figures| figures.case.is_ours());
    [
        of_own("command | p50 | of upstream's time | system calls | upstream's"),
        of_own(
            "command | p50 | p99 | of `/bin/true` | of the baseline | upstream, scaled | of upstream | goal",
        ),
        of_own("command | system calls | upstream's | processes | more threads | largest process"),
        table("command | process | peak", 2, memory),
        table(ratios, 2, ours.map(|figures| row(figures, ratios))),
    ]
}
