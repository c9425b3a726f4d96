//! Draws the series as an SVG picture: a small chart for each, both axes logarithmic, so that what is linear rises by
//! the same slope everywhere and what is constant is flat.

use std::fmt::Write as _;

use crate::scale::Series;

const COLUMNS: usize = 2;
/// A chart with its labels, and the frame in it.
const CHART: (f64, f64) = (460.0, 270.0);
const FRAME: (f64, f64, f64, f64) = (52.0, 34.0, 250.0, 190.0);
const COLOURS: [&str; 5] = ["#1b6ca8", "#c8553d", "#3a7d44", "#8d6a9f", "#b08900"];

/// All series in one picture.
pub(crate) fn scaling(all: &[Series]) -> String {
    let rows = all.len().div_ceil(COLUMNS);
    let (width, height) = (CHART.0 * COLUMNS as f64, CHART.1 * rows as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (number, series) in all.iter().enumerate() {
        let (x, y) = (
            CHART.0 * (number % COLUMNS) as f64,
            CHART.1 * (number / COLUMNS) as f64,
        );
        let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">");
        chart(&mut svg, series);
        svg += "</g>\n";
    }
    svg + "</svg>\n"
}

/// From values to places in the frame.
struct Axis {
    low: f64,
    high: f64,
    start: f64,
    length: f64,
}

impl Axis {
    /// Powers of ten around all values.
    fn around(values: impl Iterator<Item = f64>, start: f64, length: f64) -> Self {
        let logs: Vec<f64> = values
            .filter(|value| *value > 0.0)
            .map(f64::log10)
            .collect();
        let low = logs.iter().copied().fold(f64::INFINITY, f64::min).floor();
        let high = logs
            .iter()
            .copied()
            .fold(f64::NEG_INFINITY, f64::max)
            .ceil();
        let (low, high) = if low.is_finite() {
            (low, high.max(low + 1.0))
        } else {
            (0.0, 1.0)
        };
        Self {
            low,
            high,
            start,
            length,
        }
    }

    fn place(&self, value: f64) -> f64 {
        let share = (value.max(f64::MIN_POSITIVE).log10() - self.low) / (self.high - self.low);
        self.start + share * self.length
    }

    fn powers(&self) -> impl Iterator<Item = f64> {
        let mut power = self.low;
        let high = self.high;
        std::iter::from_fn(move || {
            let now = power;
            power += 1.0;
            (now <= high).then(|| 10_f64.powf(now))
        })
    }
}

fn chart(svg: &mut String, series: &Series) {
    let (left, top, width, height) = FRAME;
    let (right, bottom) = (left + width, top + height);
    let sizes = series.points.iter().map(|point| f64::from(point.size));
    let times = series
        .points
        .iter()
        .flat_map(|point| &point.lines)
        .map(|line| line.time);
    let x = Axis::around(sizes, left, width);
    let y = Axis::around(times, bottom, -height);
    let _ = writeln!(
        svg,
        "<text x=\"{left}\" y=\"20\" font-size=\"13\" font-weight=\"bold\">{}</text>",
        escape(series.title)
    );
    for value in y.powers() {
        let at = y.place(value);
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {at:.1}H{right}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value} ms</text>",
            left - 4.0,
            at + 4.0
        );
    }
    for value in x.powers() {
        let at = x.place(value);
        let _ = writeln!(
            svg,
            "<path d=\"M{at:.1} {top}V{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{value}</text>",
            bottom + 14.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">{}</text>",
        left + width / 2.0,
        bottom + 30.0,
        escape(series.axis)
    );
    lines(svg, series, &x, &y);
}

fn lines(svg: &mut String, series: &Series, x: &Axis, y: &Axis) {
    let names: Vec<_> = series
        .points
        .first()
        .map(|point| &point.lines)
        .into_iter()
        .flatten()
        .collect();
    for (number, name) in names.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let places: Vec<_> = series
            .points
            .iter()
            .filter_map(|point| {
                let time = point.lines.get(number)?.time;
                Some((x.place(f64::from(point.size)), y.place(time)))
            })
            .collect();
        let path: Vec<_> = places
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (x, y) in places {
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
            );
        }
        let at = FRAME.1 + 12.0 + 18.0 * number as f64;
        let legend = FRAME.0 + FRAME.2 + 10.0;
        let _ = writeln!(
            svg,
            "<circle cx=\"{legend}\" cy=\"{}\" r=\"4\" fill=\"{colour}\"/><text x=\"{}\" y=\"{at}\">{}</text>",
            at - 4.0,
            legend + 9.0,
            escape(&name.name)
        );
    }
}

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
