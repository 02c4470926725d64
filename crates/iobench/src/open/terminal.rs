//! Shows a run in the terminal: phase and time left, offered and achieved rate, bars for the
//! percentiles, and the send lag, which turns red when it is too long. If the output is no terminal
//! it prints plain lines, one when the measurement begins and one every few seconds.

use std::fmt::Write as _;
use std::io::{IsTerminal, stderr};

use sys::output::STDERR;

use crate::open::phases::Phase;
use crate::open::verdict::{Tolerance, time};
use crate::open::{View, Watcher};
use crate::sys::clock::now_ns;

const PLAIN_INTERVAL_NS: u64 = 5_000_000_000;
const BAR_CELLS: usize = 24;
/// Start of the bars' scale: a character is a third of a doubling, from 1 µs to about 65 ms.
const BAR_FROM_US: f64 = 1.0;
const BAR_TO_US: f64 = 65_536.0;

/// Shows runs on stderr.
pub(crate) struct Terminal {
    /// A description of the run, shown first.
    label: String,
    tolerance: Tolerance,
    live: bool,
    phase: Option<Phase>,
    shown_ns: u64,
}

impl Terminal {
    pub(crate) fn new(label: String, tolerance: Tolerance) -> Terminal {
        let live = stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Terminal { label, tolerance, live, phase: None, shown_ns: now_ns() }
    }

    /// Shows a line, which remains (without a terminal) or is overwritten by the next (with one).
    fn show(&mut self, text: &str) {
        let line = match self.live {
            // Without wrapping; otherwise the rest of a long line would remain after the next one.
            true => format!("\r\x1b[2K\x1b[?7l{} {text}\x1b[?7h", self.label),
            false => format!("iobench: {} {text}\n", self.label),
        };
        STDERR.write(line.as_bytes());
    }

    /// Returns whether to print a line: on a terminal always, else when the measurement begins and
    /// every few seconds.
    fn is_due(&mut self, phase: Phase) -> bool {
        let now_ns = now_ns();
        let begins = phase == Phase::Measure && self.phase != Some(phase);
        let due = self.live || begins || now_ns - self.shown_ns > PLAIN_INTERVAL_NS;
        if due {
            self.shown_ns = now_ns;
        }
        self.phase = Some(phase);
        due
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if self.live {
            STDERR.write(b"\r\x1b[2K");
        }
    }
}

impl Watcher for Terminal {
    fn connecting(&mut self, ready: usize, of: usize) {
        // Thousands of connections cause thousands of calls.
        let now_ns = now_ns();
        if self.live && now_ns - self.shown_ns > 100_000_000 {
            self.shown_ns = now_ns;
            self.show(&format!("connect {ready}/{of}"));
        }
    }

    fn running(&mut self, view: &View<'_>) {
        if !self.is_due(view.phase) {
            return;
        }
        let lag_us = view.lag.quantile_us(0.99);
        let late = lag_us.is_some_and(|lag_us| lag_us > self.tolerance.lag_p99_us);
        let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), time);
        let quantiles = [0.25, 0.5, 0.75, 0.99].map(|quantile| view.service.quantile_us(quantile));
        let (red, plain) = if late && self.live { ("\x1b[31m", "\x1b[0m") } else { ("", "") };
        let mut text = format!(
            "{:7} {:>4.1} s left, {:>6.0}/s offered, {:>6.0}/s answered, \
             {red}send lag p99 {}{}{plain}, p50 {}, p99 {}",
            view.phase.name(),
            view.left_ns as f64 / 1e9,
            view.offered_rate,
            view.throughput,
            shown(lag_us),
            if late { " TOO LATE" } else { "" },
            shown(quantiles[1]),
            shown(quantiles[3])
        );
        if self.live {
            let _ = write!(text, " {}", bar(quantiles));
        }
        self.show(&text);
    }
}

/// Returns the percentiles on a logarithmic scale: the quartiles as a box, the median within, p99
/// as a whisker.
fn bar(quantiles: [Option<f64>; 4]) -> String {
    let cell = |value: Option<f64>| {
        let part = (value? / BAR_FROM_US).ln() / (BAR_TO_US / BAR_FROM_US).ln();
        Some((part.clamp(0.0, 1.0) * (BAR_CELLS - 1) as f64).round() as usize)
    };
    let [Some(low), Some(middle), Some(high), Some(tail)] = quantiles.map(cell) else {
        return " ".repeat(BAR_CELLS + 2);
    };
    let glyph = |position| match position {
        position if position == middle => '┃',
        position if (low..=high).contains(&position) => '█',
        position if position == tail => '┤',
        position if (high..tail).contains(&position) => '─',
        _ => ' ',
    };
    let cells: String = (0..BAR_CELLS).map(glyph).collect();
    format!("▕{cells}▏")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_order_their_percentiles() {
        let bar = bar([Some(10.0), Some(40.0), Some(160.0), Some(10_000.0)]);
        let position = |glyph| bar.chars().position(|cell| cell == glyph).unwrap();
        assert!(position('█') < position('┃') && position('┃') < position('─'));
        assert!(position('─') < position('┤'));
        assert_eq!(bar.chars().count(), BAR_CELLS + 2);
    }

    #[test]
    fn extremes_stay_within_the_bar() {
        for time_us in [0.0, 1e-9, 1e12] {
            assert_eq!(bar([Some(time_us); 4]).chars().count(), BAR_CELLS + 2);
        }
        assert_eq!(bar([None; 4]).trim(), "");
    }
}
