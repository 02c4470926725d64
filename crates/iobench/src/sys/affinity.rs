//! Which CPUs this process may use, pinning, and the coordinator's priority.

use crate::error::{Context, Result};
use crate::sys::check;

/// The CPUs that the process may run on, ascending.
pub(crate) fn allowed_cpus() -> Result<Vec<usize>> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid for writes of the size passed.
    check(unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) })
        .context("read the allowed CPUs", "machines with more than 1024 CPUs are not supported")?;
    let count = libc::CPU_SETSIZE as usize;
    // SAFETY: every index is below CPU_SETSIZE.
    Ok((0..count).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect())
}

/// How many CPUs the system is configured for; their numbers are below.
pub(crate) fn configured_cpus() -> usize {
    // SAFETY: sysconf takes a plain number.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(count).unwrap_or(1).max(1)
}

/// The CPUs as the kernel wants them; numbers beyond what a set can hold are left out.
pub(crate) fn set_of(cpus: &[usize]) -> libc::cpu_set_t {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: the index was just checked against CPU_SETSIZE.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    set
}

/// Binds the calling thread to a set of CPUs; safe to call between fork and exec.
pub(crate) fn restrict_to(set: &libc::cpu_set_t) -> std::io::Result<()> {
    // SAFETY: `set` is valid for reads of the size passed.
    check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) }).map(|_| ())
}

/// Binds the calling thread to one CPU.
pub(crate) fn pin_to(cpu: usize) -> Result<()> {
    ipcload::pin_to(cpu)
        .context(format!("pin a thread to CPU {cpu}"), "name CPUs that this process may use")
}

/// Lets the calling thread wake on time although the CPUs are full, until the guard is dropped;
/// threads and processes that it starts do not inherit this. Nothing if that is not permitted:
/// border samples may then be late, which is noticed, so a refusal is no error. Hold it only while
/// measuring, because such a thread keeps all others off its CPU when it computes.
pub(crate) fn wake_promptly() -> Option<Promptness> {
    let parameters = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: `parameters` is valid for reads; 0 names the calling thread.
    let set = unsafe { libc::sched_setscheduler(0, policy, &parameters) };
    (set == 0).then_some(Promptness(()))
}

/// Returns the thread that dropped it to the ordinary policy.
pub(crate) struct Promptness(());

impl Drop for Promptness {
    fn drop(&mut self) {
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: as above; giving up a priority is always permitted.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &parameters) };
    }
}

/// The kernel's number of the calling thread.
pub(crate) fn thread_id() -> i32 {
    // SAFETY: gettid has no arguments and cannot fail.
    unsafe { libc::gettid() }
}
