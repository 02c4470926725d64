//! Tests of `mtcp` with a standard error or standard output that takes no data.

use std::process::{Command, Stdio};

use testkit::{BrokenOutput, assert_result_is_not_lost};

fn mtcp(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mtcp"));
    command.args(arguments.split(' ')).env_remove("MTCP_CONFIG");
    command
}

#[test]
fn commands_keep_their_status_without_a_standard_error() {
    for broken in BrokenOutput::ALL {
        let rows = [
            ("check /nosuch.toml", 1),
            ("run nosuch-program", 1),
            ("stat --socket /nosuch", 1),
            ("nosuch", 2),
        ];
        for (arguments, expected) in rows {
            let mut command = mtcp(arguments);
            let status = broken.break_stderr(command.stdout(Stdio::null())).status().unwrap();
            assert_eq!(status.code(), Some(expected), "{broken:?}: {arguments}");
        }
    }
}

#[test]
fn a_result_is_written_or_the_status_is_not_0() {
    for arguments in ["--help", "--version", "man", "completions bash", "stat --help"] {
        assert_result_is_not_lost(&mut mtcp(arguments));
    }
}

#[test]
fn a_log_that_cannot_be_written_ends_the_command() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let settings = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/mtcp.toml");
    for file in ["/nosuch/log", fifo.to_str().unwrap()] {
        let output = mtcp(&format!("run --config {settings} --log={file} true")).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(126), "{text}");
        assert!(
            text.contains(&format!("cannot write {file}: ")) && text.contains("--log"),
            "{text}"
        );
    }
}
