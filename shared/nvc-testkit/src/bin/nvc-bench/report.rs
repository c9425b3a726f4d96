//! Writes measurements as Markdown tables, and inserts them between marks in docs/performance.md.

use std::path::Path;
use std::process::Command;
use std::{env, fs, io, thread};

use crate::bed::Bed;
use crate::cases::Program;
use crate::timing::Figures;

/// Replaces the text between `<!-- bench: MARK -->` and `<!-- end -->` in the page by tables.
pub(crate) fn put(directory: &Path, mark: &str, tables: &str) -> io::Result<()> {
    let start = format!("<!-- bench: {mark} -->\n");
    let page = directory.join("docs/performance.md");
    let text = fs::read_to_string(&page)?;
    let parts = text
        .split_once(&start)
        .and_then(|(before, rest)| Some((before, rest.split_once("<!-- end -->")?.1)));
    let (before, after) =
        parts.ok_or_else(|| io::Error::other(format!("{} lacks {start}", page.display())))?;
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

/// Describes machine, date, commit (from `NVC_BENCH_COMMIT`) and number of runs.
fn machine(bed: &Bed, runs: usize) -> io::Result<String> {
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let date = Command::new("date").args(["-u", "+%F %R UTC"]).output()?;
    Ok(format!(
        "{} of {} cores, Linux {}, {}, at {};\n{runs} runs of each command, in turn, on {}.\n",
        cpu.map_or("an unknown processor", |cpu| cpu
            .trim_start_matches([' ', '\t', ':'])),
        thread::available_parallelism()?,
        fs::read_to_string("/proc/sys/kernel/osrelease")?.trim(),
        String::from_utf8_lossy(&date.stdout).trim(),
        env::var("NVC_BENCH_COMMIT").unwrap_or_else(|_| "an unnamed commit".into()),
        if bed.is_fixture {
            "the conformance fixture: files of a real 535 driver, a mock NVML with two GPUs"
        } else {
            "the simulated driver"
        }
    ))
}

/// Formats the table of commands, with its mark.
pub(crate) fn commands(
    all: &[Figures],
    bed: &Bed,
    runs: usize,
) -> io::Result<(&'static str, String)> {
    let tables = Tables { all, programs: &[] };
    let heads = "command | p50 | p99 | of `/bin/true` | of the baseline | system calls | processes | largest process";
    let machine = machine(bed, runs)?;
    let table = tables.table(heads, 1, tables.own());
    Ok(("commands", format!("{machine}\n{table}")))
}

/// Formats a table of our commands that compares other programs with the first.
pub(crate) fn ratios(all: &[Figures], programs: &[Program]) -> String {
    let tables = Tables { all, programs };
    let ours = all.iter().filter(|figures| figures.case.is_ours());
    let heads = "command | program | p50 | the first of it, paired | quartiles | system calls";
    tables.table(heads, 2, ours)
}

struct Tables<'a> {
    all: &'a [Figures],
    programs: &'a [Program],
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
            "system calls" => trace.calls.to_string(),
            "processes" => trace.processes.len().to_string(),
            "largest process" => {
                let peaks = trace.processes.iter().map(|(_, peak)| peak);
                format!("{} kB", peaks.max()?)
            }
            "the first of it, paired" => format!("{:.3}", paired()?[1]),
            "quartiles" => paired().map(|[low, _, high]| format!("{low:.2} to {high:.2}"))?,
            _ => return None,
        })
    }
}
