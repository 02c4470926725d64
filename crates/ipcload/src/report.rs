//! What the first process prints: lines of JSON, for the program that started it.

use std::io::Write;

use serde::{Deserialize, Serialize};

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "lowercase")]
pub enum Line {
    /// Messages flow.
    Ready {
        /// The process numbers of the first and the second end.
        processes: [u32; 2],
        /// Whether threads of their own work for the ends.
        helpers: bool,
        /// When the first slice begins, of CLOCK_MONOTONIC in nanoseconds.
        start_ns: u64,
    },
    /// The end, with everything that was counted.
    Done {
        /// In order of time; as many as were asked for.
        slices: Vec<SliceReport>,
        /// Why the slices are worth nothing.
        complaint: Option<String>,
    },
}

/// What happened in one slice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SliceReport {
    /// Messages received, or round trips.
    pub messages: u64,
    /// Times of round trips in nanoseconds, and how often each occurred.
    pub latencies: Vec<(u64, u64)>,
}

impl Line {
    /// Prints it; that nobody reads any more is no error.
    pub(crate) fn print(&self) {
        let Ok(mut text) = serde_json::to_string(self) else { return };
        text.push('\n');
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}
