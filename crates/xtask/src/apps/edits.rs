//! Changes to a program's sources, as a table that holds none of the program's text but the short
//! anchors where a change goes. Every file is known by its checksum and every anchor by how often
//! it occurs, so that another release stops the build rather than being changed wrongly.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// A file of the program and what changes in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changed {
    pub(crate) file: &'static str,
    /// Of the original.
    pub(crate) sha256: &'static str,
    pub(crate) edits: &'static [Edit],
}

/// One change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edit {
    /// Why, for a reader of the table and of an error.
    pub(crate) why: &'static str,
    /// What marks the place, and how often it must occur in the file.
    pub(crate) anchor: &'static str,
    pub(crate) times: usize,
    pub(crate) change: Change,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// The anchor gives way to this, wherever it is.
    Replace(&'static str),
    /// These lines come behind the anchor's line.
    After(&'static str),
    /// So many lines from the anchor's line on give way to these.
    Lines(usize, &'static str),
}

/// How much a change is: lines that went and lines that came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) removed: usize,
    pub(crate) added: usize,
}

/// Applies the table to the originals in `from` and writes what differs into `to`.
pub(crate) fn apply(table: &[Changed], from: &Path, to: &Path) -> Result<(), String> {
    for changed in table {
        let text = edited(changed, from)?;
        let path = to.join(changed.file);
        // An unchanged file keeps its time, so that make has nothing to do.
        if fs::read_to_string(&path).is_ok_and(|before| before == text) {
            continue;
        }
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// The file's text after its changes.
fn edited(changed: &Changed, from: &Path) -> Result<String, String> {
    let path = from.join(changed.file);
    let found = sha256(&path)?;
    if found != changed.sha256 {
        return Err(format!(
            "{} is not the file that the edits were written for (SHA-256 {found}, expected {}): \
             the distribution has a new release; look at what changed in it, run its test suite, \
             and bring the table of edits up to date",
            path.display(),
            changed.sha256
        ));
    }
    let mut text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    for edit in changed.edits {
        text = one(edit, &text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(text)
}

fn one(edit: &Edit, text: &str) -> Result<String, String> {
    let times = text.matches(edit.anchor).count();
    if times != edit.times || times == 0 {
        return Err(format!(
            "the edit `{}` expects `{}` {} times and finds it {times} times; bring the table of \
             edits up to date",
            edit.why, edit.anchor, edit.times
        ));
    }
    match edit.change {
        Change::Replace(new) => Ok(text.replace(edit.anchor, new)),
        Change::After(new) => Ok(behind(edit.anchor, text, new)),
        Change::Lines(count, new) => lines(edit.anchor, text, count, new),
    }
}

/// Each line as it is, and `new` behind those with the anchor.
fn behind(anchor: &str, text: &str, new: &str) -> String {
    let with = |line: &str| match line.contains(anchor) {
        true => format!("{line}\n{new}\n"),
        false => format!("{line}\n"),
    };
    text.lines().map(with).collect()
}

fn lines(anchor: &str, text: &str, count: usize, new: &str) -> Result<String, String> {
    let lines: Vec<&str> = text.lines().collect();
    let start = lines.iter().position(|line| line.contains(anchor)).unwrap_or(lines.len());
    if start + count > lines.len() {
        return Err(format!("there are no {count} lines from `{anchor}` on"));
    }
    let new = Some(new).filter(|new| !new.is_empty());
    let kept =
        lines[..start].iter().copied().chain(new).chain(lines[start + count..].iter().copied());
    Ok(kept.map(|line| format!("{line}\n")).collect())
}

pub(crate) fn sha256(path: &Path) -> Result<String, String> {
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

/// The difference of all changed files, as a person reads it.
pub(crate) fn diff(table: &[Changed], from: &Path, to: &Path) -> Result<String, String> {
    let mut all = String::new();
    for Changed { file, .. } in table {
        let mut command = Command::new("diff");
        command.args(["-u", "--label", &format!("a/{file}"), "--label", &format!("b/{file}")]);
        let output = command.arg(from.join(file)).arg(to.join(file)).output();
        let output = output.map_err(|error| {
            format!("diff cannot be run: {error}; install the package diffutils")
        })?;
        // 0: alike, 1: different; beyond is trouble.
        if output.status.code().is_none_or(|code| code > 1) {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_string());
        }
        all.push_str(&String::from_utf8_lossy(&output.stdout));
    }
    Ok(all)
}

/// The lines of a unified difference.
pub(crate) fn extent(diff: &str) -> Extent {
    let counts = |sign: char, header: &str| {
        diff.lines().filter(|line| line.starts_with(sign) && !line.starts_with(header)).count()
    };
    Extent { removed: counts('-', "--- "), added: counts('+', "+++ ") }
}

#[cfg(test)]
mod tests;
