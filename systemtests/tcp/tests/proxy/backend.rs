//! Provides backends for the tests, on blocking sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use testkit::process::TIME_LIMIT;
use testkit::retried;

/// Accepts a connection.
pub(crate) fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().expect("the proxy connects");
    stream.set_read_timeout(Some(TIME_LIMIT)).expect("a time-out");
    stream.set_write_timeout(Some(TIME_LIMIT)).expect("a time-out");
    stream.set_nodelay(true).expect("an option");
    stream
}

/// Serves this number of connections, each on a thread, and returns their results.
pub(crate) fn serve<T: Send + 'static>(
    listener: TcpListener,
    connections: usize,
    serve: impl Fn(TcpStream) -> T + Clone + Send + 'static,
) -> JoinHandle<Vec<T>> {
    thread::spawn(move || {
        let threads: Vec<JoinHandle<T>> = (0..connections)
            .map(|_| {
                let (stream, serve) = (accept(&listener), serve.clone());
                thread::spawn(move || serve(stream))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a backend")).collect()
    })
}

/// Returns the received bytes to the sender, until the stream ends.
pub(crate) fn echo(mut stream: TcpStream) {
    let mut room = vec![0; 64 << 10];
    loop {
        let count = retried(|| stream.read(&mut room)).expect("bytes or the end");
        if count == 0 {
            return;
        }
        stream.write_all(&room[..count]).expect("they are taken");
    }
}

/// Receives one upload by HTTP and returns its body.
pub(crate) fn take_upload(stream: TcpStream) -> Vec<u8> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line");
        let lower = line.trim_end().to_ascii_lowercase();
        if let Some(number) = lower.strip_prefix("content-length:") {
            length = number.trim().parse().expect("a number");
        }
        if lower.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the body");
    let answer = "HTTP/1.1 201 Created\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    reader.get_mut().write_all(answer.as_bytes()).expect("it is taken");
    body
}
