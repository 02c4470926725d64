//! The second process from the first one's side, and how both learn that they are to end: their
//! standard input is closed, by whoever started them or because that is no more.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use crate::affinity::pin_to;
use crate::clock::now_ns;
use crate::end::Invitation;
use crate::error::{Context, Error, Result};

/// Nothing that moves takes longer, even on a busy machine.
const STALL_NS: u64 = 10_000_000_000;
/// How long the end of a process may come after that of its paths.
const EXIT_TIMEOUT_NS: u64 = 100_000_000;
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

/// Ends the blocking calls of the calling thread with `EINTR` once this process is to end, for ends
/// whose calls have no time limit. Such an end asks [`is_stopping`] after each `EINTR`, and returns
/// [`Error::Stopped`] if so. Takes over `SIGUSR1`.
///
/// # Errors
/// [`Error::System`] if the signal cannot be handled.
pub fn interrupt_calls_when_stopping() -> Result<()> {
    extern "C" fn interrupt(_signal: libc::c_int) {}
    // SAFETY: an all-zero sigaction has an empty mask and no flags; without SA_RESTART the handler
    // ends a blocking call.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = interrupt as *const () as libc::sighandler_t;
    // SAFETY: the handler does nothing, so it may run at any time.
    if unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) } < 0 {
        return Err(io::Error::last_os_error()).context("handle SIGUSR1", "report this as a bug");
    }
    // SAFETY: has no preconditions.
    BLOCKED.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    Ok(())
}

/// The thread whose calls are interrupted, or 0.
static BLOCKED: AtomicI32 = AtomicI32::new(0);
/// A signal that comes just before a call does not end it, so there is a next one.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(1);

fn interrupt_calls() -> ! {
    loop {
        let thread = BLOCKED.load(Ordering::Relaxed);
        if thread != 0 {
            let process = std::process::id() as libc::pid_t;
            // SAFETY: plain numbers; a thread that has ended is only an errno.
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) };
        }
        std::thread::sleep(INTERRUPT_INTERVAL);
    }
}

/// Starts the thread that finds out.
pub(crate) fn watch_lifeline() -> Result<()> {
    let watch = || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        STOPPING.store(true, Ordering::Relaxed);
        interrupt_calls()
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
                        return Err(io::Error::last_os_error());
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
            "" => format!("{status}; `dmesg` tells if the kernel ended it"),
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
    /// The cause of an error, if that is the end of the second process.
    #[cold]
    pub(crate) fn explain(&mut self, error: Error) -> Error {
        let (Error::Road(_), Some(partner)) = (&error, &mut self.0) else { return error };
        let deadline_ns = now_ns() + EXIT_TIMEOUT_NS;
        while now_ns() < deadline_ns {
            if let Some(status) = partner.ended() {
                return Error::Partner(status);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        error
    }

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
