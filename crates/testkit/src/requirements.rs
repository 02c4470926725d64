//! Tests whether the machine and the user have what a test needs.

use crate::skip::skip;
use std::env;

/// Whether this process runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether a test can create network namespaces and run these programs, which are given with their
/// Debian packages. If not, skips the test with the reason.
pub fn can_make_networks(test: &str, programs: &[(&str, &str)]) -> bool {
    let missing = programs.iter().find(|(program, _)| !is_installed(program));
    let reason = match missing {
        _ if !is_root() => "network namespaces need root".to_owned(),
        Some((program, package)) => format!("there is no {program}; install {package}"),
        None => return true,
    };
    skip(test, &reason);
    false
}

/// Whether a program is on the search path.
fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_on_the_path_is_installed() {
        assert!(is_installed("sh"));
        assert!(!is_installed("no-such-program"));
    }
}
