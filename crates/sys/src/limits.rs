//! Raises the limit of open files. See getrlimit(2).

use std::io;

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard limit, and returns the new limit; `None` means
/// unlimited.
///
/// # Errors
/// The errors of setrlimit(2), for example if a security policy denies the call.
pub fn raise_open_files() -> io::Result<Option<u64>> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(limit.current)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_one() {
        let hard = getrlimit(Resource::Nofile).maximum;
        assert_eq!(raise_open_files().unwrap(), hard);
        assert_eq!(getrlimit(Resource::Nofile).current, hard);
    }
}
