//! Finds the paths that a module names and the names that it binds.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::lexer::{Kind, Lexed};
use crate::tidy::modules;
use crate::tidy::test_code;

/// A path as written, split at `::`, and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) path: Vec<String>,
    pub(super) line: usize,
}

/// The names of one module; a path is imported, or used in code.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) paths: Vec<Named>,
    /// The names that `use` binds, with their paths.
    pub(super) imports: BTreeMap<String, Vec<String>>,
    /// The paths before `::*`.
    pub(super) globs: Vec<Vec<String>>,
    /// The items that the module itself defines; methods may be among them.
    pub(super) items: BTreeSet<String>,
}

/// The keywords before the name of an item.
const ITEMS: [&str; 8] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static"];

/// Reads a file: its own module under the empty path, and the modules within it. Leaves out test
/// code.
pub(super) fn read(lexed: &Lexed<'_>) -> BTreeMap<Vec<String>, Names> {
    let (inline, tests) = (modules::inline(lexed), test_code::ranges(lexed));
    let mut found = BTreeMap::<Vec<String>, Names>::new();
    found.entry(Vec::new()).or_default();
    let mut at = 0;
    while at < lexed.tokens.len() {
        if let Some(range) = tests.iter().find(|range| range.contains(&at)) {
            at = range.end;
            continue;
        }
        let module = modules::around(&inline, at).iter().map(ToString::to_string).collect();
        let names = found.entry(module).or_default();
        at = match lexed.text(at) {
            // `impl Trait + use<'a>` captures lifetimes and imports nothing.
            "use" if lexed.text(at + 1) != "<" => names.import(lexed, at + 1, Vec::new()),
            word if ITEMS.contains(&word) => {
                names.items.insert(name(lexed.text(at + 1)));
                at + 1
            }
            _ => names.path(lexed, at),
        };
    }
    found
}

impl Names {
    /// Reads the tree of a `use` that begins at `at`; returns the token after it.
    fn import(&mut self, lexed: &Lexed<'_>, mut at: usize, mut path: Vec<String>) -> usize {
        let Some(token) = lexed.tokens.get(at) else { return at };
        let line = token.line;
        while lexed.reads(at, &[":", ":"]) {
            at += 2;
        }
        match lexed.text(at) {
            "{" => {
                let close = lexed.partner(at).unwrap_or(lexed.tokens.len());
                at += 1;
                while at < close {
                    at = self.import(lexed, at, path.clone());
                    at += usize::from(lexed.text(at) == ",");
                }
                return close + 1;
            }
            "*" => {
                self.paths.push(Named { path: path.clone(), line });
                self.globs.push(path);
                return at + 1;
            }
            _ if !is_word(lexed, at) => return at + 1,
            "self" if !path.is_empty() => {}
            word => path.push(name(word)),
        }
        at += 1;
        if lexed.reads(at, &[":", ":"]) {
            return self.import(lexed, at, path);
        }
        let mut bound = path.last().cloned().unwrap_or_default();
        if lexed.text(at) == "as" {
            bound = name(lexed.text(at + 1));
            at += 2;
        }
        self.paths.push(Named { path: path.clone(), line });
        self.imports.insert(bound, path);
        at
    }

    /// Reads the path of at least two names that begins at `at`, if there is one; returns the token
    /// after it.
    fn path(&mut self, lexed: &Lexed<'_>, at: usize) -> usize {
        let mut path = Vec::new();
        let mut next = at;
        while is_word(lexed, next) {
            path.push(name(lexed.text(next)));
            next += 1;
            if !lexed.reads(next, &[":", ":"]) || !is_word(lexed, next + 2) {
                break;
            }
            next += 2;
        }
        if path.len() > 1 {
            self.paths.push(Named { path, line: lexed.tokens[at].line });
        }
        next.max(at + 1)
    }
}

fn is_word(lexed: &Lexed<'_>, at: usize) -> bool {
    lexed.tokens.get(at).is_some_and(|token| token.kind == Kind::Word)
}

fn name(word: &str) -> String {
    word.trim_start_matches("r#").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::lexer::lex;

    /// Returns the paths of the file's own module, as `line path`.
    fn paths(text: &str) -> Vec<String> {
        let read = read(&lex(text));
        let paths = read[&Vec::new()].paths.iter();
        paths.map(|named| format!("{} {}", named.line, named.path.join("::"))).collect()
    }

    #[test]
    fn trees_of_imports_are_taken_apart() {
        let text = "use a::{self, b, c::{d as e, f::*}};\npub(crate) use crate::g;\nuse ::h::i;\n";
        let expected = ["1 a", "1 a::b", "1 a::c::d", "1 a::c::f", "2 crate::g", "3 h::i"];
        assert_eq!(paths(text), expected);
        let read = read(&lex(text));
        let names = &read[&Vec::new()];
        assert_eq!(names.imports["e"], ["a", "c", "d"]);
        assert_eq!(names.globs, [["a", "c", "f"]]);
    }

    #[test]
    fn paths_in_code_are_found_and_words_are_not() {
        let text = "fn f() -> super::A { let b = crate::c::d(); b.e::<g::H>(); x::<u8>() }\n\
                    macro_rules! m { () => { $crate::i::j } }\n// crate::k::l\nfn n() -> impl T + \
                    use<'_> {}\n\"crate::o::p\"";
        assert_eq!(paths(text), ["1 super::A", "1 crate::c::d", "1 g::H", "2 crate::i::j"]);
    }

    #[test]
    fn inline_modules_speak_for_themselves_and_tests_not_at_all() {
        let text =
            "mod a { use super::b; mod c { struct D; } }\n#[cfg(test)]\nmod t { use x::y; }\n";
        let read = read(&lex(text));
        let names =
            |path: &[&str]| &read[&path.iter().map(ToString::to_string).collect::<Vec<_>>()];
        assert_eq!(names(&["a"]).imports["b"], ["super", "b"]);
        assert!(names(&["a", "c"]).items.contains("D"));
        assert_eq!(read.len(), 3);
    }
}
