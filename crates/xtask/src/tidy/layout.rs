//! Limits the length of files and functions.

use super::Report;
use super::lexer::Lexed;
use super::test_code::asks_for_tests;

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;

/// Checks a file's length; tests at its end do not count.
pub(super) fn file_length(lines: usize, report: &mut Report<'_>) {
    if lines > FILE_LINES_MAX {
        let what = format!("{lines} lines, {FILE_LINES_MAX} allowed");
        report.add(1, what, "split the file by idea");
    }
}

/// Returns the lines of a file up to the test modules at its end.
pub(super) fn lines_without_tests(text: &str, lexed: &Lexed<'_>) -> usize {
    let mut end = lexed.tokens.len();
    while let Some(start) = test_module_before(lexed, end) {
        end = start;
    }
    lexed.tokens.get(end).map_or_else(|| text.lines().count(), |token| token.line - 1)
}

/// Returns the start, attributes included, of the test module whose closing brace is the last token
/// before `end`.
fn test_module_before(lexed: &Lexed<'_>, end: usize) -> Option<usize> {
    let close = end.checked_sub(1).filter(|&close| lexed.text(close) == "}")?;
    let mut start = lexed.partner(close)?.checked_sub(2)?;
    if lexed.text(start) != "mod" {
        return None;
    }
    let mut is_test = false;
    while let Some((hash, open)) = attribute_before(lexed, start) {
        is_test |= lexed.text(open + 1) == "cfg" && asks_for_tests(lexed, open, start);
        start = hash;
    }
    is_test.then_some(start)
}

/// Returns the attribute that ends just before `end`: its `#` and its opening bracket.
fn attribute_before(lexed: &Lexed<'_>, end: usize) -> Option<(usize, usize)> {
    let close = end.checked_sub(1).filter(|&close| lexed.text(close) == "]")?;
    let open = lexed.partner(close)?;
    let hash = open.checked_sub(1).filter(|&hash| lexed.text(hash) == "#")?;
    Some((hash, open))
}

/// Checks every function's length, signature included.
pub(super) fn functions(lexed: &Lexed<'_>, report: &mut Report<'_>) {
    for at in (0..lexed.tokens.len()).filter(|&at| lexed.text(at) == "fn") {
        let Some(close) = body(lexed, at).and_then(|open| lexed.partner(open)) else { continue };
        let lines = lexed.tokens[close].line - lexed.tokens[at].line + 1;
        if lines > FUNCTION_LINES_MAX {
            let name = lexed.text(at + 1);
            let what = format!("function {name} has {lines} lines, {FUNCTION_LINES_MAX} allowed");
            report.add(lexed.tokens[at].line, what, "split it where a step has a name");
        }
    }
}

/// Returns the brace that opens the body of the function whose `fn` is at `at`. A declaration or
/// the type of a function pointer has none.
fn body(lexed: &Lexed<'_>, at: usize) -> Option<usize> {
    if lexed.text(at + 1) == "(" {
        return None;
    }
    let mut next = at + 1;
    while next < lexed.tokens.len() {
        match lexed.text(next) {
            // This brace belongs to a constant: `Array<{ N + 1 }>`.
            "{" if matches!(lexed.text(next - 1), "<" | "=") => next = lexed.partner(next)?,
            "{" => return Some(next),
            "(" | "[" => next = lexed.partner(next)?,
            ";" | ")" | "]" | "}" => return None,
            _ => {}
        }
        next += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::{found, lexer};
    use super::*;

    fn counted(text: &str) -> usize {
        lines_without_tests(text, &lexer::lex(text))
    }

    /// Returns a function with this number of lines.
    fn function(head: &str, lines: usize) -> String {
        format!("{head} {{\n{}}}\n", "    // why\n".repeat(lines - 2))
    }

    #[test]
    fn a_file_of_600_lines_passes_and_one_more_does_not() {
        assert!(found("", |_, report| file_length(600, report)).is_empty());
        assert_eq!(found("", |_, report| file_length(601, report)), ["1: 601 lines, 600 allowed"]);
    }

    #[test]
    fn tests_at_the_end_do_not_count() {
        assert_eq!(counted("fn a() {}\n\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n"), 2);
        assert_eq!(counted("fn a() {}\n#[cfg(all(test, loom))]\n#[allow(x)]\nmod m {\n}\n"), 1);
        let two = "a();\n#[cfg(test)]\nmod a {}\n#[cfg(all(test, loom))]\nmod b {}\n";
        assert_eq!(counted(two), 1);
    }

    #[test]
    fn everything_else_counts() {
        assert_eq!(counted("#[cfg(test)]\nmod tests {\n}\nfn a() {}\n"), 4);
        assert_eq!(counted("fn a() {}\n#[cfg(not(test))]\nmod m {\n}\n"), 4);
        assert_eq!(counted("fn a() {}\nmod m {\n}\n"), 3);
        assert_eq!(counted("// \"#[cfg(test)] mod tests {}\"\n\n"), 2);
        assert_eq!(counted(""), 0);
    }

    #[test]
    fn a_function_of_70_lines_passes_and_one_more_does_not() {
        assert!(found(&function("fn a()", 70), functions).is_empty());
        let text = format!("\n{}", function("pub(crate) fn long<T>(x: [u8; 4]) -> T", 71));
        assert_eq!(found(&text, functions), ["2: function long has 71 lines, 70 allowed"]);
    }

    #[test]
    fn signatures_do_not_hide_a_body() {
        for head in [
            "fn a<const N: usize = { 1 }>()",
            "fn a() -> Array<{ N + 1 }>",
            "fn a(f: fn(u8) -> u8) where [u8; { N }]: Sized",
            "unsafe extern \"C\" fn a()",
        ] {
            assert_eq!(found(&function(head, 71), functions).len(), 1, "{head}");
        }
    }

    #[test]
    fn declarations_and_types_have_no_body() {
        let after = function("impl A", 100);
        for text in ["trait T { fn a(); }", "type F = fn(u8);", "let s = \"fn a() \";", "// fn a()"]
        {
            assert!(found(&format!("{text}\n{after}"), functions).is_empty(), "{text}");
        }
    }

    #[test]
    fn inner_functions_are_measured_too() {
        let text = format!("fn outer() {{\n{}}}\n", function("fn inner()", 71));
        assert_eq!(found(&text, functions).len(), 2);
    }
}
