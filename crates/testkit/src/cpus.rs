//! Selects the CPUs on which tests run.

use crate::skip::skip;

/// The CPUs that the calling thread may use, in ascending order.
#[track_caller]
pub fn allowed_cpus() -> Vec<usize> {
    sys::cpus::allowed().expect("sched_getaffinity")
}

/// The first two CPUs that the calling thread may use; without them skips the test.
pub fn two_cpus(test: &str) -> Option<[usize; 2]> {
    match allowed_cpus()[..] {
        [one, other, ..] => Some([one, other]),
        _ => {
            skip(test, "it needs two CPUs");
            None
        }
    }
}

/// Binds the calling thread to a CPU. The handshakes of its loopback connections run there too.
#[track_caller]
pub fn pin(cpu: usize) {
    sys::cpus::pin_to(cpu).unwrap_or_else(|error| panic!("to pin to CPU {cpu}: {error}"));
}

/// Runs `work` with the calling thread bound to one of its CPUs. On loopback, the kernel then
/// processes the thread's packets in the order in which it sends them: connections enter the accept
/// queue in the order of their `connect` calls. If the thread moves to another CPU between two
/// calls, their handshakes can be in the backlogs of different CPUs.
#[track_caller]
pub fn on_one_cpu<T>(work: impl FnOnce() -> T) -> T {
    let before = sys::cpus::set_of(&allowed_cpus());
    pin(allowed_cpus()[0]);
    let result = work();
    sys::cpus::restrict_to(&before).expect("sched_setaffinity");
    result
}
