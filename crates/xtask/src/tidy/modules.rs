//! Every source file of a crate is part of it, and every crate introduces itself.

use std::collections::{BTreeMap, BTreeSet};

use super::lexer::{self, Kind, Lexed};
use super::{File, Finding};

/// Checks the crates in `crates/`.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for file in files {
        if let Some((name, inside)) =
            file.path.strip_prefix("crates/").and_then(|path| path.split_once('/'))
        {
            crates.entry(name).or_default().insert(inside, &file.text);
        }
    }
    crates.iter().flat_map(|(name, files)| check_crate(name, files)).collect()
}

/// Checks one crate, given its files by their path within it.
fn check_crate(name: &str, files: &BTreeMap<&str, &str>) -> Vec<Finding> {
    let finding = |inside: &str, what: &str, mend| Finding {
        path: format!("crates/{name}/{inside}"),
        line: 1,
        what: what.to_string(),
        mend,
    };
    let manifest = files.get("Cargo.toml").copied().unwrap_or_default();
    let roots: Vec<&str> = files.keys().copied().filter(|path| is_root(path, manifest)).collect();
    let mut findings = Vec::new();
    if roots.is_empty() {
        findings.push(finding("Cargo.toml", "a crate without source", "add src/lib.rs"));
    }
    for root in &roots {
        if !files[root].starts_with("//!") {
            let mend = "open the file with `//!` lines that say what the crate is for";
            findings.push(finding(root, "a crate without an introduction", mend));
        }
    }
    let used = reachable(&roots, files);
    for path in files.keys().filter(|path| path.starts_with("src/") && path.ends_with(".rs")) {
        if !used.contains(*path) {
            let mend = "declare it in its parent module or delete it";
            findings.push(finding(path, "no `mod` declares this file", mend));
        }
    }
    findings
}

/// Where cargo looks for targets in `src`, or what the manifest names.
fn is_root(path: &str, manifest: &str) -> bool {
    let Some(name) = path.strip_prefix("src/").and_then(|path| path.strip_suffix(".rs")) else {
        return false;
    };
    let automatic = match name.strip_prefix("bin/") {
        Some(binary) => !binary.trim_end_matches("/main").contains('/'),
        None => name == "lib" || name == "main",
    };
    let named = |line: &str| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "path" && value.trim().trim_matches('"') == path).then_some(())
    };
    automatic || manifest.lines().any(|line| named(line).is_some())
}

/// The files that the roots declare, directly or through one another.
fn reachable(roots: &[&str], files: &BTreeMap<&str, &str>) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    // A path, and whether the modules it declares lie beside it rather than in a directory of its
    // own name.
    let mut open: Vec<(String, bool)> = roots.iter().map(|root| (root.to_string(), true)).collect();
    while let Some((path, beside)) = open.pop() {
        let Some(text) = files.get(path.as_str()) else { continue };
        if used.insert(path.clone()) {
            let (parent, file) = path.rsplit_once('/').unwrap_or(("", &path));
            let own = match file.strip_suffix(".rs") {
                Some(stem) if !beside && stem != "mod" => format!("{parent}/{stem}"),
                _ => parent.to_string(),
            };
            declared(&lexer::lex(text), parent, &own, &mut open);
        }
    }
    used
}

/// Adds what one file may mean by its `mod` declarations and `include!`s; `parent` is where the
/// file lies, `own` where its modules do.
fn declared(lexed: &Lexed<'_>, parent: &str, own: &str, found: &mut Vec<(String, bool)>) {
    // The modules opened inline around the current token, and where they close.
    let mut inside: Vec<(&str, usize)> = Vec::new();
    for at in 0..lexed.tokens.len() {
        inside.retain(|&(_, close)| close > at);
        if lexed.reads(at, &["include", "!"]) {
            found.extend(literal(lexed, at + 3).map(|path| (join(parent, path), true)));
        }
        if lexed.text(at) != "mod" || lexed.tokens[at].kind != Kind::Word {
            continue;
        }
        let name = lexed.text(at + 1).trim_start_matches("r#");
        let inline: String = inside.iter().map(|(name, _)| format!("/{name}")).collect();
        match (lexed.text(at + 2), path_attribute(lexed, at)) {
            ("{", _) => inside.push((name, lexed.partner(at + 2).unwrap_or(usize::MAX))),
            (";", Some(path)) if inside.is_empty() => found.push((join(parent, path), true)),
            (";", Some(path)) => found.push((join(&format!("{own}{inline}"), path), true)),
            (";", None) => {
                found.push((format!("{own}{inline}/{name}.rs"), false));
                found.push((format!("{own}{inline}/{name}/mod.rs"), true));
            }
            _ => {}
        }
    }
}

/// The value of `#[path = "..."]`, also within `cfg_attr`, before the `mod` at `at`.
fn path_attribute<'a>(lexed: &Lexed<'a>, at: usize) -> Option<&'a str> {
    let attributes =
        (0..at).rev().take_while(|&before| !matches!(lexed.text(before), ";" | "{" | "}"));
    let mut paths = attributes.filter(|&before| lexed.reads(before, &["path", "="]));
    paths.next().and_then(|before| literal(lexed, before + 2))
}

fn literal<'a>(lexed: &Lexed<'a>, at: usize) -> Option<&'a str> {
    let token = lexed.tokens.get(at).filter(|token| token.kind == Kind::Literal)?;
    token.text.strip_prefix('"')?.strip_suffix('"')
}

/// A path relative to a directory, with its `..` resolved.
fn join(directory: &str, path: &str) -> String {
    let mut parts: Vec<&str> = directory.split('/').collect();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests;
