//! Tests statistics beside another user who binds the names of stacks.

use crate::support::program;
use mtcp::config::Mode;
use mtcp::stat::AskError;
use mtcp::{Config, Mtcp, stat};
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Command, Output};
use std::thread;
use testkit::Namespace;

const STRANGER: libc::uid_t = 12_345;
/// As many names as a process has stacks in any test.
const NAMES: u32 = 4_000;

fn config(address: &str) -> Config {
    let addresses = vec![(address.parse().expect("an address"), 24)];
    let mut config = Config { addresses, ..Config::default() };
    config.engine.mode = Mode::Paired;
    config
}

/// Runs work on a thread of another user, in the network namespace of the caller.
fn as_stranger<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let on_thread = || {
        const UNCHANGED: libc::uid_t = libc::uid_t::MAX;
        // SAFETY: the call has no pointers. The system call, in contrast to the C library's
        // function, changes the calling thread only.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, UNCHANGED, STRANGER, UNCHANGED) };
        assert_eq!(changed, 0, "{}", std::io::Error::last_os_error());
        work()
    };
    thread::scope(|scope| scope.spawn(on_thread).join().expect("it does not panic"))
}

fn bind(name: &[u8]) -> UnixListener {
    let address = SocketAddr::from_abstract_name(name).expect("a short name");
    UnixListener::bind_addr(&address).expect("a free name")
}

fn stat(words: &[&str]) -> Output {
    let mut command = Command::new(program("mtcp"));
    command.arg("stat").args(words).output().expect("it runs")
}

#[test]
fn a_stack_starts_although_another_user_has_bound_all_its_names() {
    testkit::raise_descriptor_limit(u64::from(NAMES) + 1000);
    Namespace::new().run(|| {
        let own = std::process::id();
        let planted: Vec<UnixListener> = as_stranger(|| {
            (0..NAMES).map(|number| bind(format!("mtcp/{own}/{number}").as_bytes())).collect()
        });
        let _other = as_stranger(|| bind(b"mtcp/\xff\xfe\x1b[2J"));
        let started = Mtcp::pair(config("10.0.0.1"), config("10.0.0.2"), Default::default());
        let (left, right) = started.expect("another user's names do not stop a stack");
        let _contexts = (left.context(0).expect("a context"), right.context(0).expect("a context"));
        let names = stat::processes().expect("a name that is not UTF-8 is no error");
        assert_eq!(names.len(), planted.len() + 2);
        let (mut reports, mut foreign) = (0, 0);
        for name in names {
            match stat::ask(&name, false) {
                Ok(report) => {
                    assert_eq!(report.process, own);
                    reports += 1;
                }
                Err(AskError::Foreign { user: STRANGER, .. }) => foreign += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!((reports, foreign), (2, NAMES));
        let output = stat(&[]);
        let notes = String::from_utf8(output.stderr).expect("it is text");
        assert!(notes.contains("skipped 4000 sockets of other users"), "{notes}");
        assert_eq!(notes.lines().count(), 1, "{notes}");
        assert!(output.status.success());
    });
}

#[test]
fn what_another_user_answers_is_not_shown_or_shown_without_commands() {
    const ANSWER: &str = "{\"process\":1,\"program\":\"\\u001b]0;owned\\u0007\u{9b}2J\",\
                          \"cores\":[],\"silent\":[]}\n";
    Namespace::new().run(|| {
        let listener = as_stranger(|| bind(b"mtcp/1/0"));
        // Its queue stays full, so that a blocking connect(2) would wait for ever.
        let deaf = as_stranger(|| bind(b"mtcp/1/1"));
        // SAFETY: the descriptor is a listener's; listen(2) sets the length of its queue.
        let shortened = unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&deaf), 0) };
        assert_eq!(shortened, 0);
        let address = SocketAddr::from_abstract_name(b"mtcp/1/1").expect("a short name");
        let _queued = std::os::unix::net::UnixStream::connect_addr(&address).expect("the first");
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a client");
                let _ = stream.read(&mut [0; 64]);
                let _ = stream.write_all(ANSWER.as_bytes());
            }
        });
        let output = stat(&[]);
        assert_eq!(output.stdout, b"", "a foreign answer is not shown");
        let notes = String::from_utf8(output.stderr).expect("it is text");
        assert!(notes.contains("skipped 1 sockets of other users"), "{notes}");
        assert!(notes.contains("@mtcp/1/1: Resource temporarily unavailable"), "{notes}");
        for words in [&["--foreign"][..], &["--foreign", "--json"]] {
            let text = String::from_utf8(stat(words).stdout).expect("it is text");
            assert!(text.contains("owned"), "{text:?}");
            assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        }
    });
}
