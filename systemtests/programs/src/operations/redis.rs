//! The scenarios of redis: values of all sizes, clients that do not read, too many clients, blocked
//! ones, and the end of a server that has many.

use super::content::content;
use super::counts::{Counts, End};
use super::load::{CLIENTS, fault};
use super::outcome::{Figure, Figures, Rule};
use super::{Extent, Plan};
use crate::redis::{Build, Client, Redis, request};
use crate::{TIME_LIMIT, raise_descriptor_limit};
use std::io;
use std::thread;
use std::time::Instant;

const VARIANTS: [(&str, Build); 3] = [
    ("stock", Build::Stock),
    ("uring", Build::Adapted("uring")),
    ("epoll", Build::Adapted("epoll")),
];

type Scenario = fn(Build, Extent) -> Figures;

const SCENARIOS: &[(&str, Scenario)] = &[
    ("values, small and 40 MB", values),
    ("stalled readers", stalled),
    ("maxclients 64, 200 clients", too_many),
    ("blocked and subscribed clients", blocked),
    ("clients that leave within a value", leaving),
    ("TERM", terminate),
];

/// Returns all scenarios, one function for each column.
pub(super) fn plans(extent: Extent) -> Vec<Plan> {
    let plan = |&(name, run): &(&'static str, Scenario)| {
        let column = |&(variant, build): &(&'static str, Build)| {
            let run = move || run(build, extent);
            (variant, Some(Box::new(run) as Box<dyn Fn() -> Figures>))
        };
        let columns = VARIANTS.iter().map(column).collect();
        Plan { scenario: name.to_string(), columns, limited: &[] }
    };
    SCENARIOS.iter().map(plan).collect()
}

/// Sends a command; returns whether the answer is the expected one.
fn gives(client: &mut Client, words: &[&[u8]], expected: &[u8]) -> io::Result<bool> {
    client.send(&request(words))?;
    Ok(client.answer()? == expected)
}

