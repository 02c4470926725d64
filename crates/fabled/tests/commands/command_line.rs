//! Tests of the answers to wrong command lines of `fable` and `fabled`.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use testkit::{Refusal, assert_refusals, refusal};

/// What `fable` answers.
const FABLE: &[Refusal<'_>] = &[
    refusal("--socket none.sock ls", 1, ["none.sock", "no daemon at", "start it with `fabled`"]),
    refusal("--socket none.sock top --once", 1, ["none.sock", "no daemon at", "--socket"]),
    refusal("--socket file.sock ls", 1, ["file.sock", "no daemon at", "--socket"]),
    refusal("top --interval 0", 2, ["'0'", "use a number of seconds from 0.1", "to 3600"]),
    refusal("protect 1a maybe", 2, ["'maybe'", "invalid value", "possible values: on, off"]),
    refusal("flows", 2, ["'flows'", "unrecognized subcommand", "--help"]),
    refusal("move 1a", 2, ["<TRANSPORT>", "required arguments were not provided", "--help"]),
    refusal("run", 2, ["<COMMAND>", "required arguments were not provided", "--help"]),
    refusal("run --bogus true", 2, ["'--bogus'", "unexpected argument", "--help"]),
    refusal("run nosuch-program", 127, ["nosuch-program", "cannot execute", "install it"]),
    refusal("run ./file.sock", 126, ["./file.sock", "cannot execute", "chmod +x"]),
    refusal("run --connections 0 true", 2, ["0 is not in", "is not in", "1..=1048576"]),
    refusal("run --ring-bytes 1 true", 2, ["1 is not in", "is not in", "4096..=16777216"]),
    refusal(
        "run --statistics=/nosuch/file true",
        126,
        ["/nosuch/file", "cannot write the statistics to", "name a file in a directory"],
    ),
];

/// What `fabled` answers.
const FABLED: &[Refusal<'_>] = &[
    refusal("--policy none.toml", 1, ["none.toml", "cannot read the policy", "--policy"]),
    refusal("--policy typo.toml", 1, ["line 2", "cannot use the policy", "--print-policy"]),
    refusal(
        "--policy range.toml",
        1,
        ["range.toml", "cannot use the policy", "must be 10 to 60000"],
    ),
    refusal("--socket file.sock", 1, ["file.sock", "the file exists and is no socket", "remove"]),
    refusal(
        "--socket /proc/nosuch/a.sock",
        1,
        ["/proc/nosuch", "cannot make the directory of", "--socket"],
    ),
    refusal(
        "--socket typo/fable/a.sock",
        1,
        ["typo/fable/a.sock: there is no directory typo", "there is no directory", "mkdir -p"],
    ),
    refusal(
        "--etcd http://127.0.0.1:1",
        2,
        ["--listen", "required arguments were not provided", "--help"],
    ),
    refusal("--listen nowhere", 2, ["'nowhere'", "invalid socket address syntax", "--help"]),
    refusal(
        "--etcd http://u@h --listen 127.0.0.1:0 --insecure-zone",
        1,
        ["`http://u@h`", "is no endpoint of etcd", "write --etcd https://HOST:PORT"],
    ),
    refusal(
        "--etcd http://127.0.0.1:1 --listen 192.0.2.1:0 --insecure-zone",
        1,
        ["192.0.2.1:0", "cannot listen on", "use --listen"],
    ),
    refusal(
        "--etcd http://127.0.0.1:1 --listen 127.0.0.1:0 --insecure-zone --lease 1",
        1,
        ["a lease of 1 s", "is out of range; use --lease", "2 to 3600"],
    ),
    refusal(
        "--etcd http://127.0.0.1:1 --listen 127.0.0.1:0 --insecure-zone --zone a/b",
        1,
        ["`a/b`", "cannot name a zone or host", "use 1 to 64 letters"],
    ),
    refusal(
        "--etcd http://[::1]:1 --listen [::1]:0 --insecure-zone --state-directory file.sock",
        1,
        ["file.sock", "use a --state-directory", "daemon's user"],
    ),
    refusal(
        "--etcd http://127.0.0.1:1 --listen 127.0.0.1:0",
        1,
        ["zone default", "has no secret", "name it with --zone-secret"],
    ),
    refusal(
        "--etcd http://127.0.0.1:1 --listen 127.0.0.1:0 --zone-secret open",
        1,
        ["open", "other users have access", "chmod 600"],
    ),
    refusal(
        "--etcd http://127.0.0.1:1 --listen 127.0.0.1:0 --zone-secret short",
        1,
        ["it has 5 bytes", "a secret has at least 32", "--make-secret"],
    ),
    refusal(
        "--etcd https://127.0.0.1:1 --listen 127.0.0.1:0 --insecure-zone",
        1,
        ["TLS needs the certificate of etcd's CA", "is no endpoint of etcd", "--etcd-ca FILE"],
    ),
    refusal(
        "--etcd http://127.0.0.1:1 --listen 127.0.0.1:0 --insecure-zone --etcd-credentials open",
        1,
        ["open", "other users have access", "chmod 600"],
    ),
    refusal("--make-secret short", 1, ["short", "cannot make a secret", "name a new file"]),
    refusal("--log-level loud", 2, ["'loud'", "invalid value", "error, warn, info, debug"]),
];

