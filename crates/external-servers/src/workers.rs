//! Runs a server's threads, each with its listening socket, until a signal or a failure.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use crate::error::{Context, Error, Result};
use crate::listener::{self, Bind};
use crate::sys::{self, Signals};

/// A message to the main thread.
enum Message {
    Ready,
    Failed(Error),
    Signal,
}

/// Tells the main thread that a thread serves.
pub(crate) struct Ready(Sender<Message>);

impl Ready {
    pub(crate) fn tell(&self) {
        // The main thread has ended only if the process is about to.
        let _ = self.0.send(Message::Ready);
    }
}

/// Starts a thread for each set of CPUs, bound to the set and with a listening socket of its own;
/// all sockets share the port. Once every thread has called [`Ready::tell`], prints the line that
/// `announce` makes of the address. Returns at SIGINT, SIGTERM or SIGHUP, or with the error of a
/// thread; the threads need no clean-up, so they end with the process.
pub(crate) fn run<S>(
    name: &str,
    bind: Bind,
    sets: &[Vec<usize>],
    serve: S,
    announce: impl Fn(SocketAddr) -> String,
) -> Result<()>
where
    S: Fn(TcpListener, Ready) -> Result<()> + Clone + Send + 'static,
{
    let signals = Signals::block();
    sys::raise_open_files()?;
    let listeners = listener::open(bind, sets.len())?;
    let address = listeners[0].local_addr().context("read the bound address", "try again")?;
    let (sender, news) = channel();
    for (listener, cpus) in listeners.into_iter().zip(sets.iter().cloned()) {
        let (sender, serve) = (sender.clone(), serve.clone());
        spawn(name, move || {
            let ready = Ready(sender.clone());
            let served = sys::restrict_to(&cpus).and_then(|()| serve(listener, ready));
            if let Err(error) = served {
                let _ = sender.send(Message::Failed(error));
            }
        })?;
    }
    spawn("signals", move || {
        signals.wait();
        let _ = sender.send(Message::Signal);
    })?;
    wait(&news, sets.len(), || {
        let mut stdout = std::io::stdout().lock();
        // A closed standard output is no error.
        let _ = writeln!(stdout, "{}", announce(address)).and_then(|()| stdout.flush());
    })
}

/// Writes the result of a command to standard output.
pub(crate) fn print(text: &str) -> Result<()> {
    cli::print(text.as_bytes())
        .map(drop)
        .context("write to standard output", "check the disk or pipe that it goes to")
}

/// Returns a set for each CPU.
pub(crate) fn one_each(cpus: &[usize]) -> Vec<Vec<usize>> {
    cpus.iter().map(|&cpu| vec![cpu]).collect()
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map(drop)
        .context("start a thread", "raise `ulimit -u`")
}

/// Calls `ready` once all threads are ready, and returns at a signal or a failure.
fn wait(news: &Receiver<Message>, threads: usize, ready: impl Fn()) -> Result<()> {
    let mut waited_for = threads;
    loop {
        match news.recv() {
            Ok(Message::Ready) => {
                waited_for -= 1;
                if waited_for == 0 {
                    ready();
                }
            }
            Ok(Message::Failed(error)) => return Err(error),
            Ok(Message::Signal) | Err(_) => return Ok(()),
        }
    }
}
