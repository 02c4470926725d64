//! Tests of `iobench ceiling` with the built program: two stacks of one process, connected by
//! memory. Figures are not judged; rows must be valid unless other programs used the CPUs.

use serde_json::Value;
use systemtests_bench::{is_valid_or_disturbed, run, run_undisturbed};

const SHORT: [&str; 7] = ["ceiling", "--rounds", "2", "--duration", "300ms", "--connections", "16"];

fn rows(document: &Value) -> &Vec<Value> {
    document["results"].as_array().unwrap()
}

fn assert_row(row: &Value) {
    assert!(is_valid_or_disturbed(row), "{row}");
    assert_eq!((&row["network"], &row["kind"]), (&"memory".into(), &"closed".into()));
    for name in ["throughput", "cpu_both_us"] {
        assert!(row[name].as_f64().unwrap() > 0.0, "{row}");
    }
    assert_eq!(row["rounds"].as_array().unwrap().len(), 2);
}

#[test]
fn short_and_persistent_connections_have_rows_that_report_and_diff_read() {
    let (status, document, printed) = run_undisturbed(&SHORT);
    assert_eq!(status, Some(0), "{printed}");
    assert!(printed.contains("closed by both ends") && printed.contains("conn/CPU s"), "{printed}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    std::fs::write(path, document.to_string()).unwrap();
    assert_eq!(document["format"], "iobench-results");
    let keys: Vec<_> = rows(&document)
        .iter()
        .map(|row| (row["subject"].as_str().unwrap(), row["transactions"].as_u64().unwrap()))
        .collect();
    let (one, two) = ("mtcp, 1 thread", "mtcp, 2 threads");
    assert_eq!(keys, [(one, 1), (two, 1), (one, 0), (two, 0)]);
    rows(&document).iter().for_each(assert_row);
    let page = tempfile::NamedTempFile::new().unwrap();
    let report = run(&["report", path, "--output", page.path().to_str().unwrap()]);
    assert_eq!(report.status.code(), Some(0), "{}", systemtests_bench::stderr(&report));
    let page = std::fs::read_to_string(page.path()).unwrap();
    assert!(page.contains("mtcp, 2 threads"));
    // Rows that are not valid are not compared.
    let all_valid = rows(&document).iter().all(|row| row["valid"] == true);
    assert_eq!(run(&["diff", path, path]).status.code(), Some(if all_valid { 0 } else { 3 }));
}

#[test]
fn large_messages_and_resets_are_possible() {
    let more = ["--message-bytes", "1,65536", "--ending", "reset", "--transactions", "4"];
    let (status, document, printed) = run_undisturbed(&[&SHORT[..], &more].concat());
    assert_eq!(status, Some(0), "{printed}");
    assert_eq!(rows(&document).len(), 4);
    rows(&document).iter().for_each(assert_row);
}

#[test]
fn two_threads_need_two_cpus() {
    let output = run(&[&SHORT[..], &["--client-cpus", "0", "--server-cpus", "0"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(
        systemtests_bench::stderr(&output).contains("--threads 1"),
        "{}",
        systemtests_bench::stderr(&output)
    );
}
