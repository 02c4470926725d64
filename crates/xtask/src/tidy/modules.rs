//! Checks that every source file of a crate is part of it, and that every crate has a header.

use std::collections::BTreeMap;
use std::ops::Range;

use super::lexer::{self, Kind, Lexed};
use super::{File, Finding, test_code};

/// The files of a crate by their path within it.
pub(super) type CrateFiles<'a> = BTreeMap<&'a str, &'a str>;

/// Returns the files of each crate in `crates/`.
pub(super) fn crates(files: &[File]) -> BTreeMap<&str, CrateFiles<'_>> {
    let mut crates: BTreeMap<&str, CrateFiles<'_>> = BTreeMap::new();
    for file in files {
        if let Some((name, inside)) =
            file.path.strip_prefix("crates/").and_then(|path| path.split_once('/'))
        {
            crates.entry(name).or_default().insert(inside, &file.text);
        }
    }
    crates
}

/// Checks the crates in `crates/`.
pub(super) fn check(crates: &BTreeMap<&str, CrateFiles<'_>>) -> Vec<Finding> {
    crates.iter().flat_map(|(name, files)| check_crate(name, files)).collect()
}

/// Checks one crate.
fn check_crate(name: &str, files: &CrateFiles<'_>) -> Vec<Finding> {
    let finding = |inside: &str, what: &str, mend| Finding {
        path: format!("crates/{name}/{inside}"),
        line: 1,
        what: what.to_string(),
        mend,
    };
    let roots = roots(files);
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
        if !used.contains_key(*path) {
            let mend = "declare it in its parent module or delete it";
            findings.push(finding(path, "no `mod` declares this file", mend));
        }
    }
    findings
}

/// Returns the files that cargo passes to the compiler.
pub(super) fn roots<'a>(files: &CrateFiles<'a>) -> Vec<&'a str> {
    let manifest = files.get("Cargo.toml").copied().unwrap_or_default();
    files.keys().copied().filter(|path| is_root(path, manifest)).collect()
}

/// Returns whether cargo finds a target at this path in `src`, or the manifest names it.
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

/// The position of a file in its crate.
pub(super) struct ModulePosition {
    path: String,
    /// The names of its module, from the crate's root on.
    pub(super) module: Vec<String>,
    /// Whether only tests include it.
    pub(super) is_test: bool,
    /// Whether the modules that it declares are beside it, and not in a directory of its own name.
    beside: bool,
}

/// Returns the files that the roots declare, directly or indirectly.
pub(super) fn reachable(
    roots: &[&str],
    files: &CrateFiles<'_>,
) -> BTreeMap<String, ModulePosition> {
    let mut used = BTreeMap::<String, ModulePosition>::new();
    let root = |path: &&str| ModulePosition {
        path: path.to_string(),
        module: Vec::new(),
        is_test: false,
        beside: true,
    };
    let mut open: Vec<ModulePosition> = roots.iter().map(root).collect();
    while let Some(place) = open.pop() {
        let Some(text) = files.get(place.path.as_str()) else { continue };
        // Tests may declare by `#[path]` a file that other code declares as well.
        let is_new = used.get(&place.path).is_none_or(|known| known.is_test && !place.is_test);
        if is_new {
            declared(&lexer::lex(text), &place, &mut open);
            used.insert(place.path.clone(), place);
        }
    }
    used
}

/// A module in the file of its parent.
pub(super) struct Inline<'a> {
    /// Its names, from the file's own module on.
    pub(super) names: Vec<&'a str>,
    pub(super) tokens: Range<usize>,
}

/// Returns the inline modules of a file, each before those within it.
pub(super) fn inline<'a>(lexed: &Lexed<'a>) -> Vec<Inline<'a>> {
    let mut modules = Vec::<Inline<'a>>::new();
    for at in (0..lexed.tokens.len()).filter(|&at| is_module(lexed, at, "{")) {
        let mut names = around(&modules, at).to_vec();
        names.push(module_name(lexed, at));
        let close = lexed.partner(at + 2).unwrap_or(usize::MAX);
        modules.push(Inline { names, tokens: at + 2..close });
    }
    modules
}

/// Returns the names of the innermost inline module around a token.
pub(super) fn around<'m, 'a>(modules: &'m [Inline<'a>], at: usize) -> &'m [&'a str] {
    let innermost = modules.iter().rev().find(|module| module.tokens.contains(&at));
    innermost.map_or(&[], |module| &module.names)
}

fn is_module(lexed: &Lexed<'_>, at: usize, after: &str) -> bool {
    lexed.text(at) == "mod" && lexed.tokens[at].kind == Kind::Word && lexed.text(at + 2) == after
}

fn module_name<'a>(lexed: &Lexed<'a>, at: usize) -> &'a str {
    lexed.text(at + 1).trim_start_matches("r#")
}

/// Adds the files that one file's `mod` declarations and `include!`s refer to.
fn declared(lexed: &Lexed<'_>, place: &ModulePosition, found: &mut Vec<ModulePosition>) {
    let (parent, file) = place.path.rsplit_once('/').unwrap_or(("", &place.path));
    // The directory of the file's modules.
    let own = match file.strip_suffix(".rs") {
        Some(stem) if !place.beside && stem != "mod" => format!("{parent}/{stem}"),
        _ => parent.to_string(),
    };
    let (inline, tests) = (inline(lexed), test_code::ranges(lexed));
    for at in 0..lexed.tokens.len() {
        let inside = around(&inline, at);
        let mut add = |path: String, name: Option<&str>, beside: bool| {
            let names = inside.iter().copied().chain(name).map(String::from);
            let module = place.module.iter().cloned().chain(names).collect();
            let is_test = place.is_test || tests.iter().any(|range| range.contains(&at));
            found.push(ModulePosition { path, module, is_test, beside });
        };
        if lexed.reads(at, &["include", "!"])
            && let Some(path) = literal(lexed, at + 3)
        {
            add(join(parent, path), None, true);
        }
        if !is_module(lexed, at, ";") {
            continue;
        }
        let name = module_name(lexed, at);
        let below: String = inside.iter().map(|name| format!("/{name}")).collect();
        match path_attribute(lexed, at) {
            Some(path) if inside.is_empty() => add(join(parent, path), Some(name), true),
            Some(path) => add(join(&format!("{own}{below}"), path), Some(name), true),
            None => {
                add(format!("{own}{below}/{name}.rs"), Some(name), false);
                add(format!("{own}{below}/{name}/mod.rs"), Some(name), true);
            }
        }
    }
}

/// Returns the value of `#[path = "..."]`, also within `cfg_attr`, before the `mod` at `at`.
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

/// Returns a path relative to a directory, with its `..` resolved.
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
