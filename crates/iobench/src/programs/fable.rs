//! Runs programs under `fable run`, and reads its statistics.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::installed::find_runner;

const REMEDY: &str = "build it with `cargo build --release -p fabled -p fable-preload`";

/// The command `fable`, which can find its library.
#[derive(Debug, Clone)]
pub(crate) struct Fable {
    program: PathBuf,
}

impl Fable {
    /// Searches the directory of this program, then the PATH.
    pub(crate) fn find() -> Result<Fable> {
        Ok(Fable { program: find_runner("fable", &[], REMEDY)? })
    }

    /// Returns the command that runs `words` over shared memory, with statistics at the end.
    pub(crate) fn wrap(&self, words: Vec<String>, statistics: &Path) -> Vec<String> {
        let mut all = vec![self.program.display().to_string(), "run".to_owned()];
        all.push(format!("--statistics={}", statistics.display()));
        all.extend(words);
        all
    }
}

/// What happened to a client's connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Connections {
    /// They were upgraded to shared memory.
    pub(crate) upgraded: u64,
    /// They were not upgraded, withdrawn, or reset: the reasons with their numbers.
    pub(crate) lost: Vec<(String, u64)>,
}

impl Connections {
    /// Sums the lines of all processes.
    pub(crate) fn parse(statistics: &str) -> Connections {
        let mut connections = Connections::default();
        let words: Vec<&str> = statistics.split_whitespace().collect();
        for pair in words.windows(2) {
            let Ok(count) = pair[1].parse::<u64>() else { continue };
            let is_loss = ["not_taken", "left_", "reset_"].iter().any(|p| pair[0].starts_with(p));
            if pair[0] == "connected" {
                connections.upgraded = connections.upgraded.saturating_add(count);
            } else if is_loss {
                connections.lost.push((pair[0].to_owned(), count));
            }
        }
        connections
    }

    /// Returns why the slice did not measure shared memory, if `wanted` connections should have
    /// been upgraded.
    pub(crate) fn complaint(&self, wanted: u64) -> Option<String> {
        let lost: Vec<String> =
            self.lost.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        if self.upgraded < wanted {
            let told =
                if lost.is_empty() { String::new() } else { format!(": {}", lost.join(" ")) };
            let upgraded = self.upgraded;
            Some(format!("only {upgraded} of {wanted} connections went to shared memory{told}"))
        } else if !lost.is_empty() {
            Some(format!("connections did not stay in shared memory: {}", lost.join(" ")))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_stay_are_told_from_those_that_do_not() {
        let good = "fable: process 7: connected 3 sleeps 9 doorbells 8\n\
                    fable: process 8: connected 2\n";
        let connections = Connections::parse(good);
        assert_eq!((connections.upgraded, connections.complaint(5)), (5, None));
        assert!(connections.complaint(6).unwrap().contains("only 5 of 6"));
        let left = Connections::parse("fable: process 7: connected 3 left_for_call 2 sleeps 1\n");
        assert!(left.complaint(3).unwrap().ends_with("left_for_call 2"), "{left:?}");
        assert!(Connections::parse("").complaint(1).is_some());
    }
}
