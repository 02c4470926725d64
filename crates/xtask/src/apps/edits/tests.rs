use super::*;
use std::path::PathBuf;

/// A directory that is gone after the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Scratch {
        let unique = format!("megapipe-edits-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(unique);
        fs::create_dir_all(path.join("to")).unwrap();
        fs::write(path.join("a.c"), text).unwrap();
        Scratch(path)
    }

    fn apply(&self, table: &[Changed]) -> Result<String, String> {
        apply(table, &self.0, &self.0.join("to"))?;
        Ok(fs::read_to_string(self.0.join("to/a.c")).unwrap())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const TEXT: &str = "one();\ntwo();\n\ntwo();\nthree();\nfour();\n";

/// Of `TEXT`.
const SUM: &str = "fd642e8efa98749ff08bceda6fc9b0fba418992950317810d0205f012d88fcd9";

const EDITS: &[Edit] = &[
    Edit { why: "twice", anchor: "two(", times: 2, change: Change::Replace("2(") },
    Edit { why: "behind", anchor: "one(", times: 1, change: Change::After("half();") },
    Edit { why: "lines", anchor: "three(", times: 1, change: Change::Lines(2, "3();") },
];

#[test]
fn edits_are_applied_in_order_and_counted() {
    let scratch = Scratch::new("order", TEXT);
    let table = [Changed { file: "a.c", sha256: SUM, edits: EDITS }];
    let text = scratch.apply(&table).unwrap();
    assert_eq!(text, "one();\nhalf();\n2();\n\n2();\n3();\n");
    let diff = diff(&table, &scratch.0, &scratch.0.join("to")).unwrap();
    assert!(diff.starts_with("--- a/a.c\n+++ b/a.c\n"), "{diff}");
    assert_eq!(extent(&diff), Extent { removed: 4, added: 4 });
}

#[test]
fn a_changed_source_stops_the_build_and_is_named() {
    let scratch = Scratch::new("changed", "one();\n");
    let table = [Changed { file: "a.c", sha256: SUM, edits: EDITS }];
    let error = scratch.apply(&table).unwrap_err();
    assert!(error.contains("a.c is not the file that the edits were written for"), "{error}");
    assert!(error.contains("bring the table of edits up to date"), "{error}");
}

#[test]
fn an_anchor_that_occurs_otherwise_stops_the_build_and_is_named() {
    let scratch = Scratch::new("anchor", TEXT);
    let edits: &[Edit] =
        &[Edit { why: "the second", anchor: "two(", times: 1, change: Change::Replace("") }];
    let table = [Changed { file: "a.c", sha256: SUM, edits }];
    let error = scratch.apply(&table).unwrap_err();
    assert!(error.contains("`the second` expects `two(` 1 times and finds it 2 times"), "{error}");
    let edits: &[Edit] =
        &[Edit { why: "gone", anchor: "five(", times: 0, change: Change::Replace("") }];
    let table = [Changed { file: "a.c", sha256: SUM, edits }];
    assert!(scratch.apply(&table).unwrap_err().contains("finds it 0 times"));
}

#[test]
fn a_file_that_is_as_it_should_be_is_left_alone() {
    let scratch = Scratch::new("alone", TEXT);
    let table = [Changed { file: "a.c", sha256: SUM, edits: EDITS }];
    scratch.apply(&table).unwrap();
    let path = scratch.0.join("to/a.c");
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    scratch.apply(&table).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), time);
}

#[test]
fn too_few_lines_are_an_error() {
    let edit = Edit { why: "w", anchor: "four(", times: 1, change: Change::Lines(2, "") };
    assert!(one(&edit, TEXT).unwrap_err().contains("no 2 lines"));
}
