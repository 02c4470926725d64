//! Finds the cause of a failed set-up of a ring, and its remedy.

use std::fs;
use std::io;

/// System settings for io_uring; `None` if one could not be read.
#[derive(Clone, Debug, Default)]
struct Surroundings {
    /// The sysctl `kernel.io_uring_disabled`.
    disabled: Option<u32>,
    /// The sysctl `kernel.io_uring_group`, -1 for none.
    group: Option<i64>,
    /// Whether this thread has a seccomp filter.
    filtered: Option<bool>,
    /// Whether this thread has `CAP_SYS_ADMIN`.
    privileged: Option<bool>,
}

impl Surroundings {
    fn read() -> Surroundings {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        Surroundings {
            disabled: sysctl("io_uring_disabled"),
            group: sysctl("io_uring_group"),
            ..Surroundings::default()
        }
        .with_status(&status)
    }

    /// Adds the values in /proc/PID/status, see proc_pid_status(5).
    fn with_status(self, status: &str) -> Surroundings {
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .map(str::trim)
        };
        const CAP_SYS_ADMIN: u32 = 21;
        let capabilities = field("CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        Surroundings {
            filtered: field("Seccomp").map(|mode| mode != "0"),
            privileged: capabilities.map(|set| set >> CAP_SYS_ADMIN & 1 == 1),
            ..self
        }
    }

    /// Returns whether `kernel.io_uring_disabled` = 1 affects this thread. It applies to threads
    /// that are neither privileged nor in the group, so for a member of the group there is another
    /// cause.
    fn restricted(&self) -> bool {
        self.disabled == Some(1) && !(self.privileged == Some(true) && self.filtered == Some(true))
    }
}

fn sysctl<T: std::str::FromStr>(name: &str) -> Option<T> {
    fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?.trim().parse().ok()
}

const OLD: &str = "use Linux 6.1 or later, or the epoll driver";
const PROFILE: &str = "allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp \
                       profile of the container (systemd: SystemCallFilter=@aio), or use the \
                       epoll driver";
const SWITCH: &str = "set it to 0 or use the epoll driver";
const GROUP: &str = "set it to 0, run in the group that kernel.io_uring_group names, or use the \
                     epoll driver";
const MODULE: &str = "allow io_uring in its policy, or use the epoll driver";
const MEMORY: &str = "raise the limit on locked memory (ulimit -l unlimited) or on the memory of \
                      the control group, configure fewer completions, or use the epoll driver";
const FILES: &str = "raise the limit on open files (ulimit -n 65536)";
const ALL_FILES: &str = "raise the limit of the system (sysctl -w fs.file-max=1000000)";
const CALL: &str = "permit the call in the sandbox, or use the epoll driver";
const OTHER: &str = "use the epoll driver";

/// Returns the reason why a ring could not be set up, and the remedy.
///
/// `call` is the system call that failed, such as `io_uring_setup`, and `error` its error. The
/// cause and the remedy form one sentence with a semicolon between them: "io_uring is disabled:
/// sysctl kernel.io_uring_disabled is 2; set it to 0 or use the epoll driver". Reads a few files
/// below `/proc`; if these do not show which of several causes of `EPERM` it was, names seccomp by
/// exclusion.
pub fn ring_error_advice(call: &str, error: &io::Error) -> (String, &'static str) {
    advice(call, error, &Surroundings::read())
}

fn advice(call: &str, error: &io::Error, around: &Surroundings) -> (String, &'static str) {
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EPERM | libc::EACCES) if !call.starts_with("io_uring_") => {
            (format!("{call}, which the io_uring driver needs, is refused: {error}"), CALL)
        }
        Some(libc::ENOSYS) => absent(call, around),
        Some(libc::EPERM) => forbidden(call, around),
        Some(libc::EACCES) if around.filtered == Some(true) => (
            format!("io_uring is forbidden: a seccomp filter or a security module refuses {call}"),
            PROFILE,
        ),
        Some(libc::EACCES) => (
            format!(
                "io_uring is forbidden: a security module of the kernel (such as SELinux) \
                 refuses {call}"
            ),
            MODULE,
        ),
        Some(libc::EINVAL) => (
            "the kernel's io_uring is too old: it lacks single-issuer rings with deferred task \
             work, which came with Linux 6.1"
                .into(),
            OLD,
        ),
        Some(libc::ENOMEM) => (
            format!(
                "no memory for a ring: all rings of a user may lock {} together",
                locked_memory_limit()
            ),
            MEMORY,
        ),
        Some(libc::EMFILE) => ("no descriptor left in this process for a ring".into(), FILES),
        Some(libc::ENFILE) => ("no open file left in this system for a ring".into(), ALL_FILES),
        _ => (format!("{call} failed: {error}"), OTHER),
    }
}

fn absent(call: &str, around: &Surroundings) -> (String, &'static str) {
    // A kernel that has the sysctl has io_uring, even if a filter reports otherwise.
    match (around.disabled, around.filtered) {
        (Some(_), Some(true)) => (
            format!(
                "io_uring is hidden: the kernel has it, but a seccomp filter (of a container or \
                 a service manager) answers to {call} that it has not"
            ),
            PROFILE,
        ),
        _ => ("the kernel has no io_uring".into(), OLD),
    }
}

