//! Tests of `docs/tutorials/functions.sh`: what is missing is named, and waiting ends.

use std::net::TcpListener;
use std::process::Command;
use systemtests_programs::root;

/// Returns the exit status and the errors of commands after the functions.
fn bash(commands: &str) -> (Option<i32>, String) {
    let mut bash = Command::new("bash");
    bash.args(["-uc", &format!(". docs/tutorials/functions.sh\n{commands}")]).current_dir(root());
    let output = bash.output().expect("bash runs");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn missing_commands_and_ports_in_use_are_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (status, errors) = bash(&format!("need bash no-such-command {port} cat"));
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("no-such-command is missing: install it"), "{errors}");
    assert!(errors.contains(&format!("port {port} is in use: stop the program")), "{errors}");
    assert_eq!(errors.lines().count(), 2, "{errors}");
    drop(listener);
    assert_eq!(bash(&format!("need bash {port}")), (Some(0), String::new()));
}

#[test]
fn a_wait_ends_with_the_server_or_when_it_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let serving = format!("sleep 600 & listens {port}; status=$?; kill $!; exit $status");
    assert_eq!(bash(&serving), (Some(0), String::new()));
    drop(listener);
    let (status, errors) = bash(&format!("false & wait $!; listens {port}"));
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("the server has ended before it listened on port"), "{errors}");
}

#[test]
fn a_command_is_repeated_until_it_succeeds() {
    assert_eq!(bash("n=0; try() { ((++n == 3)); }; retry try; ((n == 3))").0, Some(0));
}
