//! Writes measurements as Markdown tables, and inserts them between marks in a page.

use std::path::Path;
use std::process::Command;
use std::{fs, io, thread};

use crate::bed::Bed;
use crate::cases::{Program, UPSTREAM_TRUE};
use crate::timing::Figures;

/// Replaces the text between `<!-- bench: MARK -->` and `<!-- end -->` in one of the pages by tables.
pub(crate) fn put(directory: &Path, mark: &str, tables: &str) -> io::Result<()> {
    let start = format!("<!-- bench: {mark} -->\n");
    for page in ["README.md", "docs/performance.md"] {
        let page = directory.join(page);
        let text = fs::read_to_string(&page)?;
        let rest = text.split_once(&start);
        let rest =
            rest.and_then(|(before, rest)| Some((before, rest.split_once("<!-- end -->")?.1)));
        if let Some((before, after)) = rest {
            return fs::write(page, format!("{before}{start}{tables}<!-- end -->{after}"));
        }
    }
    Err(io::Error::other(format!("no page has {start}")))
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
fn machine(bed: &Bed, runs: usize) -> io::Result<String> {
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let date = Command::new("date").args(["-u", "+%F %R UTC"]).output()?;
    Ok(format!(
        "{} of {} cores, Linux {}, {}; {runs} runs of each command,\nin turn, on {}.\n",
        cpu.map_or("an unknown processor", |cpu| cpu
            .trim_start_matches([' ', '\t', ':'])),
        thread::available_parallelism()?,
        fs::read_to_string("/proc/sys/kernel/osrelease")?.trim(),
        String::from_utf8_lossy(&date.stdout).trim(),
        match bed.is_fixture {
            true =>
                "the conformance fixture: files of a real 535 driver, a mock NVML with two GPUs",
            false => "the simulated driver",
        }
    ))
}

/// Formats the tables of commands, with their marks: the short one of the README, the machine, times relative to the
/// start of any program and to upstream, resources, and the memory of each process.
pub(crate) fn commands(
    all: &[Figures],
    bed: &Bed,
    runs: usize,
) -> io::Result<[(&'static str, String); 5]> {
    let tables = Tables {
        all,
        programs: &[],
        upstream: bed.is_fixture,
    };
    let own = |heads| tables.table(heads, 1, tables.own());
    let machine = machine(bed, runs)?;
    let summary = own("command | p50 | of upstream's time | system calls | upstream's");
    let times = "command | p50 | p99 | of `/bin/true` | of the baseline | upstream, scaled | of upstream | goal";
    let resources =
        "command | system calls | upstream's | processes | more threads | largest process";
    Ok([
        ("summary", format!("{machine}\n{summary}")),
        ("machine", machine),
        ("times", own(times)),
        ("resources", own(resources)),
        ("memory", tables.memory()),
    ])
}

/// Formats a table of our commands that compares other programs with the first.
pub(crate) fn ratios(all: &[Figures], programs: &[Program]) -> String {
    let tables = Tables {
        all,
        programs,
        upstream: false,
    };
    let ours = all.iter().filter(|figures| figures.case.is_ours());
    let heads = "command | program | p50 | the first of it, paired | quartiles | system calls";
    tables.table(heads, 2, ours)
}

struct Tables<'a> {
    all: &'a [Figures],
    programs: &'a [Program],
    /// Whether upstream's figures were measured with the same driver.
    upstream: bool,
}

impl<'a> Tables<'a> {
    /// Returns the figures of the program that the pages describe.
    fn own(&self) -> impl Iterator<Item = &'a Figures> {
        self.all.iter().filter(|figures| figures.program == 0)
    }

    fn named(&self, name: &str) -> Option<&'a Figures> {
        self.own().find(|figures| figures.case.name == name)
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
        let (time, start) = (
            figures.percentile(50),
            self.named("/bin/true")?.percentile(50),
        );
        let upstream = figures.case.upstream.filter(|_| self.upstream);
        // On a machine of this speed.
        let scaled = upstream.map(|(time, ..)| time * start / UPSTREAM_TRUE);
        let paired = || Some(self.named(name)?.paired_ratios(figures));
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
            "the first of it, paired" => format!("{:.3}", paired()?[1]),
            "quartiles" => paired().map(|[low, _, high]| format!("{low:.2} to {high:.2}"))?,
            _ => return None,
        })
    }

    /// Formats the memory of each process of our commands.
    fn memory(&self) -> String {
        let ours = self.own().filter(|figures| figures.case.is_ours());
        let rows = ours.flat_map(|figures| {
            let row = |(process, peak): &(String, usize)| {
                vec![
                    figures.case.name.clone(),
                    process.clone(),
                    format!("{peak} kB"),
                ]
            };
            figures.trace.processes.iter().map(row)
        });
        table("command | process | peak", 2, rows)
    }
}
