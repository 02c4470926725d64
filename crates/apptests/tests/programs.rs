//! The short form of `cargo xtask programs`: nothing differs under `fable run` but what is pinned,
//! and all that is pinned still does.

use megapipe_apptests::operations::Extent;
use megapipe_apptests::programs::{Way, run};
use megapipe_apptests::skip;

#[test]
fn nothing_differs_under_fable_but_what_is_pinned() {
    let table = run(Way::Fable, Extent::Quick, "", |line| println!("{line}"));
    let table = table.expect("the library is built and its list is read");
    println!("{}", table.text());
    for (name, reason) in table.skipped() {
        skip(&format!("programs {name}"), &reason).expect("the skip is noted");
    }
    assert_eq!(table.faults(), [""; 0]);
}
