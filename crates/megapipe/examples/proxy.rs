//! A TCP proxy: connects to a target for each client, and passes bytes, ends and resets on in both
//! directions. A side that does not read stops the other's input, so a connection takes about
//! `Config::output_pause` bytes of memory in each direction, however much its sender has.
//!
//! `cargo run -p megapipe --example proxy TARGET [ADDRESS]`, such as `127.0.0.1:80`.

use megapipe::{Accept, Channel, Event, Handle, Repeat, Result, Socket};
use std::net::{Shutdown, SocketAddr};

/// One side of a proxied connection.
#[derive(Clone, Copy)]
struct Side {
    /// The other side; `None` for the listener, and until it exists.
    other: Option<Handle>,
    /// Whether this side has sent everything.
    ended: bool,
}

const ALONE: Side = Side { other: None, ended: false };

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let target = words.next().ok_or("usage: proxy TARGET [ADDRESS]")?.parse()?;
    let listener = megapipe::listen(words.next().unwrap_or_else(|| "127.0.0.1:7000".into()))?;
    println!("listening on {}", listener.local_addr()?);

    let mut channel = Channel::new()?;
    let listening = channel.register(listener, ALONE)?;
    channel.accept(listening, Accept::lightweight())?;
    loop {
        let Some(done) = channel.dispatch(None)? else { continue };
        match done.event {
            Event::Accept(Ok(accepted)) => {
                if let Err(error) = begin(&mut channel, accepted.socket, target) {
                    eprintln!("a client is refused: {error}");
                }
            }
            // For example, no descriptors are left: the channel continues when some are free.
            Event::Accept(Err(error)) => eprintln!("accept: {error}"),
            Event::Receive(Ok(data)) if data.is_empty() => end(&mut channel, done.handle)?,
            Event::Receive(Ok(data)) => {
                if let Some(other) = channel.cookie(done.handle).and_then(|side| side.other) {
                    channel.write(other, data)?;
                }
            }
            Event::Receive(Err(_)) | Event::Write(Err(_), _) | Event::Connect(Err(_)) => {
                reset(&mut channel, done.handle)?;
            }
            _ => {}
        }
    }
}

/// Connects to the target for a client.
fn begin(channel: &mut Channel<Side>, client: Socket, target: SocketAddr) -> Result<()> {
    let client = channel.register(client, ALONE)?;
    let server = match channel.connect_to(target, Side { other: Some(client), ended: false }) {
        Ok(server) => server,
        Err(error) => return channel.abort(client).and(Err(error)),
    };
    channel.cookie_mut(client).expect("it was just registered").other = Some(server);
    channel.pair(client, server)?;
    channel.receive(client, Repeat::UntilCancelled)?;
    channel.receive(server, Repeat::UntilCancelled)
}

/// Passes the end of a side's bytes on; closes both when both have ended.
fn end(channel: &mut Channel<Side>, handle: Handle) -> Result<()> {
    let Some(side) = channel.cookie_mut(handle) else { return Ok(()) };
    side.ended = true;
    let Some(other) = side.other else { return Ok(()) };
    if channel.cookie(other).is_some_and(|other| other.ended) {
        channel.close(handle)?;
        channel.close(other)?;
        return Ok(());
    }
    // It leaves after the bytes that wait.
    channel.disconnect(other, Shutdown::Write)
}

/// Resets both sides: neither may take the last byte that it got for a good end.
fn reset(channel: &mut Channel<Side>, handle: Handle) -> Result<()> {
    if let Some(other) = channel.abort(handle)?.and_then(|side| side.other) {
        channel.abort(other)?;
    }
    Ok(())
}
