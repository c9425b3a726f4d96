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
    let tables = Tables { all, programs, bed };
    let own = |heads| tables.table(heads, 1, tables.own());
    let ours = all.iter().filter(|figures| figures.case.is_ours());
    let ratios = "command | program | p50 | the first of it, paired | quartiles | system calls";
    [
        own("command | p50 | of upstream's time | system calls | upstream's"),
        own(
            "command | p50 | p99 | of `/bin/true` | of the baseline | upstream, scaled | of upstream | goal",
        ),
        own("command | system calls | upstream's | processes | more threads | largest process"),
        tables.memory(),
        tables.table(ratios, 2, ours),
    ]
}

struct Tables<'a> {
    all: &'a [Figures],
    programs: &'a [Program],
    bed: &'a Bed,
}

impl<'a> Tables<'a> {
    /// Returns the figures of the program that the pages describe.
    fn own(&self) -> impl Iterator<Item = &'a Figures> {
        self.all.iter().filter(|figures| figures.program == 0)
    }

    fn named(&self, name: &str) -> Option<&'a Figures> {
        self.own().find(|figures| figures.case.name == name)
    }

    fn median_of(&self, name: &str) -> f64 {
        self.named(name)
            .map_or(f64::NAN, |found| found.percentile(50))
    }

    fn table(&self, heads: &str, words: usize, rows: impl Iterator<Item = &'a Figures>) -> String {
        let row = |figures| {
            let cells = heads.split(" | ").map(|head| self.cell(figures, head));
            cells.map(Option::unwrap_or_default).collect()
        };
        table(heads, words, rows.map(row))
    }

    /// Formats the cell of a column; None if it is unknown.
    fn cell(&self, figures: &Figures, head: &str) -> Option<String> {
        let (name, trace) = (&figures.case.name, &figures.trace);
        let (time, start) = (figures.percentile(50), self.median_of("/bin/true"));
        let upstream = figures.case.upstream.filter(|_| self.bed.is_fixture);
        // On a machine of this speed.
        let scaled = upstream.map(|(time, ..)| time * start / UPSTREAM_TRUE);
        Some(match head {
            "command" => name.clone(),
            "program" => self.programs[figures.program].path.display().to_string(),
            "p50" => format!("{time:.2} ms"),
            "p99" => format!("{:.2} ms", figures.percentile(99)),
            "of `/bin/true`" => format!("{:.1}", time / start),
            "of the baseline" => {
                let baseline = self.named(&format!("baseline of {name}"))?;
                format!("{:.2}", time / baseline.percentile(50))
            }
            "upstream, scaled" => format!("{:.1} ms", scaled?),
            "of upstream" | "of upstream's time" => format!("{:.2}", time / scaled?),
            "goal" => format!("{:.2}", upstream?.2),
            "upstream's" => upstream?.1.to_string(),
            "system calls" => trace.calls.to_string(),
            "processes" => trace.processes.len().to_string(),
            "more threads" => trace.threads.to_string(),
            "largest process" => {
                let peaks = trace.processes.iter().map(|(_, peak)| peak);
                format!("{} kB", peaks.max()?)
            }
            "the first of it, paired" => {
                let [_, median, _] = self.named(name)?.paired_ratios(figures);
                format!("{median:.3}")
            }
            "quartiles" => {
                let [low, _, high] = self.named(name)?.paired_ratios(figures);
                format!("{low:.2} to {high:.2}")
            }
            _ => return None,
        })
    }

    /// Formats the memory of each process of our commands.
    fn memory(&self) -> String {
        let ours = self.own().filter(|figures| figures.case.is_ours());
        let rows = ours.flat_map(|figures| {
            let processes = figures.trace.processes.iter();
            processes.map(|(process, peak)| {
                let peak = format!("{peak} kB");
                vec![figures.case.name.clone(), process.clone(), peak]
            })
        });
        table("command | process | peak", 2, rows)
    }
}
