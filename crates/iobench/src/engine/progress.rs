//! Shows the progress of a run on stderr: a bar on a terminal, plain lines elsewhere.

use std::cell::Cell;
use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;
use crate::sys::clock::now_ns;

/// The progress display. It is redrawn only between slots, so that it takes no CPU time from a
/// measurement.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    total: u64,
    done: u64,
    begun_ns: u64,
    /// The planned duration of a slot, used until slots have been measured.
    slot_ns: u64,
}

impl Progress {
    pub(crate) fn new(slots: u64, slot_ns: u64) -> Progress {
        let bar = bar(slots);
        Progress { bar, total: slots, done: 0, begun_ns: now_ns(), slot_ns }
    }

    /// Shows the current step; without a terminal only the first step of a phase is shown.
    pub(crate) fn announce(&self, phase: &str, what: &str, new_phase: bool) {
        let left = Duration::from_nanos(self.left_ns()).as_secs();
        match &self.bar {
            Some(bar) => {
                bar.set_position(self.done);
                bar.set_message(format!("{left} s left, {phase}, {what}"));
            }
            None if new_phase => output::note(&format!("{phase}, {left} s left")),
            None => {}
        }
    }

    /// Shows an activity between slots that takes long.
    pub(crate) fn note(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(what.to_owned()),
            None => output::note(what),
        }
    }

    /// Prints whole lines, which remain visible. Like all methods, only to be called between slots.
    pub(crate) fn print(&self, lines: &str) {
        match &self.bar {
            Some(bar) => bar.println(lines.trim_end()),
            None => lines.lines().for_each(output::note),
        }
    }

    /// Adds slots to the planned ones.
    pub(crate) fn extend(&mut self, slots: u64) {
        self.total += slots;
        if let Some(bar) = &self.bar {
            bar.set_length(self.total);
        }
    }

    pub(crate) fn step(&mut self) {
        self.done += 1;
    }

    /// Returns the estimated time left: the mean time of the slots so far times the number of the
    /// rest.
    fn left_ns(&self) -> u64 {
        let slot_ns = (now_ns() - self.begun_ns).checked_div(self.done).unwrap_or(self.slot_ns);
        slot_ns * self.total.saturating_sub(self.done)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Returns a bar of `length` steps, if stderr is a terminal.
fn bar(length: u64) -> Option<ProgressBar> {
    stderr().is_terminal().then(|| {
        let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:24} {percent:>3} %  {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar
    })
}

/// The display of a single run, which is redrawn while it is measured: on a terminal a bar,
/// elsewhere a line when a phase begins.
pub(crate) struct RunProgress {
    /// What is run, shown first; `None` to show nothing.
    label: Option<String>,
    bar: Option<ProgressBar>,
    phase: Cell<&'static str>,
}

impl RunProgress {
    pub(crate) fn new(label: String) -> RunProgress {
        RunProgress { label: Some(label), bar: bar(0), phase: Cell::new("") }
    }

    /// Shows nothing, for runs within a schedule, which has a display of its own.
    pub(crate) fn hidden() -> RunProgress {
        RunProgress { label: None, bar: None, phase: Cell::new("") }
    }

    /// Shows how many of the connections are open.
    pub(crate) fn connecting(&self, ready: usize, of: usize) {
        let (Some(bar), Some(label)) = (&self.bar, &self.label) else { return };
        bar.set_length(of as u64);
        bar.set_position(ready as u64);
        bar.set_message(format!("{label}: connect {ready}/{of}"));
    }

    /// Shows the phase and the time until the end, of the run's whole time.
    pub(crate) fn show(&self, phase: &'static str, at_ns: u64, end_ns: u64) {
        let Some(label) = &self.label else { return };
        let left_s = end_ns.saturating_sub(at_ns) as f64 / 1e9;
        match &self.bar {
            Some(bar) => {
                bar.set_length(end_ns);
                bar.set_position(at_ns.min(end_ns));
                bar.set_message(format!("{label}: {phase}, {left_s:.0} s left"));
            }
            None if self.phase.get() != phase => {
                output::note(&format!("{label}: {phase}, {left_s:.1} s left"));
            }
            None => {}
        }
        self.phase.set(phase);
    }
}

impl Drop for RunProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
