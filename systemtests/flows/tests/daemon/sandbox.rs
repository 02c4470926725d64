//! Tests what the daemon may do when it serves: the capabilities and the filter of each thread.

use std::io::{BufRead, BufReader};
use std::process::Command;

use systemtests_flows::{Daemon, QUICK_POLICY, TIME_LIMIT};
use testkit::process::{Guard, program};

const SYS_PTRACE: u64 = 1 << 19;
/// Also CAP_SYS_RESOURCE.
const KEPT: u64 = SYS_PTRACE | 1 << 24;
/// CAP_SETGID and CAP_SETUID.
const CHANGE_USER: u64 = 1 << 6 | 1 << 7;
/// A zone whose etcd has a name that must be looked up, and does not run.
const ZONE: [&str; 6] =
    ["--etcd", "http://localhost:1", "--insecure-zone", "--listen", "127.0.0.1:0", "--host=here"];

#[track_caller]
fn assert_restricted(daemon: &Daemon, threads: &[&str]) {
    let filters = testkit::of_threads(daemon.pid(), "Seccomp");
    for name in threads {
        assert!(filters.iter().any(|(thread, _)| thread == name), "{name} in {filters:?}");
    }
    for (thread, filter) in filters {
        assert_eq!(filter, "2", "{thread} has a filter");
    }
    for (thread, rights) in testkit::of_threads(daemon.pid(), "NoNewPrivs") {
        assert_eq!(rights, "1", "{thread} gets no new privileges");
    }
    for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        for (thread, value) in testkit::of_threads(daemon.pid(), set) {
            let value = u64::from_str_radix(&value, 16).unwrap();
            let kept = if thread == "fabled" { KEPT } else { CHANGE_USER };
            assert_eq!(value & !kept, 0, "{set} of {thread}: {value:x}");
        }
    }
}

#[test]
fn a_daemon_of_one_host_is_restricted() {
    let mut daemon = Daemon::start();
    assert_restricted(&daemon, &["fabled"]);
    daemon.fable_says(&["ls"]);
    daemon.reload(QUICK_POLICY);
    daemon.fable_says(&["stat"]);
    assert!(daemon.terminate().success());
    assert!(!daemon.socket().exists(), "it can remove its socket");
}

#[test]
fn a_daemon_of_a_zone_is_restricted_and_looks_names_up() {
    let mut daemon = Daemon::with_arguments(QUICK_POLICY, &ZONE);
    let refused = "localhost:1: Connection refused";
    assert!(testkit::eventually(TIME_LIMIT, || daemon.log().contains(refused)), "{}", daemon.log());
    assert_restricted(&daemon, &["fabled", "cluster"]);
    assert!(daemon.terminate().success());
}

#[test]
fn the_filter_can_be_left_out() {
    let daemon = Daemon::with_arguments(QUICK_POLICY, &["--no-seccomp"]);
    for (thread, filter) in testkit::of_threads(daemon.pid(), "Seccomp") {
        assert_eq!(filter, "0", "{thread}");
    }
}

#[test]
fn a_sandbox_without_seccomp_is_told_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(program("fabled"));
    command.arg("--socket").arg(directory.path().join("socket"));
    testkit::bar_seccomp(&mut command);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("bars seccomp(2); --no-seccomp serves without"), "{text}");
    assert_eq!(output.status.code(), Some(1));
}

/// The numbers of `nobody` and its group on all systems that the tests run on.
const NOBODY: u32 = 65_534;

#[test]
fn all_threads_run_as_the_user_and_the_first_sees_other_processes() {
    let directory = tempfile::tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open).unwrap();
    let socket = directory.path().join("new/fabled.sock");
    let mut command = Command::new(program("fabled"));
    command.args(ZONE).args(["--user", "nobody", "--socket"]).arg(&socket);
    let mut running = Guard::spawn_piped(&mut command);
    let mut line = String::new();
    BufReader::new(running.output()).read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on "), "{line}");
    let has = |field, thread: &str| {
        let all = testkit::of_threads(running.0.id(), field);
        all.into_iter().find(|(name, _)| name == thread).map(|(_, value)| value).unwrap()
    };
    let each = [NOBODY; 4].map(|id| id.to_string()).join(" ");
    for thread in ["fabled", "cluster"] {
        assert_eq!((has("Uid", thread), has("Gid", thread)), (each.clone(), each.clone()));
        assert_eq!(has("Seccomp", thread), "2");
    }
    let sets = ["fabled", "cluster"]
        .map(|thread| u64::from_str_radix(&has("CapEff", thread), 16).unwrap());
    // Containers may have taken the other one from root.
    assert_eq!((sets[0] & !KEPT, sets[0] & SYS_PTRACE, sets[1]), (0, SYS_PTRACE, 0));
    running.end(libc::SIGTERM);
    assert!(!socket.exists(), "it can remove its socket");
}
