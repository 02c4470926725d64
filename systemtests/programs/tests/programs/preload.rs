//! Tests of the quick form of `cargo xtask programs`: no difference under a preload library is
//! missing in the pinned list, and all pinned ones are still there.

use std::sync::{Mutex, PoisonError};
use systemtests_programs::operations::Extent;
use systemtests_programs::programs::{PreloadCommand, run};
use testkit::skip;

/// Locked by each test, because foreign tests have time limits of their own: they run one after the
/// other.
static TURN: Mutex<()> = Mutex::new(());

fn nothing_differs(preload_command: PreloadCommand) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let table = run(preload_command, Extent::Quick, "", |line| println!("{line}"));
    let table = table.expect("the library is built and its list is read");
    println!("{}", table.text());
    for (name, reason) in table.skipped() {
        skip(&format!("programs {name}"), &reason);
    }
    assert_eq!(table.faults(), [""; 0]);
}

#[test]
fn nothing_differs_under_fable_but_what_is_pinned() {
    nothing_differs(PreloadCommand::Fable);
}

#[test]
fn nothing_differs_under_mtcp_but_what_is_pinned() {
    nothing_differs(PreloadCommand::Mtcp);
}
