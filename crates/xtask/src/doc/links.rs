//! Checks the links between the repository's pages, and that the book has every page of `docs/`.

use std::collections::{BTreeMap, BTreeSet};

use super::markdown::{self, Link, Page};
use crate::tidy::{File, Finding};

/// The book's directory.
const BOOK: &str = "docs/";
/// The book's table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Checks every page among the files. Targets on other hosts are not looked at. `exists` tells of
/// files that are no text.
pub(super) fn check(files: &[File], exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let pages: BTreeMap<&str, Page> = files
        .iter()
        .filter(|file| file.path.ends_with(".md"))
        .map(|file| (file.path.as_str(), markdown::read(&file.text)))
        .collect();
    let mut findings = contents(&pages);
    for (path, page) in &pages {
        for link in &page.links {
            if let Err((what, mend)) = follow(path, link, &pages, &exists) {
                let what = format!("the link {}: {what}", link.target);
                findings.push(Finding { path: (*path).to_string(), line: link.line, what, mend });
            }
        }
    }
    findings
}

/// Compares the table of contents with the pages of the book.
fn contents(pages: &BTreeMap<&str, Page>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(summary) = pages.get(SUMMARY) else { return findings };
    let mut report = |line, what| {
        let mend = "list each page of docs/ once";
        findings.push(Finding { path: SUMMARY.to_string(), line, what, mend });
    };
    let mut listed = BTreeSet::new();
    for link in &summary.links {
        match resolved(SUMMARY, &link.target) {
            Some(path) if !path.starts_with(BOOK) => {
                report(link.line, format!("{path} is not in the book's directory"));
            }
            Some(path) if !listed.insert(path.clone()) => {
                report(link.line, format!("{path} is listed twice"));
            }
            _ => {}
        }
    }
    let of_book = pages.keys().filter(|path| path.starts_with(BOOK) && **path != SUMMARY);
    for path in of_book.filter(|path| !listed.contains(**path)) {
        report(1, format!("{path} is not listed"));
    }
    findings
}

/// Why a link leads nowhere, with the remedy.
fn follow(
    page: &str,
    link: &Link,
    pages: &BTreeMap<&str, Page>,
    exists: impl Fn(&str) -> bool,
) -> Result<(), (String, &'static str)> {
    if is_elsewhere(&link.target) {
        return Ok(());
    }
    let (path, anchor) = match link.target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (link.target.as_str(), None),
    };
    let path = match path {
        "" => Some(page.to_string()),
        path => resolved(page, path),
    };
    let Some(path) = path.filter(|path| exists(path)) else {
        return Err(("no such file or directory".into(), "write it relative to the page"));
    };
    match (anchor, pages.get(path.as_str())) {
        (None, _) => Ok(()),
        (Some(anchor), Some(page)) if page.anchors.contains(anchor) => Ok(()),
        (Some(_), Some(_)) => {
            Err((format!("{path} has no such heading"), "name one of its headings, in lower case"))
        }
        (Some(_), None) => Err((format!("{path} is no page"), "leave the anchor out")),
    }
}

/// Whether the target has a scheme (RFC 3986, section 3.1).
fn is_elsewhere(target: &str) -> bool {
    let scheme = target.split_once(':').map_or("", |(scheme, _)| scheme);
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// The path of a link's target in the repository, if it is in there.
fn resolved(page: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.trim_end_matches('/').split('/') {
        match part {
            ".." => {
                parts.pop()?;
            }
            "." => {}
            // An absolute path has an empty first part, which nothing is called.
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pages: &[(&str, &str)]) -> Vec<String> {
        let file =
            |(path, text): &(&str, &str)| File { path: (*path).into(), text: (*text).into() };
        let files: Vec<File> = pages.iter().map(file).collect();
        let exists = |path: &str| {
            ["", "crates/a", "docs/x.png"].contains(&path) || files.iter().any(|f| f.path == path)
        };
        let findings = check(&files, exists);
        findings.iter().map(|f| format!("{}:{}: {}", f.path, f.line, f.what)).collect()
    }

    #[test]
    fn good_links_pass() {
        let readme =
            "# Top\n[a](docs/a.md#two-words) [b](#top) [c](crates/a/) [d](https://x.y/z)\n";
        let page = "# Two words\n[r](../README.md#top) [p](x.png) [m](mailto:a@b.c) [.](../)\n";
        assert!(found(&[("README.md", readme), ("docs/a.md", page)]).is_empty());
    }

    #[test]
    fn bad_links_are_found_where_they_stand() {
        let page =
            "[a](b.md)\n\n```\n[a](c.md)\n```\n[a](../../d.md) [a](/docs/a.md) `[a](e.md)`\n";
        let nowhere = "no such file or directory";
        assert_eq!(
            found(&[("docs/a.md", page)]),
            [
                format!("docs/a.md:1: the link b.md: {nowhere}"),
                format!("docs/a.md:6: the link ../../d.md: {nowhere}"),
                format!("docs/a.md:6: the link /docs/a.md: {nowhere}"),
            ]
        );
    }

    #[test]
    fn bad_anchors_are_found() {
        let a = "# A\n## A\n[1](#a-1) [2](#a-2) [3](b.md#a) [4](b.md#B) [5](x.png#a)\n";
        assert_eq!(
            found(&[("docs/a.md", a), ("docs/b.md", "# B\n")]),
            [
                "docs/a.md:3: the link #a-2: docs/a.md has no such heading",
                "docs/a.md:3: the link b.md#a: docs/b.md has no such heading",
                "docs/a.md:3: the link b.md#B: docs/b.md has no such heading",
                "docs/a.md:3: the link x.png#a: docs/x.png is no page",
            ]
        );
    }

    #[test]
    fn the_book_lists_each_of_its_pages_once() {
        let pages = |summary| {
            found(&[
                ("README.md", ""),
                (SUMMARY, summary),
                ("docs/a.md", ""),
                ("docs/b/c.md", ""),
                ("crates/a/README.md", ""),
            ])
        };
        assert!(pages("- [A](a.md)\n  - [C](b/c.md)\n").is_empty());
        assert_eq!(
            pages("- [A](a.md)\n- [A](a.md)\n- [R](../README.md)\n- [D](d.md)\n"),
            [
                "docs/SUMMARY.md:2: docs/a.md is listed twice",
                "docs/SUMMARY.md:3: README.md is not in the book's directory",
                "docs/SUMMARY.md:1: docs/b/c.md is not listed",
                "docs/SUMMARY.md:4: the link d.md: no such file or directory",
            ]
        );
    }
}
