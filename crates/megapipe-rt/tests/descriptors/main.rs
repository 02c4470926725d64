//! Tests that dropped futures leave no descriptor of the process open: a program of its own, whose
//! tests run one after the other.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;
#[path = "../bodies/connections.rs"]
mod connections;

mod cancellation;
mod udp_cancellation;

use common as common_parts;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Makes the other tests wait until the guard is dropped.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open_descriptors() -> usize {
    // The directory itself is one of them, each time.
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
