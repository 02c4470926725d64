//! Reads environment variables, unless the user who set them must not decide.

use std::ffi::OsString;

/// Returns an environment variable. In a program that has more rights than its user
/// (set-user-ID, set-group-ID, capabilities of its file) there is none, as with secure_getenv(3):
/// the user would choose by it what files and sockets such a program uses.
pub fn variable(name: &str) -> Option<OsString> {
    read(name, has_more_rights())
}

fn read(name: &str, has_more_rights: bool) -> Option<OsString> {
    std::env::var_os(name).filter(|_| !has_more_rights)
}

fn has_more_rights() -> bool {
    // SAFETY: the call only reads what the kernel has told the process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_more_rights_has_no_variables() {
        assert!(!has_more_rights(), "tests are no such program");
        assert_eq!(variable("PATH"), std::env::var_os("PATH"));
        assert!(variable("PATH").is_some());
        assert_eq!(read("PATH", true), None);
    }
}
