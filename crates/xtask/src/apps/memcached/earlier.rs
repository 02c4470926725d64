//! Stores the results of the unmodified server's tests, which do not change between runs and take
//! half of the time. Only passed and skipped tests are stored, for the same program.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Tree;
use super::verdict::Verdict;

/// The stored results of the unmodified server.
pub(super) struct Earlier {
    path: PathBuf,
    /// Checksum of the program.
    sha256: String,
    lines: Vec<(String, Verdict)>,
}

impl Earlier {
    /// Reads the results of the server in this tree. There are none if the server has changed
    /// since.
    pub(super) fn read(tree: &Tree) -> Result<Earlier, String> {
        let sha256 = sha256(&tree.path.join("memcached"))?;
        let path = tree.path.with_extension("results");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let lines = match text.split_once('\n') {
            Some((of, lines)) if of == sha256 => lines.lines().filter_map(parse).collect(),
            _ => Vec::new(),
        };
        Ok(Earlier { path, sha256, lines })
    }

    /// Returns the path of the unmodified server.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the results of these tests on the unmodified server.
    pub(super) fn verdicts<'a>(&self, names: &'a [String]) -> BTreeMap<(&'a str, bool), Verdict> {
        let known = |name: &'a String| {
            let (_, verdict) = self.lines.iter().find(|(known, _)| known == name)?;
            Some(((name.as_str(), false), verdict.clone()))
        };
        names.iter().filter_map(known).collect()
    }

    /// Writes the new results in addition to the earlier ones.
    pub(super) fn write(self, verdicts: &BTreeMap<(&str, bool), Verdict>) -> Result<(), String> {
        let mut all: BTreeMap<&str, &Verdict> =
            self.lines.iter().map(|(name, verdict)| (name.as_str(), verdict)).collect();
        for ((name, adapted), verdict) in verdicts {
            if !adapted {
                all.insert(name, verdict);
            }
        }
        let lines: String =
            all.into_iter().filter_map(|(name, verdict)| form(name, verdict)).collect();
        fs::write(&self.path, format!("{}\n{lines}", self.sha256))
            .map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

fn form(name: &str, verdict: &Verdict) -> Option<String> {
    match verdict {
        Verdict::Passed(attempt) => Some(format!("{name}\tpassed\t{attempt}\n")),
        Verdict::Skipped(reason) => Some(format!("{name}\tskipped\t{reason}\n")),
        Verdict::Failed(_) => None,
    }
}

fn parse(line: &str) -> Option<(String, Verdict)> {
    let mut words = line.splitn(3, '\t');
    let (name, kind, rest) = (words.next()?, words.next()?, words.next()?);
    let verdict = match kind {
        "passed" => Verdict::Passed(rest.parse().ok()?),
        "skipped" => Verdict::Skipped(rest.to_string()),
        _ => return None,
    };
    Some((name.to_string(), verdict))
}

fn sha256(path: &Path) -> Result<String, String> {
    let output = Command::new("sha256sum").arg("--").arg(path).stdin(Stdio::null()).output();
    let output = output.map_err(|error| {
        format!("sha256sum cannot be run: {error}; install the package coreutils")
    })?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match said.split_whitespace().next() {
        Some(sum) if output.status.success() => Ok(sum.trim_start_matches('\\').to_string()),
        _ => Err(String::from_utf8_lossy(&output.stderr).trim().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_kept_for_the_same_program_only() {
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree { path: directory.path().join("stock"), adapted: false, flags: "" };
        fs::create_dir(&tree.path).unwrap();
        fs::write(tree.path.join("memcached"), "one").unwrap();
        let names = ["a.t", "b.t", "c.t"].map(str::to_string);
        let known = || Earlier::read(&tree).unwrap().verdicts(&names);
        assert_eq!(known(), BTreeMap::new());
        let verdicts = BTreeMap::from([
            (("a.t", false), Verdict::Passed(2)),
            (("a.t", true), Verdict::Passed(1)),
            (("b.t", false), Verdict::Skipped("no proxy".to_string())),
            (("c.t", false), Verdict::Failed("said".to_string())),
        ]);
        Earlier::read(&tree).unwrap().write(&verdicts).unwrap();
        let expected = BTreeMap::from([
            (("a.t", false), Verdict::Passed(2)),
            (("b.t", false), Verdict::Skipped("no proxy".to_string())),
        ]);
        assert_eq!(known(), expected);
        fs::write(tree.path.join("memcached"), "two").unwrap();
        assert_eq!(known(), BTreeMap::new());
    }
}
