//! The program that the scenarios of channel and flow run.
//!
//! - `channel`: a listener, a client and a file on one channel.
//! - `server NAME`: echoes messages of flows until one begins with `Q`.
//! - `client NAME [stop]`: moves a flow over several transports and compares the answers.
//! - `proof KIND`: does something wrong if a file cannot be opened.
//!
//! Exit status: 0, 1 with a message, 3 if bytes were wrong, 4 if something did not come in time.
//! getppid(2) marks begin and end for the harness.

use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use fable::{Endpoint, Flow, FlowEvent, Form, Interest, Kind, ReadBuffer, xpoll};
use megapipe::{Accept, Channel, Event, Repeat};

/// Time after which something that has to come is missing. The harness waits longer.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The transports of a client's flow, one after the other.
const KINDS: [Kind; 3] = [Kind::Unix, Kind::MempipeFutex(Form::Safe), Kind::TcpNodelay];

/// How many waits may fail; a server whose waits always fail would never end.
const FAILURES_MAX: u32 = 100;

const WRONG: u8 = 3;
const LATE: u8 = 4;

#[derive(Debug)]
enum Failure {
    Named(String),
    Wrong,
    Late(&'static str),
}

impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Named(error.to_string())
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    mark();
    let outcome = match words[..] {
        ["channel"] => channel(),
        ["server", name] => server(name),
        ["client", name] => client(name),
        ["client", name, "stop"] => stop(name),
        ["proof", kind] => proof(kind),
        _ => Err(Failure::Named("usage: faults-end channel | server NAME | client NAME".into())),
    };
    mark();
    let (text, status) = match outcome {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Named(text)) => (text, 1),
        Err(Failure::Wrong) => ("wrong bytes".into(), WRONG),
        Err(Failure::Late(what)) => (format!("{what} did not come in {TIME_LIMIT:?}"), LATE),
    };
    // A message that cannot be written changes nothing.
    let _ = writeln!(std::io::stderr(), "faults-end: {text}");
    ExitCode::from(status)
}

/// Makes a call that the program does not make otherwise.
fn mark() {
    // SAFETY: the call takes no pointers and cannot fail.
    unsafe { libc::getppid() };
}

/// Returns the bytes of a message.
fn message(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|position| (position as u64 * 31 + number * 7) as u8 | 0x80).collect()
}

