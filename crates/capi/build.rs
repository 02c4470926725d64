//! Adds symbol versions to the shared library.
//!
//! rustc passes the linker a version script of its own, without a version, and the linker accepts
//! no second one beside it. So a small wrapper script calls the linker without rustc's script.

use std::error::Error;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::{env, fs};

/// The wrapper script for the linker. It calls GNU's linker, which comes with every gcc: other
/// linkers accept both scripts and silently drop the version.
const LINKER: &str = r#"#!/bin/sh
for word; do
    shift
    case "$word" in
        --version-script=*/list | --no-undefined-version) ;;
        *) set -- "$@" "$word" ;;
    esac
done
exec ld.bfd "$@"
"#;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=symbols.map");
    // The linker's arguments contain the path of the sources.
    println!("cargo::rerun-if-env-changed=CARGO_MANIFEST_DIR");
    // In a cross build the linker has another name; the library then has no versions.
    if env::var("HOST")? != env::var("TARGET")? {
        return Ok(());
    }
    let directory = Path::new(&env::var("OUT_DIR")?).join("linker");
    fs::create_dir_all(&directory)?;
    let linker = directory.join("ld.bfd");
    fs::write(&linker, LINKER)?;
    fs::set_permissions(&linker, fs::Permissions::from_mode(0o755))?;
    let script = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("symbols.map");
    println!("cargo::rustc-cdylib-link-arg=-fuse-ld=bfd");
    println!("cargo::rustc-cdylib-link-arg=-B{}", directory.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", script.display());
    Ok(())
}
