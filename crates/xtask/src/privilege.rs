//! Determines the privilege of the user who runs the tests.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

/// The privilege that a test needs, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Privilege {
    /// None beyond that of any user.
    None,
    /// User, network and mount namespaces, in which the test is root.
    Namespace,
    /// User, network and mount namespaces with TUN and TAP devices in them.
    Tun,
    /// root of the machine: BPF programs, AF_XDP, other users.
    Root,
}

/// Starts a program as root of new namespaces, in which the loopback device is up and ip(8) can
/// name further networks. The program replaces the process that created the namespaces, so its
/// process id does not change.
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

/// The device file of TUN and TAP devices.
pub(crate) const TUN: &str = "/dev/net/tun";

/// Determines the privilege of this user.
pub(crate) fn here() -> Privilege {
    match (is_root(), namespaces_permitted(), tun_permitted()) {
        (true, ..) => Privilege::Root,
        (false, false, _) => Privilege::None,
        (false, true, false) => Privilege::Namespace,
        (false, true, true) => Privilege::Tun,
    }
}

/// Returns the command line prefix of a program that has to run as root of namespaces of its own.
pub(crate) fn in_namespace() -> &'static [&'static str] {
    &NAMESPACE
}

/// Returns whether this process runs as root.
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
    fn a_program_in_namespaces_is_root_there_and_keeps_its_words() {
        let permitted = is_root() || namespaces_permitted();
        let [program, words @ ..] = in_namespace() else { panic!("no program") };
        let script = "id -u; ip -o link show up; ip netns add host && ip netns; echo \"$0\"";
        let command = Command::new(program).args(words).args(["sh", "-c", script, "a b"]).output();
        let printed = String::from_utf8(command.unwrap().stdout).unwrap();
        let lines: Vec<&str> = printed.lines().collect();
        // Where namespaces are not permitted, the program does not start.
        assert_eq!(lines.is_empty(), !permitted, "{printed}");
        if permitted {
            assert_eq!((lines[0], lines[lines.len() - 1]), ("0", "a b"), "{printed}");
            assert!(lines[1].contains("lo: ") && lines.contains(&"host"), "{printed}");
        }
    }
}
