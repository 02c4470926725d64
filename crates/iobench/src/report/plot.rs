//! Draws charts as SVG: a frame with two axes, and marks in it. Colours come from the page's style
//! sheet by class, so that dark mode and print use the same picture.

use std::fmt::Write;

use crate::report::axis::Axis;

const WIDTH: f64 = 880.0;
const LEFT: f64 = 88.0;
const RIGHT: f64 = 28.0;
/// Height of the title's two lines and of the space above the axis.
const TITLE: f64 = 40.0;
const TOP: f64 = TITLE + 16.0;
/// Mean width of a character of a title.
const CHARACTER: f64 = 7.5;
const BOTTOM: f64 = 52.0;
/// Number of colours in the style sheet. Markers have another period, so that pairs of both differ.
const COLOURS: usize = 10;
const SHAPES: usize = 4;

/// Returns the number of a series' colour in the style sheet.
pub(crate) fn colour(series: usize) -> usize {
    series % COLOURS
}

/// Returns the number of a series' marker.
pub(crate) fn shape(series: usize) -> usize {
    series % SHAPES
}

/// A point of a series and, if there are rounds, its interval.
#[derive(Debug, Clone)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) interval: Option<(f64, f64)>,
    pub(crate) valid: bool,
    /// Tooltip of the mark.
    pub(crate) title: String,
}

/// The style of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stroke {
    Solid,
    Dashed,
}

/// A candlestick: whiskers, box and middle; values that are not numbers are left out.
#[derive(Debug, Clone)]
pub(crate) struct Candle {
    pub(crate) x: f64,
    pub(crate) width: f64,
    pub(crate) values: [f64; 5],
    pub(crate) valid: bool,
    pub(crate) title: String,
}

/// A chart under construction.
pub(crate) struct Plot {
    x: Axis,
    y: Axis,
    height: f64,
    body: String,
    /// One sentence for each mark; screen readers read them instead of the picture.
    description: Vec<String>,
}

/// Most sentences of a description; the table has all figures.
const MOST_SENTENCES: usize = 60;

impl Plot {
    pub(crate) fn new(x: Axis, y: Axis, height: f64) -> Plot {
        Plot { x, y, height: height + TITLE, body: String::new(), description: Vec::new() }
    }

    fn at_x(&self, value: f64) -> f64 {
        LEFT + self.x.place(value) * (WIDTH - LEFT - RIGHT)
    }

    fn at_y(&self, value: f64) -> f64 {
        let height = self.height - TOP - BOTTOM;
        TOP + (1.0 - self.y.place(value)) * height
    }

    fn add(&mut self, markup: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.body.write_fmt(markup);
        self.body.push('\n');
    }

    /// Adds a sentence to the description for screen readers.
    pub(crate) fn describe(&mut self, sentence: &str) {
        if self.description.len() < MOST_SENTENCES {
            self.description.push(sentence.to_owned());
        }
    }

    /// A horizontal reference line.
    pub(crate) fn reference(&mut self, y: f64) {
        let (y, right) = (self.at_y(y), WIDTH - RIGHT);
        self.add(format_args!(
            r#"<line class="reference" x1="{LEFT}" x2="{right}" y1="{y:.1}" y2="{y:.1}"/>"#
        ));
    }

