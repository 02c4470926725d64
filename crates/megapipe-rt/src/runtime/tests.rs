//! Creates the cores of a runtime when locked memory is short.

use super::*;
use crate::core::with_current;
use megapipe::DriverKind;
use sys::capabilities::{CapabilitySet, retain};

/// Locked memory for the rings of a few of the cores.
const LOCKED_BYTES: u64 = 400 << 10;
const CORES: usize = 8;

#[test]
fn all_cores_have_the_same_driver_when_memory_for_rings_is_short() {
    let name = "runtime::tests::all_cores_have_the_same_driver_when_memory_for_rings_is_short";
    testkit::process::alone(name, || {
        let limit = libc::rlimit { rlim_cur: LOCKED_BYTES, rlim_max: LOCKED_BYTES };
        // SAFETY: the limit is valid for reads.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) }, 0);
        // The threads of the cores inherit it; the rings of a process that may lock memory do not
        // count.
        retain(CapabilitySet::all().difference(CapabilitySet::IPC_LOCK)).unwrap();
        let runtime = Runtime::builder().cores(CORES).pinned(false).build().unwrap();
        let first = runtime.first.driver();
        for core in 1..CORES {
            let driver = || async { with_current(|core| core.driver()).flatten() };
            let driver = runtime.block_on(runtime.handle().spawn_on(core, driver)).unwrap();
            assert_eq!(driver, first, "core {core}");
        }
        // On a kernel that counts rings, there is no memory for so many.
        let asked = Config { driver: DriverChoice::Uring, ..Config::default() };
        let builder = Runtime::builder().cores(CORES).pinned(false).channel_config(asked);
        let counts = builder.build().is_err();
        assert_eq!(first == Some(DriverKind::Epoll), counts);
    });
}
