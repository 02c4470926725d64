//! Every unsafe block and implementation says why it is sound.

use std::collections::{BTreeMap, BTreeSet};

use super::Report;
use super::lexer::Lexed;

/// Checks that each `unsafe {` and `unsafe impl` has a `SAFETY:` comment before it: on its line,
/// or above the statement that it belongs to.
pub(super) fn check(lexed: &Lexed<'_>, report: &mut Report<'_>) {
    let mut comments = BTreeMap::new();
    for comment in &lexed.comments {
        let reason = comment.text.trim_start_matches(['/', '*', '!', ' ']).starts_with("SAFETY:");
        *comments.entry(comment.line).or_insert(false) |= reason;
    }
    let code: BTreeSet<usize> = lexed.tokens.iter().map(|token| token.line).collect();
    for at in (0..lexed.tokens.len()).filter(|&at| lexed.text(at) == "unsafe") {
        let what = match lexed.text(at + 1) {
            "{" => "an unsafe block without its reason",
            "impl" => "an unsafe impl without its reason",
            _ => continue,
        };
        let line = lexed.tokens[at].line;
        let mut first = lexed.tokens[statement(lexed, at)].line;
        // The lines directly above that hold nothing but comments.
        while comments.contains_key(&(first - 1)) && !code.contains(&(first - 1)) {
            first -= 1;
        }
        if !comments.range(first..=line).any(|(_, reason)| *reason) {
            report.add(line, what, "say in a `// SAFETY:` comment above it why it is sound");
        }
    }
}

/// The first token of the statement or match arm that the token at `at` belongs to, with its
/// attributes.
fn statement(lexed: &Lexed<'_>, at: usize) -> usize {
    let mut first = at;
    while let Some(before) = first.checked_sub(1) {
        first = match lexed.text(before) {
            ";" | "{" | "}" => break,
            ">" if before > 0 && lexed.text(before - 1) == "=" => break,
            ")" | "]" => lexed.partner(before).unwrap_or(before),
            _ => before,
        };
    }
    first
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    #[track_caller]
    fn clean(text: &str) {
        assert_eq!(found(text, check), [""; 0], "{text}");
    }

    #[track_caller]
    fn finds(text: &str, line: usize) {
        let lines: Vec<String> = found(text, check);
        assert_eq!(lines.len(), 1, "{text}");
        assert!(lines[0].starts_with(&format!("{line}: an unsafe ")), "{lines:?}");
    }

    #[test]
    fn a_bare_block_or_impl_is_found() {
        finds("fn f() {\n    unsafe { g() }\n}\n", 2);
        finds("struct A;\nunsafe impl Send for A {}\n", 2);
        finds("// Fast.\nunsafe { g() }\n", 2);
        finds("// SAFETY: too far away.\n\nunsafe { g() }\n", 3);
        finds("// SAFETY: of another.\na();\nunsafe { g() }\n", 3);
        finds("let s = \"// SAFETY: no\"; unsafe { g() }\n", 1);
    }

    #[test]
    fn a_reason_above_or_on_the_line_is_enough() {
        clean("// SAFETY: alive.\nunsafe { g() }\n");
        clean("unsafe { g() } // SAFETY: alive.\n");
        clean("// SAFETY: alive, and\n// nobody else writes.\nunsafe { g() }\n");
        clean("/* SAFETY: alive. */\nunsafe { g() }\n");
        clean("// SAFETY: no pointers.\n#[cfg(x)]\nunsafe impl Send for A {}\n");
        clean("#[cfg(x)]\n// SAFETY: no pointers.\nunsafe impl Send for A {}\n");
    }

    #[test]
    fn a_reason_above_the_statement_is_enough() {
        clean("// SAFETY: alive.\nlet x =\n    unsafe { g() };\n");
        clean("// SAFETY: alive.\nfoo(|| { a; })\n    .bar(unsafe { g() });\n");
        clean("// SAFETY: alive.\nif unsafe { a() } && unsafe { b() } {}\n");
        clean("match x {\n    // SAFETY: alive.\n    A(b) => unsafe { g() },\n}\n");
    }

    #[test]
    fn a_reason_serves_no_other_arm_or_statement() {
        finds(
            "match x {\n    // SAFETY: a.\n    A => unsafe { g() },\n    B => unsafe { h() },\n}\n",
            4,
        );
        finds("// SAFETY: a.\nlet x = unsafe { g() };\nlet y = unsafe { h() };\n", 3);
    }

    #[test]
    fn other_uses_of_the_word_pass() {
        clean("unsafe fn f();\nunsafe extern \"C\" {}\nunsafe trait T {}\n");
        clean("// unsafe { }\nlet s = \"unsafe { }\";\nlet r = r#\"unsafe impl\"#;\n");
    }
}
