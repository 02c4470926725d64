//! Scenarios with nginx as a proxy: of itself, and of an upstream server that checks requests.

use super::super::Extent;
use super::super::content::content;
use super::super::load::{TIMEOUT, fault, kept_alive};
use super::super::outcome::Figures;
use super::no_complaints;
use crate::http::Client;
use crate::nginx::{Nginx, Setup};
use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::thread;

/// nginx proxies to itself over keep-alive connections.
pub(super) fn keep_alive(mut setup: Setup, extent: Extent) -> Figures {
    setup.http.push_str("upstream itself { server 127.0.0.1:{port}; keepalive 16; }");
    setup.server.push_str(
        "location = /proxied { proxy_pass http://itself/f; proxy_http_version 1.1; \
         proxy_set_header Connection \"\"; }",
    );
    let nginx = Nginx::start(&setup)?;
    let file = content(50_000);
    nginx.place("f", &file)?;
    let requests = extent.pick(400, 40_000);
    let counts = kept_alive(nginx.port(), "/proxied", &file, 8, requests)?;
    no_complaints(&nginx)?;
    Ok(counts.figures())
}

fn upload_bytes(extent: Extent) -> usize {
    extent.pick(8, 100) << 20
}

/// Sends a body to a path; an error unless the answer is 200.
fn upload(port: u16, path: &str, body: &[u8]) -> io::Result<()> {
    let mut client = Client::connect_within(port, TIMEOUT)?;
    let length = body.len();
    client.send(format!("POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n"))?;
    client.send(body)?;
    let response = client.response()?;
    if response.status == 200 {
        return Ok(());
    }
    Err(fault(format!("the upload was answered {}: {}", response.status, response.head)))
}

/// The body arrives complete in nginx's file.
pub(super) fn upload_to_file(mut setup: Setup, extent: Extent) -> Figures {
    setup.server.push_str(
        "location = /upload { client_max_body_size 0; client_body_in_file_only on; \
         proxy_pass http://127.0.0.1:{port}/who; proxy_pass_request_body off; \
         proxy_set_header Content-Length \"\"; proxy_method GET; }",
    );
    let nginx = Nginx::start(&setup)?;
    let body = content(upload_bytes(extent));
    upload(nginx.port(), "/upload", &body)?;
    let mut files = fs::read_dir(nginx.directory().join("client_body_temp"))?;
    let file = files.next().ok_or_else(|| fault("nginx has written no file"))??;
    if fs::read(file.path())? != body {
        return Err(fault("the file has other bytes than were sent"));
    }
    no_complaints(&nginx)?;
    Ok(Vec::new())
}

/// The body is forwarded to an upstream as it arrives.
pub(super) fn upload_to_upstream(mut setup: Setup, extent: Extent) -> Figures {
    let upstream = TcpListener::bind("127.0.0.1:0")?;
    setup.server.push_str(&format!(
        "location = /upload {{ client_max_body_size 0; proxy_request_buffering off; \
         proxy_http_version 1.1; proxy_pass http://{}/; }}",
        upstream.local_addr()?
    ));
    let nginx = Nginx::start(&setup)?;
    let body = content(upload_bytes(extent));
    thread::scope(|scope| {
        let length = body.len();
        let sink = scope.spawn(move || take_body(&upstream, length));
        let sent = upload(nginx.port(), "/upload", &body);
        let taken = sink.join().map_err(|_| fault("the upstream panicked"))?;
        sent.map_err(|error| fault(format!("{error}; upstream: {:?}", taken.as_ref().err())))?;
        match taken? == body {
            true => Ok(()),
            false => Err(fault("the upstream got other bytes than were sent")),
        }
    })?;
    no_complaints(&nginx)?;
    Ok(Vec::new())
}

/// Accepts one connection within the time-out, takes a body and answers 200.
fn take_body(upstream: &TcpListener, length: usize) -> io::Result<Vec<u8>> {
    let mut stream = accept(upstream)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut all = Vec::new();
    let mut room = vec![0; 1 << 16];
    let mut begin = None;
    while begin.is_none_or(|begin: usize| all.len() < begin + length) {
        let bytes = stream.read(&mut room)?;
        if bytes == 0 {
            return Err(fault(format!("the end after {} bytes", all.len())));
        }
        all.extend_from_slice(&room[..bytes]);
        if begin.is_none() {
            begin = all.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
        }
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
    Ok(all.split_off(begin.unwrap_or(0)))
}

/// Accepts a connection within the time-out.
fn accept(listener: &TcpListener) -> io::Result<std::net::TcpStream> {
    listener.set_nonblocking(true)?;
    let mut accepted = None;
    super::super::load::until("nginx does not connect to the upstream", || {
        accepted = listener.accept().ok();
        accepted.is_some()
    })?;
    let (stream, _) = accepted.ok_or_else(|| fault("no connection"))?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}
