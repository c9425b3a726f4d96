//! Draws what `scripts/profile.sh` prints as an SVG picture: for each command the phases of its critical path, each
//! beginning where the one before it ends.

use std::fmt::Write as _;

use crate::plot::escape;

/// A command's total and the phases that its time consists of, ms.
struct Profile {
    title: String,
    phases: Vec<(String, f64)>,
}

const WIDTH: f64 = 920.0;
const ROW: f64 = 18.0;
/// Where bars begin, and how much room there is for them.
const LEFT: f64 = 240.0;
const ROOM: f64 = WIDTH - LEFT - 80.0;
const TASKS: [(&str, &str); 4] = [
    ("main", "#1b6ca8"),
    ("query", "#c8553d"),
    ("container", "#3a7d44"),
    ("ldconfig", "#b08900"),
];

/// The picture.
pub(crate) fn draw(text: &str) -> String {
    let profiles = parse(text);
    let total = |profile: &Profile| profile.phases.iter().map(|phase| phase.1).sum::<f64>();
    let longest = profiles.iter().map(total).fold(f64::MIN_POSITIVE, f64::max);
    let rows: usize = profiles
        .iter()
        .map(|profile| profile.phases.len() + 2)
        .sum();
    let height = ROW * (rows + 2) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (number, (task, colour)) in TASKS.iter().enumerate() {
        let x = LEFT + 150.0 * number as f64;
        let _ = writeln!(
            svg,
            "<circle cx=\"{x}\" cy=\"14\" r=\"4\" fill=\"{colour}\"/><text x=\"{}\" y=\"18\">{task}</text>",
            x + 9.0
        );
    }
    let mut y = 2.0 * ROW;
    for profile in &profiles {
        let _ = writeln!(
            svg,
            "<text x=\"8\" y=\"{}\" font-size=\"13\" font-weight=\"bold\">{}</text>",
            y + 13.0,
            escape(&profile.title)
        );
        y += ROW;
        let mut start = 0.0;
        for (phase, time) in &profile.phases {
            let (x, width) = (LEFT + start / longest * ROOM, time / longest * ROOM);
            let colour = TASKS.iter().find(|(task, _)| phase.starts_with(task));
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
                 <rect x=\"{x:.1}\" y=\"{}\" width=\"{width:.1}\" height=\"{}\" fill=\"{}\"/>\
                 <text x=\"{:.1}\" y=\"{}\">{time:.2} ms</text>",
                LEFT - 8.0,
                y + 13.0,
                escape(phase),
                y + 3.0,
                ROW - 4.0,
                colour.map_or("#777", |(_, colour)| colour),
                x + width + 5.0,
                y + 13.0
            );
            start += time;
            y += ROW;
        }
        y += ROW;
    }
    svg + "</svg>\n"
}

/// Lines are `== COMMAND: …` and then `TASK PHASE MS CRITICAL CALLS`; phases that hold nothing up are left out.
fn parse(text: &str) -> Vec<Profile> {
    let mut profiles: Vec<Profile> = Vec::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("== ") {
            let (title, phases) = (title.to_owned(), Vec::new());
            profiles.push(Profile { title, phases });
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ([task, phase @ .., _, critical, calls], Some(profile)) =
            (words.as_slice(), profiles.last_mut())
            && let (Ok(critical), Ok(_)) = (critical.parse::<f64>(), calls.parse::<u32>())
            && critical >= 0.005
        {
            let name = format!("{task}: {}", phase.join(" "));
            profile.phases.push((name, critical));
        }
    }
    profiles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_that_hold_something_up_are_read() {
        let text = "\n== info: 1.50 ms, 9 calls (median of 2 runs)\n\
                    task       phase    ms critical  calls\n\
                    main       start of the query    0.500    0.250      4\n\
                    query      NVML    1.500    0.000      5\n\
                    critical path: main: start 17 %\n";
        let profiles = parse(text);
        assert_eq!(profiles.len(), 1);
        assert_eq!(
            profiles[0].phases,
            [("main: start of the query".to_owned(), 0.25)]
        );
        assert!(draw(text).contains("main: start of the query"));
    }
}