/// Returns a value as redis answers it.
fn bulk(value: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

/// Stores a value under a key of its own, and gets it.
fn set_and_get(client: &mut Client, key: &str, value: &[u8]) -> io::Result<bool> {
    Ok(gives(client, &[b"SET", key.as_bytes(), value], b"+OK\r\n")?
        && gives(client, &[b"GET", key.as_bytes()], &bulk(value))?)
}

/// Several clients store and get values of up to 3,000 bytes.
fn small_values(server: &Redis, each: usize) -> io::Result<Counts> {
    let bytes = content(3000);
    let exchange = |number: usize| {
        let mut client = server.client()?;
        let exchange = |round: usize| {
            let value = &bytes[..1 + round % 3000];
            End::of(set_and_get(&mut client, &format!("key{number}-{round}"), value))
        };
        Ok((0..each).map(exchange).collect::<Counts>())
    };
    let exchange = &exchange;
    thread::scope(|scope| {
        let clients: Vec<_> =
            (0..CLIENTS).map(|number| scope.spawn(move || exchange(number))).collect();
        clients.into_iter().try_fold(Counts::default(), |total, client| {
            let counts: io::Result<Counts> =
                client.join().map_err(|_| fault("a client panicked"))?;
            Ok(total.with(counts?))
        })
    })
}

fn values(build: Build, extent: Extent) -> Figures {
    let server = Redis::start(build, &[])?;
    let small = small_values(&server, extent.pick(100, 10_000))?;
    let large = content(40 << 20);
    let exchange = |_| {
        let stored =
            server.client().and_then(|mut client| set_and_get(&mut client, "large", &large));
        End::of(stored)
    };
    let large: Counts = (0..extent.pick(1, 5)).map(exchange).collect();
    Ok(small.with(large).figures())
}

/// Clients request far more than their connections hold and read nothing; others are served
/// meanwhile, and in the end the first clients get their answers.
fn stalled(build: Build, extent: Extent) -> Figures {
    const GETS: usize = 20;
    let server = Redis::start(build, &[])?;
    let value = content(1 << 20);
    if !gives(&mut server.client()?, &[b"SET", b"value", &value], b"+OK\r\n")? {
        return Err(fault("the value is not stored"));
    }
    let ask = |_| {
        let mut client = server.client()?;
        client.send(&request(&[b"GET", b"value"]).repeat(GETS))?;
        Ok(client)
    };
    let readers = (0..extent.pick(3, 20)).map(ask).collect::<io::Result<Vec<Client>>>()?;
    let counts = small_values(&server, extent.pick(50, 5_000))?;
    for mut client in readers {
        for number in 0..GETS {
            if client.answer()? != bulk(&value) {
                return Err(fault(format!("a stalled reader's answer {number} is wrong")));
            }
        }
    }
    Ok(counts.figures())
}

/// 200 clients stay connected; those above the limit get an error.
fn too_many(build: Build, _: Extent) -> Figures {
    let server = Redis::start(build, &["--maxclients", "64"])?;
    let (mut kept, mut served, mut refused) = (Vec::new(), 0, 0);
    let mut others = Counts::default();
    for _ in 0..200 {
        let mut client = server.client()?;
        // A refused client may be closed before its request arrives.
        let sent = client.send(&request(&[b"PING"]));
        match client.answer().as_deref() {
            Ok(b"+PONG\r\n") => served += 1,
            Ok(b"-ERR max number of clients reached\r\n") => refused += 1,
            Ok(_) => others.add(End::Wrong),
            Err(error) => others.add(End::of_error(sent.as_ref().err().unwrap_or(error))),
        }
        kept.push(client);
    }
    // Which of a refusal and a reset arrives first is a race on the stock server, too.
    Ok(vec![
        Figure::at_least("served", served),
        Figure::shown("refused", refused),
        Figure::shown("reset", others.failed()),
    ])
}

/// Clients wait for elements and messages, while others send them.
fn blocked(build: Build, extent: Extent) -> Figures {
    const EACH: usize = 20;
    let server = Redis::start(build, &[])?;
    let mut counts = Counts::default();
    for _ in 0..extent.pick(2, 100) {
        let waiting = |words: &'static [&'static [u8]]| {
            let connect = move |server: &Redis| -> io::Result<Client> {
                let mut client = server.client()?;
                client.send(&request(words))?;
                Ok(client)
            };
            (0..EACH).map(|_| connect(&server)).collect::<io::Result<Vec<Client>>>()
        };
        let lists = waiting(&[b"BLPOP", b"list", b"0"])?;
        let mut subscribed = waiting(&[b"SUBSCRIBE", b"news"])?;
        for client in &mut subscribed {
            client.answer()?;
        }
        let mut sender = server.client()?;
        for _ in 0..EACH {
            sender.ask("RPUSH list one")?;
        }
        sender.ask("PUBLISH news hello")?;
        for mut client in lists {
            counts.add(End::of(client.answer().map(|answer| answer.ends_with(b"one\r\n"))));
        }
        for mut client in subscribed {
            counts.add(End::of(client.answer().map(|answer| answer.ends_with(b"hello\r\n"))));
        }
    }
    Ok(counts.figures())
}

/// Clients send a part of a value and close; others are served, and no half value is stored.
fn leaving(build: Build, extent: Extent) -> Figures {
    let server = Redis::start(build, &[])?;
    let whole = request(&[b"SET", b"half", &content(100_000)]);
    for round in 0..extent.pick(20, 2_000) {
        server.client()?.send(&whole[..whole.len() * (round % 20) / 20])?;
    }
    let counts = small_values(&server, extent.pick(50, 5_000))?;
    if server.client()?.ask("EXISTS half")? != ":0\r\n" {
        return Err(fault("a part of a value was stored"));
    }
    Ok(counts.figures())
}

/// Ends a server with thousands of connections.
fn terminate(build: Build, extent: Extent) -> Figures {
    raise_descriptor_limit()?;
    let mut server = Redis::start(build, &[])?;
    let connect = |_| {
        let mut client = server.client()?;
        match gives(&mut client, &[b"PING"], b"+PONG\r\n")? {
            true => Ok(client),
            false => Err(fault("a client is not served")),
        }
    };
    let clients = (0..extent.pick(500, 5_000)).map(connect);
    let clients = clients.collect::<io::Result<Vec<Client>>>()?;
    let begin = Instant::now();
    server.process.signal(libc::SIGTERM)?;
    server.process.wait(TIME_LIMIT)?;
    let end_ms = begin.elapsed().as_millis() as u64;
    drop(clients);
    // redis checks ten times a second whether it has to end; not judged on a busy machine.
    let rule = extent.pick(Rule::Shown, Rule::AtMost { factor: 3, slack: 1000 });
    Ok(vec![Figure { rule, ..Figure::shown("ms to end", end_ms) }])
}
