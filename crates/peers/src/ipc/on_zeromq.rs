//! ZeroMQ over ipc://: PAIR sockets for a ping-pong, PUSH and PULL for one way. A thread of the
//! library's own does the input and output of each end and batches by itself.

use ipcload::{End, Error, Invitation, Load, PATIENCE, Pattern, Result};
use zmq::{Context, Message, Socket, SocketType};

/// One end.
pub(super) struct ZeromqEnd(Socket);

/// Binds. The name is in the kernel's abstract name space: nothing is left in the file system.
pub(super) fn create(load: &Load) -> Result<(ZeromqEnd, Invitation)> {
    let kind = match load.pattern {
        Pattern::PingPong => SocketType::PAIR,
        Pattern::OneWay => SocketType::PULL,
    };
    let socket = socket(kind)?;
    let join = format!("ipc://@iobench-peers-{}", std::process::id());
    socket.bind(&join).map_err(Error::road)?;
    Ok((ZeromqEnd(socket), Invitation { join, ..Invitation::default() }))
}

/// Connects.
pub(super) fn join(load: &Load, address: &str) -> Result<ZeromqEnd> {
    let kind = match load.pattern {
        Pattern::PingPong => SocketType::PAIR,
        Pattern::OneWay => SocketType::PUSH,
    };
    let socket = socket(kind)?;
    socket.connect(address).map_err(Error::road)?;
    Ok(ZeromqEnd(socket))
}

fn socket(kind: SocketType) -> Result<Socket> {
    let patience_ms = PATIENCE.as_millis() as i32;
    let socket = Context::new().socket(kind).map_err(Error::road)?;
    let prepared = socket
        .set_linger(0)
        .and_then(|()| socket.set_sndtimeo(patience_ms))
        .and_then(|()| socket.set_rcvtimeo(patience_ms));
    prepared.map_err(Error::road)?;
    Ok(socket)
}

/// Whether it was done, or was not possible in time.
fn done(result: zmq::Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(zmq::Error::EAGAIN | zmq::Error::EINTR) => Ok(false),
        Err(error) => Err(Error::road(error)),
    }
}

impl End for ZeromqEnd {
    fn send(&mut self, bytes: usize, fill: impl Fn(&mut [u8])) -> Result<bool> {
        let mut message = Message::with_size(bytes);
        fill(&mut message);
        done(self.0.send(message, 0))
    }

    fn flush(&mut self) -> Result<bool> {
        Ok(true)
    }

    fn receive(&mut self, look: impl FnOnce(&[u8])) -> Result<bool> {
        let mut message = Message::new();
        let received = done(self.0.recv(&mut message, 0))?;
        if received {
            look(&message);
        }
        Ok(received)
    }

    fn has_helpers(&self) -> bool {
        true
    }
}
