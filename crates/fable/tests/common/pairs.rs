//! Makes both ends of a path in one process.

use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use fable::Kind;
use fable::transport::{self, ReadSlot, Transport, tls};

use crate::common::{TIME_LIMIT, create, try_send};
use crate::keys::keys_of;
use crate::random::Random;

/// Two ends of a path.
pub(crate) type Pair = (Box<dyn Transport>, Box<dyn Transport>);

/// Makes both ends of a path of this kind.
pub(crate) fn pair(kind: Kind) -> Pair {
    if kind == Kind::Tls {
        return tls_pair();
    }
    let (own, offer) = create(kind);
    (own, transport::open(offer).unwrap_or_else(|error| panic!("{kind}: {error}")))
}

/// Makes both ends over a TCP connection, and completes the handshake.
fn tls_pair() -> Pair {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let one = TcpStream::connect(listener.local_addr().expect("its address")).expect("it listens");
    let other = listener.accept().expect("a connection").0;
    let [leader, follower] = keys_of(1);
    let mut one = tls::connect(one.into(), &leader).unwrap();
    let mut other = tls::accept(other.into(), &follower).unwrap();
    assert!(try_send(&mut *other, 1, 0));
    let slot = loop {
        other.flush().unwrap();
        if let Some(slot) = one.acquire_read().unwrap() {
            break slot;
        }
    };
    one.release(slot);
    (one, other)
}

/// Receives the next message. Flushes the writer, which may not have sent all of it.
pub(crate) fn receive(writer: &mut dyn Transport, reader: &mut dyn Transport) -> ReadSlot {
    let begin = Instant::now();
    loop {
        writer.flush().expect("what is committed can be sent");
        if let Some(slot) = reader.acquire_read().expect("a message can be read") {
            return slot;
        }
        assert!(begin.elapsed() < TIME_LIMIT, "{}: the message does not arrive", reader.kind());
        std::thread::yield_now();
    }
}

/// Returns a random number less than the bound.
pub(crate) fn below(random: &mut Random, bound: usize) -> usize {
    (random.next() % bound as u64) as usize
}
