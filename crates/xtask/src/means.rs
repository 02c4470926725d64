//! What the user who runs the tests may do, and which packages are missing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use crate::setup;

/// What a test needs of its user, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Privilege {
    /// Nothing that another user has not.
    None,
    /// Namespaces of users, networks and mounts, in which it is root.
    Namespace,
    /// The same, and devices of TUN and TAP in them.
    Tun,
    /// root itself: BPF programs, AF_XDP, other users.
    Root,
}

/// Starts a program as root of new namespaces, in which the loopback device is up and ip(8) can
/// name further networks. The program replaces what made them, so that its process is the same.
const NAMESPACE: [&str; 9] = [
    "unshare",
    "--user",
    "--map-root-user",
    "--net",
    "--mount",
    "sh",
    "-c",
    "mount -t tmpfs tmpfs /run && ip link set lo up && exec \"$@\"",
    "sh",
];

/// Where devices of TUN and TAP come from.
pub(crate) const TUN: &str = "/dev/net/tun";

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
        if is_root() {
            return Means::ALL;
        }
        let privilege = match (namespaces_permitted(), tun_permitted()) {
            (false, _) => Privilege::None,
            (true, false) => Privilege::Namespace,
            (true, true) => Privilege::Tun,
        };
        Means { privilege, missing: setup::missing() }
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

/// The words before a program that shall run as root of namespaces of its own.
pub(crate) fn in_namespace() -> &'static [&'static str] {
    &NAMESPACE
}

/// Whether this process is root's.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

fn namespaces_permitted() -> bool {
    let [program, words @ ..] = &NAMESPACE;
    let mut command = Command::new(program);
    command.args(words).arg("true");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn tun_permitted() -> bool {
    fs::File::options().read(true).write(true).open(TUN).is_ok()
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

    #[test]
    fn a_program_in_namespaces_is_root_there_and_keeps_its_words() {
        let permitted = is_root() || namespaces_permitted();
        let [program, words @ ..] = in_namespace() else { panic!("no program") };
        let script = "id -u; ip -o link show up; ip netns add host && ip netns; echo \"$0\"";
        let command = Command::new(program).args(words).args(["sh", "-c", script, "a b"]).output();
        let printed = String::from_utf8(command.unwrap().stdout).unwrap();
        let lines: Vec<&str> = printed.lines().collect();
        // Where they are not permitted nothing runs at all.
        assert_eq!(lines.is_empty(), !permitted, "{printed}");
        if permitted {
            assert_eq!((lines[0], lines[lines.len() - 1]), ("0", "a b"), "{printed}");
            assert!(lines[1].contains("lo: ") && lines.contains(&"host"), "{printed}");
        }
    }
}
