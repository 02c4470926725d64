//! Finds whether the kernel excludes the time of interrupts from the threads' CPU times
//! (CONFIG_IRQ_TIME_ACCOUNTING, which differs between distributions).
//!
//! Over the loopback device a sender's interrupts do much of the receiver's work, so comparing the
//! busy time of CPUs with the CPU time of threads is possible only if this is known.

use std::net::UdpSocket;
use std::sync::OnceLock;

use crate::sys::affinity::thread_id;
use crate::sys::clock::now_ns;
use crate::sys::cpuclock;
use crate::sys::procstat::ThreadReader;

/// Length of a trial: long compared with the scheduler's ticks.
const TRIAL_NS: u64 = 10_000_000;
/// Number of trials. Time that the host steals looks like that of interrupts, but not in every
/// trial.
const TRIALS: usize = 5;
/// Sending datagrams over loopback spends more than this part (1/20) of its time in interrupts.
const LEAST_PART: u64 = 20;

/// Determined once, in some 10 ms, or 50 ms if interrupts are excluded.
pub(crate) fn are_kept_apart() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| (0..TRIALS).all(|_| missing_ns().is_some_and(is_much)))
}

fn is_much(missing_ns: u64) -> bool {
    missing_ns > TRIAL_NS / LEAST_PART
}

/// Returns the time of a trial in which a thread that sends all the time neither runs nor waits for
/// its CPU; `None` if that is unknown.
fn missing_ns() -> Option<u64> {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).ok()?;
    socket.connect(socket.local_addr().ok()?).ok()?;
    let reader = ThreadReader::new(std::process::id(), thread_id()).ok()?;
    let used_ns = || cpuclock::thread_ns() + reader.read().delay_ns;
    let (begun_ns, used_before_ns) = (now_ns(), used_ns());
    let mut byte = [0];
    while now_ns() - begun_ns < TRIAL_NS {
        socket.send(&byte).ok()?;
        socket.recv(&mut byte).ok()?;
    }
    let (wall_ns, used_ns) = (now_ns() - begun_ns, used_ns() - used_before_ns);
    Some(wall_ns.saturating_sub(used_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the value in the kernel's configuration, if it can be read, to compare with.
    fn configured() -> Option<bool> {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
        let config = format!("/boot/config-{}", release.trim());
        let text = match std::fs::read_to_string(config) {
            Ok(text) => text,
            Err(_) => {
                let output = std::process::Command::new("zcat").arg("/proc/config.gz").output();
                String::from_utf8(output.ok()?.stdout).ok().filter(|text| !text.is_empty())?
            }
        };
        Some(text.contains("CONFIG_IRQ_TIME_ACCOUNTING=y"))
    }

    #[test]
    fn the_trial_finds_what_the_kernel_is_configured_for() {
        let found = are_kept_apart();
        match configured() {
            Some(configured) => assert_eq!(found, configured),
            None => testkit::skip(
                "the_trial_finds_what_the_kernel_is_configured_for",
                "the kernel's configuration cannot be read",
            ),
        }
    }
}
