//! Builds and checks the documentation: rustdoc and the book.

mod book;
mod links;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;

use crate::cargo::{Cargo, absolute_target};

pub(crate) use book::install_mdbook;

/// The crates whose API a user calls, in the order of the landing page.
const PRODUCT: [&str; 5] = ["megapipe", "megapipe-rt", "mtcp", "mtcp-proto", "fable"];

/// Checks and builds everything; installs mdBook if it is missing.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    rustdoc(root)?;
    // Does nothing if this version is there.
    execute(&install_mdbook(), root)?;
    book::build(root)
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
