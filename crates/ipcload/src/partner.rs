//! The second process from the first one's side, and how both learn that they are to end: their
//! standard input is closed, by whoever started them or because that is no more.

use std::io::Read;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::affinity::pin_to;
use crate::clock::now_ns;
use crate::end::Invitation;
use crate::error::{Context, Error, Result};

/// Nothing that moves takes longer, even on a busy machine.
const STALL_NS: u64 = 10_000_000_000;
/// How long the second process may take to end once it is told.
const END_TIMEOUT_NS: u64 = 2_000_000_000;
/// As much as is shown of what it says about an error.
const COMPLAINT_BYTES_MAX: u64 = 4_096;

/// Binds this process to one CPU of the load.
pub(crate) fn settle_on(cpu: usize) -> Result<()> {
    pin_to(cpu)
        .context(format!("pin a process to CPU {cpu}"), "name CPUs that this process may use")
}

/// Whether this process is to end.
static STOPPING: AtomicBool = AtomicBool::new(false);

/// Whether whoever started this process wants it to end, for ends that wait by themselves. Only
/// within [`crate::run_first`] and [`crate::run_second`].
#[inline]
pub fn is_stopping() -> bool {
    STOPPING.load(Ordering::Relaxed)
}

/// Starts the thread that finds out.
pub(crate) fn watch_lifeline() -> Result<()> {
    let watch = || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        STOPPING.store(true, Ordering::Relaxed);
    };
    std::thread::Builder::new()
        .name("lifeline".to_owned())
        .spawn(watch)
        .map(drop)
        .context("start a thread", "raise `ulimit -u`")
}

/// The second process. Dropping it ends and reaps it.
#[derive(Debug)]
pub(crate) struct Partner(Child);

impl Partner {
    /// Starts this same command once more, to join.
    pub(crate) fn start(invitation: Invitation) -> Result<Partner> {
        let kept: Vec<RawFd> = invitation.descriptors.iter().map(|fd| fd.as_raw_fd()).collect();
        let mut command = Command::new("/proc/self/exe");
        command
            .args(std::env::args_os().skip(1))
            .args(["--join", &invitation.join])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // SAFETY: the closure runs between fork and exec and makes only async-signal-safe calls.
        unsafe {
            command.pre_exec(move || {
                for &descriptor in &kept {
                    // Clears close-on-exec of a descriptor that the parent keeps open.
                    if libc::fcntl(descriptor, libc::F_SETFD, 0) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        let child = command.spawn().context("start the second process", "mount /proc")?;
        Ok(Partner(child))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Why it ended, if it has.
    fn ended(&mut self) -> Option<String> {
        let status = self.0.try_wait().ok().flatten()?;
        let mut words = Vec::new();
        if let Some(stderr) = self.0.stderr.take() {
            let _ = stderr.take(COMPLAINT_BYTES_MAX).read_to_end(&mut words);
        }
        let words = String::from_utf8_lossy(&words);
        Some(match words.trim() {
            "" => status.to_string(),
            words => format!("{status}: {words}"),
        })
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        self.0.stdin = None;
        let deadline_ns = now_ns() + END_TIMEOUT_NS;
        while matches!(self.0.try_wait(), Ok(None)) {
            if now_ns() > deadline_ns {
                let _ = self.0.kill();
                let _ = self.0.wait();
                return;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Looks, when nothing moves, whether it still can. Only the first process has a partner.
pub(crate) struct Watch(pub(crate) Option<Partner>);

impl Watch {
    /// Tries until it works.
    #[inline]
    pub(crate) fn insist(&mut self, mut attempt: impl FnMut() -> Result<bool>) -> Result<()> {
        if attempt()? { Ok(()) } else { self.try_again(attempt) }
    }

    #[cold]
    fn try_again(&mut self, mut attempt: impl FnMut() -> Result<bool>) -> Result<()> {
        let since_ns = now_ns();
        loop {
            if is_stopping() {
                return Err(Error::Stopped);
            }
            if let Some(status) = self.0.as_mut().and_then(Partner::ended) {
                return Err(Error::Partner(status));
            }
            if now_ns() - since_ns > STALL_NS {
                return Err(Error::Stalled(STALL_NS / 1_000_000_000));
            }
            if attempt()? {
                return Ok(());
            }
        }
    }
}
