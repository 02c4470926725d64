//! Tests which driver a channel gets: by configuration, by environment, and if io_uring is
//! unavailable.

use crate::common::process::{again, expect_success, is_child, isolated};
use crate::common::seccomp::{block, block_io_uring, block_register};
use crate::common::{Rig, accepted, client, drop_gives_up, listener, outcome, received, written};
use megapipe::{Accept, Channel, Config, DriverChoice, DriverKind, Error, Event, Repeat};
use std::io::{Read, Write};
use std::time::Duration;

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
    with_variable("environment::the_environment_chooses", &values, |value| {
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
    with_variable("environment::the_configuration_comes_first", &values, |_| {
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
    with_variable("environment::an_unknown_name_is_an_error", &values, |value| {
        let error = channel(DriverChoice::Auto).unwrap_err();
        assert!(matches!(error, Error::UnknownDriver(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("{:?}", value.unwrap())) && text.contains("auto"), "{text}");
    });
}

/// Sends messages through the channel and back, over both kinds of sockets.
fn echo(rig: &mut Rig) {
    for accept in [Accept::lightweight(), Accept::descriptors()] {
        let (listener, address) = listener();
        let listening = rig.join(listener);
        rig.accept(listening, accept.count(1)).unwrap();
        let mut ours = client(address);
        let socket = accepted(rig.last(listening)).socket;
        let handle = rig.join(socket);
        rig.receive(handle, Repeat::UntilCancelled).unwrap();
        ours.write_all(b"there and back").unwrap();
        let lease = received(rig.another(handle));
        rig.write(handle, lease).unwrap();
        assert_eq!(written(rig.last(handle)).len(), 14);
        let mut found = [0; 14];
        ours.read_exact(&mut found).unwrap();
        assert_eq!(&found, b"there and back");
        drop(rig.unregister(handle).unwrap());
    }
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
    let name = "environment::without_permission_auto_falls_back";
    isolated(DriverChoice::Auto, name, || falls_back(libc::EPERM));
}

#[test]
fn without_the_system_call_auto_falls_back() {
    let name = "environment::without_the_system_call_auto_falls_back";
    isolated(DriverChoice::Auto, name, || falls_back(libc::ENOSYS));
}

/// The opcode of the system call with which a ring gets a table of files (`linux/io_uring.h`).
const IORING_REGISTER_FILES2: u32 = 13;

#[test]
fn a_feature_that_a_ring_lacks_is_replaced() {
    isolated(DriverChoice::Auto, "environment::a_feature_that_a_ring_lacks_is_replaced", || {
        block_register(IORING_REGISTER_FILES2, libc::EINVAL);
        let mut rig = Rig::from(channel(DriverChoice::Auto).unwrap());
        assert_eq!(rig.driver().kind, DriverKind::Uring);
        assert!(!rig.driver().replaced.is_empty() && !rig.has_file_table(), "{:?}", rig.driver());
        echo(&mut rig);
    });
}

/// Some filters let a thread create rings and refuse to let it enter them.
#[test]
fn without_the_call_that_enters_rings_auto_falls_back() {
    let name = "environment::without_the_call_that_enters_rings_auto_falls_back";
    isolated(DriverChoice::Auto, name, || {
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
    isolated(DriverChoice::Auto, "environment::a_ring_that_is_asked_for_is_not_replaced", || {
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

/// Calls newer than epoll itself, which the epoll driver does without.
const OPTIONAL: [libc::c_long; 5] = [
    libc::SYS_epoll_pwait2,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_kcmp,
    libc::SYS_membarrier,
];

/// Old kernels and filters of system calls refuse a call that they do not know in different ways.
fn does_without(errno: i32) {
    block(&OPTIONAL, errno);
    let mut rig = Rig::from(channel(DriverChoice::Epoll).unwrap());
    assert!(rig.dispatch(Duration::from_micros(100)).unwrap().is_none());
    echo(&mut rig);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, b"kept").unwrap();
    let file = rig.join(std::fs::File::open(&path).unwrap());
    rig.read_at(file, Vec::with_capacity(9), 1).unwrap();
    match rig.last(file) {
        Event::ReadAt(result, buffer, 1) => {
            assert_eq!((result.unwrap(), &*buffer), (3, &b"ept"[..]))
        }
        other => panic!("unexpected {other:?}"),
    }
    let (mut reader, writer) = std::io::pipe().unwrap();
    let writer = rig.join(std::os::fd::OwnedFd::from(writer));
    rig.write(writer, b"piped").unwrap();
    assert_eq!(outcome(&rig.last(writer)), Ok(5));
    let mut found = [0; 5];
    reader.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"piped");
}

macro_rules! refusals {
    ($($name:ident = $errno:ident;)*) => {$(
        #[test]
        fn $name() {
            let name = concat!("environment::", stringify!($name));
            isolated(DriverChoice::Auto, name, || does_without(libc::$errno));
        }
    )*};
}

refusals! {
    epoll_does_without_calls_that_the_kernel_lacks = ENOSYS;
    epoll_does_without_calls_that_are_not_permitted = EPERM;
    epoll_does_without_calls_that_are_denied = EACCES;
    epoll_does_without_calls_that_are_invalid = EINVAL;
}

fn is_told(choice: DriverChoice, errno: i32, remedy: &str) {
    block_io_uring(errno);
    let error = channel(choice).unwrap_err();
    match &error {
        Error::Setup { source, .. } => assert_eq!(source.raw_os_error(), Some(errno)),
        other => panic!("unexpected {other}"),
    }
    assert!(error.to_string().contains(remedy), "{error}");
}

/// All rings of a user share the locked memory, so others may have used it up.
#[test]
fn without_memory_for_a_ring_auto_falls_back() {
    let name = "environment::without_memory_for_a_ring_auto_falls_back";
    isolated(DriverChoice::Auto, name, || {
        falls_back(libc::ENOMEM);
        let report = channel(DriverChoice::Auto).unwrap().driver().clone();
        assert!(report.reason.contains("ulimit -l"), "{report:?}");
    });
}

#[test]
fn a_lack_of_memory_is_told() {
    let name = "environment::a_lack_of_memory_is_told";
    isolated(DriverChoice::Auto, name, || is_told(DriverChoice::Uring, libc::ENOMEM, "memory"));
}

#[test]
fn a_lack_of_descriptors_is_told() {
    let name = "environment::a_lack_of_descriptors_is_told";
    isolated(DriverChoice::Auto, name, || is_told(DriverChoice::Auto, libc::EMFILE, "ulimit -n"));
}

/// A program may forbid itself io_uring after its start. Dropping a channel then does not wait for
/// what the kernel can no longer report.
#[test]
fn a_channel_ends_although_io_uring_is_barred_since() {
    let name = "environment::a_channel_ends_although_io_uring_is_barred_since";
    isolated(DriverChoice::Auto, name, || {
        let mut rig = Rig::new(DriverChoice::Uring);
        let (_peer, handle) = rig.tcp_pair();
        rig.receive(handle, Repeat::UntilCancelled).unwrap();
        rig.flush().unwrap();
        block_io_uring(libc::EPERM);
        assert!(!drop_gives_up(rig), "the drop has waited for the kernel");
    });
}
