//! CPU affinity of this process, pinning, and the coordinator's scheduling priority.

use ::sys::cpus;
pub(crate) use ::sys::cpus::{core_of, online, restrict_to, set_of, share_of};

use crate::error::{Context, Result};

/// Returns the CPUs that the process may run on, ascending.
pub(crate) fn allowed_cpus() -> Result<Vec<usize>> {
    cpus::allowed()
        .context("read the allowed CPUs", "restrict iobench to CPUs below 1024 with taskset(1)")
}

/// Binds the calling thread to one CPU.
pub(crate) fn pin_to(cpu: usize) -> Result<()> {
    cpus::pin_to(cpu)
        .context(format!("pin a thread to CPU {cpu}"), "name CPUs that this process may use")
}

/// Gives the calling thread real-time priority until the guard is dropped, so that it wakes up on
/// time although the CPUs are busy; threads and processes that it starts do not inherit it. `None`
/// if that is not permitted: border samples may then be late, which is detected, so that is no
/// error. Hold the guard only while measuring, because such a thread keeps all others off its CPU
/// when it computes.
pub(crate) fn wake_promptly() -> Option<Promptness> {
    let parameters = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: `parameters` is valid for reads; 0 names the calling thread.
    let set = unsafe { libc::sched_setscheduler(0, policy, &parameters) };
    (set == 0).then_some(Promptness(()))
}

/// Returns the calling thread to the ordinary policy when dropped.
pub(crate) struct Promptness(());

impl Drop for Promptness {
    fn drop(&mut self) {
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: `parameters` is valid for reads; 0 names the calling thread.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &parameters) };
    }
}

/// Returns the kernel id of the calling thread.
pub(crate) fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_pid()
}
