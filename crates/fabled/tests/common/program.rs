//! Processes that use the library: one serves a name and sends every message back, the other sends
//! numbered messages at full rate and checks what comes back. Each is this test's own program,
//! started once more, and obeys what is written to its standard input:
//!
//! `pause`, `go`: waits for everything that is under way, and sends nothing meanwhile.
//! `pin CPU`: the flow's thread runs there from now on.
//! `unshare`: the flow's thread goes to a network namespace of its own.
//! `fork`, `clone`: makes a child that does nothing, with or without the C library's handlers, and
//! answers with its number.
//! `finish`: ends the flow in good order.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use fable::{Endpoint, Error, Flow, Interest, ReadBuffer, Trust, xpoll};

use super::common::PATIENCE;

/// What marks a line for the test among those of the test harness.
const MARK: &str = "program says: ";

/// Messages that are under way at a time.
const WINDOW: u64 = 64;

/// How long a wait may keep a process from its orders.
const ATTENTION: Duration = Duration::from_millis(20);

/// A process with an end of a flow; killed when dropped.
pub(crate) struct Program {
    child: Child,
    said: mpsc::Receiver<String>,
}

impl Program {
    /// Starts a `server` or `client`; what it is besides stands in `manner`, one word each:
    /// `trusting`, `watched` (it waits by its flow's descriptor), `pin=CPU` (it runs there from the
    /// beginning) and `silence=SECONDS` (how long another host may not answer).
    pub(crate) fn start(role: &str, name: &str, socket: &Path, manner: &str) -> Program {
        Program::start_with(role, name, socket, manner, |command| command)
    }

    pub(crate) fn start_with(
        role: &str,
        name: &str,
        socket: &Path,
        manner: &str,
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Program {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "program::an_end_of_a_flow", "--nocapture"])
            .env("FABLE_SOCKET", socket)
            .env("FABLED_TEST_PROGRAM", format!("{role} {name} {manner}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = change(&mut command).spawn().unwrap();
        let (sender, said) = mpsc::channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some((_, text)) = line.split_once(MARK) {
                    let _ = sender.send(text.to_owned());
                }
            }
        });
        Program { child, said }
    }

    /// Waits for its next line, which must begin with this word, and gives the rest.
    pub(crate) fn hear(&self, word: &str) -> String {
        let line = self.said.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no `{word}`"));
        let rest = line.strip_prefix(word).unwrap_or_else(|| panic!("no `{word}`, but `{line}`"));
        rest.trim().to_owned()
    }

    pub(crate) fn tell(&self, order: &str) {
        writeln!(self.child.stdin.as_ref().unwrap(), "{order}").unwrap();
    }

    /// Gives an order, and waits for a line that begins with this word.
    pub(crate) fn ask(&self, order: &str, word: &str) -> String {
        self.tell(order);
        self.hear(word)
    }

    /// As the kernel ends it when there is no memory left.
    pub(crate) fn crash(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test by itself: the process.
#[test]
fn an_end_of_a_flow() {
    let Ok(program) = std::env::var("FABLED_TEST_PROGRAM") else { return };
    let words: Vec<&str> = program.split_whitespace().collect();
    let (sender, orders) = mpsc::channel();
    thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
        // Ends with the pipe at the latest.
        std::process::exit(0);
    });
    // Before there is a flow, of which the daemon could be told another CPU.
    if let Some(cpu) = words.iter().find_map(|word| word.strip_prefix("pin=")) {
        pin(cpu.parse().unwrap());
    }
    let trust = if words.contains(&"trusting") { Trust::Trusted } else { Trust::Untrusted };
    let options = Endpoint::options().trust(trust).timeout(PATIENCE);
    let silence_s = words.iter().find_map(|word| word.strip_prefix("silence="));
    let silence_s = silence_s.map_or(2, |seconds| seconds.parse().unwrap());
    let options = options.silence_timeout(Duration::from_secs(silence_s));
    let outcome = match words[0] {
        "server" => options.register(words[1]).and_then(|endpoint| {
            let listener = endpoint.listen()?;
            say(&format!("serving {}", std::process::id()));
            let flow = listener.accept()?;
            End { flow, orders, watched: words.contains(&"watched") }.serve()?;
            say("ended");
            // The name stays until this is killed.
            thread::sleep(Duration::MAX);
            Ok(())
        }),
        _ => options.anonymous().connect(words[1]).and_then(|flow| {
            say(&format!(
                "connected {:016x} {} {}",
                flow.id().0,
                flow.transport(),
                flow.peer().host
            ));
            End { flow, orders, watched: words.contains(&"watched") }.exchange()
        }),
    };
    if let Err(error) = outcome {
        say(&format!("error {error:?}"));
    }
}

fn say(line: &str) {
    println!("{MARK}{line}");
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
    watched: bool,
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
                        say(&format!("finished {received} {bytes}"));
                        return Ok(());
                    }
                    say(&format!("paused {received} {bytes}"));
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
        if !self.watched {
            return self.flow.read_timeout(timeout);
        }
        let deadline = std::time::Instant::now() + timeout;
        loop {
            match self.flow.try_read() {
                Err(Error::WouldBlock) => {}
                other => return other,
            }
            let left = deadline.saturating_duration_since(std::time::Instant::now());
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
            say(&format!("obeyed {}", child(order == "fork")));
            return None;
        } else {
            return Some(order);
        }
        say("obeyed");
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
