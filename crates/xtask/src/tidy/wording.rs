//! Rejects retired names in code, and metaphors in documentation.
//!
//! docs/glossary.md has the terms that replaced them. Names are searched for as whole words of
//! code, phrases in prose and in comments, in upper or lower case.

use super::lexer::{Kind, Lexed};
use super::{File, Report};

/// Retired names: metaphors that terms have replaced.
const NAMES: &[&str] = &[
    "Birth",
    "Books",
    "Contest",
    "Door",
    "Fate",
    "Law",
    "Mail",
    "Manner",
    "Means",
    "Newcomer",
    "Nursery",
    "Office",
    "OutOfPatience",
    "PATIENCE",
    "Past",
    "ReceiveBook",
    "Road",
    "SendBook",
    "Station",
    "Wish",
    "Wish",
    "delist",
    "enlist",
    "fate",
    "harvest",
    "law",
    "letter_box",
    "manner",
    "newcomer",
    "obey",
    "office",
    "patience",
    "patiently",
    "road",
    "settle",
];

/// Phrases that use an image, or the passive voice, where a term exists.
const PHRASES: &[&str] = &[
    "hear of it",
    "hears of it",
    "is a batch lost",
    "layer's face",
    "lives to see",
    "said nothing",
    "whom a packet",
];

const NAME: &str = "a retired name: use the term of docs/glossary.md";
const PHRASE: &str = "say it with the field's term; docs/glossary.md has them";

/// The files that must contain the retired names.
const ABOUT_THEM: &[&str] = &["crates/xtask/src/tidy/wording.rs", "docs/glossary.md"];

/// Checks the words of code.
pub(super) fn names(lexed: &Lexed<'_>, report: &mut Report<'_>) {
    if ABOUT_THEM.contains(&report.path) {
        return;
    }
    for token in lexed.tokens.iter().filter(|token| token.kind == Kind::Word) {
        if NAMES.contains(&token.text) {
            report.add(token.line, format!("`{}`", token.text), NAME);
        }
    }
}

/// Checks prose: a whole document, or everything in a file of code except its words.
pub(super) fn phrases(file: &File, report: &mut Report<'_>) {
    if ABOUT_THEM.contains(&report.path) {
        return;
    }
    for (index, line) in file.text.lines().enumerate() {
        let line = line.to_lowercase();
        for phrase in PHRASES.iter().filter(|phrase| line.contains(*phrase)) {
            report.add(index + 1, format!("`{phrase}`"), PHRASE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    #[test]
    fn retired_names_are_found_in_code_alone() {
        let code =
            "struct Station;\n// a Station\nconst S: &str = \"Station\";\nlet stations = 1;\n";
        assert_eq!(found(code, names), ["1: `Station`"]);
    }

    #[test]
    fn phrases_are_found_in_documents_and_comments() {
        let text = "Fine.\nThe server Hears of it.\n".to_string();
        let file = File { path: "README.md".to_string(), text };
        let mut report = Report { path: &file.path, findings: Vec::new() };
        phrases(&file, &mut report);
        assert_eq!(report.findings.len(), 1);
        assert_eq!(report.findings[0].line, 2);
    }
}
