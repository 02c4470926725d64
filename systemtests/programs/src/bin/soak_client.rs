//! A client whose every byte is checked: `soak-client echo|http|once|memcached ADDRESS SESSIONS
//! SEED`. A session is a connection; the seed decides on its length and its end. 0 sessions are
//! endless, for clients that are killed: these print a line before the first one.

use socket2::SockRef;
use std::env;
use std::fmt::Debug;
use std::io::{self, Error, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::ExitCode;
use std::time::Duration;
use systemtests_programs::{TIME_LIMIT, http, memcached};
use testkit::content;

/// Messages and values have fewer bytes.
const BYTES_MAX: u64 = 16 << 10;
/// Keys of a client of memcached, so that the server's memory has a bound.
const KEYS: u64 = 50;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let [protocol, address, sessions, seed] = words.as_slice() else {
        eprintln!("usage: soak-client echo|http|once|memcached ADDRESS SESSIONS SEED");
        return ExitCode::FAILURE;
    };
    let number = |word: &str| word.parse::<u64>().expect("a number");
    let (sessions, seed) = (number(sessions), number(seed));
    if sessions == 0 {
        println!("begins");
    }
    for session in (1..).take_while(|&session| sessions == 0 || session <= sessions) {
        let plan = Plan::new(seed << 32 | session);
        let outcome = match protocol.as_str() {
            "echo" => echo(address, &plan),
            "http" => ask(address, &plan, plan.exchanges),
            "once" => ask(address, &plan, 1),
            _ => store(address, &plan, seed % 10),
        };
        if let Err(error) = outcome {
            eprintln!("{protocol} {address}, seed {seed}, session {session}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// What a session does.
struct Plan {
    seed: u64,
    exchanges: u64,
    /// Whether the connection is reset in the middle of an exchange.
    is_reset: bool,
}

impl Plan {
    /// Most connections are short, some are long; one in eight is reset.
    fn new(number: u64) -> Plan {
        let seed = scatter(number);
        let exchanges = if seed.is_multiple_of(8) { 50 } else { 1 + seed / 8 % 3 };
        Plan { seed, exchanges, is_reset: (seed / 64).is_multiple_of(8) }
    }

    /// The length of message `number`; most messages are short.
    fn bytes(&self, number: u64) -> usize {
        let random = scatter(self.seed ^ number);
        (1 + random % if random.is_multiple_of(5) { BYTES_MAX } else { 300 }) as usize
    }

    /// Closes a connection so that the peer gets a reset.
    fn reset(stream: &TcpStream) -> io::Result<()> {
        SockRef::from(stream).set_linger(Some(Duration::ZERO))
    }
}

/// Mixes the bits of a number (the last step of SplitMix64).
fn scatter(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 31
}

fn expect<T: PartialEq + Debug>(what: &str, found: &T, expected: &T) -> io::Result<()> {
    if found == expected {
        return Ok(());
    }
    let short = |value: &T| format!("{value:?}").chars().take(200).collect::<String>();
    Err(Error::other(format!("wrong {what}: {} for {}", short(found), short(expected))))
}

/// Sends messages to a server that echoes, and ends both directions.
fn echo(address: &str, plan: &Plan) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIME_LIMIT))?;
    stream.set_nodelay(true)?;
    for number in 0..plan.exchanges {
        let message = content(plan.bytes(number));
        stream.write_all(&message)?;
        if plan.is_reset {
            return Plan::reset(&stream);
        }
        let mut answer = vec![0; message.len()];
        stream.read_exact(&mut answer)?;
        expect("echo", &answer, &message)?;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest)?;
    expect("end", &rest, &Vec::new())
}

/// Asks a web server for words that it returns.
fn ask(address: &str, plan: &Plan, exchanges: u64) -> io::Result<()> {
    let mut client = http::Client::connect_to(address)?;
    for number in 0..exchanges {
        let word = format!("{:x}", scatter(plan.seed ^ number)).repeat(plan.bytes(number) / 40 + 1);
        if plan.is_reset {
            client.send(format!("GET /hello/{word} HTTP/1.1\r\nHost: t\r\n"))?;
            return Plan::reset(client.stream());
        }
        let response = client.get(&format!("/hello/{word}"))?;
        expect("status", &response.status, &200)?;
        expect("body", &response.body, &word.into_bytes())?;
    }
    Ok(())
}

/// Stores values in memcached and gets them back.
fn store(address: &str, plan: &Plan, client: u64) -> io::Result<()> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIME_LIMIT))?;
    stream.set_nodelay(true)?;
    let mut server = memcached::Client::new(stream);
    for number in 0..plan.exchanges {
        let key = scatter(plan.seed ^ number) % KEYS;
        // A key's values have one length, so that what the server holds soon stops growing.
        let value = content(Plan::new(key).bytes(0));
        let key = format!("{client}-{key}");
        if plan.is_reset {
            server.send(format!("set {key} 0 0 {}\r\n", value.len()).as_bytes())?;
            return Plan::reset(server.stream());
        }
        server.set(&key, &value)?;
        expect("value", &server.get(&key)?, &Some(value))?;
    }
    Ok(())
}
