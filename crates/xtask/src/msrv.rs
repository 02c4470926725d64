//! Checks what `cargo xtask test` compiles with the oldest Rust that Cargo.toml names.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::cargo::target_dir;
use crate::programs::FIRST;

/// Checks what the first level builds; other packages may need a newer Rust. Installs the toolchain
/// with rustup if necessary.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let manifest = fs::read_to_string(root.join("Cargo.toml"))
        .map_err(|error| format!("cannot read Cargo.toml: {error}"))?;
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "));
    let version = version.ok_or("Cargo.toml has no rust-version")?.trim_matches('"');
    if !succeeds(root, &["run", version, "cargo", "--version"])? {
        let install = ["toolchain", "install", version, "--profile", "minimal"];
        if !succeeds(root, &install)? {
            println!(
                "NOT CHECKED: msrv: Rust {version} cannot be installed; correct the cause in \
                 rustup's output above, such as the network, then run `rustup {}`",
                install.join(" ")
            );
            return Ok(());
        }
    }
    let target = target_dir().join("msrv");
    let target = target.to_string_lossy();
    let check = FIRST.replacen("build", "check", 1);
    let mut words = vec!["run", version, "cargo"];
    words.extend(check.split(' '));
    words.extend(["--target-dir", &target]);
    if succeeds(root, &words)? {
        println!("msrv: Rust {version} compiles what `cargo xtask test` needs");
        return Ok(());
    }
    Err(format!(
        "Rust {version} does not compile it; change the code or the dependency above, or raise \
         rust-version in Cargo.toml and the version in the pages that name it"
    ))
}

fn succeeds(root: &Path, words: &[&str]) -> Result<bool, String> {
    println!("msrv: rustup {}", words.join(" "));
    // cargo sets RUSTC and CARGO for its own toolchain.
    let mut rustup = Command::new("rustup");
    rustup.args(words).current_dir(root).env_remove("CARGO").env_remove("RUSTC");
    let status = rustup.status().map_err(|error| {
        format!(
            "cannot run rustup: {error}; install it, because only it has older versions of Rust"
        )
    })?;
    Ok(status.success())
}
