//! Reads the tables of the reference pages in `docs/reference`, which tests compare with the code.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::Path;

/// The names in the first column of the tables below a heading of a page, up to the next heading.
/// A name is a span of code.
#[track_caller]
pub fn documented(page: &str, heading: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(page);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
    let names = names_below(&text, heading);
    assert!(!names.is_empty(), "{page} has no table of names below the heading {heading}");
    names
}

fn names_below(text: &str, heading: &str) -> BTreeSet<String> {
    let is_heading = |line: &&str| line.starts_with('#');
    let below = text
        .lines()
        .skip_while(|line| !is_heading(line) || line.trim_start_matches('#').trim() != heading)
        .skip(1)
        .take_while(|line| !is_heading(line));
    let cells = below.filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    cells.flat_map(spans).collect()
}

/// The fields of a struct that derives `Debug`.
pub fn field_names(value: &impl Debug) -> BTreeSet<String> {
    let text = format!("{value:#?}");
    // Fields of fields stand further to the right.
    let fields = text.lines().filter_map(|line| line.strip_prefix("    ")?.split_once(": "));
    fields.map(|(name, _)| name).filter(|name| !name.starts_with(' ')).map(String::from).collect()
}

/// The fields that serde would have accepted, from its error about one that it does not know.
pub fn expected_fields(error: &str) -> BTreeSet<String> {
    spans(error.rsplit_once("expected ").map_or("", |(_, names)| names)).collect()
}

/// The spans of code in a text.
fn spans(text: &str) -> impl Iterator<Item = String> {
    text.split('`').skip(1).step_by(2).map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_are_those_of_the_first_column_below_the_heading() {
        let text = "# A\n| `x` | no |\n## B\n| name | b |\n| --- | --- |\n| `y`, `z` | `no` |\n\
                    | plain | no |\n# C\n| `no` | no |\n";
        assert_eq!(names_below(text, "B"), set(&["y", "z"]));
        assert_eq!(names_below(text, "D"), set(&[]));
    }

    #[test]
    fn fields_are_read_from_debug() {
        #[derive(Debug)]
        #[allow(dead_code, reason = "read by Debug")]
        struct Outer {
            first: u8,
            inner: Inner,
        }
        #[derive(Debug)]
        #[allow(dead_code, reason = "read by Debug")]
        struct Inner {
            no: u8,
        }
        let value = Outer { first: 1, inner: Inner { no: 2 } };
        assert_eq!(field_names(&value), set(&["first", "inner"]));
    }

    #[test]
    fn fields_are_read_from_an_error() {
        let error = "unknown field `q`, expected one of `a`, `b`\n";
        assert_eq!(expected_fields(error), set(&["a", "b"]));
        assert_eq!(expected_fields("expected `a` or `b`"), set(&["a", "b"]));
    }
}
