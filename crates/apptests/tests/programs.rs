//! The short form of `cargo xtask programs`: nothing differs under `fable run` but what is pinned,
//! and all that is pinned still does.

use megapipe_apptests::operations::Extent;
use megapipe_apptests::programs::{Way, run};
use std::io::Write;

/// Says that a suite or program cannot run here, and why.
fn skip(name: &str, reason: &str) {
    let line = format!("SKIPPED: programs {name}: {reason}\n");
    eprint!("{line}");
    if let Some(file) = std::env::var_os("MEGAPIPE_SKIPS") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(file);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the skip is noted");
    }
}

#[test]
fn nothing_differs_under_fable_but_what_is_pinned() {
    let table = run(Way::Fable, Extent::Quick, "", |line| println!("{line}"));
    let table = table.expect("the library is built and its list is read");
    println!("{}", table.text());
    for (name, reason) in table.skipped() {
        skip(&name, &reason);
    }
    assert_eq!(table.faults(), [""; 0]);
}
