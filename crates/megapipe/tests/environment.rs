//! Tests which driver a channel gets: by configuration, by environment, and if io_uring is
//! unavailable.

mod common;

use common::process::{again, expect_success, is_child, isolated};
use common::seccomp::{block, block_io_uring};
use common::{Rig, accepted, client, listener, received, written};
use megapipe::{Accept, Channel, Config, DriverChoice, DriverKind, Error, Repeat};
use std::io::{Read, Write};

const VARIABLE: &str = "MEGAPIPE_DRIVER";

fn channel(driver: DriverChoice) -> megapipe::Result<Channel<u64>> {
    Channel::with_config(Config { driver, ..Config::default() })
}

/// Runs the calling test again with the variable set; `body` runs there.
fn with_variable(name: &str, values: &[Option<&str>], body: impl FnOnce(Option<String>)) {
    if is_child(name) {
        return body(std::env::var(VARIABLE).ok());
    }
    for value in values {
        let mut command = again(name);
        if let Some(value) = value {
            command.env(VARIABLE, value);
        }
        expect_success(command);
    }
}

#[test]
fn the_environment_chooses() {
    let values = [None, Some("auto"), Some("uring"), Some("epoll")];
    with_variable("the_environment_chooses", &values, |value| {
        let rig = Rig::from(channel(DriverChoice::Auto).unwrap());
        let report = rig.driver();
        let expected = match value.as_deref() {
            Some("epoll") => DriverKind::Epoll,
            _ => DriverKind::Uring,
        };
        assert_eq!(report.kind, expected, "{report:?}");
        let chosen = matches!(value.as_deref(), Some("epoll" | "uring"));
        assert_eq!(report.reason.contains(VARIABLE), chosen, "{report:?}");
    });
}

#[test]
fn the_configuration_comes_first() {
    let values = [Some("epoll"), Some("uring"), Some("nonsense")];
    with_variable("the_configuration_comes_first", &values, |_| {
        let choices =
            [(DriverChoice::Uring, DriverKind::Uring), (DriverChoice::Epoll, DriverKind::Epoll)];
        for (choice, kind) in choices {
            assert_eq!(channel(choice).unwrap().driver().kind, kind);
        }
    });
}

#[test]
fn an_unknown_name_is_an_error() {
    let values = [Some("kqueue"), Some(""), Some("EPOLL")];
    with_variable("an_unknown_name_is_an_error", &values, |value| {
        let error = channel(DriverChoice::Auto).unwrap_err();
        assert!(matches!(error, Error::UnknownDriver(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("{:?}", value.unwrap())) && text.contains("auto"), "{text}");
    });
}

/// Sends a message through the channel and back.
fn echo(rig: &mut Rig) {
    let (listener, address) = listener();
    let listening = rig.join(listener);
    rig.accept(listening, Accept::lightweight()).unwrap();
    let mut ours = client(address);
    let socket = accepted(rig.another(listening)).socket;
    let handle = rig.join(socket);
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    ours.write_all(b"there and back").unwrap();
    let lease = received(rig.another(handle));
    rig.write(handle, lease).unwrap();
    assert_eq!(written(rig.last(handle)).len(), 14);
    let mut found = [0; 14];
    ours.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"there and back");
}

fn falls_back(errno: i32) {
    block_io_uring(errno);
    let mut rig = Rig::from(channel(DriverChoice::Auto).unwrap());
    assert_eq!(rig.driver().kind, DriverKind::Epoll);
    assert!(rig.driver().reason.contains("io_uring"), "{:?}", rig.driver());
    echo(&mut rig);
}

#[test]
fn without_permission_auto_falls_back() {
    let name = "without_permission_auto_falls_back";
    isolated(DriverChoice::Auto, name, || falls_back(libc::EPERM));
}

#[test]
fn without_the_system_call_auto_falls_back() {
    let name = "without_the_system_call_auto_falls_back";
    isolated(DriverChoice::Auto, name, || falls_back(libc::ENOSYS));
}

/// Some filters let a thread create rings and refuse to let it enter them.
#[test]
fn without_the_call_that_enters_rings_auto_falls_back() {
    isolated(DriverChoice::Auto, "without_the_call_that_enters_rings_auto_falls_back", || {
        block(&[libc::SYS_io_uring_enter], libc::EPERM);
        let mut rig = Rig::from(channel(DriverChoice::Auto).unwrap());
        assert_eq!(rig.driver().kind, DriverKind::Epoll);
        assert!(rig.driver().reason.contains("io_uring"), "{:?}", rig.driver());
        echo(&mut rig);
        assert!(matches!(channel(DriverChoice::Uring), Err(Error::Setup { .. })));
    });
}

#[test]
fn a_ring_that_is_asked_for_is_not_replaced() {
    isolated(DriverChoice::Auto, "a_ring_that_is_asked_for_is_not_replaced", || {
        block_io_uring(libc::EPERM);
        match channel(DriverChoice::Uring).unwrap_err() {
            Error::Setup { source, remedy, .. } => {
                assert_eq!(source.raw_os_error(), Some(libc::EPERM));
                assert!(!remedy.is_empty());
            }
            other => panic!("unexpected {other}"),
        }
        echo(&mut Rig::from(channel(DriverChoice::Epoll).unwrap()));
    });
}

fn is_told(errno: i32, remedy: &str) {
    block_io_uring(errno);
    let error = channel(DriverChoice::Auto).unwrap_err();
    match &error {
        Error::Setup { source, .. } => assert_eq!(source.raw_os_error(), Some(errno)),
        other => panic!("unexpected {other}"),
    }
    assert!(error.to_string().contains(remedy), "{error}");
}

#[test]
fn a_lack_of_memory_is_told() {
    let name = "a_lack_of_memory_is_told";
    isolated(DriverChoice::Auto, name, || is_told(libc::ENOMEM, "memory"));
}

#[test]
fn a_lack_of_descriptors_is_told() {
    let name = "a_lack_of_descriptors_is_told";
    isolated(DriverChoice::Auto, name, || is_told(libc::EMFILE, "ulimit -n"));
}
