//! A process that uses the library, for tests. A server registers a name and echoes every message;
//! a client sends numbered messages at full rate and checks the answers. Each executes the orders
//! that it reads from standard input:
//!
//! - `pause`, `go`: waits for everything that is in flight, and sends nothing until `go`.
//! - `unshare`: the flow's thread moves to a new network namespace.
//! - `fork`, `clone`: makes a child that does nothing, with or without the C library's handlers,
//!   and answers with its process id.
//! - `finish`: ends the flow.
//!
//! Arguments: `server` or `client`, the name, and any of `trusting`, `watched` (it waits by its
//! flow's descriptor) and `silence=SECONDS` (how long another host may be silent).

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use fable::{Endpoint, Error, Flow, Interest, ReadBuffer, Trust, xpoll};

/// Ends a test that hangs; no test's result depends on it.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The most messages in flight.
const WINDOW: u64 = 64;

/// The longest wait before the process checks for orders.
const ATTENTION: Duration = Duration::from_millis(20);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (sender, orders) = mpsc::channel();
    thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
        // Ends at the latest with the pipe.
        std::process::exit(0);
    });
    // A thread of its own: proc(5) shows the namespaces of the first thread as those of the
    // process.
    let outcome = thread::spawn(move || run(&words, orders)).join().expect("the flow's thread");
    if let Err(error) = outcome {
        println!("error {error:?}");
    }
}

/// Opens the flow and uses it until it ends.
fn run(words: &[String], orders: mpsc::Receiver<String>) -> Result<(), Error> {
    let [role, name, behaviour @ ..] = words else { panic!("a role and a name") };
    let value = |key| behaviour.iter().find_map(|word| word.strip_prefix(key));
    let has = |word: &str| behaviour.iter().any(|one| one == word);
    let trust = if has("trusting") { Trust::Trusted } else { Trust::Untrusted };
    let silence_s = value("silence=").map_or(2, |seconds| seconds.parse().unwrap());
    let options = Endpoint::options().trust(trust).timeout(TIME_LIMIT);
    let options = options.silence_timeout(Duration::from_secs(silence_s));
    let is_watched = has("watched");
    if role == "server" {
        let endpoint = options.register(name)?;
        let listener = endpoint.listen()?;
        println!("serving {}", std::process::id());
        let flow = listener.accept()?;
        End { flow, orders, is_watched }.serve()?;
        println!("ended");
        // Keeps the name until this process is killed.
        thread::sleep(Duration::MAX);
        return Ok(());
    }
    let flow = options.anonymous().connect(name)?;
    println!("connected {} {} {}", flow.id(), flow.transport(), flow.peer().host);
    End { flow, orders, is_watched }.exchange()
}

/// Returns message number `number`. Lengths differ.
fn message(number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(8 + (number * 7 % 512) as usize, number as u8);
    bytes
}

struct End {
    flow: Flow,
    orders: mpsc::Receiver<String>,
    is_watched: bool,
}

impl End {
    fn serve(&self) -> Result<(), Error> {
        let mut number = 0;
        loop {
            self.next_order();
            let request = match self.read(ATTENTION) {
                Err(Error::TimedOut) => continue,
                other => other?,
            };
            let Some(request) = request else { return self.flow.finish() };
            assert_eq!(request[..], message(number), "in order, exactly once");
            self.send(&request)?;
            number += 1;
        }
    }

    fn exchange(&self) -> Result<(), Error> {
        let (mut sent, mut received, mut bytes, mut runs) = (0, 0, 0, true);
        loop {
            match self.next_order().as_deref() {
                Some("go") => runs = true,
                Some(order @ ("pause" | "finish")) => {
                    while received < sent {
                        self.check(&mut received)?;
                    }
                    if order == "finish" {
                        self.flow.finish()?;
                        assert!(self.read(TIME_LIMIT)?.is_none(), "nothing is left");
                        println!("finished {received} {bytes}");
                        return Ok(());
                    }
                    println!("paused {received} {bytes}");
                    runs = false;
                }
                _ => {}
            }
            if !runs {
                match self.read(ATTENTION) {
                    Err(Error::TimedOut) => continue,
                    other => panic!("nothing was sent, and this came: {:?}", other?.is_some()),
                }
            }
            while sent < received + WINDOW {
                let message = message(sent);
                self.send(&message)?;
                sent += 1;
                bytes += message.len();
            }
            self.check(&mut received)?;
        }
    }

    fn check(&self, received: &mut u64) -> Result<(), Error> {
        let answer = self.read(TIME_LIMIT)?.expect("the server does not end first");
        assert_eq!(answer[..], message(*received), "in order, exactly once");
        *received += 1;
        Ok(())
    }

    fn send(&self, bytes: &[u8]) -> Result<(), Error> {
        let mut buffer = self.flow.write(bytes.len())?;
        buffer.copy_from_slice(bytes);
        buffer.commit()
    }

    fn read(&self, timeout: Duration) -> Result<Option<ReadBuffer>, Error> {
        if !self.is_watched {
            return self.flow.read_timeout(timeout);
        }
        let deadline = Instant::now() + timeout;
        loop {
            match self.flow.try_read() {
                Err(Error::WouldBlock) => {}
                other => return other,
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::TimedOut);
            }
            xpoll(&[Interest::Flow(&self.flow)], left)?;
        }
    }

    /// Executes an order, if there is one for either end; returns those for the client.
    fn next_order(&self) -> Option<String> {
        let order = self.orders.try_recv().ok()?;
        if order == "unshare" {
            // SAFETY: a plain number; only this thread enters the new namespace.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "unshare");
        } else if order == "fork" || order == "clone" {
            println!("obeyed {}", child(order == "fork"));
            return None;
        } else {
            return Some(order);
        }
        println!("obeyed");
        None
    }
}

/// Makes a child that lives until it is killed, and makes system calls only.
fn child(by_the_library: bool) -> i64 {
    // SAFETY: the child only sleeps; a clone without memory of its own or a stack is a fork.
    let child = unsafe {
        match by_the_library {
            true => i64::from(libc::fork()),
            false => libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0),
        }
    };
    assert!(child >= 0, "a child");
    if child > 0 {
        return child;
    }
    loop {
        // SAFETY: a plain system call.
        unsafe { libc::pause() };
    }
}
