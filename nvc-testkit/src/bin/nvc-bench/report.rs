//! Writes measurements as Markdown tables, and inserts them between marks in a page.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::{fs, io, thread};

use crate::bed::Bed;
use crate::cases::UPSTREAM_TRUE;
use crate::images::Image;
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

/// Describes machine, date and number of runs.
pub(crate) fn machine(bed: &Bed, runs: usize) -> io::Result<String> {
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let cpu = cpu.map_or("an unknown processor", |name| {
        name.trim_start_matches([' ', '\t', ':'])
    });
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let cores = thread::available_parallelism()?;
    let date = Command::new("date")
        .args(["-u", "+%Y-%m-%d %H:%M UTC"])
        .output()?
        .stdout;
    let date = String::from_utf8_lossy(&date);
    Ok(format!(
        "{} of {cores} cores, Linux {}, {}; {runs} runs of each command, in turn, on {}.\n",
        cpu,
        kernel.trim(),
        date.trim(),
        bed.name
    ))
}

/// Formats the times of the commands, relative to the start of any program and to upstream.
pub(crate) fn times(all: &[Figures], is_fixture: bool) -> String {
    let figures: Vec<_> = all.iter().filter(|figures| figures.program == 0).collect();
    let median = |name: &str| {
        let found = figures.iter().find(|figures| figures.case.name == name);
        found.map(|figures| figures.median())
    };
    let start = start(all);
    let mut text = String::from(
        "| command | p50 | p99 | of `/bin/true` | of the baseline | upstream, scaled | of upstream | goal |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for figures in &figures {
        let time = figures.median();
        let baseline = figures.case.baseline.and_then(median);
        let baseline =
            baseline.map_or_else(String::new, |baseline| format!("{:.2}", time / baseline));
        let upstream = figures.case.upstream.filter(|_| is_fixture);
        let [scaled, ratio, goal] = upstream.map_or_else(Default::default, |upstream| {
            let scaled = upstream.time * start / UPSTREAM_TRUE;
            [
                format!("{scaled:.1} ms"),
                format!("{:.2}", time / scaled),
                format!("{:.2}", upstream.goal),
            ]
        });
        let _ = writeln!(
            text,
            "| {} | {time:.2} ms | {:.2} ms | {:.1} | {baseline} | {scaled} | {ratio} | {goal} |",
            figures.case.name,
            figures.percentile(99),
            time / start
        );
    }
    text
}

/// Formats the short table for the README.
pub(crate) fn summary(all: &[Figures], machine: &str, is_fixture: bool) -> String {
    let mut text = format!(
        "{machine}\n| command | p50 | of upstream's time | system calls | upstream's |\n\
         | --- | ---: | ---: | ---: | ---: |\n"
    );
    let start = start(all);
    for figures in all.iter().filter(|figures| figures.program == 0) {
        let upstream = figures.case.upstream.filter(|_| is_fixture);
        let [ratio, calls] = upstream.map_or_else(Default::default, |upstream| {
            let scaled = upstream.time * start / UPSTREAM_TRUE;
            [
                format!("{:.2}", figures.median() / scaled),
                upstream.calls.to_string(),
            ]
        });
        let _ = writeln!(
            text,
            "| {} | {:.2} ms | {ratio} | {} | {calls} |",
            figures.case.name,
            figures.median(),
            figures.trace.calls
        );
    }
    text
}

/// Returns the median of `/bin/true`.
fn start(all: &[Figures]) -> f64 {
    let found = all.iter().find(|figures| figures.case.name == "/bin/true");
    found.map_or(f64::NAN, Figures::median)
}

/// Formats system calls, processes and memory of the commands.
pub(crate) fn resources(all: &[Figures], is_fixture: bool) -> String {
    let mut text = String::from(
        "| command | system calls | upstream's | processes | more threads | largest process | private, together |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for figures in all.iter().filter(|figures| figures.program == 0) {
        let trace = &figures.trace;
        let upstream = figures.case.upstream.filter(|_| is_fixture);
        let upstream = upstream.map_or_else(String::new, |upstream| upstream.calls.to_string());
        let largest = trace.processes.iter().map(|process| process.peak).max();
        let _ = writeln!(
            text,
            "| {} | {} | {upstream} | {} | {} | {} | {} |",
            figures.case.name,
            trace.calls,
            trace.processes.len(),
            trace.threads,
            kilobytes(largest.unwrap_or(0)),
            kilobytes(trace.private)
        );
    }
    text
}

/// Formats the memory of each process of some commands.
pub(crate) fn memory(all: &[Figures]) -> String {
    let mut text = String::from(
        "| command | process | peak | of that private | files of the driver |\n\
         | --- | --- | ---: | ---: | ---: |\n",
    );
    for figures in all
        .iter()
        .filter(|figures| figures.program == 0 && figures.case.is_ours())
    {
        for process in &figures.trace.processes {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} |",
                figures.case.name,
                process.name,
                kilobytes(process.peak),
                kilobytes(process.private),
                kilobytes(process.driver)
            );
        }
    }
    text
}

/// Formats the ratios of the first program's times and calls to the second's; None if there is only one.
pub(crate) fn ratios(all: &[Figures]) -> Option<String> {
    let mut text = String::from(
        "| command | this program | the other | ratio | system calls | the other's |\n\
         | --- | ---: | ---: | ---: | ---: | ---: |\n",
    );
    let mut rows = 0;
    for other in all.iter().filter(|figures| figures.program == 1) {
        let same =
            |figures: &&Figures| figures.program == 0 && figures.case.name == other.case.name;
        let Some(own) = all.iter().find(same) else {
            continue;
        };
        rows += 1;
        let _ = writeln!(
            text,
            "| {} | {:.2} ms | {:.2} ms | {:.3} | {} | {} |",
            own.case.name,
            own.median(),
            other.median(),
            own.median() / other.median(),
            own.trace.calls,
            other.trace.calls
        );
    }
    (rows > 0).then_some(text)
}

/// Formats times on images of a real size.
pub(crate) fn images(images: &[Image]) -> String {
    let mut text = String::from(
        "| image | command | p50 | p99 | system calls |\n| --- | --- | ---: | ---: | ---: |\n",
    );
    for image in images {
        for figures in image.figures.iter().filter(|figures| figures.program == 0) {
            let _ = writeln!(
                text,
                "| {} | {} | {:.2} ms | {:.2} ms | {} |",
                image.name,
                figures.case.name,
                figures.median(),
                figures.percentile(99),
                figures.trace.calls
            );
        }
    }
    text
}

/// Formats a table for each series.
pub(crate) fn scaling(all: &[Series]) -> String {
    let mut text = String::new();
    for series in all {
        let Some(first) = series.points.first() else {
            continue;
        };
        let _ = writeln!(text, "**{}**\n", series.title);
        let _ = write!(text, "| {} |", series.axis);
        for line in &first.lines {
            let _ = write!(text, " {} |", line.name);
        }
        let _ = write!(text, "\n| --- |{}\n", " ---: |".repeat(first.lines.len()));
        for point in &series.points {
            let _ = write!(text, "| {} |", point.label);
            for line in &point.lines {
                let _ = write!(text, " {:.2} ms", line.time);
                if let Some(calls) = line.calls {
                    let _ = write!(text, ", {calls} calls");
                }
                text += " |";
            }
            text += "\n";
        }
        text += "\n";
    }
    text
}

/// Empty for zero: not every command's memory is measured.
fn kilobytes(amount: u64) -> String {
    if amount == 0 {
        return String::new();
    }
    format!("{amount} kB")
}
