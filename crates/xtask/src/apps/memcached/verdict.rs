//! The result of a test of memcached's suite.

/// The result of one test file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The test passed, at this attempt.
    Passed(usize),
    Skipped(String),
    /// The test failed; the end of its output.
    Failed(String),
}

impl Verdict {
    /// Returns a word for the table.
    pub(super) fn word(&self) -> String {
        match self {
            Verdict::Passed(1) => "passed".to_string(),
            Verdict::Passed(attempt) => format!("passed at try {attempt}"),
            Verdict::Skipped(_) => "skipped".to_string(),
            Verdict::Failed(_) => "failed".to_string(),
        }
    }

    /// Returns the index of the kind, in the order above.
    pub(super) fn kind(&self) -> usize {
        match self {
            Verdict::Passed(_) => 0,
            Verdict::Skipped(_) => 1,
            Verdict::Failed(_) => 2,
        }
    }
}