fn prepare(program: &str, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(directory).env("FABLE_SOCKET", "fabled.sock");
    command
}

#[test]
fn fable_answers_wrong_command_lines_with_cause_and_remedy() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file.sock"), "no socket").unwrap();
    // No command gets so far that it loads the library.
    fs::write(directory.path().join("library.so"), "").unwrap();
    let library = directory.path().join("library.so");
    let fable = |library: &Path| {
        let mut command = prepare(env!("CARGO_BIN_EXE_fable"), directory.path());
        command.env("FABLE_PRELOAD", library);
        command
    };
    assert_refusals("fable", || fable(&library), FABLE);
    let row = refusal(
        "run true",
        126,
        ["/nosuch/library.so", "cannot find the library", "cargo build -p fable-preload"],
    );
    assert_refusals("fable", || fable(Path::new("/nosuch/library.so")), &[row]);
    let odd = directory.path().join("od d:.so");
    fs::write(&odd, "").unwrap();
    let row = refusal("run true", 126, ["od d:.so", "splits LD_PRELOAD", "set FABLE_PRELOAD to"]);
    assert_refusals("fable", || fable(&odd), &[row]);
}

#[test]
fn fabled_answers_wrong_command_lines_with_cause_and_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("file.sock", "no socket");
    write("open", "fabled:password that everybody reads");
    write("short", "short");
    fs::set_permissions(directory.path().join("open"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(directory.path().join("short"), fs::Permissions::from_mode(0o600)).unwrap();
    write("typo.toml", "[thresholds]\nbuzy = 1\n");
    write("range.toml", "observe_every_ms = 1\n");
    let program = env!("CARGO_BIN_EXE_fabled");
    assert_refusals("fabled", || prepare(program, directory.path()), FABLED);
}

#[test]
fn a_zone_secret_is_made_for_its_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_fabled");
    let mut command = prepare(program, directory.path());
    let output = command.args(["--make-secret", "zone"]).output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    let metadata = fs::metadata(directory.path().join("zone")).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert!(metadata.len() >= 32);
}

#[test]
fn a_zone_secret_that_cannot_be_written_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = prepare(env!("CARGO_BIN_EXE_fabled"), directory.path());
    // SAFETY: between fork(2) and execve(2), two system calls on the child itself.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            match libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        })
    };
    let output = command.args(["--make-secret", "zone"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!directory.path().join("zone").exists());
}

#[test]
fn a_second_daemon_is_answered_with_the_socket_of_the_first() {
    use std::os::unix::net::UnixListener;
    let directory = tempfile::tempdir().unwrap();
    let _first = UnixListener::bind(directory.path().join("taken.sock")).unwrap();
    let row = refusal(
        "--socket taken.sock",
        1,
        ["taken.sock", "another fabled listens on", "stop it first"],
    );
    let program = env!("CARGO_BIN_EXE_fabled");
    assert_refusals("fabled", || prepare(program, directory.path()), &[row]);
}
