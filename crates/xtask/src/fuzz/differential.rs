//! The commands of the differential fuzzers.

use crate::cargo::Cargo;

/// The channel's differential fuzzer for `seconds`.
pub(crate) fn channelfuzz(seconds: u64) -> Cargo {
    Cargo::new("run --package channelfuzz --locked -- --seconds").and(&seconds.to_string())
}

/// The same fuzzer for the channel over the user-level stack, compared with the kernel.
pub(crate) fn channelfuzz_over_stack(seconds: u64) -> Cargo {
    channelfuzz(seconds).and("--driver").and("mtcp")
}

/// Builds the libraries that `callfuzz` preloads, and the stack's launcher, because cargo does not
/// build them for `callfuzz`.
pub(crate) fn callfuzz_libraries() -> Cargo {
    Cargo::new("build --package fable-preload --package mtcp-preload --package mtcp --locked")
}

/// The differential fuzzer of socket calls for `seconds`.
pub(crate) fn callfuzz(seconds: u64) -> Cargo {
    Cargo::new("run --package callfuzz --locked -- --seconds").and(&seconds.to_string())
}

/// The same fuzzer for a process on the user-level stack, compared with the kernel.
pub(crate) fn callfuzz_over_stack(seconds: u64) -> Cargo {
    callfuzz(seconds).and("--way").and("mtcp")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_differential_fuzzer_runs_over_the_stack() {
        let line = channelfuzz_over_stack(9).to_string();
        let end = "--seconds 9 --driver mtcp";
        assert_eq!(line, format!("cargo run --package channelfuzz --locked -- {end}"));
    }

    #[test]
    fn the_fuzzer_of_socket_calls_has_its_libraries() {
        assert_eq!(
            callfuzz_libraries().to_string(),
            "cargo build --package fable-preload --package mtcp-preload --package mtcp --locked"
        );
        assert_eq!(callfuzz(7).arguments.last().map(String::as_str), Some("7"));
        let line = callfuzz_over_stack(7).to_string();
        assert_eq!(line, "cargo run --package callfuzz --locked -- --seconds 7 --way mtcp");
    }
}
