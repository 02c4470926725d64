//! Waiting for signals of the process.

use crate::core::{Core, Sink, current};
use crate::record::{Reason, note};
use megapipe::{Event, Handle, Repeat, SignalInfo, Signals};
use std::cell::Cell;
use std::fmt;
use std::fs;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Receives signals, such as `libc::SIGHUP`, as a stream.
///
/// The kernel delivers a signal of the process to any thread that does not block it, where it has
/// its usual effect, such as the end of the process. So all threads have to block the signals,
/// which a thread inherits from the one that starts it. Name the signals in
/// [`Builder::signals`](crate::Builder::signals) for those of the runtime.
///
/// Signals of one number that arrive before they are received become one. Each signal goes to one
/// of several receivers. Dropping the receiver restores the mask of the thread, see
/// [`megapipe::Signals`].
///
/// ```no_run
/// use megapipe_rt::{Runtime, Signal};
/// # fn main() -> std::io::Result<()> {
/// let runtime = Runtime::builder().signals(&[libc::SIGHUP]).build()?;
/// runtime.block_on(async {
///     let mut signal = Signal::new(&[libc::SIGHUP])?;
///     loop {
///         let info = signal.receive().await?;
///         println!("process {} asks to read the configuration again", info.process);
///     }
/// })
/// # }
/// ```
pub struct Signal {
    core: Rc<Core>,
    handle: Handle,
    state: Rc<State>,
}

#[derive(Default)]
struct State {
    watching: Cell<bool>,
    arrived: Cell<Option<io::Result<SignalInfo>>>,
    waker: Cell<Option<Waker>>,
}

