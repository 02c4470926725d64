//! The list of expected failures of a suite: one per line, with its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Begins the reason of a test that depends on time and is not run.
const VARIES: &str = "varies: ";

/// What a list says of a suite. Its lines are `FILE | REASON` for a file that cannot be built, and
/// `FILE::TEST | REASON` for a test that fails, or is not run if the reason begins with [`VARIES`].
/// `#` begins a comment.
#[derive(Debug)]
pub(super) struct Expected {
    path: String,
    entries: BTreeMap<String, String>,
}

impl Expected {
    pub(super) fn read(root: &Path, path: &str) -> Result<Expected, String> {
        let text = fs::read_to_string(root.join(path)).map_err(|error| {
            format!("cannot read {path}: {error}; restore it from the repository")
        })?;
        Expected::parse(path, &text)
    }

    fn parse(path: &str, text: &str) -> Result<Expected, String> {
        let mut entries = BTreeMap::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let parsed = line.split_once(" | ").filter(|(_, reason)| !reason.trim().is_empty());
            let Some((name, reason)) = parsed else {
                return Err(format!("{path}: `{line}` has no reason; write `NAME | REASON`"));
            };
            if entries.insert(name.to_string(), reason.to_string()).is_some() {
                return Err(format!("{path} has {name} twice; remove one of the lines"));
            }
        }
        Ok(Expected { path: path.to_string(), entries })
    }

    /// Returns whether a test is expected to fail.
    pub(super) fn fails(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Returns whether a test is not run.
    pub(super) fn varies(&self, name: &str) -> bool {
        self.entries.get(name).is_some_and(|reason| reason.starts_with(VARIES))
    }

    /// Returns which of these files are to be built; fails if a listed one is not among them.
    pub(super) fn built<'a>(&self, files: &'a [String]) -> Result<Vec<&'a String>, String> {
        let mut listed = self.entries.keys().filter(|name| !name.contains("::"));
        match listed.find(|name| !files.contains(name)) {
            Some(gone) => Err(format!("{}: there is no file {gone}; remove the line", self.path)),
            None => Ok(files.iter().filter(|file| !self.entries.contains_key(*file)).collect()),
        }
    }

    /// Compares the results: a failure that is not listed, a listed test that passes, a listed test
    /// that does not exist.
    pub(super) fn compare(&self, names: &[String], failed: &[(&str, String)]) -> Vec<String> {
        let mut findings = Vec::new();
        for (name, output) in failed.iter().filter(|(name, _)| !self.fails(name)) {
            findings.push(format!("{name} failed:\n{output}"));
        }
        let failed: BTreeSet<&str> = failed.iter().map(|(name, _)| *name).collect();
        let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        for name in self.entries.keys().filter(|name| name.contains("::")) {
            let path = &self.path;
            if !names.contains(name.as_str()) {
                findings.push(format!("there is no test {name}; remove it from {path}"));
            } else if !failed.contains(name.as_str()) && !self.varies(name) {
                findings.push(format!("{name} passes; remove it from {path}"));
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# comment\n\nfs | no files\ntcp::a | no reset\ntcp::b | other text\n\
                        tcp::d | varies: time\n";

    fn strings(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_string()).collect()
    }

    #[test]
    fn every_difference_is_a_finding() {
        let expected = Expected::parse("list", LIST).unwrap();
        let names = strings(&["tcp::a", "tcp::b", "tcp::c", "tcp::d"]);
        let failures = |names: &[&'static str]| -> Vec<_> {
            names.iter().map(|name| (*name, "text".to_string())).collect()
        };
        assert!(expected.compare(&names, &failures(&["tcp::a", "tcp::b"])).is_empty());
        let passes = expected.compare(&names, &failures(&["tcp::b"]));
        assert_eq!(passes, ["tcp::a passes; remove it from list"]);
        let fails = expected.compare(&names, &failures(&["tcp::a", "tcp::b", "tcp::c"]));
        assert_eq!(fails, ["tcp::c failed:\ntext"]);
        let gone = expected.compare(&names[2..], &[]);
        let text = |name| format!("there is no test tcp::{name}; remove it from list");
        assert_eq!(gone, ["a", "b"].map(text));
        let varying = names.iter().filter(|name| expected.varies(name)).collect::<Vec<_>>();
        assert_eq!(varying, ["tcp::d"]);
    }

    #[test]
    fn listed_files_are_not_built_and_must_exist() {
        let expected = Expected::parse("list", LIST).unwrap();
        assert_eq!(expected.built(&strings(&["fs", "tcp"])).unwrap(), ["tcp"]);
        assert!(expected.built(&strings(&["tcp"])).unwrap_err().contains("no file fs"));
    }

    #[test]
    fn a_line_has_a_reason_and_is_unique() {
        assert!(Expected::parse("list", "tcp::a").unwrap_err().contains("no reason"));
        assert!(Expected::parse("list", "a | b\na | c").unwrap_err().contains("twice"));
    }
}
