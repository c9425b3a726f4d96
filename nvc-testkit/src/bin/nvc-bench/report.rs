//! Writes measurements as Markdown tables, and inserts them between marks in a page.

use std::path::Path;
use std::process::Command;
use std::{fs, io, thread};

use crate::bed::Bed;
use crate::cases::{Program, UPSTREAM_TRUE};
use crate::scale::Series;
use crate::timing::Figures;

/// Replaces the text between `<!-- bench: MARK -->` and `<!-- end -->` in a page by tables.
///
/// # Errors
/// The page cannot be read or written, or lacks the mark.
pub(crate) fn put(page: &Path, mark: &str, tables: &str) -> io::Result<()> {
    let text = fs::read_to_string(page)?;
    let start = format!("<!-- bench: {mark} -->\n");
    let missing = || io::Error::other(format!("{}: no {start}", page.display()));
    let (before, rest) = text.split_once(&start).ok_or_else(missing)?;
    let (_, after) = rest.split_once("<!-- end -->").ok_or_else(missing)?;
    fs::write(page, format!("{before}{start}{tables}<!-- end -->{after}"))
}

/// Formats a table; the first `words` columns are text, the others numbers.
fn table(heads: &[&str], words: usize, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: &[&str]| format!("| {} |\n", cells.join(" | "));
    let rule = ["---"].repeat(words).into_iter();
    let rule: Vec<_> = rule.chain(["---:"].repeat(heads.len() - words)).collect();
    let rows = rows.into_iter().map(|row| {
        let cells: Vec<_> = row.iter().map(String::as_str).collect();
        line(&cells)
    });
    line(heads) + &line(&rule) + &rows.collect::<String>()
}

/// Describes machine, date and number of runs.
pub(crate) fn machine(bed: &Bed, runs: usize) -> io::Result<String> {
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let cpu = cpu.map_or("an unknown processor", |name| {
        name.trim_start_matches([' ', '\t', ':'])
    });
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let date = Command::new("date").args(["-u", "+%F %R UTC"]).output()?;
    Ok(format!(
        "{cpu} of {} cores, Linux {}, {}; {runs} runs of each command, in turn, on {}.\n",
        thread::available_parallelism()?,
        kernel.trim(),
        String::from_utf8_lossy(&date.stdout).trim(),
        bed.name
    ))
}

/// Returns the figures of the program that the pages describe.
fn own(all: &[Figures]) -> impl Iterator<Item = &Figures> {
    all.iter().filter(|figures| figures.program == 0)
}

fn median_of(all: &[Figures], name: &str) -> Option<f64> {
    let found = own(all).find(|figures| figures.case.name == name);
    found.map(Figures::median)
}

/// Formats upstream's time on a machine of this speed, the ratio to it, the goal and its system calls; empty if
/// unknown.
fn upstream(figures: &Figures, start: f64, bed: &Bed) -> [String; 4] {
    let Some(upstream) = figures.case.upstream.filter(|_| bed.is_fixture) else {
        return Default::default();
    };
    let scaled = upstream.time * start / UPSTREAM_TRUE;
    [
        format!("{scaled:.1} ms"),
        format!("{:.2}", figures.median() / scaled),
        format!("{:.2}", upstream.goal),
        upstream.calls.to_string(),
    ]
}

/// Formats the times of the commands, relative to the start of any program and to upstream.
pub(crate) fn times(all: &[Figures], bed: &Bed) -> String {
    let start = median_of(all, "/bin/true").unwrap_or(f64::NAN);
    let heads = [
        "command",
        "p50",
        "p99",
        "of `/bin/true`",
        "of the baseline",
        "upstream, scaled",
        "of upstream",
        "goal",
    ];
    let rows = own(all).map(|figures| {
        let time = figures.median();
        let baseline = figures.case.baseline;
        let baseline = baseline.and_then(|name| median_of(all, name));
        let [scaled, ratio, goal, _] = upstream(figures, start, bed);
        vec![
            figures.case.name.clone(),
            format!("{time:.2} ms"),
            format!("{:.2} ms", figures.p99()),
            format!("{:.1}", time / start),
            baseline.map_or_else(String::new, |baseline| format!("{:.2}", time / baseline)),
            scaled,
            ratio,
            goal,
        ]
    });
    table(&heads, 1, rows)
}

