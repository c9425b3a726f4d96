//! Draws what `scripts/profile.sh` prints as an SVG picture: for each command a bar for each phase of each task, from when
//! to when it lasted; the part that others waited for is drawn in full colour.

use std::fmt::Write as _;

use crate::plot::escape;

/// A command and its phases.
struct Profile {
    title: String,
    phases: Vec<Phase>,
}

/// Times are in ms.
#[derive(Debug, PartialEq)]
struct Phase {
    task: String,
    name: String,
    from: f64,
    time: f64,
    /// How much of it is on the critical path.
    critical: f64,
}

const WIDTH: f64 = 920.0;
const ROW: f64 = 18.0;
/// Where bars begin, and how much room there is for them.
const LEFT: f64 = 240.0;
const ROOM: f64 = WIDTH - LEFT - 80.0;
const TASKS: [(&str, &str); 3] = [
    ("main", "#1b6ca8"),
    ("query", "#c8553d"),
    ("ldconfig", "#b08900"),
];

/// The picture.
pub(crate) fn draw(text: &str) -> String {
    let profiles = parse(text);
    let phases = profiles.iter().flat_map(|profile| &profile.phases);
    let longest = phases.fold(f64::MIN_POSITIVE, |most, phase| {
        most.max(phase.from + phase.time)
    });
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
        for phase in &profile.phases {
            let x = LEFT + phase.from / longest * ROOM;
            let [width, critical] = [phase.time, phase.critical].map(|time| time / longest * ROOM);
            let colour = TASKS.iter().find(|(task, _)| phase.task == *task);
            let colour = colour.map_or("#777", |(_, colour)| colour);
            let (middle, top, high) = (y + 13.0, y + 3.0, ROW - 4.0);
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>\
                 <rect x=\"{x:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{high}\" fill=\"{colour}\" opacity=\".3\"/>\
                 <rect x=\"{x:.1}\" y=\"{top}\" width=\"{critical:.1}\" height=\"{high}\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{middle}\">{:.2} ms</text>",
                LEFT - 8.0,
                escape(&phase.name),
                x + width + 5.0,
                phase.time,
            );
            y += ROW;
        }
        y += ROW;
    }
    svg + "</svg>\n"
}

/// Lines are `== COMMAND: …` and then `TASK PHASE FROM MS CRITICAL CALLS`; very short phases are left out.
fn parse(text: &str) -> Vec<Profile> {
    let mut profiles: Vec<Profile> = Vec::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("== ") {
            let (title, phases) = (title.to_owned(), Vec::new());
            profiles.push(Profile { title, phases });
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let [task, name @ .., from, time, critical, calls] = words.as_slice() else {
            continue;
        };
        let numbers = [from, time, critical, calls].map(|word| word.parse::<f64>());
        if let ([Ok(from), Ok(time), Ok(critical), Ok(_)], Some(profile)) =
            (numbers, profiles.last_mut())
            && time >= 0.01
        {
            profile.phases.push(Phase {
                task: (*task).to_owned(),
                name: name.join(" "),
                from,
                time,
                critical,
            });
        }
    }
    profiles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_read() {
        let text = "\n== info: 1.50 ms, 9 calls (median of 2 runs)\n\
                    task       phase    from ms  ms critical  calls\n\
                    main       start of the query   0.100 0.500    0.250      4\n\
                    query      end     1.0 0.001    0.000      5\n\
                    critical path: main: start 17 %\n";
        let profiles = parse(text);
        assert_eq!(profiles.len(), 1);
        let phase = Phase {
            task: "main".into(),
            name: "start of the query".into(),
            from: 0.1,
            time: 0.5,
            critical: 0.25,
        };
        assert_eq!(profiles[0].phases, [phase]);
        assert!(draw(text).contains("start of the query"));
    }
}
