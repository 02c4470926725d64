//! Words that must not stay in the code.

use super::Report;
use super::lexer::Lexed;

/// Macros of work in progress.
const UNFINISHED: &[&str] = &["todo", "unimplemented", "dbg"];

/// Sources of libraries: a library returns errors, ending the process is its user's to decide.
const LIBRARIES: &[&str] = &["crates/megapipe/src/"];

/// Checks for unfinished code, tests ignored without a reason, and libraries that exit.
pub(super) fn check(path: &str, lexed: &Lexed<'_>, report: &mut Report<'_>) {
    let library = LIBRARIES.iter().any(|library| path.starts_with(library));
    for at in 0..lexed.tokens.len() {
        let word = lexed.text(at);
        let line = lexed.tokens[at].line;
        if UNFINISHED.contains(&word) && is_macro_call(lexed, at) {
            report.add(line, format!("{word}! in the code"), "finish it or take it out");
        }
        if word == "#" && ignores_silently(lexed, at) {
            let mend = "write #[ignore = \"why\"], or have the test announce itself as skipped";
            report.add(line, "a test ignored without a reason", mend);
        }
        if library && word == "process" && exits(lexed, at) {
            report.add(line, "process::exit in a library", "return an error to the caller");
        }
    }
}

fn is_macro_call(lexed: &Lexed<'_>, at: usize) -> bool {
    lexed.text(at + 1) == "!" && matches!(lexed.text(at + 2), "(" | "[" | "{")
}

/// `#[ignore]` and `#[cfg_attr(condition, ignore)]`.
fn ignores_silently(lexed: &Lexed<'_>, hash: usize) -> bool {
    let Some(close) = lexed.partner(hash + 1) else { return false };
    let conditional = lexed.reads(hash, &["#", "[", "cfg_attr", "("])
        && (hash..close)
            .any(|at| lexed.reads(at, &[",", "ignore"]) && matches!(lexed.text(at + 2), "," | ")"));
    conditional || lexed.reads(hash, &["#", "[", "ignore", "]"])
}

/// `process::exit`, also within the braces of a `use`.
fn exits(lexed: &Lexed<'_>, at: usize) -> bool {
    if !lexed.reads(at + 1, &[":", ":"]) {
        return false;
    }
    match lexed.text(at + 3) {
        "exit" => true,
        "{" => {
            let close = lexed.partner(at + 3).unwrap_or(at);
            (at..close).any(|inside| lexed.text(inside) == "exit")
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    fn in_library(text: &str) -> Vec<String> {
        found(text, |lexed, report| check("crates/megapipe/src/lib.rs", lexed, report))
    }

    fn elsewhere(text: &str) -> Vec<String> {
        found(text, |lexed, report| check("crates/iobench/src/main.rs", lexed, report))
    }

    #[test]
    fn unfinished_code_is_found() {
        assert_eq!(
            elsewhere("fn a() { todo!() }\nunimplemented!(\"b\");\ndbg![c];\n"),
            ["1: todo! in the code", "2: unimplemented! in the code", "3: dbg! in the code",]
        );
    }

    #[test]
    fn the_words_themselves_pass() {
        assert!(
            elsewhere("// todo!()\nlet s = \"dbg!(x)\";\nif todo != 3 {}\nlet dbg = 1;").is_empty()
        );
    }

    #[test]
    fn silent_ignores_are_found() {
        let what = "a test ignored without a reason";
        assert_eq!(elsewhere("#[test]\n#[ignore]\nfn a() {}"), [format!("2: {what}")]);
        assert_eq!(elsewhere("#[cfg_attr(miri, ignore)]\nfn a() {}"), [format!("1: {what}")]);
    }

    #[test]
    fn ignores_with_a_reason_pass() {
        let text =
            "#[ignore = \"slow\"]\n#[cfg_attr(miri, ignore = \"no io_uring\")]\nf(a, ignore)";
        assert!(elsewhere(text).is_empty());
    }

    #[test]
    fn a_library_that_exits_is_found() {
        let what = "process::exit in a library";
        assert_eq!(in_library("fn a() { std::process::exit(1) }"), [format!("1: {what}")]);
        assert_eq!(in_library("use std::process::{Command, exit};"), [format!("1: {what}")]);
    }

    #[test]
    fn programs_may_exit_and_libraries_may_start_processes() {
        assert!(elsewhere("std::process::exit(1)").is_empty());
        assert!(in_library("use std::process::{Command, Stdio};\nuse std::process;").is_empty());
        assert!(in_library("/// std::process::exit(1)\nstruct A;").is_empty());
    }
}
