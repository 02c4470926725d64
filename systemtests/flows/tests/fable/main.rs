//! Tests of the library `fable` that take long: random processes, and keys that stop fitting.

#[path = "../../../../crates/fable/tests/common/board.rs"]
mod board;
#[path = "../../../../crates/fable/tests/common/child.rs"]
mod child;
#[path = "../../../../crates/fable/tests/flow_rig/mod.rs"]
mod flow_rig;
mod hardship;
#[path = "../../../../crates/fable/tests/common/keys.rs"]
mod keys;
#[path = "../../../../crates/fable/tests/common/missing.rs"]
mod missing;
#[path = "../../../../crates/fable/tests/model/mod.rs"]
mod model;
#[path = "../../../../crates/fable/tests/common/numbered.rs"]
mod numbered;
mod other_keys;
#[path = "../../../../crates/fable/tests/common/random.rs"]
mod random;
mod storm;

#[test]
fn flows_keep_their_promises_whatever_applications_do() {
    let _alone = child::alone();
    model::run(60);
}
