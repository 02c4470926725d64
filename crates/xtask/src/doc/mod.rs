//! Builds and checks the documentation: the links between pages, the manual pages, rustdoc, and
//! the book of `docs/`.

mod links;
mod markdown;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::cargo::{self, Cargo, absolute_target};
use crate::command::quietly;
use crate::{setup, tidy};

/// The package of mandoc(1), which checks the manual pages.
pub(crate) const MANDOC: &str = "mandoc";

/// The newest version of mdBook that the oldest supported Rust compiles.
const MDBOOK: &str = "0.5.4";

/// The manual pages, by section. Tests of `iobench` and `fabled` check those that programs print.
const MANUALS: [&str; 2] = ["crates/capi/man/man3", "crates/capi/man/man7"];

/// Checks and builds everything; installs mandoc and mdBook if they are missing.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    check_links(root)?;
    setup::run_for(&[MANDOC])?;
    check_manuals(root)?;
    rustdoc(root)?;
    book(root)
}

/// Does the same where mandoc cannot be installed.
pub(crate) fn run_without_manuals(root: &Path) -> Result<(), String> {
    check_links(root)?;
    rustdoc(root)?;
    book(root)
}

fn check_links(root: &Path) -> Result<(), String> {
    let files = tidy::files(root)?;
    let mut findings = links::check(&files, |path| root.join(path).exists());
    findings.sort();
    findings.iter().for_each(|finding| println!("{finding}"));
    match findings.len() {
        0 => {
            println!("doc: all links lead to a file, and all anchors to a heading");
            Ok(())
        }
        count => Err(format!("the documentation has {count} bad links; they are listed above")),
    }
}

fn check_manuals(root: &Path) -> Result<(), String> {
    let mut pages = Vec::new();
    for directory in MANUALS {
        let unreadable = |error| format!("cannot read {directory}: {error}");
        for entry in fs::read_dir(root.join(directory)).map_err(unreadable)? {
            pages.push(Path::new(directory).join(entry.map_err(unreadable)?.file_name()));
        }
    }
    pages.sort();
    let mut mandoc = Command::new("mandoc");
    mandoc.args(["-Tlint", "-W", "warning"]).args(&pages).current_dir(root);
    quietly(&mut mandoc, "mandoc -Tlint -W warning")?;
    println!("doc: mandoc finds nothing in {} manual pages", pages.len());
    Ok(())
}

/// Builds the documentation of the code; a warning is an error.
fn rustdoc(root: &Path) -> Result<(), String> {
    let doc = Cargo::new("doc --workspace --no-deps --locked --document-private-items");
    execute(&doc.with("RUSTDOCFLAGS", "-D warnings"), root)
}

fn book(root: &Path) -> Result<(), String> {
    // Does nothing if this version is there.
    execute(&install_mdbook(), root)?;
    let output = absolute_target(root)?.join("book");
    let mut build = Command::new(root.join(cargo::tools()).join("bin/mdbook"));
    build.arg("build").arg(root.join("docs")).arg("--dest-dir").arg(&output);
    quietly(&mut build, "mdbook build docs")?;
    println!("doc: the book is {}", output.join("index.html").display());
    Ok(())
}

/// The command that compiles mdBook, without its web server and search.
pub(crate) fn install_mdbook() -> Cargo {
    cargo::install_tool("mdbook", MDBOOK)
}

fn execute(cargo: &Cargo, root: &Path) -> Result<(), String> {
    println!("doc: {cargo}");
    let status = cargo.command().current_dir(root).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{cargo}` ended with {status}; its output says why")),
        Err(error) => Err(format!("cannot run `{cargo}`: {error}")),
    }
}
