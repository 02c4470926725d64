//! Builds and checks the documentation: the manual pages, rustdoc, and the book.

mod book;
mod links;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::cargo::{Cargo, absolute_target};
use crate::command::quietly;
use crate::setup;

pub(crate) use book::install_mdbook;

/// The package of mandoc(1), which checks the manual pages.
pub(crate) const MANDOC: &str = "mandoc";

/// The manual pages, by section. Tests of `iobench` and `fabled` check those that programs print.
const MANUALS: [&str; 2] = ["crates/capi/man/man3", "crates/capi/man/man7"];

/// The crates whose API a user calls, in the order of the landing page.
const PRODUCT: [&str; 5] = ["megapipe", "megapipe-rt", "mtcp", "mtcp-proto", "fable"];

/// Checks and builds everything; installs mandoc and mdBook if they are missing.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    setup::run_for(&[MANDOC])?;
    check_manuals(root)?;
    run_without_manuals(root)
}

/// Does the same where mandoc cannot be installed.
pub(crate) fn run_without_manuals(root: &Path) -> Result<(), String> {
    rustdoc(root)?;
    // Does nothing if this version is there.
    execute(&install_mdbook(), root)?;
    book::build(root)
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

/// Checks the documentation of all code, of which a warning is an error, and builds that of the API
/// with a page that leads to it.
fn rustdoc(root: &Path) -> Result<(), String> {
    let doc = |words: &str| {
        let cargo = Cargo::new(&format!("doc --no-deps --locked {words}"));
        execute(&cargo.with("RUSTDOCFLAGS", "-D warnings"), root)
    };
    doc("--workspace --document-private-items")?;
    let output = absolute_target(root)?.join("doc");
    let failed = |error| format!("cannot write {}: {error}", output.display());
    // Without the pages of private items and of crates that are no API.
    fs::remove_dir_all(&output).map_err(failed)?;
    doc(&PRODUCT.map(|name| format!("--package {name}")).join(" "))?;
    fs::write(output.join("index.html"), landing_page(root)?).map_err(failed)?;
    println!("doc: the API is {}", output.join("index.html").display());
    Ok(())
}

/// Returns the page that lists the crates of the API with their descriptions.
fn landing_page(root: &Path) -> Result<String, String> {
    let mut page = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>MegaPipe: API</title>\n\
         <body style=\"font-family: sans-serif; max-width: 45em; margin: 2em auto\">\n\
         <h1>MegaPipe: API</h1>\n<dl>\n",
    );
    for name in PRODUCT {
        let path = format!("crates/{name}/Cargo.toml");
        let manifest = fs::read_to_string(root.join(&path))
            .map_err(|error| format!("cannot read {path}: {error}"))?;
        let what = manifest.lines().find_map(|line| line.strip_prefix("description = "));
        let what = what.unwrap_or_default().trim_matches('"');
        let module = name.replace('-', "_");
        page += &format!("<dt><a href=\"{module}/index.html\">{name}</a><dd>{what}\n");
    }
    Ok(page + "</dl>\n</html>\n")
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
