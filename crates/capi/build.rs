//! Gives the symbols of the shared library their version.
//!
//! rustc hands the linker a version script of its own, without a version, and the linker takes no
//! second one beside it. So the linker is reached by way of a small script that leaves rustc's out.

use std::error::Error;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::{env, fs};

/// Linkers but GNU's take rustc's script and ours together and silently forget the version, so it
/// is GNU's that is asked for; it comes with every gcc.
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
    // The linker's arguments name files by where the sources are.
    println!("cargo::rerun-if-env-changed=CARGO_MANIFEST_DIR");
    // Another machine's linker has another name; its library does without versions.
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
