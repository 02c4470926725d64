//! Determines the privileges of the user who runs the tests, and the missing packages.

use crate::privilege::{self, Privilege};
use crate::setup;

/// Privilege and packages that tests can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestCapabilities {
    pub(crate) privilege: Privilege,
    /// Packages that are missing and cannot be installed.
    pub(crate) missing: Vec<&'static str>,
}

impl TestCapabilities {
    /// The means of root: missing packages are installed, or the set-up fails.
    pub(crate) const ALL: TestCapabilities =
        TestCapabilities { privilege: Privilege::Root, missing: Vec::new() };

    /// Determines the means, before any set-up.
    pub(crate) fn here() -> TestCapabilities {
        match privilege::here() {
            Privilege::Root => TestCapabilities::ALL,
            privilege => TestCapabilities { privilege, missing: setup::missing() },
        }
    }

    /// Returns whether the user is root.
    pub(crate) fn is_root(&self) -> bool {
        self.privilege == Privilege::Root
    }

    /// Returns whether this package is missing.
    pub(crate) fn lacks(&self, package: &str) -> bool {
        self.missing.contains(&package)
    }

    /// Returns a description for the user, shown before the tests; `None` for root.
    pub(crate) fn describe(&self) -> Option<String> {
        let namespaces = match self.privilege {
            Privilege::Root => return None,
            Privilege::Namespace | Privilege::Tun => {
                "tests of networks run in a user and network namespace"
            }
            Privilege::None => {
                "user namespaces are not permitted (sysctl user.max_user_namespaces, \
                 kernel.apparmor_restrict_unprivileged_userns), so tests of networks are skipped"
            }
        };
        Some(format!(
            "not root: {namespaces}; what needs root or a missing package is skipped and named at \
             the end"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_lacks_nothing_and_is_told_nothing() {
        assert!(TestCapabilities::ALL.is_root() && !TestCapabilities::ALL.lacks("strace"));
        assert_eq!(TestCapabilities::ALL.describe(), None);
    }

    #[test]
    fn others_are_told_what_is_skipped() {
        let means = TestCapabilities { privilege: Privilege::None, missing: vec!["strace"] };
        assert!(means.lacks("strace") && !means.is_root());
        let text = means.describe().unwrap();
        assert!(text.contains("user.max_user_namespaces") && text.contains("skipped"), "{text}");
        let namespace = TestCapabilities { privilege: Privilege::Namespace, ..means };
        assert!(namespace.describe().unwrap().contains("in a user and network namespace"));
    }
}
