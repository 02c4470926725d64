//! Lines of JSON that the first process prints for the program that started it.

use std::io::Write;

use serde::{Deserialize, Serialize};

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "lowercase")]
pub enum Line {
    /// Printed when messages flow.
    Ready {
        /// The process ids of the first and the second end.
        processes: [u32; 2],
        /// Whether the ends use threads of their own.
        helpers: bool,
        /// Start of the first slice, CLOCK_MONOTONIC in nanoseconds.
        start_ns: u64,
    },
    /// Printed at the end, with all results.
    Done {
        /// In order of time, as many as the options request.
        slices: Vec<SliceReport>,
        /// Why the slices cannot be used.
        complaint: Option<String>,
    },
}

/// Results of one slice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SliceReport {
    /// Messages received, or round trips.
    pub messages: u64,
    /// Times of round trips in nanoseconds, and how often each occurred.
    pub latencies: Vec<(u64, u64)>,
}

impl Line {
    /// Prints the line; a closed pipe is no error.
    pub(crate) fn print(&self) {
        let Ok(mut text) = serde_json::to_string(self) else { return };
        text.push('\n');
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}
