//! Tests of flows between processes, which wake each other and die.

#[path = "../common/board.rs"]
mod board;
#[path = "../common/child.rs"]
mod child;
#[path = "../common/mod.rs"]
mod common;
#[path = "../flow_rig/mod.rs"]
mod flow_rig;
#[path = "../common/keys.rs"]
mod keys;
#[path = "../common/missing.rs"]
mod missing;
#[path = "../model/mod.rs"]
mod model;
#[path = "../common/numbered.rs"]
mod numbered;
mod paths;
#[path = "../common/random.rs"]
mod random;
mod sigpipe;

#[test]
fn flows_keep_their_promises_whatever_applications_do() {
    let _alone = child::alone();
    model::run(1);
}
