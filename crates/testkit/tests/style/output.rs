//! Finds macros that panic when standard output or standard error takes no data.

use crate::{crates, expect_none, lines_without_tests};

const MACROS: [&str; 5] = ["println!", "eprintln!", "print!", "eprint!", "dbg!"];

/// The crates that may use them: those that only tests run, and this project's build steps.
const EXEMPT: &[&str] = &[
    "callfuzz",
    "channelfuzz",
    "faults",
    "fuzz-targets",
    "fuzzkit",
    "hide-uring",
    "mtcp-packetdrill",
    "testkit",
    "xtask",
];

/// Returns the lines that use one of the macros, from 1 on, without comments and tests.
fn uses(text: &str) -> Vec<usize> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_use = |line: &str| {
        MACROS.iter().any(|name| {
            let mut found = line.match_indices(name);
            found.any(|(at, _)| at == 0 || !is_name(line.as_bytes()[at - 1]))
        })
    };
    let lines = text.lines().take(lines_without_tests(text)).enumerate();
    let lines = lines.filter(|(_, line)| !line.trim_start().starts_with("//") && is_use(line));
    lines.map(|(index, _)| index + 1).collect()
}

#[test]
fn programs_print_without_panics() {
    let mut findings = Vec::new();
    for (directory, files) in crates() {
        let Some(name) = directory.strip_prefix("crates/") else { continue };
        if EXEMPT.contains(&name) {
            continue;
        }
        let is_code = |path: &str| {
            path.starts_with("src/")
                && path.ends_with(".rs")
                && !path.ends_with("tests.rs")
                && !path.contains("/tests/")
        };
        for (path, text) in files.iter().filter(|(path, _)| is_code(path)) {
            let lines = uses(text).into_iter();
            findings.extend(lines.map(|line| {
                format!(
                    "{directory}/{path}:{line}: panics without a reader; use cli::print for a \
                     command's result, otherwise sys::output"
                )
            }));
        }
    }
    expect_none(findings);
}

#[test]
fn uses_of_the_macros_are_found() {
    assert_eq!(uses("fn a() {\n    std::eprintln!(\"a\");\n}\n"), [2]);
    assert_eq!(uses("/// println!(\"a\");\nfn a() {\n    pprint!();\n}\n"), []);
    assert_eq!(uses("dbg!(1);\n#[cfg(test)]\nmod tests {\n    print!();\n}\n"), [1]);
}
