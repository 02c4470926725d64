//! Tells the program the versions of its libraries.

use std::fs;

/// The libraries of the servers of `http`.
const LIBRARIES: [&str; 8] =
    ["axum", "hyper", "tokio", "cyper-axum", "compio", "monoio", "megapipe-rt", "mtcp"];
const LOCK_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock");

/// Sets IOBENCH_EXTERNAL_VERSIONS to `axum 0.8.9, hyper 1.12.0` and so on, from the lock file.
fn main() {
    println!("cargo:rerun-if-changed={LOCK_FILE}");
    let lock = fs::read_to_string(LOCK_FILE).unwrap_or_default();
    let value = |package: &str, key: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.trim_start_matches(" = ").trim_matches('"').to_owned())
    };
    let versions = |library: &&str| {
        let packages = lock.split("[[package]]");
        let own = packages.filter(|package| value(package, "name").as_deref() == Some(*library));
        let versions: Vec<String> = own.filter_map(|package| value(package, "version")).collect();
        format!("{library} {}", versions.join("/"))
    };
    let all: Vec<String> = LIBRARIES.iter().map(versions).collect();
    println!("cargo:rustc-env=IOBENCH_EXTERNAL_VERSIONS={}", all.join(", "));
}
