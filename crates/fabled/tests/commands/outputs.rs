//! Tests of `fabled` and `fable` with a standard error or standard output that takes no data.

use std::fs;
use std::io::{BufRead, BufReader, read_to_string};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use testkit::process::Guard;
use testkit::{BrokenOutput, assert_result_is_not_lost};

fn fable() -> Command {
    Command::new(env!("CARGO_BIN_EXE_fable"))
}

fn fabled() -> Command {
    Command::new(env!("CARGO_BIN_EXE_fabled"))
}

#[test]
fn the_daemon_serves_without_a_standard_error() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, policy) = (directory.path().join("s"), directory.path().join("policy.toml"));
    for broken in BrokenOutput::ALL {
        fs::write(&policy, "").unwrap();
        let mut command = fabled();
        command.arg("--socket").arg(&socket).arg("--policy").arg(&policy);
        command.args(["--log-level", "debug"]);
        let mut daemon = Guard::spawn_piped(broken.break_stderr(&mut command));
        let mut line = String::new();
        let mut output = BufReader::new(daemon.output());
        output.read_line(&mut line).unwrap();
        assert!(line.starts_with("listening on "), "{broken:?}: {line}");
        // It logs this connection.
        let listed = fable().arg("--socket").arg(&socket).arg("ls").output().unwrap();
        assert!(listed.status.success(), "{broken:?}: {listed:?}");
        fs::write(&policy, "wrong").unwrap();
        // The lowest signal is received first.
        daemon.signal(libc::SIGHUP);
        assert_eq!(daemon.end(libc::SIGTERM).code(), Some(0), "{broken:?}");
    }
}

#[test]
fn commands_keep_their_status_without_a_standard_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    // The preload library does not support a program with this bit.
    let program = path.join("program");
    fs::copy(env!("CARGO_BIN_EXE_fable"), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    for broken in BrokenOutput::ALL {
        let status = |command: &mut Command| {
            let command = command.current_dir(path).stdout(Stdio::null());
            broken.break_stderr(command).status().unwrap().code()
        };
        assert_eq!(status(fable().args(["--socket", "none", "ls"])), Some(1), "{broken:?}");
        assert_eq!(status(fable().args(["run", "nosuch-program"])), Some(127), "{broken:?}");
        assert_eq!(status(fable().arg("nosuch")), Some(2), "{broken:?}");
        assert_eq!(status(fabled().args(["--policy", "none"])), Some(1), "{broken:?}");
        assert_eq!(status(fabled().args(["--make-secret", "/"])), Some(1), "{broken:?}");
        let mut command = fable();
        command.arg("run").arg(&program).arg("--version");
        let mut running = Guard::spawn_piped(broken.break_stderr(&mut command));
        let version = read_to_string(running.output()).unwrap();
        assert!(version.starts_with("fable "), "{broken:?}: {version}");
    }
}

#[test]
fn a_result_is_written_or_the_status_is_not_0() {
    for arguments in ["--help", "--version", "man", "completions bash", "run --help"] {
        assert_result_is_not_lost(fable().args(arguments.split(' ')));
    }
    for arguments in ["--help", "--version", "--man", "--completions=bash", "--print-policy"] {
        assert_result_is_not_lost(fabled().arg(arguments));
    }
}