impl Signal {
    /// Receives these signals from now on.
    ///
    /// Blocks them in the calling thread. Fails if another thread of the process does not block
    /// them, and names it; with `EINVAL` for a number that is not a signal.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn new(signals: &[i32]) -> io::Result<Signal> {
        let core = current("Signal::new");
        let source = Signals::new(signals)?;
        check_threads(signals)?;
        Signal::register(core, source)
    }

    fn register(core: Rc<Core>, source: Signals) -> io::Result<Signal> {
        let state = Rc::new(State::default());
        let sink = Rc::clone(&state) as Rc<dyn Sink>;
        let handle = core.with_channel(|channel| Ok(channel.register(source, sink)?))?;
        Ok(Signal { core, handle, state })
    }

    /// Waits for the next signal. Dropping the future loses none: the next call returns it.
    pub async fn receive(&mut self) -> io::Result<SignalInfo> {
        poll_fn(|context| self.poll_receive(context)).await
    }

    fn poll_receive(&self, context: &Context<'_>) -> Poll<io::Result<SignalInfo>> {
        if let Some(arrived) = self.state.arrived.take() {
            return Poll::Ready(arrived);
        }
        if !self.state.watching.get() {
            let watched =
                self.core.with_channel(|channel| Ok(channel.watch(self.handle, Repeat::Once)?));
            match watched {
                Ok(()) => self.state.watching.set(true),
                // The channel is full until it has dispatched completions.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    context.waker().wake_by_ref();
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        note(Reason::SIGNAL);
        let former = self.state.waker.replace(Some(context.waker().clone()));
        drop(former);
        Poll::Pending
    }
}

impl Sink for State {
    fn complete(&self, _: &Core, _: Handle, event: Event, _: bool) {
        let Event::Signal(result) = event else { return };
        self.watching.set(false);
        self.arrived.set(Some(result));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        // Fails only after the end of the runtime, which has closed it.
        let cookie = self.core.with_channel(|channel| Ok(channel.close(self.handle)?));
        drop(cookie);
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Signal").finish_non_exhaustive()
    }
}

/// Waits for `SIGINT`, which Ctrl-C at the terminal sends. Otherwise as [`Signal`].
///
/// The signal has its usual effect before the first poll, and between two calls, unless
/// [`Builder::signals`](crate::Builder::signals) has it.
///
/// # Panics
/// Outside of a runtime.
pub async fn ctrl_c() -> io::Result<()> {
    Signal::new(&[libc::SIGINT])?.receive().await?;
    Ok(())
}

/// Fails if a thread of the process does not block one of the signals.
fn check_threads(signals: &[i32]) -> io::Result<()> {
    let threads = match fs::read_dir("/proc/self/task") {
        Ok(threads) => threads,
        Err(error) => {
            tracing::warn!("cannot check that all threads block the signals: {error}; mount /proc");
            return Ok(());
        }
    };
    for thread in threads {
        // A thread that ends meanwhile handles no signal.
        let Ok(status) = fs::read_to_string(thread?.path().join("status")) else { continue };
        let line = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let Some(blocked) = line("SigBlk:").and_then(|mask| u64::from_str_radix(mask, 16).ok())
        else {
            continue;
        };
        let open = |signal: &&i32| blocked >> (**signal - 1) & 1 == 0;
        if let Some(signal) = signals.iter().find(open) {
            let (name, id) = (line("Name:").unwrap_or_default(), line("Pid:").unwrap_or_default());
            return Err(io::Error::other(format!(
                "signal {signal} can arrive in another thread, {name} ({id}), which does not block \
                 it: name the signal in Builder::signals, and build the runtime before other \
                 threads start"
            )));
        }
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Runtime, sleep, timeout};
    use megapipe::{Config, DriverChoice};
    use std::time::Duration;

    /// A runtime whose core receives the signal, as if no other thread could get it.
    fn with_signal<F: Future>(signal: i32, test: impl Fn(Signal) -> F) {
        for driver in [DriverChoice::Uring, DriverChoice::Epoll] {
            let config = Config { driver, ..Config::default() };
            let builder = Runtime::builder().cores(1).pinned(false).channel_config(config);
            let source = Signals::new(&[signal]).unwrap();
            let signal = async { Signal::register(current("a test"), source).unwrap() };
            let runtime = builder.build().unwrap();
            let signal = runtime.block_on(signal);
            runtime.block_on(test(signal));
        }
    }

    /// Sends a signal to the calling thread alone.
    fn raise(signal: i32) {
        // SAFETY: raise takes only a number; the signal is blocked, and stays pending for this
        // thread.
        assert_eq!(unsafe { libc::raise(signal) }, 0);
    }

    #[test]
    fn signals_are_received_one_after_the_other() {
        with_signal(libc::SIGUSR1, |mut signal| async move {
            for _ in 0..3 {
                raise(libc::SIGUSR1);
                let info = signal.receive().await.unwrap();
                assert_eq!((info.signal, info.process), (libc::SIGUSR1, std::process::id()));
            }
            // Two that arrive before they are received are one.
            raise(libc::SIGUSR1);
            raise(libc::SIGUSR1);
            signal.receive().await.unwrap();
            assert!(timeout(Duration::from_millis(5), signal.receive()).await.is_err());
        });
    }

    #[test]
    fn a_dropped_receive_loses_no_signal() {
        with_signal(libc::SIGUSR2, |mut signal| async move {
            for round in 0..20 {
                assert!(timeout(Duration::ZERO, signal.receive()).await.is_err());
                raise(libc::SIGUSR2);
                if round % 2 == 1 {
                    // The signal arrives while no future waits.
                    sleep(Duration::from_millis(2)).await;
                }
                assert_eq!(signal.receive().await.unwrap().signal, libc::SIGUSR2);
            }
        });
    }

    #[test]
    fn a_thread_that_does_not_block_the_signal_is_named() {
        // One that certainly does not: another that starts a thread blocks all signals meanwhile.
        let (end, waiting) = std::sync::mpsc::channel::<()>();
        let open = std::thread::spawn(move || waiting.recv());
        let runtime = Runtime::builder().cores(1).pinned(false).build().unwrap();
        runtime.block_on(async {
            let error = Signal::new(&[libc::SIGHUP]).unwrap_err().to_string();
            let named = error.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
            let thread: i32 = named.and_then(|(id, _)| id.parse().ok()).expect(&error);
            // SAFETY: gettid has no arguments.
            assert_ne!(thread, unsafe { libc::gettid() }, "the caller blocks it: {error}");
            assert!(error.contains("Builder::signals"), "{error}");
            assert!(crate::ctrl_c().await.unwrap_err().to_string().contains("signal 2"));
            assert!(Signal::new(&[4711]).is_err());
        });
        drop(end);
        assert!(open.join().unwrap().is_err());
    }
}
