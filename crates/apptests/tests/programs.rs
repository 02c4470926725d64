//! The short form of `cargo xtask programs`: nothing differs under a preload library but what is
//! pinned, and all that is pinned still does.

use megapipe_apptests::operations::Extent;
use megapipe_apptests::programs::{Way, run};
use std::sync::{Mutex, PoisonError};
use testkit::skip;

/// One after the other: other people's tests have time limits of their own.
static TURN: Mutex<()> = Mutex::new(());

fn nothing_differs(way: Way) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let table = run(way, Extent::Quick, "", |line| println!("{line}"));
    let table = table.expect("the library is built and its list is read");
    println!("{}", table.text());
    for (name, reason) in table.skipped() {
        skip(&format!("programs {name}"), &reason);
    }
    assert_eq!(table.faults(), [""; 0]);
}

#[test]
fn nothing_differs_under_fable_but_what_is_pinned() {
    nothing_differs(Way::Fable);
}

#[test]
fn nothing_differs_under_mtcp_but_what_is_pinned() {
    nothing_differs(Way::Mtcp);
}
