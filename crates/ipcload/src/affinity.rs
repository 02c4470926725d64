//! Where a thread runs.

use std::io;

/// Binds the calling thread, and those that it will start, to one CPU.
///
/// # Errors
/// `EINVAL` for a CPU that the process may not use, or beyond the 1024 that a set can hold.
pub fn pin_to(cpu: usize) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if cpu < libc::CPU_SETSIZE as usize {
        // SAFETY: the index was just checked against CPU_SETSIZE.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: `set` is valid for reads of the size passed; 0 names the calling thread.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_no_set_can_hold_is_refused() {
        assert_eq!(pin_to(usize::MAX).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
