//! Finds code that is compiled for tests only.

use std::ops::Range;

use super::lexer::Lexed;

/// Returns the tokens of the items, fields and statements under `#[cfg(test)]`, attributes
/// included.
pub(super) fn ranges(lexed: &Lexed<'_>) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < lexed.tokens.len() {
        let is_inner = lexed.reads(at, &["#", "!", "["]);
        let open = if is_inner { at + 2 } else { at + 1 };
        let is_attribute = lexed.text(at) == "#" && lexed.text(open) == "[";
        let close = lexed.partner(open).filter(|_| is_attribute);
        at = match close {
            Some(close) if is_test_only(lexed, open, close) => {
                let end = if is_inner { block_end(lexed, close) } else { end(lexed, close + 1) };
                ranges.push(at..end);
                end
            }
            Some(close) => close + 1,
            None => at + 1,
        };
    }
    ranges
}

/// Returns whether a condition between these tokens contains `test` other than in order to exclude
/// it.
pub(super) fn asks_for_tests(lexed: &Lexed<'_>, open: usize, end: usize) -> bool {
    (open..end).any(|at| lexed.text(at) == "test" && !lexed.reads(at - 2, &["not", "("]))
}

/// Returns whether this is an attribute `cfg` that is true only in tests.
fn is_test_only(lexed: &Lexed<'_>, open: usize, close: usize) -> bool {
    lexed.reads(open, &["[", "cfg", "("])
        && asks_for_tests(lexed, open, close)
        && !(open..close).any(|at| lexed.text(at) == "any")
}

/// Returns the end of the block that contains the token at `at`.
fn block_end(lexed: &Lexed<'_>, at: usize) -> usize {
    let mut next = at + 1;
    while next < lexed.tokens.len() && lexed.text(next) != "}" {
        next = after(lexed, next);
    }
    next
}

/// Returns the end of the item, field or statement that begins at `at`.
fn end(lexed: &Lexed<'_>, mut at: usize) -> usize {
    while lexed.reads(at, &["#", "["]) {
        at = after(lexed, at + 1);
    }
    if lexed.text(at) == "pub" {
        at += if lexed.text(at + 1) == "(" { 1 } else { 0 };
        at = after(lexed, at);
    }
    let is_function = matches!(lexed.text(at + 1), "fn" | "unsafe" | "async" | "extern");
    let (until_semicolon, has_commas) = match lexed.text(at) {
        "use" | "static" | "type" | "let" => (true, true),
        "const" => (!is_function, true),
        "fn" | "mod" | "struct" | "enum" | "union" | "trait" | "impl" | "unsafe" | "async"
        | "extern" | "macro_rules" => (false, true),
        _ => (false, false),
    };
    while at < lexed.tokens.len() {
        match lexed.text(at) {
            ";" => return at + 1,
            "," if !has_commas => return at + 1,
            "{" if !until_semicolon => return after(lexed, at),
            "}" | ")" | "]" => return at,
            _ => at = after(lexed, at),
        }
    }
    at
}

/// Returns the token after the one at `at`, or after the brackets that it opens.
fn after(lexed: &Lexed<'_>, at: usize) -> usize {
    lexed.partner(at).filter(|&close| close > at).unwrap_or(at) + 1
}

#[cfg(test)]
mod tests {
    use super::super::lexer;
    use super::*;

    /// Returns the words that remain.
    fn kept(text: &str) -> String {
        let lexed = lexer::lex(text);
        let ranges = ranges(&lexed);
        let is_kept = |at: &usize| !ranges.iter().any(|range| range.contains(at));
        let kept = (0..lexed.tokens.len()).filter(is_kept);
        kept.map(|at| lexed.tokens[at].text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn items_end_where_their_grammar_says() {
        for item in [
            "use a::{b, c};",
            "pub(crate) const A: S = S { b: 1 };",
            "const fn f(a: u8, b: u8) -> [u8; 2] { [a, b] }",
            "#[path = \"x.rs\"]\nmod tests;",
            "mod tests { fn a() {} }",
            "pub struct A<B, C>(B, C);",
            "impl<A, B> T<A> for S<B> {}",
        ] {
            assert_eq!(kept(&format!("a;\n#[cfg(test)]\n{item}\nb;")), "a ; b ;", "{item}");
        }
    }

    #[test]
    fn fields_arms_and_files_end_too() {
        assert_eq!(kept("struct A { a: B, #[cfg(test)] c: D }"), "struct A { a : B , }");
        assert_eq!(
            kept("match a { #[cfg(test)] A => b(c, d), C => e }"),
            "match a { C => e }".replace("=>", "= >")
        );
        assert_eq!(kept("mod a { #![cfg(test)] use b; } c;"), "mod a { } c ;");
        assert_eq!(kept("#![cfg(test)]\nuse b;"), "");
    }

    #[test]
    fn other_conditions_stay() {
        for text in ["#[cfg(not(test))]\na;", "#[cfg(any(test, x))]\na;", "#[test]\na;"] {
            assert!(kept(text).ends_with("a ;"), "{text}");
        }
    }
}