/// Formats the short table for the README.
pub(crate) fn summary(all: &[Figures], machine: &str, bed: &Bed) -> String {
    let start = median_of(all, "/bin/true").unwrap_or(f64::NAN);
    let heads = [
        "command",
        "p50",
        "of upstream's time",
        "system calls",
        "upstream's",
    ];
    let rows = own(all).map(|figures| {
        let [_, ratio, _, calls] = upstream(figures, start, bed);
        let time = format!("{:.2} ms", figures.median());
        let own_calls = figures.trace.calls.to_string();
        vec![figures.case.name.clone(), time, ratio, own_calls, calls]
    });
    format!("{machine}\n{}", table(&heads, 1, rows))
}

/// Formats system calls, processes and memory of the commands.
pub(crate) fn resources(all: &[Figures], bed: &Bed) -> String {
    let heads = [
        "command",
        "system calls",
        "upstream's",
        "processes",
        "more threads",
        "largest process",
    ];
    let rows = own(all).map(|figures| {
        let [.., calls] = upstream(figures, f64::NAN, bed);
        let largest = figures.trace.processes.iter().map(|(_, peak)| peak).max();
        vec![
            figures.case.name.clone(),
            figures.trace.calls.to_string(),
            calls,
            figures.trace.processes.len().to_string(),
            figures.trace.threads.to_string(),
            format!("{} kB", largest.unwrap_or(&0)),
        ]
    });
    table(&heads, 1, rows)
}

/// Formats the memory of each process of our commands.
pub(crate) fn memory(all: &[Figures]) -> String {
    let ours = own(all).filter(|figures| figures.case.is_ours());
    let rows = ours.flat_map(|figures| {
        let processes = figures.trace.processes.iter();
        processes.map(|(name, peak)| {
            vec![
                figures.case.name.clone(),
                name.clone(),
                format!("{peak} kB"),
            ]
        })
    });
    table(&["command", "process", "peak"], 2, rows)
}

/// Formats times and calls of the other programs relative to the first one's.
pub(crate) fn ratios(all: &[Figures], programs: &[Program]) -> String {
    let heads = [
        "command",
        "program",
        "p50",
        "paired ratio to the first",
        "system calls",
    ];
    let ours = all.iter().filter(|figures| figures.case.is_ours());
    let rows = ours.map(|figures| {
        let first = own(all).find(|first| first.case.name == figures.case.name);
        let ratio = first.map_or(f64::NAN, |first| figures.paired_ratio(first));
        vec![
            figures.case.name.clone(),
            programs[figures.program].path.display().to_string(),
            format!("{:.2} ms", figures.median()),
            format!("{ratio:.3}"),
            figures.trace.calls.to_string(),
        ]
    });
    table(&heads, 2, rows)
}

/// Formats a table for each series: a row for each size, a column for each command.
pub(crate) fn scaling(all: &[Series]) -> String {
    let tables = all.iter().filter_map(|series| {
        let (_, first) = series.points.first()?;
        let names = first.iter().map(|(name, _)| name.as_str());
        let heads: Vec<_> = [series.axis].into_iter().chain(names).collect();
        let rows = series.points.iter().map(|(label, cells)| {
            let cells = cells.iter().map(|(_, cell)| cell.clone());
            [label.clone()].into_iter().chain(cells).collect()
        });
        let table = table(&heads, 1, rows);
        Some(format!("**{}**\n\n{table}\n", series.title))
    });
    tables.collect()
}
