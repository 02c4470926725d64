//! Compares the answers to wrong command lines with a table, and with the page of errors.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A wrong command line, and what its answer has to contain.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    arguments: &'a str,
    status: i32,
    failed: &'a str,
    fixed: &'a str,
    remedy: &'a str,
}

/// Makes a row of a table: the arguments without the program, separated by spaces, and the exit
/// status; then three parts of the answer: what failed, with its value; words that are the same
/// for all values, which the page of errors contains; the remedy.
pub const fn refusal<'a>(
    arguments: &'a str,
    status: i32,
    [failed, fixed, remedy]: [&'a str; 3],
) -> Refusal<'a> {
    Refusal { arguments, status, failed, fixed, remedy }
}

/// Runs a program with each wrong command line and compares the answers: standard error contains
/// the three parts, standard output nothing, and the status is the one of the table. `prepare`
/// makes the command without its arguments.
///
/// The section of `program` in `docs/reference/errors.md`, or its section "All programs", has to
/// contain the fixed words of each message.
///
/// # Panics
/// If an answer differs; the message lists all differences.
#[track_caller]
pub fn assert_refusals(program: &str, prepare: impl Fn() -> Command, table: &[Refusal<'_>]) {
    let page = documented(program);
    let mut wrong = Vec::new();
    for refusal in table {
        let mut command = prepare();
        command.args(refusal.arguments.split_whitespace()).stdin(Stdio::null());
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        wrong.extend(refusal.differences(program, &output));
        if !page.contains(refusal.fixed) {
            wrong.push(format!("docs/reference/errors.md: {program}: no `{}`", refusal.fixed));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

impl Refusal<'_> {
    fn differences(&self, program: &str, output: &Output) -> Vec<String> {
        let message = String::from_utf8_lossy(&output.stderr);
        let mut wrong = Vec::new();
        for part in [self.failed, self.fixed, self.remedy] {
            if !message.contains(part) {
                wrong.push(format!("no `{part}`"));
            }
        }
        if output.status.code() != Some(self.status) {
            wrong.push(format!("{} instead of {}", output.status, self.status));
        }
        if !output.stdout.is_empty() {
            wrong.push(format!("output: {}", String::from_utf8_lossy(&output.stdout)));
        }
        let told = |what| format!("{program} {}: {what} in: {message}", self.arguments);
        wrong.into_iter().map(told).collect()
    }
}

/// Returns the sections of the page of errors that apply to a program.
fn documented(program: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/errors.md");
    let page = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let sections = page.split("\n## ").filter(|section| {
        let title = section.lines().next().unwrap_or_default();
        title == "All programs" || title.split(", ").any(|name| name == program)
    });
    sections.collect()
}

/// Checks the text of an error: at least four words without a full stop, with the parts given.
///
/// # Panics
/// If the text is different.
#[track_caller]
pub fn assert_sentence(text: &str, parts: &[&str]) {
    assert!(text.split_whitespace().count() >= 4, "`{text}` is no sentence");
    assert!(!text.ends_with(['.', ' ', ';', '\n']), "`{text}` has no proper end");
    for part in parts {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
}

/// Checks the texts of all variants of an error type: each row has a variant's pattern, an error of
/// that variant, and parts that its text has to contain, such as the remedy. A variant without a
/// row is a compile error.
#[macro_export]
macro_rules! assert_texts {
    ($error:ty; $($pattern:pat => $sample:expr, $parts:expr;)+) => {{
        #[allow(unreachable_patterns, reason = "a variant may have several rows")]
        fn every_variant_has_a_row(error: &$error) {
            match error {
                $($pattern => {})+
            }
        }
        $({
            let error: $error = $sample;
            every_variant_has_a_row(&error);
            assert!(matches!(&error, $pattern), "{error}: not {}", stringify!($pattern));
            $crate::assert_sentence(&error.to_string(), &$parts);
        })+
    }};
}

/// Returns the exit status of a refusal of iobench: 2 if the parser of the command line refused it,
/// whose messages refer to --help, otherwise 1.
pub fn refusal_status(output: &Output) -> Option<i32> {
    let message = String::from_utf8_lossy(&output.stderr);
    Some(if message.contains("try '--help'") { 2 } else { 1 })
}