fn forbidden(call: &str, around: &Surroundings) -> (String, &'static str) {
    if let Some(value @ 2..) = around.disabled {
        let cause = format!("io_uring is disabled: sysctl kernel.io_uring_disabled is {value}");
        return (cause, SWITCH);
    }
    if around.restricted() {
        let group = match around.group {
            Some(group @ 0..) => format!(" and is not in group {group}"),
            _ => String::new(),
        };
        let cause = format!(
            "io_uring is restricted: sysctl kernel.io_uring_disabled is 1, and this process is \
             not privileged{group}"
        );
        return (cause, GROUP);
    }
    match around.filtered {
        Some(false) => (
            format!(
                "io_uring is forbidden: no sysctl and no seccomp filter, so a security module of \
                 the kernel refuses {call}"
            ),
            MODULE,
        ),
        _ => (
            format!(
                "io_uring is forbidden: a seccomp filter (of a container or a service manager) \
                 refuses {call}"
            ),
            PROFILE,
        ),
    }
}

/// Returns the limit on locked memory, with its unit.
pub(crate) fn locked_memory_limit() -> String {
    match super::limits::resource(libc::RLIMIT_MEMLOCK) {
        Some((soft, _)) => super::limits::bytes(soft),
        None => "unknown amounts".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(errno: i32, around: Surroundings) -> String {
        of_call("io_uring_setup", errno, around)
    }

    fn of_call(call: &str, errno: i32, around: Surroundings) -> String {
        let (cause, remedy) = advice(call, &io::Error::from_raw_os_error(errno), &around);
        format!("{cause}; {remedy}")
    }

    #[test]
    fn the_call_that_is_refused_is_named() {
        let around =
            || Surroundings { disabled: Some(0), filtered: Some(true), ..Surroundings::default() };
        for errno in [libc::EPERM, libc::EACCES, libc::ENOSYS] {
            for call in ["io_uring_enter", "io_uring_register", "timerfd_create", "madvise"] {
                let text = of_call(call, errno, around());
                assert!(text.contains(call) && text.contains("epoll driver"), "{text}");
                assert!(call.starts_with("io") || !text.contains("io_uring_setup"), "{text}");
            }
        }
    }

    #[test]
    fn a_sysctl_is_named_with_its_value() {
        let around = Surroundings { disabled: Some(2), filtered: Some(true), ..Default::default() };
        assert_eq!(
            of(libc::EPERM, around),
            "io_uring is disabled: sysctl kernel.io_uring_disabled is 2; \
             set it to 0 or use the epoll driver"
        );
        let around = Surroundings { disabled: Some(1), group: Some(107), ..Default::default() };
        let text = of(libc::EPERM, around);
        assert!(text.contains("io_uring_disabled is 1") && text.contains("group 107"), "{text}");
        let around = Surroundings { disabled: Some(1), group: Some(-1), ..Default::default() };
        assert!(!of(libc::EPERM, around).contains("in group -1"));
    }

    #[test]
    fn seccomp_is_found_by_exclusion() {
        let around = Surroundings { disabled: Some(0), ..Default::default() };
        assert!(of(libc::EPERM, around).contains("seccomp filter"));
        assert!(of(libc::EPERM, Surroundings::default()).contains("seccomp filter"));
        let around =
            Surroundings { disabled: Some(0), filtered: Some(false), ..Default::default() };
        let text = of(libc::EPERM, around);
        assert!(text.contains("security module") && text.contains("policy"), "{text}");
        // The thread is privileged, so `disabled` = 1 does not apply.
        let around = Surroundings {
            disabled: Some(1),
            filtered: Some(true),
            privileged: Some(true),
            ..Default::default()
        };
        assert!(of(libc::EPERM, around).contains("seccomp filter"));
    }

    #[test]
    fn a_missing_io_uring_is_told_from_a_hidden_one() {
        assert!(of(libc::ENOSYS, Surroundings::default()).contains("kernel has no io_uring"));
        let around = Surroundings { disabled: Some(0), filtered: Some(true), ..Default::default() };
        assert!(of(libc::ENOSYS, around).contains("hidden"));
    }

    #[test]
    fn the_other_errors() {
        let of = |errno| of(errno, Surroundings::default());
        assert!(of(libc::EINVAL).contains("Linux 6.1"));
        assert!(of(libc::ENOMEM).contains("ulimit -l"));
        assert!(of(libc::EMFILE).contains("ulimit -n"));
        assert!(of(libc::ENFILE).contains("fs.file-max"));
        assert!(of(libc::EACCES).contains("SELinux"));
        assert!(of(libc::EBUSY).contains("use the epoll driver"));
        assert!(of(libc::EIO).contains("Input/output error"));
    }

    #[test]
    fn status_files_are_read() {
        let root = "Name:\tserver\nCapEff:\t000001ffffffffff\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        let around = Surroundings::default().with_status(root);
        assert_eq!((around.filtered, around.privileged), (Some(true), Some(true)));
        let user = "CapEff:\t0000000000000000\nSeccomp:\t0\n";
        let around = Surroundings::default().with_status(user);
        assert_eq!((around.filtered, around.privileged), (Some(false), Some(false)));
        let around = Surroundings::default().with_status("");
        assert_eq!((around.filtered, around.privileged), (None, None));
    }
}