    /// A line of a series with its markers and, as a band, its intervals.
    pub(crate) fn line(&mut self, series: usize, points: &[Point], stroke: Stroke, markers: bool) {
        self.open_series(series);
        self.band(points);
        let dashed = if stroke == Stroke::Dashed { " dashed" } else { "" };
        for (stretch, valid) in stretches(points) {
            let path: Vec<String> = stretch
                .iter()
                .map(|point| format!("{:.1},{:.1}", self.at_x(point.x), self.at_y(point.y)))
                .collect();
            let (validity, path) = (validity(valid), path.join(" "));
            self.add(format_args!(r#"<polyline class="line{dashed}{validity}" points="{path}"/>"#));
        }
        for point in points {
            if markers {
                self.marker(series, point);
            }
        }
        self.close_series();
    }

    fn band(&mut self, points: &[Point]) {
        let with: Vec<(&Point, (f64, f64))> =
            points.iter().filter_map(|point| Some((point, point.interval?))).collect();
        if with.len() < 2 {
            return;
        }
        let upper = with.iter().map(|(point, (_, high))| (point.x, *high));
        let lower = with.iter().rev().map(|(point, (low, _))| (point.x, *low));
        let edge: Vec<String> = upper
            .chain(lower)
            .map(|(x, y)| format!("{:.1},{:.1}", self.at_x(x), self.at_y(y)))
            .collect();
        self.add(format_args!(r#"<polygon class="band" points="{}"/>"#, edge.join(" ")));
    }

    fn marker(&mut self, series: usize, point: &Point) {
        let (x, y) = (self.at_x(point.x), self.at_y(point.y));
        if let Some((low, high)) = point.interval {
            self.whisker(x, low, high, 4.0);
        }
        let validity = validity(point.valid);
        let shape = match shape(series) {
            0 => format!("M{:.1},{y:.1}a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z", x - 4.0),
            1 => format!("M{:.1},{:.1}h7.4v7.4h-7.4z", x - 3.7, y - 3.7),
            2 => format!("M{x:.1},{:.1}l4.8,8.4h-9.6z", y - 5.4),
            _ => format!("M{x:.1},{:.1}l5,5l-5,5l-5,-5z", y - 5.0),
        };
        self.add(format_args!(
            r#"<path class="marker{validity}" d="{shape}" data-y="{}">{}</path>"#,
            point.y,
            title(&point.title)
        ));
        self.describe(&point.title);
    }

    fn whisker(&mut self, x: f64, low: f64, high: f64, half_width: f64) {
        let (low, high) = (self.at_y(low), self.at_y(high));
        let (left, full) = (x - half_width, 2.0 * half_width);
        self.add(format_args!(
            "<path class='whisker' \
             d='M{left:.1},{low:.1}h{full:.1}M{x:.1},{low:.1}V{high:.1} \
             M{left:.1},{high:.1}h{full:.1}'/>"
        ));
    }

    /// Marks a point of a line with a word.
    pub(crate) fn flag(&mut self, series: usize, x: f64, y: f64, word: &str) {
        let (x, y) = (self.at_x(x), self.at_y(y));
        self.open_series(series);
        self.add(format_args!(
            "<circle class='flag' cx='{x:.1}' cy='{y:.1}' r='8.5'/><text class='flag-word' \
             x='{x:.1}' y='{:.1}' text-anchor='middle'>{}</text>",
            (y - 13.0).max(TOP + 10.0),
            escape(word)
        ));
        self.close_series();
    }

    /// A candlestick: 1 %, 25 %, 50 %, 75 %, 99 %.
    pub(crate) fn candle(&mut self, series: usize, candle: &Candle) {
        let [p1, p25, p50, p75, p99] = candle.values;
        let [left, middle, right] =
            [-0.5, 0.0, 0.5].map(|side| self.at_x(candle.x + side * candle.width));
        let (top, bottom, centre) = (self.at_y(p75), self.at_y(p25), self.at_y(p50));
        let whisker_low = if p1.is_finite() { p1 } else { p25 };
        let validity = validity(candle.valid);
        self.open_series(series);
        self.add(format_args!(r#"<g class="candle{validity}">{}"#, title(&candle.title)));
        self.whisker(middle, whisker_low, p99, ((right - left) / 4.0).min(6.0));
        self.add(format_args!(
            "<rect class='box' x='{left:.1}' y='{top:.1}' width='{:.1}' height='{:.1}' \
             rx='1.5'/>",
            right - left,
            (bottom - top).max(1.0)
        ));
        self.add(format_args!(
            "<line class='middle' x1='{left:.1}' x2='{right:.1}' y1='{centre:.1}' \
             y2='{centre:.1}'/></g>"
        ));
        self.close_series();
        self.describe(&candle.title);
    }

    /// A bar from the axis's origin, with the interval of its value.
    pub(crate) fn bar(&mut self, series: usize, width: f64, point: &Point) {
        let (left, right) = (self.at_x(point.x - width / 2.0), self.at_x(point.x + width / 2.0));
        let (top, bottom) = (self.at_y(point.y), self.at_y(self.y.origin()));
        let validity = validity(point.valid);
        self.open_series(series);
        self.add(format_args!(
            "<rect class='bar{validity}' x='{left:.1}' y='{top:.1}' width='{:.1}' \
             height='{:.1}' rx='1.5' data-y='{}'>{}</rect>",
            right - left,
            (bottom - top).max(0.0),
            point.y,
            title(&point.title)
        ));
        if let Some((low, high)) = point.interval {
            self.whisker((left + right) / 2.0, low, high, ((right - left) / 4.0).min(5.0));
        }
        self.close_series();
        self.describe(&point.title);
    }

    fn open_series(&mut self, series: usize) {
        let colour = colour(series);
        self.add(format_args!(r#"<g class="s{colour}" data-series="{series}">"#));
    }

    fn close_series(&mut self) {
        self.add(format_args!("</g>"));
    }

    /// Returns the complete picture; `name` is its content, and `about` the subject and workload.
    pub(crate) fn svg(self, name: &str, about: &str) -> String {
        let mut out = format!(
            "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} {0}\" role=\"img\" aria-label=\"{1}\">\n\
             <desc>{2}</desc>\n",
            self.height,
            escape(name),
            escape(&self.description.join("; "))
        );
        let _ = writeln!(
            out,
            "<text class='name' x='16' y='18'>{}</text><text class='about' x='16' y='36'>{}</text>",
            escape(&cut(name.trim_end_matches(", all rows"), WIDTH)),
            escape(&cut(about, WIDTH))
        );
        self.frame(&mut out);
        out + &self.body + "</svg>"
    }

    fn frame(&self, out: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, self.height - BOTTOM);
        for tick in &self.y.ticks {
            let y = self.at_y(tick.value);
            let _ = write!(
                out,
                "<line class='grid' x1='{LEFT}' x2='{right}' y1='{y:.1}' y2='{y:.1}'/>\
                 <text class='tick' x='{}' y='{:.1}' text-anchor='end'>{}</text>",
                LEFT - 8.0,
                y + 4.0,
                escape(&tick.text)
            );
        }
        // Names of categories may be long; they get every other line where they would collide.
        let room = (right - LEFT) / self.x.ticks.len().max(1) as f64;
        for (index, tick) in self.x.ticks.iter().enumerate() {
            let x = self.at_x(tick.value);
            let crowded = 7.0 * tick.text.chars().count() as f64 > room && index % 2 == 1;
            let _ = write!(
                out,
                "<line class='axis' x1='{x:.1}' x2='{x:.1}' y1='{bottom}' y2='{}'/>\
                 <text class='tick' x='{x:.1}' y='{}' text-anchor='middle'>{}</text>",
                bottom + 4.0,
                bottom + if crowded { 31.0 } else { 18.0 },
                escape(&tick.text)
            );
        }
        let middle = TOP + (bottom - TOP) / 2.0;
        let _ = writeln!(
            out,
            "<line class='axis' x1='{LEFT}' x2='{right}' y1='{bottom}' y2='{bottom}'/>\
             <text class='label' x='{:.1}' y='{}' text-anchor='middle'>{}</text>\
             <text class='label' transform='translate(16 {middle:.1}) rotate(-90)' \
             text-anchor='middle'>{}</text>",
            (LEFT + right) / 2.0,
            self.height - 8.0,
            escape(&self.x.label),
            escape(&self.y.label)
        );
    }
}

/// Returns the CSS class of a mark, which differs if it is not valid.
pub(crate) fn validity(valid: bool) -> &'static str {
    if valid { "" } else { " invalid" }
}

/// Splits a line into parts whose points are all valid, and parts with a point that is not.
fn stretches(points: &[Point]) -> Vec<(&[Point], bool)> {
    if points.len() < 2 {
        return vec![(points, points.iter().all(|point| point.valid))];
    }
    let is_valid = |end: usize| points[end - 1].valid && points[end].valid;
    let mut begin = 0;
    let ends = (1..points.len())
        .filter(|&end| end + 1 == points.len() || is_valid(end) != is_valid(end + 1));
    ends.map(|end| (&points[std::mem::replace(&mut begin, end)..=end], is_valid(end))).collect()
}

/// Cuts a title to the width of a picture.
pub(crate) fn cut(text: &str, width: f64) -> String {
    match text.char_indices().nth((width / CHARACTER) as usize - 2) {
        None => text.to_owned(),
        Some((end, _)) => format!("{} …", &text[..end]),
    }
}

fn title(text: &str) -> String {
    format!("<title>{}</title>", escape(text))
}

/// Escapes text for use between tags and in quoted attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(character),
        }
    }
    out
}
