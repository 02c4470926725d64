//! Splits Rust source into words and punctuation, so that no rule takes the inside of a string or a
//! comment for code. It knows no grammar, and it never fails: the compiler reports invalid source.

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An identifier, a keyword, or a run of digits.
    Word,
    /// A single character of punctuation.
    Mark,
    /// A string or character literal of any kind, with its quotes.
    Literal,
    /// A lifetime or label, with its quote.
    Lifetime,
}

/// A token and the line, counted from 1, on which it begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
    pub(super) line: usize,
}

/// A file as tokens.
#[derive(Default)]
pub(super) struct Lexed<'a> {
    pub(super) tokens: Vec<Token<'a>>,
    /// For every bracket token the index of its counterpart.
    pairs: Vec<Option<usize>>,
}

impl<'a> Lexed<'a> {
    /// Returns the text of a token of code; empty for literals, and for indices outside the file.
    pub(super) fn text(&self, index: usize) -> &'a str {
        match self.tokens.get(index) {
            Some(token) if token.kind != Kind::Literal => token.text,
            _ => "",
        }
    }

    /// Returns whether the tokens from `index` on are `expected`.
    pub(super) fn reads(&self, index: usize, expected: &[&str]) -> bool {
        expected.iter().enumerate().all(|(offset, text)| self.text(index + offset) == *text)
    }

    /// Returns the index of the bracket that closes, or opens, the one at `index`.
    pub(super) fn partner(&self, index: usize) -> Option<usize> {
        self.pairs.get(index).copied().flatten()
    }
}

/// Splits a file into tokens.
pub(super) fn lex(text: &str) -> Lexed<'_> {
    let mut lexer = Lexer { text, at: 0, line: 1, out: Lexed::default() };
    while let Some(byte) = lexer.byte(0) {
        match byte {
            b'/' if lexer.byte(1) == Some(b'/') => lexer.line_comment(),
            b'/' if lexer.byte(1) == Some(b'*') => lexer.block_comment(),
            b'"' => lexer.string(0),
            b'\'' => lexer.quote(),
            _ if byte.is_ascii_whitespace() => lexer.skip(1),
            _ if is_word(byte) => lexer.word(),
            _ => lexer.take(1, Kind::Mark),
        }
    }
    lexer.out.pairs = pairs(&lexer.out.tokens);
    lexer.out
}

/// Bytes beyond ASCII occur outside literals only in identifiers.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

fn pairs(tokens: &[Token<'_>]) -> Vec<Option<usize>> {
    let mut pairs = vec![None; tokens.len()];
    let mut open = Vec::new();
    for (index, token) in tokens.iter().enumerate().filter(|(_, t)| t.kind == Kind::Mark) {
        match token.text {
            "(" | "[" | "{" => open.push(index),
            ")" | "]" | "}" => {
                if let Some(partner) = open.pop() {
                    pairs[index] = Some(partner);
                    pairs[partner] = Some(index);
                }
            }
            _ => {}
        }
    }
    pairs
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: usize,
    out: Lexed<'a>,
}

impl<'a> Lexer<'a> {
    fn byte(&self, ahead: usize) -> Option<u8> {
        self.text.as_bytes().get(self.at + ahead).copied()
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Advances by `length` bytes, and counts the lines.
    fn skip(&mut self, length: usize) {
        let end = (self.at + length).min(self.text.len());
        let passed = &self.text.as_bytes()[self.at..end];
        self.line += passed.iter().filter(|&&byte| byte == b'\n').count();
        self.at = end;
    }

    fn take(&mut self, length: usize, kind: Kind) {
        let (line, start) = (self.line, self.at);
        self.skip(length);
        self.out.tokens.push(Token { kind, text: &self.text[start..self.at], line });
    }

    fn line_comment(&mut self) {
        let length = self.rest().find('\n').unwrap_or(self.rest().len());
        self.skip(length);
    }

    /// Skips a block comment; these nest.
    fn block_comment(&mut self) {
        let bytes = self.rest().as_bytes();
        let (mut depth, mut length) = (0, 0);
        while length < bytes.len() {
            match bytes.get(length..length + 2) {
                Some(b"/*") => depth += 1,
                Some(b"*/") => depth -= 1,
                _ => {
                    length += 1;
                    continue;
                }
            }
            length += 2;
            if depth == 0 {
                break;
            }
        }
        self.skip(length);
    }

    /// Reads a word, unless it is the prefix of a literal.
    fn word(&mut self) {
        let rest = self.rest();
        let length = rest.bytes().position(|byte| !is_word(byte)).unwrap_or(rest.len());
        let after = &rest[length..];
        match &rest[..length] {
            "r" | "br" | "cr" if after.trim_start_matches('#').starts_with('"') => {
                self.raw_string(length);
            }
            "b" | "c" if after.starts_with('"') => self.string(length),
            "b" if after.starts_with('\'') => self.take(length + char_length(after), Kind::Literal),
            "r" if after.starts_with('#') => {
                let name = after[1..].bytes().position(|byte| !is_word(byte));
                self.take(name.map_or(rest.len(), |name| length + 1 + name), Kind::Word);
            }
            _ => self.take(length, Kind::Word),
        }
    }

    fn string(&mut self, prefix: usize) {
        let bytes = self.rest().as_bytes();
        let mut length = prefix + 1;
        while let Some(&byte) = bytes.get(length) {
            length += if byte == b'\\' { 2 } else { 1 };
            if byte == b'"' {
                break;
            }
        }
        self.take(length, Kind::Literal);
    }

    fn raw_string(&mut self, prefix: usize) {
        let rest = self.rest();
        let hashes = rest[prefix..].bytes().take_while(|&byte| byte == b'#').count();
        let body = prefix + hashes + 1;
        let end = format!("\"{}", "#".repeat(hashes));
        let length = rest[body..].find(&end).map_or(rest.len(), |at| body + at + end.len());
        self.take(length, Kind::Literal);
    }

    /// Reads a character literal (`'a'` and `'\n'`) or a lifetime (`'a`).
    fn quote(&mut self) {
        let rest = self.rest();
        let mut characters = rest[1..].chars();
        let escaped = characters.next() == Some('\\');
        if escaped || characters.next() == Some('\'') {
            self.take(char_length(rest), Kind::Literal);
        } else {
            let name = rest[1..].bytes().position(|byte| !is_word(byte));
            self.take(name.map_or(rest.len(), |name| name + 1), Kind::Lifetime);
        }
    }
}

/// Returns the length of the character literal, quotes included, at the start of `text`.
fn char_length(text: &str) -> usize {
    // The first character may itself be a quote, after a backslash.
    let first = text[1..].chars().next().map_or(0, char::len_utf8);
    let body = if text[1..].starts_with('\\') { 3 } else { 1 + first };
    let rest = text.as_bytes().get(body..).unwrap_or_default();
    rest.iter().position(|&byte| byte == b'\'').map_or(text.len(), |end| body + end + 1)
}

#[cfg(test)]
mod tests;
