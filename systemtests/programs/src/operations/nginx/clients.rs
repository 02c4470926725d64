//! Scenarios with clients that reset, pipeline, and close one direction.

use super::super::Extent;
use super::super::content::content;
use super::super::load::{TIMEOUT, fault, reset, shorts, until};
use super::super::outcome::{Figure, Figures};
use super::no_complaints;
use crate::http::Client;
use crate::nginx::{Nginx, Setup};
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;

/// Resets connections before, in, and after a request; afterwards all are counted as ended, and
/// others are served.
pub(super) fn resets(mut setup: Setup, extent: Extent) -> Figures {
    setup.server.push_str("location = /status { stub_status; }");
    let nginx = Nginx::start(&setup)?;
    nginx.place("large", &content(2_000_000))?;
    let address = SocketAddr::from(([127, 0, 0, 1], nginx.port()));
    for number in 0..extent.pick(600, 30_000) {
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        let said = ["", "GET /lar", "GET /large HTTP/1.1\r\nHost: t\r\n\r\n"][number % 3];
        stream.write_all(said.as_bytes())?;
        reset(stream)?;
    }
    let mut last = Vec::new();
    let balanced = until("stub_status: accepted and handled differ", || {
        last = status(nginx.port()).unwrap_or_default();
        // The client that asks is the one active connection.
        matches!(last[..], [active, accepted, handled, _] if accepted == handled && active == 1)
    });
    balanced.map_err(|error| fault(format!("{error}, or connections stay: {last:?}")))?;
    let counts = shorts(nginx.port(), "/who", 40);
    no_complaints(&nginx)?;
    Ok(counts.figures())
}

/// Active connections, and those accepted and handled, and requests.
fn status(port: u16) -> io::Result<Vec<u64>> {
    let answer = Client::connect_within(port, TIMEOUT)?.get("/status")?;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let mut lines = text.lines();
    let active = lines.next().and_then(|line| line.split(": ").nth(1)).unwrap_or_default();
    let numbers = lines.nth(1).unwrap_or_default();
    let words = active.split_whitespace().chain(numbers.split_whitespace());
    Ok(words.filter_map(|word| word.parse().ok()).collect())
}

/// Pipelines `requests` requests for a file, closes the sending direction, and counts the answers.
pub(super) fn pipelining(setup: Setup, extent: Extent) -> Figures {
    let requests = extent.pick(2_000, 50_000);
    let (nginx, mut client, file) = pipeline(setup, 10)?;
    let mut writer = client.stream().try_clone()?;
    let answered = thread::scope(|scope| {
        scope.spawn(move || {
            // If the server has closed, its answers show that.
            let _ = writer.write_all(REQUEST.repeat(requests).as_bytes());
            let _ = writer.shutdown(Shutdown::Write);
        });
        answers(&mut client, &file, requests)
    });
    no_complaints(&nginx)?;
    Ok(vec![Figure::at_least("answered", answered)])
}

/// Pipelines requests for larger answers, which the client reads after it has closed the sending
/// direction. Together they fit into the kernel's buffers, so that the stock server does not block.
pub(super) fn pipelining_files(setup: Setup, extent: Extent) -> Figures {
    const REQUESTS: usize = 10;
    let (nginx, mut client, file) = pipeline(setup, 20_000)?;
    let mut answered = 0;
    for _ in 0..extent.pick(5, 500) {
        client.send(REQUEST.repeat(REQUESTS))?;
        client.stream().shutdown(Shutdown::Write)?;
        answered += answers(&mut client, &file, REQUESTS);
        client = Client::connect_within(nginx.port(), TIMEOUT)?;
    }
    no_complaints(&nginx)?;
    Ok(vec![Figure::at_least("answered", answered)])
}

const REQUEST: &str = "GET /f HTTP/1.1\r\nHost: t\r\n\r\n";

/// Returns a server with a file of `bytes` bytes, a client, and the file.
fn pipeline(setup: Setup, bytes: usize) -> io::Result<(Nginx, Client, Vec<u8>)> {
    let server = "keepalive_requests 100000;".to_string();
    let nginx = Nginx::start(&Setup { server, ..setup })?;
    let file = content(bytes);
    nginx.place("f", &file)?;
    let client = Client::connect_within(nginx.port(), TIMEOUT)?;
    Ok((nginx, client, file))
}

/// Returns the number of correct consecutive answers.
fn answers(client: &mut Client, file: &[u8], requests: usize) -> u64 {
    let right = |_: &usize| client.response().is_ok_and(|got| got.body == file);
    (0..requests).take_while(right).count() as u64
}
