//! Raises the limit on descriptors.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit to at least `wanted` descriptors; panics if the hard limit is too low and the
/// process may not raise it.
#[track_caller]
pub fn raise_descriptor_limit(wanted: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    limit.current = Some(wanted);
    limit.maximum = limit.maximum.map(|maximum| maximum.max(wanted));
    setrlimit(Resource::Nofile, limit).unwrap_or_else(|error| {
        panic!("this test needs {wanted} descriptors, raise `ulimit -Hn`: {error}")
    });
}
