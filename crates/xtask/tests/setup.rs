//! Tests of `setup.sh` with stand-ins for apt-get, in a directory that stands for the system's
//! root.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Installs nothing; enables two services and records the policy that invoke-rc.d(8) would apply.
const APT_GET: &str = r#"
echo "apt-get $*"
case "$*" in
*--simulate*) echo "Inst strace (1 all)"; echo "Inst libunwind8 (1 all)"; exit ;;
*--yes*) ;;
*) exit ;;
esac
sh "$SETUP_ROOT/usr/sbin/policy-rc.d"; echo "policy: $?"
ln -s /dev/null "$SETUP_ROOT/etc/systemd/system/multi-user.target.wants/new.service"
ln -s /dev/null "$SETUP_ROOT/etc/rc2.d/S01new"
exit "$APT_STATUS"
"#;

/// Runs the script for strace on a system that has one service, `cron`.
fn set_up(root: &Path, id: u32, apt_status: u8) -> Output {
    let bin = root.join("bin");
    for directory in ["bin", "usr/sbin", "etc/rc2.d", "etc/systemd/system/multi-user.target.wants"]
    {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    let wants = root.join("etc/systemd/system/multi-user.target.wants");
    std::os::unix::fs::symlink("/dev/null", wants.join("cron.service")).unwrap();
    let update_rc = r#"echo "update-rc.d $*"; rm "$SETUP_ROOT"/etc/rc?.d/S01"$1""#;
    let programs = [
        ("apt-get", APT_GET),
        ("dpkg-query", "exit 1"),
        ("apt-cache", "printf 'Size: 2000000\nInstalled-Size: 5000\n'"),
        ("update-rc.d", update_rc),
        ("id", &format!("echo {id}")),
        ("sudo", "exit 1"),
    ];
    for (name, body) in programs {
        fs::write(bin.join(name), format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/setup.sh");
    let mut command = Command::new("sh");
    command.args([script, "strace"]).stdin(Stdio::null()).env("SETUP_ROOT", root);
    command.env("APT_STATUS", apt_status.to_string());
    command.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn packages_are_installed_and_no_service_is_started_or_enabled() {
    // Also if apt-get fails half-way.
    for status in [0, 1] {
        let root = tempfile::tempdir().unwrap();
        let output = set_up(root.path(), 0, status);
        let printed = text(&output.stdout);
        assert_eq!(output.status.code(), Some(status.into()), "{printed}{output:?}");
        assert!(printed.contains("setup: strace is missing: a test compares"), "{printed}");
        let line = "--yes install --no-install-recommends strace\npolicy: 101\n";
        assert!(printed.contains(line), "{printed}");
        let size = "2 packages with those that they need, 2 MB to download, 5 MB on disk";
        assert!(printed.contains(size), "{printed}");
        assert!(printed.contains("update-rc.d new disable"), "{printed}");
        assert!(!root.path().join("usr/sbin/policy-rc.d").exists());
        assert!(!root.path().join("etc/rc2.d/S01new").is_symlink());
        let wants = root.path().join("etc/systemd/system/multi-user.target.wants");
        let left: Vec<_> = fs::read_dir(wants).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["cron.service"]);
    }
}

#[test]
fn a_policy_of_the_system_stays() {
    let root = tempfile::tempdir().unwrap();
    let policy = root.path().join("usr/sbin/policy-rc.d");
    fs::create_dir_all(policy.parent().unwrap()).unwrap();
    fs::write(&policy, "exit 104\n").unwrap();
    let output = set_up(root.path(), 0, 0);
    assert!(text(&output.stdout).contains("policy: 104"), "{output:?}");
    assert_eq!(fs::read_to_string(policy).unwrap(), "exit 104\n");
}

#[test]
fn a_user_without_root_is_told_the_same_command() {
    let root = tempfile::tempdir().unwrap();
    let output = set_up(root.path(), 1000, 0);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(
        error.contains("run as root: sh /") && error.ends_with("/setup.sh strace\n"),
        "{error}"
    );
    assert!(!text(&output.stdout).contains("apt-get"), "{output:?}");
}
