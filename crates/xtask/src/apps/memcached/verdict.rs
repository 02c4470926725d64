//! What comes of a test of memcached's suite.

/// What came of one test file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// At this try.
    Passed(usize),
    Skipped(String),
    /// With the end of what it said.
    Failed(String),
}

impl Verdict {
    /// For a table.
    pub(super) fn word(&self) -> String {
        match self {
            Verdict::Passed(1) => "passed".to_string(),
            Verdict::Passed(attempt) => format!("passed at try {attempt}"),
            Verdict::Skipped(_) => "skipped".to_string(),
            Verdict::Failed(_) => "failed".to_string(),
        }
    }

    /// Its place among the kinds, in the order above.
    pub(super) fn kind(&self) -> usize {
        match self {
            Verdict::Passed(_) => 0,
            Verdict::Skipped(_) => 1,
            Verdict::Failed(_) => 2,
        }
    }
}
