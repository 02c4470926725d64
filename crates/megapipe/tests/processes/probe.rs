//! Tests the probe as programs use it.

use crate::common::process::{descriptors, isolated};
use crate::common::seccomp;
use megapipe::DriverChoice;
use megapipe::probe::{Finding, Probe, RING, Status, ring_error_advice};
use std::fs;

/// Runs a complete probe: one that has no CPU for a second tries less, and reports it.
fn probe() -> Probe {
    let is_cut_short = |probe: &Probe| {
        probe.findings.iter().any(|finding| match &finding.status {
            Status::NotTried(why) => why.contains("the time for the probe was up"),
            _ => false,
        })
    };
    let probes = std::iter::repeat_with(megapipe::probe::probe).take(20);
    probes.into_iter().find(|probe| !is_cut_short(probe)).expect("a probe within its time")
}

/// Runs `body` in a thread of its own whose io_uring calls fail with `errno`.
fn without_io_uring<T: Send + 'static>(errno: i32, body: fn() -> T) -> T {
    let thread = std::thread::spawn(move || {
        seccomp::block_io_uring(errno);
        body()
    });
    thread.join().expect("the thread under the filter ends well")
}

fn find<'a>(probe: &'a Probe, name: &str) -> &'a Finding {
    let found = probe.findings.iter().find(|finding| finding.name == name);
    found.unwrap_or_else(|| panic!("{name} is not in the report"))
}

#[test]
fn what_the_uring_driver_requires_works_here() {
    let probe = probe();
    if let Err(error) = &probe.ring {
        panic!("this kernel gives no ring: {error}");
    }
    assert!(find(&probe, RING).works());
    assert_eq!(probe.missing_required().count(), 0);
}

#[test]
fn a_seccomp_filter_is_recognised() {
    let probe = without_io_uring(libc::EPERM, probe);
    let error = probe.ring.as_ref().expect_err("the filter refuses rings");
    assert_eq!(error.source.raw_os_error(), Some(libc::EPERM));
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    if disabled.trim() == "2" {
        assert!(error.cause.contains("kernel.io_uring_disabled is 2"), "{error}");
    } else {
        assert!(error.cause.contains("seccomp filter"), "{error}");
        assert!(error.remedy.contains("seccomp profile"), "{error}");
    }
    assert!(error.remedy.contains("epoll driver"), "{error}");
    let required = probe.findings.iter().filter(|finding| finding.required).count();
    assert!(required > 1);
    assert_eq!(probe.missing_required().count(), required, "something works without a ring");
    // Features that need no ring are tried nevertheless.
    assert_eq!(find(&probe, "epoll_pwait2").status, Status::Works);
}

#[test]
fn a_filter_that_hides_io_uring_is_told_from_an_old_kernel() {
    let text = without_io_uring(libc::ENOSYS, || {
        let probe = probe();
        probe.ring.expect_err("the filter hides rings").to_string()
    });
    let known = fs::exists("/proc/sys/kernel/io_uring_disabled").unwrap();
    assert_eq!(text.contains("hidden"), known, "{text}");
}

#[test]
fn the_filter_stays_in_its_thread() {
    without_io_uring(libc::EPERM, || ());
    assert!(probe().ring.is_ok());
}

#[test]
fn advice_on_an_old_kernel_names_the_version_that_is_needed() {
    let (cause, remedy) =
        ring_error_advice("io_uring_setup", &std::io::Error::from_raw_os_error(libc::EINVAL));
    assert!(cause.contains("Linux 6.1") && remedy.contains("epoll driver"), "{cause}; {remedy}");
}

#[test]
fn nothing_is_left_behind() {
    isolated(DriverChoice::Auto, "probe::nothing_is_left_behind", || {
        probe();
        let before = descriptors();
        probe();
        assert_eq!(descriptors(), before);
    });
}
