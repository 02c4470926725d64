use super::*;

/// Returns the tokens of a kind.
fn only(text: &str, kind: Kind) -> Vec<&str> {
    lex(text).tokens.iter().filter(|token| token.kind == kind).map(|token| token.text).collect()
}

fn words(text: &str) -> Vec<&str> {
    only(text, Kind::Word)
}

fn literals(text: &str) -> Vec<&str> {
    only(text, Kind::Literal)
}

#[test]
fn words_and_marks() {
    let tokens = lex("let x_1 = a::b!(2);").tokens;
    let texts: Vec<&str> = tokens.iter().map(|token| token.text).collect();
    assert_eq!(texts, ["let", "x_1", "=", "a", ":", ":", "b", "!", "(", "2", ")", ";"]);
}

#[test]
fn comments_are_no_code() {
    let text = "a // unsafe \"\nb /* fn\n /* nested */ still */ c\n/// doc\n//! inner";
    assert_eq!(words(text), ["a", "b", "c"]);
}

#[test]
fn slashes_in_strings_are_no_comments() {
    assert_eq!(literals(r#"f("http://x", "/*") // "y""#), [r#""http://x""#, r#""/*""#]);
    assert_eq!(words(r#"f("//") // y"#), ["f"]);
}

#[test]
fn escapes_do_not_end_a_string() {
    assert_eq!(
        literals(r#"a("\"", "\\", b"\"x", c"y") b"#),
        [r#""\"""#, r#""\\""#, r#"b"\"x""#, r#"c"y""#,]
    );
    assert_eq!(words(r#"a("\"", "\\", b"\"x", c"y") b"#), ["a", "b"]);
}

#[test]
fn raw_strings_end_at_their_own_hashes() {
    let text = r####"a(r"\", r#"say "x""#, br##""#"##, cr#"c"#) b"####;
    assert_eq!(
        literals(text),
        [r#"r"\""#, r##"r#"say "x""#"##, r###"br##""#"##"###, r##"cr#"c"#"##]
    );
    assert_eq!(words(text), ["a", "b"]);
}

#[test]
fn raw_identifiers_are_words() {
    assert_eq!(words("r#fn r#type bar rb r"), ["r#fn", "r#type", "bar", "rb", "r"]);
    assert_eq!(words("r#end"), ["r#end"]);
}

#[test]
fn characters_and_lifetimes_differ() {
    let text =
        r"fn f<'a>(x: &'a u8, y: &'_ T) { '\'' 'b' '\\' '\u{e9}' b'\'' b'x' '{' 'l: loop {} }";
    assert_eq!(literals(text), [r"'\''", "'b'", r"'\\'", r"'\u{e9}'", r"b'\''", "b'x'", "'{'",]);
    assert_eq!(only(text, Kind::Lifetime), ["'a", "'a", "'_", "'l"]);
}

#[test]
fn characters_may_be_wide_or_quotes() {
    assert_eq!(
        literals("('\u{e9}', '\u{1f600}', '\"', ' ')"),
        ["'\u{e9}'", "'\u{1f600}'", "'\"'", "' '",]
    );
    assert_eq!(words("caf\u{e9} '\"' x"), ["caf\u{e9}", "x"]);
}

#[test]
fn lines_are_counted_through_everything() {
    let text = "a\n\"x\ny\\\n\" b\nr\"\n\n\" /*\n*/ c 'd' '\n' e";
    let lines: Vec<(&str, usize)> = lex(text)
        .tokens
        .iter()
        .filter(|token| token.kind == Kind::Word)
        .map(|token| (token.text, token.line))
        .collect();
    assert_eq!(lines, [("a", 1), ("b", 4), ("c", 8), ("e", 9)]);
}

#[test]
fn brackets_find_their_partners() {
    let lexed = lex("f(a[1], ')') { '}' }");
    let partner = |text: &str| {
        let at = lexed.tokens.iter().position(|token| token.text == text).unwrap();
        lexed.partner(at).map(|partner| lexed.text(partner))
    };
    assert_eq!(partner("("), Some(")"));
    assert_eq!(partner("]"), Some("["));
    assert_eq!(partner("{"), Some("}"));
    assert_eq!(partner("f"), None);
}

#[test]
fn literals_never_read_as_code() {
    let lexed = lex("\"unsafe\" unsafe");
    assert_eq!(lexed.text(0), "");
    assert!(lexed.reads(1, &["unsafe"]));
    assert!(!lexed.reads(1, &["unsafe", "{"]));
}

#[test]
fn what_is_cut_off_still_ends() {
    for text in
        ["\"abc", "r#\"abc\"", "'", "'\\", "b'", "b'\\", "/* /* */", "\"\\", "r#", "//", "]"]
    {
        let is_comment = text.starts_with('/');
        assert_eq!(lex(text).tokens.is_empty(), is_comment, "{text:?}");
    }
}
