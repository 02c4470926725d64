//! Scenarios of the stream module: TCP and UDP to an echo server.

use super::super::Extent;
use super::super::content::content;
use super::super::counts::{Counts, End};
use super::super::load::TIMEOUT;
use super::super::outcome::Figures;
use super::no_complaints;
use crate::nginx::{Nginx, Setup};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How often an echo server checks whether it has to end.
const TICK: Duration = Duration::from_millis(20);

/// An echo server on a thread, which ends when this is dropped.
struct Echo {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been shown already.
            let _ = thread.join();
        }
    }
}

fn echo_streams() -> io::Result<Echo> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let serve = move || {
        while !is_over.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => drop(thread::spawn(move || echo_stream(stream))),
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        }
    };
    Ok(Echo { address, over, thread: Some(thread::spawn(serve)) })
}

/// Echoes until the peer ends or the time-out.
fn echo_stream(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_nodelay(true)?;
    let mut room = vec![0; 1 << 16];
    loop {
        match stream.read(&mut room)? {
            0 => return Ok(()),
            bytes => stream.write_all(&room[..bytes])?,
        }
    }
}

fn echo_datagrams() -> io::Result<Echo> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(TICK))?;
    let address = socket.local_addr()?;
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let serve = move || {
        let mut room = vec![0; 1 << 16];
        while !is_over.load(Ordering::Relaxed) {
            if let Ok((bytes, peer)) = socket.recv_from(&mut room) {
                // The peer may have closed.
                let _ = socket.send_to(&room[..bytes], peer);
            }
        }
    };
    Ok(Echo { address, over, thread: Some(thread::spawn(serve)) })
}

fn with_stream(setup: &mut Setup, echo: SocketAddr, listen: &str) {
    setup.main.push_str(&format!(
        "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\n\
         stream {{ server {{ listen 127.0.0.1:{{port2}}{listen}; proxy_pass {echo}; \
         proxy_timeout 20s; }} }}\n"
    ));
}

/// Makes connections with one message each, then one with much data.
pub(super) fn tcp(mut setup: Setup, extent: Extent) -> Figures {
    let echo = echo_streams()?;
    with_stream(&mut setup, echo.address, "");
    let nginx = Nginx::start(&setup)?;
    let address = SocketAddr::from(([127, 0, 0, 1], nginx.ports()[1]));
    let exchange = |bytes: &[u8]| {
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let mut writer = stream.try_clone()?;
        let mut got = vec![0; bytes.len()];
        thread::scope(|scope| {
            let sent = scope.spawn(move || writer.write_all(bytes));
            stream.read_exact(&mut got)?;
            sent.join().map_err(|_| io::Error::from(ErrorKind::Other))?
        })?;
        Ok(got == bytes)
    };
    let message = content(1000);
    let mut counts: Counts =
        (0..extent.pick(100, 5000)).map(|_| End::of(exchange(&message))).collect();
    counts.add(End::of(exchange(&content(extent.pick(5_000_000, 100_000_000)))));
    no_complaints(&nginx)?;
    Ok(counts.figures())
}

/// Sends datagrams of several clients, one at a time, so that none is lost to a full buffer.
pub(super) fn udp(mut setup: Setup, extent: Extent) -> Figures {
    let echo = echo_datagrams()?;
    with_stream(&mut setup, echo.address, " udp");
    let nginx = Nginx::start(&setup)?;
    let mut counts = Counts::default();
    for client in 0..10_u8 {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.connect(("127.0.0.1", nginx.ports()[1]))?;
        for number in 0..extent.pick(20_u16, 1000) {
            let [high, low] = number.to_be_bytes();
            let message = [client, high, low];
            let mut room = [0; 16];
            let answer = socket.send(&message).and_then(|_| socket.recv(&mut room));
            let end = End::of(answer.map(|bytes| room[..bytes] == message));
            counts.add(end);
            if end == End::TimedOut {
                return Ok(counts.figures());
            }
        }
    }
    no_complaints(&nginx)?;
    Ok(counts.figures())
}
