//! Tests `#[megapipe_rt::main]` on functions that are called. Its errors are tested in
//! `megapipe-rt-macros`.

use megapipe_rt::{Handle, core_index, spawn_local, spawn_on};
use std::io;

const CORES: usize = 2;

#[megapipe_rt::main(cores = CORES, pinned = false)]
async fn on_two_cores() -> io::Result<usize> {
    assert_eq!((Handle::current().cores(), core_index()), (2, 0));
    let local = spawn_local(async { core_index() }).await?;
    let remote = spawn_on(1, || async { core_index() }).await?;
    if remote == 0 {
        return Err(io::ErrorKind::Other.into());
    }
    Ok(local + remote)
}

#[megapipe_rt::main(pinned = false)]
async fn on_every_core() {
    assert_eq!(Handle::current().cores(), testkit::allowed_cpus().len());
}

#[megapipe_rt::main(cores = CORES - 2)]
async fn on_no_core() {}

#[test]
fn the_body_runs_on_the_first_of_the_cores() {
    assert_eq!(on_two_cores().unwrap(), 1);
    on_every_core();
}

#[test]
fn a_runtime_that_cannot_be_built_panics_with_the_cause() {
    let panic = std::panic::catch_unwind(on_no_core).unwrap_err();
    let text = panic.downcast_ref::<String>().expect("a text");
    assert!(text.starts_with("cannot start the runtime: a runtime needs a core"), "{text}");
}
