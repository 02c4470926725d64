//! Builds the book in `target/book` from all Markdown pages of the repository, and checks its
//! links.
//!
//! mdBook gets a copy of every tracked file, so a link to a source leads to the copy beside the
//! page, also without a network. `docs/SUMMARY.md` is the table of contents.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::links;
use crate::cargo::{self, Cargo, absolute_target};
use crate::command::{make_directory, quietly};

/// The newest version of mdBook that the oldest supported Rust compiles.
const MDBOOK: &str = "0.5.4";

/// The command that compiles mdBook, without its web server.
pub(crate) fn install_mdbook() -> Cargo {
    cargo::install_tool("mdbook", MDBOOK).and("--features").and("search")
}

/// Builds the book with mdBook, which [`install_mdbook`] has installed.
pub(super) fn build(root: &Path) -> Result<(), String> {
    let target = absolute_target(root)?;
    let (source, output) = (target.join("book-source"), target.join("book"));
    let files = tracked_files(root)?;
    copy(root, &files, &source)?;
    let mut build = Command::new(root.join(cargo::tools()).join("bin/mdbook"));
    build.arg("build").arg(&source).arg("--dest-dir").arg(&output);
    if let Some(address) = repository(root) {
        build.env("MDBOOK_OUTPUT__HTML__GIT_REPOSITORY_URL", address);
    }
    quietly(&mut build, "mdbook build")?;
    let mut findings = links::check(&output)?;
    findings.extend(unlisted(&files, &output));
    findings.iter().for_each(|finding| println!("{finding}"));
    if !findings.is_empty() {
        return Err(format!("the book has {} faults; they are listed above", findings.len()));
    }
    println!("doc: the book is {}; each link leads somewhere", output.join("index.html").display());
    Ok(())
}

/// Returns the paths of the files that git knows and that exist.
pub(super) fn tracked_files(root: &Path) -> Result<Vec<PathBuf>, String> {
    let output = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output();
    let output = output.map_err(|error| format!("cannot run git: {error}; install it"))?;
    let listed = String::from_utf8_lossy(&output.stdout);
    let files = listed.split_terminator('\0').map(PathBuf::from);
    let files: Vec<PathBuf> = files.filter(|file| root.join(file).is_file()).collect();
    if files.is_empty() { Err("git lists no files; use a git checkout".into()) } else { Ok(files) }
}

/// Copies the files, with the settings and the table of contents where mdBook expects them.
fn copy(root: &Path, files: &[PathBuf], source: &Path) -> Result<(), String> {
    let failed = |path: &Path, error| format!("cannot copy {}: {error}", path.display());
    if source.exists() {
        fs::remove_dir_all(source).map_err(|error| failed(source, error))?;
    }
    let settings = PathBuf::from("docs/book.toml");
    let copies = files.iter().map(|file| (file, source.join(file)));
    for (file, to) in copies.chain([(&settings, source.join("book.toml"))]) {
        make_directory(to.parent().unwrap_or(source))?;
        let copied = match file.extension().and_then(|kind| kind.to_str()) {
            // The check would take templates for pages.
            Some("html") => Ok(()),
            Some("md") => fs::read_to_string(root.join(file))
                .and_then(|text| fs::write(to, links_of_index(&text))),
            _ => fs::copy(root.join(file), to).map(drop),
        };
        copied.map_err(|error| failed(file, error))?;
    }
    let summary = root.join("docs/SUMMARY.md");
    let text = fs::read_to_string(&summary).map_err(|error| failed(&summary, error))?;
    fs::write(source.join("SUMMARY.md"), contents(&text, files))
        .map_err(|error| failed(&summary, error))
}

/// Changes links to a README.md as mdBook changes its file: to an index.
fn links_of_index(page: &str) -> String {
    page.replace("README.md)", "index.md)").replace("README.md#", "index.md#")
}

/// Returns the table of contents, relative to the root instead of `docs`, and with the pages
/// outside of `docs` that it does not list: the introductions of crates.
fn contents(summary: &str, files: &[PathBuf]) -> String {
    let mut contents = summary.replace("](", "](docs/").replace("](docs/../", "](");
    contents += "\n# Introductions of crates\n\n";
    for file in files.iter().filter(|file| is_page(file) && !file.starts_with("docs")) {
        let link = format!("]({})", file.display());
        if !contents.contains(&link) {
            let directory = file.parent().unwrap_or(file).display().to_string();
            contents += &format!("- [{}{link}\n", directory.trim_start_matches("crates/"));
        }
    }
    contents
}

fn is_page(file: &Path) -> bool {
    file.extension().is_some_and(|kind| kind == "md")
}

/// Returns the address for the link to the repository: that from which it was cloned, if a browser
/// can open it.
fn repository(root: &Path) -> Option<String> {
    let mut git = Command::new("git");
    let output = git.args(["config", "remote.origin.url"]).current_dir(root).output().ok()?;
    let address = String::from_utf8(output.stdout).ok()?;
    address.starts_with("https://").then(|| address.trim().to_string())
}

/// Finds Markdown pages that the table of contents does not list.
fn unlisted(files: &[PathBuf], output: &Path) -> Vec<String> {
    let pages = files.iter().filter(|file| is_page(file));
    let page = |file: &Path| match file.file_name().is_some_and(|name| name == "README.md") {
        true => file.with_file_name("index.html"),
        false => file.with_extension("html"),
    };
    let unlisted = pages.filter(|file| !output.join(page(file)).exists());
    unlisted.map(|file| format!("{}: list it in docs/SUMMARY.md", file.display())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_contents_is_relative_to_the_root_and_has_the_crates() {
        let files = ["README.md", "crates/a/README.md", "crates/a/b.rs", "docs/a.md"];
        assert_eq!(
            contents("[R](../README.md)\n- [A](a.md)\n", &files.map(PathBuf::from)),
            "[R](README.md)\n- [A](docs/a.md)\n\n# Introductions of crates\n\n\
             - [a](crates/a/README.md)\n"
        );
    }

    #[test]
    fn pages_that_are_not_in_the_book_are_named() {
        let output = tempfile::tempdir().unwrap();
        fs::write(output.path().join("index.html"), "").unwrap();
        let files = ["README.md", "src/a.rs", "b.md"].map(PathBuf::from);
        assert_eq!(unlisted(&files, output.path()), ["b.md: list it in docs/SUMMARY.md"]);
    }
}
