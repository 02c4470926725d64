//! The program of all targets: `FUZZ_TARGET` names the one to run. libFuzzer, which the feature
//! `libfuzzer` adds, passes inputs to it; otherwise the command line names files with inputs.

#![cfg_attr(fuzzing, no_main)]

use fuzz_targets::{Check, TARGETS, target};

/// The variable with the target's name, because libFuzzer takes the whole command line.
const VARIABLE: &str = "FUZZ_TARGET";

fn chosen() -> Result<Check, String> {
    let name = std::env::var(VARIABLE).unwrap_or_default();
    target(&name).ok_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
        format!("{VARIABLE}: there is no target `{name}`; use one of {}", names.join(", "))
    })
}

#[cfg(fuzzing)]
static CHECK: std::sync::LazyLock<Check> =
    std::sync::LazyLock::new(|| chosen().unwrap_or_else(|error| panic!("{error}")));

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (*CHECK)(bytes));

#[cfg(not(fuzzing))]
fn main() -> Result<(), String> {
    let (check, files) = (chosen()?, std::env::args_os().skip(1));
    if files.len() == 0 {
        return Err("name files with inputs; `cargo xtask fuzz` finds new ones".to_string());
    }
    for file in files {
        let bytes = std::fs::read(&file)
            .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        check(&bytes);
    }
    Ok(())
}
