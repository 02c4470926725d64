//! ZeroMQ over ipc://: PAIR sockets for a ping-pong, PUSH and PULL for one-way. A thread of the
//! library does the I/O of each end and batches by itself.

use ipcload::{End, Error, Invitation, Load, Pattern, Result, TIME_LIMIT};
use zmq::{Context, Message, Socket, SocketType};

/// One end.
pub(super) struct ZeromqEnd(Socket);

/// Binds the first end. The name is in the kernel's abstract namespace, so no file remains.
pub(super) fn create(load: &Load) -> Result<(ZeromqEnd, Invitation)> {
    let kind = match load.pattern {
        Pattern::PingPong => SocketType::PAIR,
        Pattern::OneWay => SocketType::PULL,
    };
    let socket = socket(kind)?;
    let join = format!("ipc://@iobench-external-{}", std::process::id());
    socket.bind(&join).map_err(Error::transport)?;
    Ok((ZeromqEnd(socket), Invitation { join, ..Invitation::default() }))
}

/// Connects the second end.
pub(super) fn join(load: &Load, address: &str) -> Result<ZeromqEnd> {
    let kind = match load.pattern {
        Pattern::PingPong => SocketType::PAIR,
        Pattern::OneWay => SocketType::PUSH,
    };
    let socket = socket(kind)?;
    socket.connect(address).map_err(Error::transport)?;
    Ok(ZeromqEnd(socket))
}

fn socket(kind: SocketType) -> Result<Socket> {
    let time_limit_ms = TIME_LIMIT.as_millis() as i32;
    let socket = Context::new().socket(kind).map_err(Error::transport)?;
    let prepared = socket
        .set_linger(0)
        .and_then(|()| socket.set_sndtimeo(time_limit_ms))
        .and_then(|()| socket.set_rcvtimeo(time_limit_ms));
    prepared.map_err(Error::transport)?;
    Ok(socket)
}

/// Returns whether the operation succeeded; false after its time-out.
fn done(result: zmq::Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(zmq::Error::EAGAIN | zmq::Error::EINTR) => Ok(false),
        Err(error) => Err(Error::transport(error)),
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
