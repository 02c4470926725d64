//! Tests the user as which the proxy runs, and who may read its key.

use crate::backend::{echo, serve};
use crate::client::{client, read_all, say_goodbye, send};
use crate::site::{Site, Testbed};

const USER: &str = "nobody";
/// The number of that user, and of its group, on all systems that the tests run on.
const ID: u32 = 65_534;

/// Returns a line of `/proc/PID/task/TID/status` of each thread of a process, with its name, except
/// workers of io_uring: they run no code of the program, and each request with the credentials of
/// the thread that submitted it.
fn of_threads(process: u32, name: &str) -> impl Iterator<Item = (String, String)> {
    let all = testkit::of_threads(process, name);
    all.into_iter().filter(|(thread, _)| !thread.starts_with("iou-"))
}

#[track_caller]
fn assert_of_threads(process: u32, name: &str, value: &str) {
    for (thread, is) in of_threads(process, name) {
        assert_eq!(is, value, "{name} of {thread}");
    }
}

pub(crate) fn all_threads_run_as_the_user(testbed: Testbed) {
    let site = Site::new(testbed);
    site.permit("", 0o755);
    site.permit("chain.pem", 0o644);
    // As on Debian: root's key, which a group may read.
    std::os::unix::fs::chown(site.path("key.pem"), None, Some(ID)).expect("a group");
    site.permit("key.pem", 0o640);
    let server = serve(site.listen(80), 2, echo);
    let proxy = site.proxy(&["--user", USER]);
    let each = [ID; 4].map(|id| id.to_string()).join(" ");
    assert_of_threads(proxy.id(), "Uid", &each);
    assert_of_threads(proxy.id(), "Gid", &each);
    let assert_serves = || {
        let mut client = client(&site);
        send(&mut client, b"served");
        say_goodbye(&mut client);
        assert_eq!(read_all(&mut client), b"served");
    };
    assert_serves();
    proxy.signal(libc::SIGHUP);
    assert!(proxy.line().contains("reloaded"));
    site.permit("key.pem", 0o600);
    proxy.signal(libc::SIGHUP);
    let complaint = proxy.complaint();
    assert!(complaint.contains("key.pem: Permission denied"), "{complaint}");
    assert_serves();
    server.join().expect("the backends");
    proxy.end();
}

#[test]
fn a_key_that_the_user_cannot_read_again_is_told_at_the_start() {
    let site = Site::new(Testbed::Epoll);
    site.permit("", 0o755);
    site.permit("chain.pem", 0o644);
    let proxy = site.proxy(&["--user", USER]);
    let complaint = proxy.complaint();
    assert!(complaint.contains("user nobody cannot read"), "{complaint}");
    assert!(complaint.contains("key.pem") && complaint.contains("SIGHUP"), "{complaint}");
}

#[test]
fn a_key_that_all_can_read_is_accepted_only_if_asked() {
    let site = Site::new(Testbed::Epoll);
    site.permit("key.pem", 0o644);
    let mut command = site.command();
    command.args(["--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"]);
    let complaint = site.complaint(command);
    assert!(complaint.contains("mode 644") && complaint.contains("`chmod 600 "), "{complaint}");
    let _server = serve(site.listen(80), 1, echo);
    let _proxy = site.proxy(&["--allow-readable-key"]);
    let mut client = client(&site);
    send(&mut client, b"served");
    say_goodbye(&mut client);
    assert_eq!(read_all(&mut client), b"served");
}

/// Each thread has the filter, and no capability is left but those for the stack, before the first
/// connection is served.
pub(crate) fn all_threads_are_restricted(testbed: Testbed) {
    let site = Site::new(testbed);
    let server = serve(site.listen(80), 1, echo);
    let proxy = site.proxy(&[]);
    for (name, value) in [("Seccomp", "2"), ("NoNewPrivs", "1")] {
        assert_of_threads(proxy.id(), name, value);
    }
    // Beside the stack: CAP_SETGID, CAP_SETUID and CAP_NET_ADMIN.
    let has_stack = matches!(testbed, Testbed::Xdp | Testbed::Tap);
    let permitted = if has_stack { 1 << 6 | 1 << 7 | 1 << 12 } else { 0 };
    for name in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        for (thread, set) in of_threads(proxy.id(), name) {
            let set = u64::from_str_radix(&set, 16).expect("a set");
            assert_eq!(set & !permitted, 0, "{name} of {thread}: {set:x}");
        }
    }
    let mut client = client(&site);
    send(&mut client, b"served");
    say_goodbye(&mut client);
    assert_eq!(read_all(&mut client), b"served");
    server.join().expect("the backends");
    proxy.end();
}

#[test]
fn the_filter_can_be_left_out() {
    let site = Site::new(Testbed::Epoll);
    let proxy = site.proxy(&["--no-seccomp"]);
    assert_of_threads(proxy.id(), "Seccomp", "0");
}

#[test]
fn a_sandbox_without_seccomp_is_told_at_the_start() {
    let site = Site::new(Testbed::Epoll);
    let mut command = site.command();
    command.args(["--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"]);
    testkit::bar_seccomp(&mut command);
    let complaint = site.complaint(command);
    assert!(complaint.contains("bars seccomp(2); --no-seccomp serves"), "{complaint}");
}
