//! The limit on descriptors.

use std::io;

/// Lets the process have at least so many descriptors; panics if the hard limit is too low and the
/// process may not raise it.
#[track_caller]
pub fn raise_descriptor_limit(wanted: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: there is room for one limit.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    if limit.rlim_cur >= wanted {
        return;
    }
    limit.rlim_cur = wanted;
    limit.rlim_max = limit.rlim_max.max(wanted);
    // SAFETY: an initialised limit.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    let error = io::Error::last_os_error();
    assert_eq!(result, 0, "this test needs {wanted} descriptors, raise `ulimit -Hn`: {error}");
}
