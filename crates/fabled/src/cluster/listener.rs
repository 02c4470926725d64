//! Accepts connections from processes of other hosts. Each sends its ticket as one line. Everything
//! after the line belongs to the process that gets the connection, so no further byte is consumed.
//!
//! A connection without a valid ticket occupies a place for at most [`DEADLINE`]. A refused
//! connection is closed without an answer; the reason is in this daemon's log.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::registry::Shared;
use super::ticket::{BadTicket, Inspector, LINE_BYTES_MAX};
use crate::cluster_link::{ClusterEvent, Ticket};

/// The longest time until the whole line has arrived.
const DEADLINE: Duration = Duration::from_secs(2);
/// The most connections whose ticket has not arrived. Further ones wait in the accept queue.
const WAITING_MAX: usize = 256;
/// The pause after accept(2) has failed because the process has no descriptor left.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// Why a connection is refused.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("no ticket came within {} s", DEADLINE.as_secs())]
    TooSlow,
    #[error("the first line is longer than {LINE_BYTES_MAX} bytes")]
    TooLong,
    #[error("it ended within the first line")]
    Ended,
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    #[error("its ticket is refused: {0}")]
    Ticket(#[from] BadTicket),
}

/// Accepts connections while it is polled.
pub(super) async fn serve(listener: TcpListener, host: String, shared: Arc<Shared>) {
    let places = Arc::new(Semaphore::new(WAITING_MAX));
    let inspector = Arc::new(Mutex::new(Inspector::default()));
    loop {
        // The semaphore is never closed, so this cannot fail.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("a connection from another host cannot be accepted: {error}");
                sleep(EXHAUSTED).await;
                continue;
            }
        };
        let (shared, inspector, host) = (Arc::clone(&shared), Arc::clone(&inspector), host.clone());
        tokio::spawn(async move {
            let admitted = admit(stream, &host, &shared, &inspector).await;
            drop(place);
            match admitted {
                Ok((stream, ticket)) => {
                    shared.outbox.push(ClusterEvent::Connection { stream, ticket });
                }
                Err(refusal) => tracing::warn!("refused a connection from {address}: {refusal}"),
            }
        });
    }
}

async fn admit(
    mut stream: TcpStream,
    host: &str,
    shared: &Shared,
    inspector: &Mutex<Inspector>,
) -> Result<(std::net::TcpStream, Ticket), Refusal> {
    let line = timeout(DEADLINE, read_line(&mut stream)).await.map_err(|_| Refusal::TooSlow)??;
    let secrets = shared.lock().view.secrets(Instant::now());
    let ticket = inspector.lock().unwrap_or_else(PoisonError::into_inner).open(
        &line,
        host,
        &secrets,
        SystemTime::now(),
        Instant::now(),
    )?;
    Ok((stream.into_std()?, ticket))
}

