//! Runs `iobench` for its document, and checks it.

use std::fs;
use std::sync::LazyLock;

use serde_json::Value;

use crate::command::{run, scratch_file, stderr, stdout};

/// Runs with `--json` and returns the exit status, the document, and everything printed.
pub fn run_with_json(arguments: &[&str]) -> (Option<i32>, Value, String) {
    let file = scratch_file();
    let path = file.to_str().expect("a plain path").to_owned();
    let output = run(&[arguments, &["--json", &path]].concat());
    let printed = stdout(&output) + &stderr(&output);
    let text = fs::read(&file).unwrap_or_else(|error| panic!("no JSON: {error}; {printed}"));
    let document = serde_json::from_slice(&text).expect("valid JSON");
    check_document(&document, &path);
    fs::remove_file(&file).expect("the file was ours");
    (output.status.code(), document, printed)
}

/// Checks that the document matches the published schema, and that `report` and `diff` read it,
/// whatever command wrote it.
pub fn check_document(document: &Value, path: &str) {
    static SCHEMA: LazyLock<jsonschema::Validator> = LazyLock::new(|| {
        let schema = include_str!("../../../docs/results.schema.json");
        let schema = serde_json::from_str(schema).expect("the schema is JSON");
        jsonschema::validator_for(&schema).expect("the schema is one")
    });
    let faults = SCHEMA.iter_errors(document);
    let faults: Vec<String> =
        faults.map(|fault| format!("{}: {fault}", fault.instance_path())).collect();
    assert!(faults.is_empty(), "not as docs/results.schema.json says: {faults:#?}");
    let page = run(&["report", "-o", "-", path]);
    assert_eq!(page.status.code(), Some(0), "{}", stderr(&page));
    let (diff, rows) = (run(&["diff", path, path]), document["results"].as_array());
    let (rows, changes) = (rows.expect("a list of rows"), stdout(&diff) + &stderr(&diff));
    for row in rows {
        let subject = row["subject"].as_str().expect("a name");
        assert!(changes.contains(&format!("\n{subject}, ")), "{changes}");
    }
    // A busy machine makes rows invalid, which are not compared.
    let is_valid = rows.iter().all(|row| row["valid"] == true);
    assert_eq!(diff.status.code(), Some(if is_valid { 0 } else { 3 }), "{changes}");
    assert!(changes.contains("0 regressions") && changes.contains(" 0 better"), "{changes}");
}

/// Complaint of a row whose ends had no CPU in the whole measured time of a round.
pub const NO_MESSAGE: &str =
    "in a round no message arrived: try a longer --duration or a quieter machine";

/// Returns whether a row is valid, or invalid only because the machine was busy.
pub fn is_valid_or_disturbed(row: &Value) -> bool {
    let is_busy = |note: &Value| {
        note.as_str().is_some_and(|note| note.contains("undisturbed") || note == NO_MESSAGE)
    };
    row["valid"] == true || row["notes"].as_array().expect("notes").iter().all(is_busy)
}

/// Like [`run_with_json`], but repeats the run if a thread did not get its CPU in all the measured
/// time of a row, which happens on a busy machine.
pub fn run_undisturbed(arguments: &[&str]) -> (Option<i32>, Value, String) {
    for _ in 0..20 {
        let (status, document, printed) = run_with_json(arguments);
        let rows = document["results"].as_array().expect("a list of rows");
        let mut notes = rows.iter().flat_map(|row| row["notes"].as_array().expect("notes"));
        let busy = ["got no answer", "no transaction was completed"];
        if !notes.any(|note| busy.iter().any(|busy| note.to_string().contains(busy))) {
            return (status, document, printed);
        }
    }
    run_with_json(arguments)
}
