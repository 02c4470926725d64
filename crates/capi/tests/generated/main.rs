//! What is made of the sources: the header, and of the header the manual pages. With
//! `MEGAPIPE_UPDATE` set they are written instead of compared: `cargo xtask header`.

mod header;

use std::path::{Path, PathBuf};
use std::{env, fs};

const REMEDY: &str = "run `cargo xtask header`";

fn crate_directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Compares a generated file with the one in the repository, or writes it there.
fn settle(path: &Path, made: &str) {
    if env::var_os("MEGAPIPE_UPDATE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, made).unwrap();
    }
    let kept = fs::read_to_string(path).unwrap_or_default();
    assert!(kept == made, "{} is not what the sources say now: {REMEDY}", path.display());
}

#[test]
fn the_header_is_made_of_the_sources() {
    settle(&crate_directory().join("include/megapipe.h"), &header::generate());
}
