//! The partner process, as the measuring process manages it. Both processes stop when their
//! standard input is closed: the program that started them closes it, or has ended.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use crate::clock::now_ns;
use crate::end::Invitation;
use crate::error::{Context, Error, Result};

/// Time-out without any message, long enough for a busy machine.
const STALL_NS: u64 = 10_000_000_000;
/// Longest time from the end of a process's paths to the end of the process.
const EXIT_TIMEOUT_NS: u64 = 100_000_000;
/// Longest time for the second process to end after it was asked to.
const END_TIMEOUT_NS: u64 = 2_000_000_000;
/// Most bytes of the second process's error message that are shown.
const COMPLAINT_BYTES_MAX: u64 = 4_096;

/// Binds this process to one CPU of the load.
pub(crate) fn pin_to(cpu: usize) -> Result<()> {
    sys::cpus::pin_to(cpu)
        .context(format!("pin a process to CPU {cpu}"), "name CPUs that this process may use")
}

/// Whether this process has to end.
static STOPPING: AtomicBool = AtomicBool::new(false);

/// Returns whether the program that started this process asks it to end, for ends whose calls
/// block. Valid only within [`crate::run_measuring_process`] and [`crate::run_partner_process`].
#[inline]
pub fn is_stopping() -> bool {
    STOPPING.load(Ordering::Relaxed)
}

/// Interrupts the blocking calls of the calling thread with `EINTR` once this process has to end;
/// for ends whose calls have no time limit. Such an end calls [`is_stopping`] after each `EINTR`,
/// and returns [`Error::Stopped`] if it is true. Uses `SIGUSR1`.
///
/// # Errors
/// [`Error::System`] if the signal's handler cannot be installed.
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
    // SAFETY: gettid(2) has no preconditions.
    BLOCKED.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    Ok(())
}

/// The thread whose calls are interrupted, or 0.
static BLOCKED: AtomicI32 = AtomicI32::new(0);
/// Time between two signals: a signal just before a call does not interrupt it.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(1);

fn interrupt_calls() -> ! {
    loop {
        let thread = BLOCKED.load(Ordering::Relaxed);
        if thread != 0 {
            let process = std::process::id() as libc::pid_t;
            // SAFETY: plain numbers; for a thread that has ended the call fails.
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) };
        }
        std::thread::sleep(INTERRUPT_INTERVAL);
    }
}

/// Starts the thread that waits for the end of the standard input.
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
    /// Starts this command again, as the second process.
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

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Returns the reason of its end, if it has ended.
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

/// Checks the other process when nothing moves. Only the first process has a partner.
pub(crate) struct Watch(pub(crate) Option<Partner>);

impl Watch {
    /// Returns the cause of an error: the end of the second process, if it has ended.
    #[cold]
    pub(crate) fn explain(&mut self, error: Error) -> Error {
        let (Error::Transport(_), Some(partner)) = (&error, &mut self.0) else { return error };
        let deadline_ns = now_ns() + EXIT_TIMEOUT_NS;
        while now_ns() < deadline_ns {
            if let Some(status) = partner.ended() {
                return Error::Partner(status);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        error
    }

    /// Repeats an attempt until it succeeds.
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
