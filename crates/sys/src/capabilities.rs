//! Drops the capabilities that a thread does not need, see capabilities(7).

use rustix::io::{Errno, Result};
use rustix::thread::{
    CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

pub use rustix::thread::CapabilitySet;

/// What a thread needs to change its user with the process: the C library makes all threads do
/// that, and ends the process if one cannot.
pub const CHANGE_USER: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID);

/// Drops all capabilities of the calling thread, and of those that it starts later, except these.
/// It cannot get them back, nor gain them by execve(2). Does nothing for a thread without any.
///
/// # Errors
/// The errors of capset(2) and prctl(2), for example if a sandbox bars them.
pub fn retain(wanted: CapabilitySet) -> Result<()> {
    let present = capabilities(None)?;
    if present.permitted.is_empty() {
        return Ok(());
    }
    if present.effective.contains(CapabilitySet::SETPCAP) {
        // The kernel knows more capabilities than this program; it ends the list with EINVAL.
        for number in 0..u64::BITS {
            let capability = CapabilitySet::from_bits_retain(1 << number);
            if wanted.contains(capability) {
                continue;
            }
            match remove_capability_from_bounding_set(capability) {
                Ok(()) => {}
                Err(Errno::INVAL) => break,
                Err(errno) => return Err(errno),
            }
        }
    }
    // Linux before 4.3 has no such set.
    let _ = clear_ambient_capability_set();
    let kept = present.permitted & wanted;
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::capability_is_in_bounding_set;

    #[test]
    fn only_wanted_capabilities_stay() {
        // In a thread of its own: the others keep what they have.
        let thread = std::thread::spawn(|| {
            let before = capabilities(None).unwrap();
            retain(CapabilitySet::SYS_PTRACE).unwrap();
            let after = capabilities(None).unwrap();
            let kept = before.permitted & CapabilitySet::SYS_PTRACE;
            assert_eq!((after.permitted, after.effective), (kept, kept));
            if before.effective.contains(CapabilitySet::SETPCAP) {
                let is_bounded = |one| !capability_is_in_bounding_set(one).unwrap();
                assert!(is_bounded(CapabilitySet::SYS_ADMIN));
                assert!(!is_bounded(CapabilitySet::SYS_PTRACE));
            }
            retain(CapabilitySet::SYS_PTRACE).unwrap();
        });
        thread.join().unwrap();
    }
}
