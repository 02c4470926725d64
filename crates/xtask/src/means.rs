//! What the user who runs the tests may do, and which packages are missing.

use crate::privilege::{self, Privilege};
use crate::setup;

/// What tests may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Means {
    pub(crate) privilege: Privilege,
    /// Packages that are missing and cannot be installed.
    pub(crate) missing: Vec<&'static str>,
}

impl Means {
    /// root has everything: what is missing is installed, or the set-up fails.
    pub(crate) const ALL: Means = Means { privilege: Privilege::Root, missing: Vec::new() };

    /// Finds out, before any set-up.
    pub(crate) fn here() -> Means {
        match privilege::here() {
            Privilege::Root => Means::ALL,
            privilege => Means { privilege, missing: setup::missing() },
        }
    }

    pub(crate) fn is_root(&self) -> bool {
        self.privilege == Privilege::Root
    }

    pub(crate) fn lacks(&self, package: &str) -> bool {
        self.missing.contains(&package)
    }

    /// What a person reads before the tests; nothing as root.
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
        assert!(Means::ALL.is_root() && !Means::ALL.lacks("strace"));
        assert_eq!(Means::ALL.describe(), None);
    }

    #[test]
    fn others_are_told_what_is_skipped() {
        let means = Means { privilege: Privilege::None, missing: vec!["strace"] };
        assert!(means.lacks("strace") && !means.is_root());
        let text = means.describe().unwrap();
        assert!(text.contains("user.max_user_namespaces") && text.contains("skipped"), "{text}");
        let namespace = Means { privilege: Privilege::Namespace, ..means };
        assert!(namespace.describe().unwrap().contains("in a user and network namespace"));
    }
}