/// A server that echoes and a client, with the length of what is on the way.
fn channel() -> Result<(), Failure> {
    const BYTES: usize = 100_000;
    let mut channel: Channel<&str> = Channel::new()?;
    let listener = megapipe::listen("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let listening = channel.register(listener, "listener")?;
    channel.accept(listening, Accept::lightweight())?;
    let client = channel.connect_to(address, "client")?;
    let (waker, source) = megapipe::wake_pair()?;
    let woken = channel.register(source, "woken")?;
    channel.watch(woken, Repeat::Once)?;
    let expected = message(1, BYTES);
    let (mut received, mut is_woken, begin) = (Vec::new(), false, Instant::now());
    while received.len() < BYTES || !is_woken {
        if begin.elapsed() > TIME_LIMIT {
            return Err(Failure::Late("the echo"));
        }
        let Some(done) = channel.dispatch(Duration::from_secs(1))? else { continue };
        let is_client = done.handle == client;
        match done.event {
            Event::Accept(accepted) => {
                let connection = channel.register(accepted?.socket, "connection")?;
                channel.receive(connection, Repeat::UntilCancelled)?;
            }
            Event::Connect(connected) => {
                connected?;
                channel.receive(client, Repeat::UntilCancelled)?;
                channel.write(client, expected.clone()).map_err(|rejected| rejected.error)?;
                waker.wake();
            }
            Event::Receive(message) if is_client => received.extend_from_slice(&message?),
            Event::Wake(count) => is_woken = count? > 0,
            Event::Receive(message) => {
                let message = message?;
                channel.write(done.handle, message).map_err(|rejected| rejected.error)?;
            }
            Event::Write(written, _) => drop(written?),
            _ => {}
        }
    }
    let is_right = received == expected;
    channel.close(client)?;
    channel.close(listening)?;
    if is_right { Ok(()) } else { Err(Failure::Wrong) }
}

/// Echoes the messages of all flows.
fn server(name: &str) -> Result<(), Failure> {
    let endpoint = Endpoint::options().timeout(TIME_LIMIT).register(name)?;
    let listener = endpoint.listen()?;
    let mut out = std::io::stdout();
    writeln!(out, "ready").and_then(|()| out.flush())?;
    let mut flows: Vec<Flow> = Vec::new();
    let mut failures = 0;
    loop {
        let mut interests: Vec<Interest<'_>> = flows.iter().map(Interest::Flow).collect();
        interests.push(Interest::Descriptor(listener.descriptor(), libc::POLLIN));
        let ready = match xpoll(&interests, None) {
            Ok(ready) => ready,
            Err(error) if failures < FAILURES_MAX => {
                failures += 1;
                complain("xpoll", &error);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let mut ended = Vec::new();
        for index in ready.iter().map(|ready| ready.index).filter(|index| *index < flows.len()) {
            match echo(&flows[index]) {
                Ok(Some(Order::Go)) => {}
                Ok(Some(Order::Stop)) => return Ok(()),
                Ok(None) => ended.push(index),
                Err(error) => {
                    complain("echo", &error);
                    ended.push(index);
                }
            }
        }
        for index in ended.into_iter().rev() {
            flows.remove(index);
        }
        match listener.try_accept() {
            Ok(flow) => flows.push(flow),
            Err(fable::Error::WouldBlock) => {}
            Err(error) => complain("accept", &error),
        }
    }
}

fn complain(what: &str, error: &fable::Error) {
    let _ = writeln!(std::io::stderr(), "faults-end: {what}: {error}");
}

enum Order {
    Go,
    Stop,
}

/// Sends back what has come; `None` at the end of the flow.
fn echo(flow: &Flow) -> Result<Option<Order>, fable::Error> {
    loop {
        while flow.take_event().is_some() {}
        let message = match flow.try_read() {
            Ok(Some(message)) => message,
            Ok(None) => {
                flow.finish()?;
                return Ok(None);
            }
            Err(fable::Error::WouldBlock) => return Ok(Some(Order::Go)),
            Err(error) => return Err(error),
        };
        if message.starts_with(b"Q") {
            return Ok(Some(Order::Stop));
        }
        send(flow, &message)?;
    }
}

fn send(flow: &Flow, bytes: &[u8]) -> Result<(), fable::Error> {
    let mut buffer = flow.write_timeout(bytes.len(), TIME_LIMIT)?;
    buffer.copy_from_slice(bytes);
    buffer.commit()
}

fn connect(name: &str) -> Result<Flow, fable::Error> {
    Endpoint::options().timeout(TIME_LIMIT).anonymous().connect(name)
}

fn client(name: &str) -> Result<(), Failure> {
    let flow = connect(name)?;
    exchange(&flow, 0)?;
    for (number, kind) in (1..).zip(KINDS) {
        if let Err(error) = flow.move_to(kind) {
            complain("move", &error);
            continue;
        }
        await_move(&flow, number)?;
        exchange(&flow, number)?;
    }
    flow.finish()?;
    match read(&flow)? {
        None => Ok(()),
        Some(_) => Err(Failure::Wrong),
    }
}

/// Waits for the outcome of a move, which is sent on with the messages.
fn await_move(flow: &Flow, number: u64) -> Result<(), Failure> {
    let begin = Instant::now();
    loop {
        match flow.take_event() {
            Some(FlowEvent::Moved { .. }) => return Ok(()),
            Some(FlowEvent::MoveFailed { transport, reason }) => {
                let _ = writeln!(std::io::stderr(), "faults-end: {transport}: {reason}");
                return Ok(());
            }
            _ if begin.elapsed() > TIME_LIMIT => return Err(Failure::Late("the move")),
            _ => exchange(flow, 100 + number)?,
        }
    }
}

fn exchange(flow: &Flow, number: u64) -> Result<(), Failure> {
    const LENGTHS: [usize; 3] = [1, 300, 20_000];
    for bytes in LENGTHS {
        send(flow, &message(number, bytes))?;
    }
    for bytes in LENGTHS {
        let ended = || Failure::Named("the flow ended before the answer".into());
        if read(flow)?.ok_or_else(ended)?[..] != message(number, bytes) {
            return Err(Failure::Wrong);
        }
    }
    Ok(())
}

fn read(flow: &Flow) -> Result<Option<ReadBuffer>, Failure> {
    match flow.read_timeout(TIME_LIMIT) {
        Err(fable::Error::TimedOut) => Err(Failure::Late("an answer")),
        other => Ok(other?),
    }
}

fn stop(name: &str) -> Result<(), Failure> {
    let flow = connect(name)?;
    send(&flow, b"Q")?;
    // The server ends without an answer, or has ended.
    let _ = read(&flow);
    Ok(())
}

/// Does what the harness has to find when the file cannot be opened.
fn proof(kind: &str) -> Result<(), Failure> {
    const PATH: &str = "/dev/null";
    if File::open(PATH).is_ok() {
        return Ok(());
    }
    match kind {
        "cause" => Err(Failure::Named("something failed".into())),
        "child" => Command::new("sleep").arg("600").spawn().map(drop).map_err(Failure::from),
        "file" => Ok(fs::write("/tmp/left", "")?),
        "leak" => File::open(PATH).map(std::mem::forget).map_err(Failure::from),
        "panic" => panic!("on purpose"),
        "signal" => std::process::abort(),
        "silent" => std::process::exit(1),
        _ => Err(Failure::Wrong),
    }
}
