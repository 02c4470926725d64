//! Checks the links between the HTML pages of a directory, with their anchors.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The links and anchors of a page.
#[derive(Debug, Default)]
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

/// Returns a line for each link to a file or an anchor that does not exist. Targets on other hosts
/// are not looked at.
pub(super) fn check(directory: &Path) -> Result<Vec<String>, String> {
    let mut pages = BTreeMap::new();
    read_pages(directory, &mut pages)
        .map_err(|error| format!("cannot read {}: {error}", directory.display()))?;
    let mut findings = Vec::new();
    for (path, page) in &pages {
        for link in page.links.iter().filter(|link| !is_elsewhere(link)) {
            if let Err(reason) = follow(path, link, &pages) {
                let path = path.strip_prefix(directory).unwrap_or(path).display();
                findings.push(format!("{path}: the link {link} {reason}"));
            }
        }
    }
    Ok(findings)
}

fn read_pages(directory: &Path, pages: &mut BTreeMap<PathBuf, Page>) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            read_pages(&path, pages)?;
        } else if path.extension().is_some_and(|kind| kind == "html") {
            let page = parse(&fs::read_to_string(&path)?);
            pages.insert(path, page);
        }
    }
    Ok(())
}

/// Reads the attributes of all tags: a generator writes `<` in text as `&lt;`, and values in
/// quotes.
fn parse(html: &str) -> Page {
    let mut page = Page::default();
    for tag in html.split('<').skip(1).filter_map(|rest| rest.split('>').next()) {
        let value = |name: &str| tag.split_once(&format!(" {name}=\""))?.1.split('"').next();
        page.links.extend(value("href").or_else(|| value("src")).map(|v| v.replace("&amp;", "&")));
        page.anchors.extend(value("id").map(String::from));
    }
    page
}

/// Returns whether the target has a scheme (RFC 3986, section 3.1) or a host.
fn is_elsewhere(link: &str) -> bool {
    let scheme = link.split_once(':').map_or("", |(scheme, _)| scheme);
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    link.starts_with("//") || (!scheme.is_empty() && scheme.chars().all(is_scheme))
}

fn follow(from: &Path, link: &str, pages: &BTreeMap<PathBuf, Page>) -> Result<(), &'static str> {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = path.split('?').next().unwrap_or_default();
    let target = match path {
        "" => from.to_path_buf(),
        path => normal(&from.with_file_name("").join(path)),
    };
    let index = target.join("index.html");
    let target = if index.exists() { index } else { target };
    match (target.exists(), pages.get(&target)) {
        (false, _) => Err("leads to no file"),
        (true, _) if anchor.is_empty() => Ok(()),
        (true, Some(page)) if page.anchors.contains(anchor) => Ok(()),
        (true, Some(_)) => Err("leads to a page without that heading"),
        (true, None) => Err("has an anchor, but leads to no page"),
    }
}

/// Returns the path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_no_file_or_heading_are_found() {
        let book = tempfile::tempdir().unwrap();
        let write = |name: &str, html: &str| {
            let path = book.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, html).unwrap();
        };
        write("a.rs", "");
        write("b/index.html", r#"<h1 class="x" id="top">B</h1><img alt="" src="../a.rs">"#);
        let good = r##"<h1 id="a">A</h1> href="no-tag" &lt;a href="code"> <a href="b/#top">1</a>
            <a href="b/index.html#top">2</a><a href="#a">3</a><a href="mailto:a@b.c">4</a>
            <a class="x" href="b/../a.rs">5</a><a href="https://x.y/z">6</a><a href="b">7</a>"##;
        write("good.html", good);
        assert_eq!(check(book.path()).unwrap(), [""; 0]);
        let bad = r##"<a href="c.html">1</a><a href="b/#no">2</a><a href="#no">3</a>
            <a href="a.rs#L1">4</a><img src="/a.rs">"##;
        write("bad.html", bad);
        assert_eq!(
            check(book.path()).unwrap(),
            [
                "bad.html: the link c.html leads to no file",
                "bad.html: the link b/#no leads to a page without that heading",
                "bad.html: the link #no leads to a page without that heading",
                "bad.html: the link a.rs#L1 has an anchor, but leads to no page",
                "bad.html: the link /a.rs leads to no file",
            ]
        );
    }
}
