//! A process that uses the library: a server registers a name and sends every message back, a
//! client sends numbered messages at full rate and checks what comes back. Each obeys what is
//! written to its standard input:
//!
//! `pause`, `go`: waits for everything that is under way, and sends nothing meanwhile.
//! `pin CPU`: the flow's thread runs there from now on.
//! `unshare`: the flow's thread goes to a network namespace of its own.
//! `fork`, `clone`: makes a child that does nothing, with or without the C library's handlers, and
//! answers with its number.
//! `finish`: ends the flow in good order.
//!
//! Arguments: `server` or `client`, the name, and any of `trusting`, `watched` (it waits by its
//! flow's descriptor), `pin=CPU` (it runs there from the beginning) and `silence=SECONDS` (how long
//! another host may not answer).

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use fable::{Endpoint, Error, Flow, Interest, ReadBuffer, Trust, xpoll};

/// A guard against hanging, no measure of anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// Messages that are under way at a time.
const WINDOW: u64 = 64;

/// How long a wait may keep a process from its orders.
const ATTENTION: Duration = Duration::from_millis(20);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (sender, orders) = mpsc::channel();
    thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
        // Ends with the pipe at the latest.
        std::process::exit(0);
    });
    // A thread of its own: the namespaces of the first one are the process's in proc(5).
    let outcome = thread::spawn(move || run(&words, orders)).join().expect("the flow's thread");
    if let Err(error) = outcome {
        println!("error {error:?}");
    }
}

/// Opens the flow and uses it until it ends.
fn run(words: &[String], orders: mpsc::Receiver<String>) -> Result<(), Error> {
    let [role, name, manner @ ..] = words else { panic!("a role and a name") };
    let value = |key| manner.iter().find_map(|word| word.strip_prefix(key));
    let has = |word: &str| manner.iter().any(|one| one == word);
    // Before there is a flow, of which the daemon could be told another CPU.
    if let Some(cpu) = value("pin=") {
        pin(cpu.parse().unwrap());
    }
    let trust = if has("trusting") { Trust::Trusted } else { Trust::Untrusted };
    let silence_s = value("silence=").map_or(2, |seconds| seconds.parse().unwrap());
    let options = Endpoint::options().trust(trust).timeout(PATIENCE);
    let options = options.silence_timeout(Duration::from_secs(silence_s));
    let is_watched = has("watched");
    if role == "server" {
        let endpoint = options.register(name)?;
        let listener = endpoint.listen()?;
        println!("serving {}", std::process::id());
        let flow = listener.accept()?;
        End { flow, orders, is_watched }.serve()?;
        println!("ended");
        // The name stays until this is killed.
        thread::sleep(Duration::MAX);
        return Ok(());
    }
    let flow = options.anonymous().connect(name)?;
    println!("connected {} {} {}", flow.id(), flow.transport(), flow.peer().host);
    End { flow, orders, is_watched }.exchange()
}

/// Message number so-and-so. Their lengths differ.
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
            self.obey();
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
            match self.obey().as_deref() {
                Some("go") => runs = true,
                Some(order @ ("pause" | "finish")) => {
                    while received < sent {
                        self.check(&mut received)?;
                    }
                    if order == "finish" {
                        self.flow.finish()?;
                        assert!(self.read(PATIENCE)?.is_none(), "nothing is left");
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
        let answer = self.read(PATIENCE)?.expect("the server does not end first");
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

    /// Carries out an order, if there is one for either end; gives those for the client.
    fn obey(&self) -> Option<String> {
        let order = self.orders.try_recv().ok()?;
        if let Some(cpu) = order.strip_prefix("pin ") {
            pin(cpu.parse().unwrap());
        } else if order == "unshare" {
            // SAFETY: a plain number; only this thread goes.
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

/// A child that lives until it is killed, and calls nothing but system calls.
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

fn pin(cpu: usize) {
    // SAFETY: all zeroes is the empty set, which outlives the call, and CPU_SET checks the number.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &raw const set), 0, "pin");
    }
}