/// Reads a line without its end, and no byte after it.
async fn read_line(stream: &mut TcpStream) -> Result<Vec<u8>, Refusal> {
    let mut line = Vec::new();
    let mut seen = [0_u8; LINE_BYTES_MAX];
    loop {
        let count = stream.peek(&mut seen[line.len()..]).await?;
        if count == 0 {
            return Err(Refusal::Ended);
        }
        let start = line.len();
        let end = seen[start..start + count].iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(count, |end| end + 1);
        // The peeked bytes are in the socket's buffer: this does not wait, and consumes exactly
        // them.
        stream.read_exact(&mut seen[start..start + taken]).await?;
        line.extend_from_slice(&seen[start..start + taken]);
        if end.is_some() {
            line.pop();
            return Ok(line);
        }
        if line.len() >= LINE_BYTES_MAX {
            return Err(Refusal::TooLong);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::outbox::Outbox;
    use crate::cluster::records::HostRecord;
    use crate::cluster::registry::State;
    use crate::cluster::ticket::{seal, tests::ticket};
    use crate::cluster::wire::{Bytes, EventKind, KeyValue};
    use std::io::{Read, Write};
    use std::net::SocketAddr;
    use std::sync::mpsc;
    use std::thread::{self, JoinHandle};

    const SECRET: [u8; 32] = [9; 32];
    /// Ends a test that hangs; no test's result depends on it.
    const GUARD: Duration = Duration::from_secs(60);

    /// Runs a listener on a thread of its own.
    struct Serving {
        shared: Arc<Shared>,
        address: SocketAddr,
        thread: Option<JoinHandle<()>>,
    }

    impl Serving {
        fn start() -> Serving {
            let state = State::new("zone", "b", HostRecord::new(&[], "identity"));
            let shared = Shared::new(state, Outbox::new().unwrap());
            let key = KeyValue {
                key: Bytes::of("/fable/zone/key"),
                value: Bytes(
                    serde_json::to_vec(&crate::cluster::records::KeyRecord::new(
                        Some(&SECRET),
                        [0; 16],
                    ))
                    .unwrap(),
                ),
                ..KeyValue::default()
            };
            shared.lock().apply(&EventKind::Put, &key, Instant::now());
            let (sender, receiver) = mpsc::channel();
            let thread_shared = Arc::clone(&shared);
            let thread = thread::spawn(move || {
                let mut builder = tokio::runtime::Builder::new_current_thread();
                builder.enable_all().build().unwrap().block_on(async {
                    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                    sender.send(listener.local_addr().unwrap()).unwrap();
                    tokio::select! {
                        () = thread_shared.stop.notified() => {}
                        () = serve(listener, "b".to_owned(), Arc::clone(&thread_shared)) => {}
                    }
                });
            });
            let address = receiver.recv().unwrap();
            Serving { shared, address, thread: Some(thread) }
        }

        fn connect(&self) -> std::net::TcpStream {
            let stream = std::net::TcpStream::connect(self.address).unwrap();
            stream.set_read_timeout(Some(GUARD)).unwrap();
            stream
        }

        fn admitted(&self) -> (std::net::TcpStream, Ticket) {
            let started = Instant::now();
            while started.elapsed() < GUARD {
                match self.shared.outbox.take().pop() {
                    Some(ClusterEvent::Connection { stream, ticket }) => return (stream, ticket),
                    Some(other) => panic!("unexpected: {other:?}"),
                    None => {}
                }
                thread::sleep(Duration::from_millis(5));
            }
            panic!("nobody was admitted");
        }
    }

    impl Drop for Serving {
        fn drop(&mut self) {
            self.shared.stop.notify_one();
            let _ = self.thread.take().unwrap().join();
        }
    }

    fn line(nonce: u8) -> Vec<u8> {
        let mut line = seal(&ticket(), "b", &SECRET, [nonce; 16], SystemTime::now()).unwrap();
        line.push('\n');
        line.into_bytes()
    }

    /// Waits until the other side has closed, and asserts that it sent nothing.
    fn assert_refused(mut stream: std::net::TcpStream) {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(0) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            other => panic!("not refused: {other:?}"),
        }
    }

    #[test]
    fn what_follows_the_ticket_is_left_in_the_connection() {
        let serving = Serving::start();
        let mut client = serving.connect();
        client.write_all(&[&line(1)[..], b"\nbehind\n"].concat()).unwrap();
        let (mut stream, admitted) = serving.admitted();
        assert_eq!(admitted, ticket());
        stream.set_nonblocking(false).unwrap();
        let mut rest = [0; 8];
        stream.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"\nbehind\n");
        stream.write_all(b"back").unwrap();
        let mut answer = [0; 4];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"back");
    }

    #[test]
    fn a_ticket_may_come_byte_by_byte() {
        let serving = Serving::start();
        let mut client = serving.connect();
        client.set_nodelay(true).unwrap();
        for byte in line(1) {
            client.write_all(&[byte]).unwrap();
        }
        assert_eq!(serving.admitted().1, ticket());
    }

    #[test]
    fn what_is_no_ticket_is_closed() {
        let serving = Serving::start();
        let used = line(1);
        serving.connect().write_all(&used).unwrap();
        serving.admitted();
        let unsigned = br#"{"ticket":"{}","signature":""}"#;
        let long = vec![b'x'; 2 * LINE_BYTES_MAX];
        for bytes in [&b"\n"[..], b"GET / HTTP/1.1\r\n\r\n", &[0xff, b'\n'], &used, unsigned, &long]
        {
            let mut client = serving.connect();
            client.write_all(bytes).unwrap();
            if !bytes.contains(&b'\n') && bytes.len() < LINE_BYTES_MAX {
                client.shutdown(std::net::Shutdown::Write).unwrap();
            }
            assert_refused(client);
        }
        assert!(serving.shared.outbox.take().is_empty());
    }

    #[test]
    fn many_silent_strangers_keep_nobody_out() {
        let serving = Serving::start();
        let strangers: Vec<_> = (0..WAITING_MAX + 40).map(|_| serving.connect()).collect();
        let mut client = serving.connect();
        client.write_all(&line(1)).unwrap();
        assert_eq!(serving.admitted().1, ticket());
        strangers.into_iter().for_each(assert_refused);
    }
}
